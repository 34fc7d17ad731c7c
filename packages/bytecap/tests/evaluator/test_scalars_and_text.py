"""Programs run plain and captured: scalars and text."""

# ruff: noqa: UP031

from __future__ import annotations

import math

import pytest
import torch

from bytecap.testing import Programs

PROGRAMS = Programs()


def tensor(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3))


def matrix() -> torch.Tensor:
    return tensor(3, 4)


class Text(str):
    def __str__(self):
        return "text"

    def __repr__(self):
        return "Text"


class Whole(int):
    def __repr__(self):
        return "Whole"

    def __index__(self):
        return 7


class Real(float):
    def __float__(self):
        return 9.0


class Measured:
    def __index__(self):
        return 4

    def __float__(self):
        return 2.25

    def __str__(self):
        return "measured"


@PROGRAMS.add(matrix)
def subclasses_in_texts(x):
    values = (Text("ab"), Whole(3), Real(1.5), Measured())
    numbers = [pattern % value for pattern in ("%d", "%5.2f", "%.1e") for value in values[1:]]
    in_tuples = [pattern % (value,) for pattern in ("%d", "%5.2f", "%.1e") for value in values[1:]]
    texts = ["%s" % value for value in values], "%r" % values[0], "%r %s" % values[:2], "%c%c" % (Text("z"), Whole(65))
    return numbers, in_tuples, texts, [f"{value}|{value!s:>9}" for value in values], "%x" % values[1], x + 1


class Chosen(set):
    pass


class Frozen(frozenset):
    pass


@PROGRAMS.add(matrix)
def texts_of_sets(x):
    sets = {1}, set(), frozenset("a"), frozenset(), Chosen([2]), Chosen(), Frozen([3]), Frozen()
    texts = [(str(each), repr(each), f"{each}", "%s" % (each,)) for each in sets]
    return texts, f"{[*sets]}", str({"key": {1}}), x + 1


def complaint(function):
    try:
        return function()
    except TypeError as error:
        return str(error)


@PROGRAMS.add(matrix)
def complaints_of_operators_and_formats(x):
    attempts = (
        lambda: f"{set():>3}",
        lambda: f"{Chosen():>3}",
        lambda: {1} < 3,
        lambda: [1] < (1,),
        lambda: [x] < Measured(),
        lambda: x < None,
        lambda: -[],
        lambda: ~Measured(),
        lambda: [x][Measured],
        lambda: [x].__delitem__("a"),
        lambda: range(3)[[]],
    )
    return [complaint(attempt) for attempt in attempts], x + 1


@PROGRAMS.add(matrix)
def strings(x):
    s = f"{x.shape} {x.dtype!r} {3.14159:.2f} {'a'!r:>5} {x.shape[0]:03d}"
    return x + 1, s, "%d-%s" % (3, "a"), f"{1} {2}", s.upper().split(), "-".join(["a", "b"])


@PROGRAMS.add(matrix)
def numbers(x):
    return (
        x * math.sqrt(2),
        math.pi,
        round(2.567, 1),
        abs(-3),
        divmod(7, 2),
        7 // 2,
        -7 % 3,
        2**10,
        1 << 3,
        5 ^ 1,
        ~4,
        int("12"),
        float("1e3"),
        complex(1, 2),
        0.1 + 0.2,
        1e308 * 10,
        hex(10),
        bin(3),
        ord("a"),
        pow(2, 3, 5),
    )


@PROGRAMS.add(lambda: tensor(3), lambda: "a")
def string_argument(x, s):
    return {"a": x, "b": -x}[s], s + "b", s * 2, s in "abc", s[0], s.encode()


@PROGRAMS.add(matrix)
def string_operations(x):
    return (
        x.sum(),
        ["a", "b"],
        "x".join("ab"),
        "Abc".lower(),
        "abc"[::-1],
        "a" * 3,
        "abc".startswith("a"),
        f"{x.dtype}",
        f"{3:>4}",
        "a" < "b",
        "abc".find("c"),
        "a b".replace(" ", "_"),
        b"ab",
        b"a" + b"b",
        "é".upper(),
        f"{1:{'>'}{5}}|{1.5!r}|{'s'!a}",
        str(x.dtype),
        repr("a"),
        str([1, "a"]),
        str({"a": (1,)}),
        f"{x.shape[0]=}",
        "a".isalpha(),
        chr(97),
        "abc".zfill(5),
        "a\n".strip(),
        "aXb".partition("X"),
    )


@PROGRAMS.add(
    matrix,
    lambda: None,
    lambda: True,
    lambda: 2.5,
    lambda: "s",
    lambda: (1, (2, [3])),
    lambda: torch.float64,
    lambda: slice(1, 2),
    lambda: range(3),
    lambda: 1 + 2j,
    lambda: b"q",
    lambda: ...,
)
def literals(x, n, b, f, s, t_, dt, sl, r, c, by, el):
    return x.to(dt) * f if b else n, x[sl], list(r), s + "1", t_[1][1][0], c * 2, by, x[el]


@PROGRAMS.add(matrix)
def typechk(x):
    return (
        isinstance(x, torch.Tensor),
        type(x) is torch.Tensor,
        isinstance(3, (int, str)),
        x.is_floating_point(),
        x.dtype == torch.float32,
        x.device.type,
        callable(len),
        issubclass(bool, int),
        torch.is_tensor(x),
        x.dtype.is_floating_point,
        x.requires_grad,
    )


@PROGRAMS.add(lambda: tensor(4), lambda: tensor(4))
def identity(x, y):
    return x is y, x is x, x is not None


@pytest.mark.parametrize("program", PROGRAMS, ids=str)
def test_same_as_plain(program):
    program.check()
