"""What pure functions of libraries read of their arguments, while a frame is captured, is guarded."""

from __future__ import annotations

import fractions
import json
import math
import os
import pathlib
import statistics
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

from bytecap.testing.changes import check_arguments

X = torch.ones(3)


class Number:
    """Tells which of them was asked: code of the program runs when the program runs."""

    asked: list[int] = []  # noqa: RUF012

    def __init__(self, value: int) -> None:
        self.value = value

    def __floor__(self) -> int:
        self.asked.append(self.value)
        return self.value


# A program, and two arguments that it treats differently.
CASES: dict[str, tuple[Callable[..., Any], Any, Any]] = {
    "value in a dict": (lambda x, d: (x * 2, json.dumps(d)), {"a": 1}, {"a": 2}),
    "value deep in a dict": (lambda x, d: (x * 2, json.dumps(d)), {"a": [1, {"b": 2}]}, {"a": [1, {"b": 3}]}),
    "key in a dict": (lambda x, d: (x * 2, json.dumps(d)), {"a": 1}, {"b": 1}),
    "dict in a new dict": (lambda x, d: (x * 2, json.dumps({"k": d})), {"a": 1}, {"a": 2}),
    "item of a list": (lambda x, d: x * math.prod(d), [1, 2], [1, 3]),
    "item of a tuple": (lambda x, d: x * math.fsum(d), (1, 2.5), (1, 3.5)),
    "values of a dict": (lambda x, d: x * math.prod(d.values()), {1: 2}, {1: 3}),
    "mean": (lambda x, d: x * statistics.mean(d), [1, 2], [1, 6]),
    "fraction": (lambda x, d: x * float(d), fractions.Fraction(1, 2), fractions.Fraction(3, 2)),
    "sum of fractions": (
        lambda x, d: x * float(d + fractions.Fraction(1, 3)),
        fractions.Fraction(1, 2),
        fractions.Fraction(3, 2),
    ),
    "path": (lambda x, d: (x * 2, os.fspath(d)), pathlib.Path("a"), pathlib.Path("b")),
    "object of the program": (lambda x, d: x * math.floor(d), Number(1), Number(2)),
}


@pytest.mark.parametrize("name", CASES)
def test_changes_are_noticed(name: str) -> None:
    program, before, after = CASES[name]
    check_arguments(program, lambda: (X, before), lambda: (X, after))


def test_code_of_the_program_runs_once_a_call() -> None:
    Number.asked.clear()
    program, before, after = CASES["object of the program"]
    check_arguments(program, lambda: (X, before), lambda: (X, after))
    # check_arguments calls the program and its plain form, six times each.
    assert len(Number.asked) == 12


VIEWS = {"keys": {"a": 1}.keys(), "items": {"a": 1}.items(), "proxy": types.MappingProxyType({"a": 1})}


@pytest.mark.parametrize("name", VIEWS)
def test_views_from_outside_are_compared_by_what_they_hold(name: str) -> None:
    def compares(x, view):
        return x * 2, view == {"a"}, {"a"} != view, view == {"a": 1}, view in [{"a"}, {("a", 1)}], view == [3]

    check_arguments(compares, lambda: (X, VIEWS[name]), lambda: (X, {}.keys()))
