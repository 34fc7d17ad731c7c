"""Programs run plain and captured: control flow."""

# ruff: noqa: B007, F821

from __future__ import annotations

import dataclasses
import typing

import pytest
import torch

from bytecap.testing import Programs

PROGRAMS = Programs()


def tensor(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3))


def matrix() -> torch.Tensor:
    return tensor(3, 4)


@PROGRAMS.add(matrix, lambda: [1, 2, 3])
def loops(x, l):
    out = []
    for i, v in enumerate(l):
        if i % 2:
            continue
        out.append(x * v)
    else:
        out.append(i)
    while len(out) < 5:
        out.append(x + len(out))
    return out


@PROGRAMS.add(matrix)
def whiles(x):
    n = 0
    while n < 5:
        n += 1
        if n == 2:
            continue
        if n == 4:
            break
        x = x * n
    else:
        n = 100
    for i in range(3):
        for j in range(3):
            if j == 1:
                break
        else:
            n = 50
    return x, n, i, j


@PROGRAMS.add(matrix)
def whiletrue(x):
    i = 0
    while True:
        i += 1
        x = x + 1
        if i > 3:
            break
    return x


@PROGRAMS.add(matrix)
def chained(x):
    n = x.size(0)
    return x if 1 < n < 5 else -x


@dataclasses.dataclass
class D:
    a: typing.Any
    b: typing.Any = None
    c: list = dataclasses.field(default_factory=list)


@PROGRAMS.add(matrix)
def match(x):
    match x.shape:
        case (3, n):
            r = n
        case _:
            r = 0
    match {"a": 1, "b": x}:
        case {"a": 1, "b": v}:
            q = v
    match D(x, 2):
        case D(a=a, b=2):
            w = a
    return r, q, w


@PROGRAMS.add(matrix)
def ternary(x):
    y = x if x.ndim == 2 else None
    z = None if y is None else y + 1
    a = y is not None and z
    return a


@PROGRAMS.add(matrix)
def boolean_operators(x):
    return (x is None or x), (0), (x.shape[0] > 2 and "y"), not x.shape


@PROGRAMS.add(matrix)
def walrus(x):
    if (n := x.shape[0]) > 2:
        return x * n


@PROGRAMS.add(matrix)
def asserts(x):
    assert x.shape[1] == 4, "no"
    assert x.dim() == 2
    return x.t()


@PROGRAMS.add(matrix)
def delete(x):
    y = x * 2
    del y
    try:
        return y
    except UnboundLocalError as e:
        return str(e), x


@PROGRAMS.add(matrix)
def long_loop(x):
    for i in range(300):
        x = x + i
    return x


@PROGRAMS.add(matrix)
def default_none(x, m=None):
    return x if m is None else x * m


@pytest.mark.parametrize("program", PROGRAMS, ids=str)
def test_same_as_plain(program):
    program.check()
