"""What callers make anew for each call (lambdas, closures, classes), and what only CPython knows the end of."""

from __future__ import annotations

import dataclasses
import functools
import typing
from typing import Any

import pytest
import torch

from bytecap import Broke, Captured, LimitReached, Refused, executor, optimize
from bytecap.testing import differences
from bytecap.testing.programs import Programs

PROGRAMS = Programs()


def x() -> torch.Tensor:
    return torch.arange(4.0)


class Shape(typing.TypedDict):
    width: int
    data: Any


class Row(tuple):
    def __new__(cls, *items):
        return super().__new__(cls, items)

    def total(self):
        return sum(self)


@PROGRAMS.add(x)
def a_typed_dict(x):
    shape = Shape(width=3, data=x)
    return shape["data"] * shape["width"], shape


@PROGRAMS.add(x)
def a_subclass_of_tuple(x):
    row = Row(1, 2)
    return x * row.total(), row, row[1]


@functools.singledispatch
def scaled(value, x):
    return x


@scaled.register
def _(value: int, x):
    return x * value


@scaled.register(list)
def _(value, x):
    return x + len(value)


class Scaler:
    @functools.singledispatchmethod
    def by(self, value, x):
        return x - 1

    @by.register
    def _(self, value: float, x):
        return x * value


@PROGRAMS.add(x)
def single_dispatch(x):
    return scaled(3, x), scaled(True, x), scaled([1, 2], x), scaled("o", x) * 2, Scaler().by(0.5, x), Scaler().by(1, x)


def test_a_registration_is_noticed() -> None:
    @functools.singledispatch
    def shifted(value, x):
        return x + 1

    def program(x, value):
        return shifted(value, x)

    captured = optimize(program, lambda capture, inputs: executor(capture))
    assert captured(x(), "a").tolist() == [1, 2, 3, 4]
    shifted.register(str, lambda value, x: x + 2)
    assert captured(x(), "a").tolist() == [2, 3, 4, 5]
    shifted.register(str, lambda value, x: x + 3)
    assert captured(x(), "a").tolist() == [3, 4, 5, 6]


class Ends:
    def __del__(self):
        print("end")


@PROGRAMS.add(x, refusal="BC002")
def an_object_with_an_end(x):
    y = x * 2
    end = Ends()
    del end
    print("after")
    return y


@pytest.mark.parametrize("program", PROGRAMS, ids=str)
def test_same_as_plain(program) -> None:
    program.check()


def run(function: Any, arguments: Any, count: int = 10) -> list[Any]:
    """Call plain and captured, `arguments(number)` made for each; returns the events."""
    events: list[Any] = []
    captured = optimize(function, lambda capture, inputs: executor(capture), on_event=events.append)
    for number in range(count):
        assert not differences(function(*arguments(number)), captured(*arguments(number))), number
    return events


def test_a_new_lambda_for_each_call() -> None:
    events = run(lambda x, f: f(x.relu()) + 1, lambda number: (x(), lambda v: v * 2))
    assert [type(event) for event in events] == [Captured]


def test_closures_and_defaults_are_guarded_by_what_they_hold() -> None:
    def arguments(number: int) -> tuple[Any, ...]:
        factor, bias = number // 5, torch.full((4,), float(number))
        return x(), lambda v, shift=number // 7, *, named="n": v * factor + bias + shift + len(named)

    events = run(lambda x, f: f(x) * 2, arguments)
    assert [type(event) for event in events] == [Captured] * 3


def test_another_function_of_the_same_shape() -> None:
    makers = (lambda k: lambda v: v * k, lambda k: lambda v: v + k)
    events = run(lambda x, f: f(x), lambda number: (x(), makers[number % 2](3)))
    assert [type(event) for event in events] == [Captured] * 2


def test_a_closure_that_counts() -> None:
    counts: list[list[int]] = [[], []]

    def arguments(side: int) -> tuple[Any, ...]:
        total = 0

        def step(v):
            nonlocal total
            total += 1
            return v * 2

        def tell():
            counts[side].append(total)

        return step, tell

    def program(x, step):
        return step(step(x)) + 1

    captured = optimize(program, lambda capture, inputs: executor(capture))
    for _ in range(3):
        for side, function in enumerate((program, captured)):
            step, tell = arguments(side)
            function(x(), step)
            tell()
    assert counts[0] == counts[1] == [2, 2, 2]


def test_two_closures_over_one_cell_or_two() -> None:
    def pair(shared: bool) -> tuple[Any, Any, Any]:
        def make() -> tuple[Any, Any]:
            n = 1

            def up():
                nonlocal n
                n += 1
                return n

            return up, lambda v: v * n

        up, use = make()
        return (x(), up, use if shared else make()[1])

    def program(x, up, use):
        return use(x + up()) + use(x)

    for first in (True, False):
        order = [first, not first, first]
        captured = optimize(program, lambda capture, inputs: executor(capture))
        for shared in order:
            assert torch.equal(program(*pair(shared)), captured(*pair(shared)))


def local_class() -> Any:
    @dataclasses.dataclass
    class Scale:
        by: int = 3

        def __call__(self, v):
            return v * self.by

    return Scale()


@pytest.mark.parametrize("program", [lambda x, o: o(x.relu()) + 1, lambda x, o: x * type(o)(2).by])
def test_a_new_class_for_each_call_ends_in_a_capture_that_leaves_it_open(program: Any) -> None:
    events = run(program, lambda number: (x(), local_class()), count=14)
    assert not [event for event in events if isinstance(event, LimitReached)]


def test_class_statements() -> None:
    def program(x):
        y = x.relu()

        class Local:
            factor = len("abc")

            def scaled(self, v):
                return v * self.factor

        return Local().scaled(y).sin() + len(Local.__name__)

    events = run(program, lambda number: (x(),), count=14)
    assert not [event for event in events if isinstance(event, LimitReached | Refused)]
    assert "BC002" in {event.error.code for event in events if isinstance(event, Broke)}
