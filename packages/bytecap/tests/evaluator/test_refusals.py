"""Programs run plain and captured: refusals."""

from __future__ import annotations

import pytest
import torch

from bytecap import executor, optimize
from bytecap.errors import UnsupportedCall
from bytecap.testing import Programs

PROGRAMS = Programs()


def tensor(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3))


def matrix() -> torch.Tensor:
    return tensor(3, 4)


@PROGRAMS.add(matrix, refusal="BC004")
def branch(x):
    if x.sum() > 0:
        return x
    return -x


@PROGRAMS.add(matrix, refusal="BC004")
def item(x):
    return x * x.sum().item()


@PROGRAMS.add(matrix, refusal="BC004")
def float_of_tensor(x):
    return float(x[0, 0]) * x


@PROGRAMS.add(matrix, refusal="BC004")
def boolean_mask_index(x):
    return x[x > 0]


@PROGRAMS.add(matrix, refusal="BC004")
def tolist(x):
    return (x * 2).tolist()


@PROGRAMS.add(lambda: tensor(3).requires_grad_(), refusal="BC002")
def backward(x):
    (x * 2).sum().backward()
    return x.grad


@PROGRAMS.add(matrix, refusal="BC002")
def functionalized(x):
    return torch.func.functionalize(lambda r: r * 2)(x)


@pytest.mark.parametrize("program", PROGRAMS, ids=str)
def test_same_as_plain(program):
    program.check()


def test_a_function_of_cython_is_refused_as_unknown():
    numpy = pytest.importorskip("numpy")
    draw = numpy.random.rand

    def program(x):
        return x * draw()

    with pytest.raises(UnsupportedCall):
        optimize(program, lambda capture, inputs: executor(capture), fullgraph=True)(torch.ones(2))
