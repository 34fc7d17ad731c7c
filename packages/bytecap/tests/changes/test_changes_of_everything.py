"""Arguments that are another kind of object in each call, until the captures leave them open: what is asked of one in
the last capture holds for the calls after it."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bytecap import CaptureWarning, executor, optimize
from bytecap.testing import differences

LIMIT = 8


class Odd:
    """An object that is equal to nothing, itself too, and that is false."""

    def __eq__(self, other: object) -> bool:
        return False

    def __hash__(self) -> int:
        return 1

    def __bool__(self) -> bool:
        return False


class Callable_:
    def __call__(self, value: Any) -> Any:
        return value


ODD, CALLABLE = Odd(), Callable_()
LAMBDAS = [lambda v, i=i: v * i for i in range(8)]
VALUES = [
    1, 2.5, "a", (1,), [1], {}, {None: 1}, b"x", print, ODD, CALLABLE, float("nan"), range(3), {1, 2}, 1j, int, torch,
    torch.float32, torch.strided, slice(1), ..., NotImplemented, functools.partial(int), torch.ones(3), iter([1]),
    *LAMBDAS,
]  # fmt: skip
LAST = [None, True, False, 0, "", (), torch.float32, ..., ODD, float("nan"), torch.zeros(3)]

QUESTIONS = [
    "k is None", "k is not None", "None is k", "k is True", "k is not False", "k is ...", "k is torch.float32",
    "k is k", "k is m", "k is not m", "k is ODD", "k == k", "k != k", "k == m", "k == 1",
    "k is None or k is m", "k in (None, 1)", "None in (k,)", "k in (k,)", "m in [k]", "(k,) == (None,)",
    "[k, 1] == [m, 1]", "[None].count(k)", "isinstance(k, int)", "isinstance(k, (str, type(None)))",
    "issubclass(type(k), int)", "type(k) is int", "type(k) is type(m)", "k.__class__ is int", "callable(k)",
    "hasattr(k, 'real')", "getattr(k, 'real', 0) is None", "bool(k)", "k", "not k", "(k or 1) == 1", "(k and 1) == 1",
    "len(k)", "[*k]", "hash(k) == hash(1)", "k in {None: 1}", "{k: 1}.get(None)", "{None: 1}.get(k)",
    "{k, m} == {None}", "id(k) == id(None)", "id(k) == id(m)", "str(k) == 'None'", "f'{k}' == 'None'",
    "repr(k) < repr(m)", "'%s' % k == 'None'", "'{}'.format(k) == 'True'", "k + 1", "-k", "1 < k", "k < m", "x is k",
    "(x == k) is False", "(x != k) is True", "operator.is_(k, None)", "operator.not_(k)", "any([k])", "all((k, m))",
    "max(k, m) is None", "sorted([2, 1], key=k) == [1, 2]", "[3, 4][k]", "[3, 4][k:] == [3, 4]", "k[0]", "'a' in k",
    "k()", "k(1)", "next(k, 1)", "next(iter([]), k) is None", "dict(a=k)['a'] is None", "matched(k)", "picked(k)",
    "raised(k)", "caught(k)", "opened(k)", "error(k)", "defaulted(k)", "held(k)", "[*map(k, [1])]",
    "[*filter(k, [0, 1])]", "functools.partial(same, k)() is None", "range(k)", "slice(k).start is None", "vars(k)",
    "[1, 2].sort(key=k) is None", "sum([1], k)", "abs(k)", "round(2.5, k) == 2", "int(k)", "k.value", "dir(k)",
    "iter(k)",
]  # fmt: skip

PRELUDE = """
def same(value):
    return value

def matched(k):
    match k:
        case None:
            return 1
        case True:
            return 0
        case int() | str():
            return 2
        case [_, *_]:
            return 3
        case {}:
            return 4
        case _:
            return 0

def picked(k):
    match k:
        case 1 | 2.5 | "a":
            return 1
        case (1,):
            return 2
        case {None: 1}:
            return 3
        case torch.float32:
            return 4
    return 0

def raised(k):
    try:
        raise k
    except TypeError:
        return 1

def caught(k):
    try:
        raise ValueError
    except k:
        return 1

def opened(k):
    with k:
        return 1

def error(k):
    return type(OSError(k, "text")) is OSError and ValueError(k).args == (None,)

def defaulted(k=None, other=None):
    k = other if k is None else k
    return k is None

class Box:
    def __init__(self, held):
        self.held = held

    def __eq__(self, other):
        return self.held is other.held

def held(k):
    return Box(k) == Box(None) or [Box(k), None][0].held is True

def program(x, k, m):
    y = x + 1
"""


def outcome(function: Callable[..., Any], *args: Any) -> Any:
    try:
        return function(*args)
    except Exception as error:
        return type(error)


def program_of(questions: list[str]) -> Callable[..., Any]:
    """A function that adds another number for each question that is answered with yes."""
    lines = [f"    if {asked}:\n        y = y + {10**number}.5\n" for number, asked in enumerate(questions, 1)]
    names = {"torch": torch, "functools": functools, "operator": __import__("operator"), "ODD": ODD}
    exec(compile(PRELUDE + "".join(lines) + "    return y * 2, k\n", "<asked>", "exec"), names)
    return names["program"]


def check(questions: list[str], values: list[tuple[Any, Any]]) -> None:
    torch.compiler.reset()
    program = program_of(questions)
    compiled = optimize(program, lambda capture, _: executor(capture), recompile_limit=LIMIT)
    x = torch.ones(3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CaptureWarning)
        for k, m in values:
            expected, found = [outcome(call, x, *map(unused, (k, m))) for call in (program, compiled)]
            assert not differences(found, expected), (questions, k, m)


def unused(value: Any) -> Any:
    """The value; a new one where it is an iterator."""
    return iter([1]) if isinstance(value, type(iter([]))) else value


@pytest.mark.parametrize("asked", QUESTIONS)
def test_an_answer_of_the_last_capture_is_guarded(asked):
    kinds = [(value, 7) for value in (1, 2.5, "a", (1,), [1], b"x", LAMBDAS[0], LAMBDAS[1])]
    for turned in (False, True):
        first = [(m, k) for k, m in kinds] if turned else kinds
        last = [(m, k) for k in LAST for m in (7,)] if turned else [(k, m) for k in LAST for m in (7, k)]
        check([asked], first + last)


@settings(max_examples=60)
@given(
    st.lists(st.sampled_from(QUESTIONS), min_size=1, max_size=3),
    st.lists(st.tuples(st.sampled_from(VALUES), st.sampled_from([*VALUES, 7, 7, 7])), min_size=10, max_size=10),
    st.lists(st.tuples(st.sampled_from(LAST), st.sampled_from([*LAST, 7])), min_size=3, max_size=5),
)
def test_whatever_is_asked_of_ten_kinds_of_values(questions, first, last):
    check(questions, first + last)
