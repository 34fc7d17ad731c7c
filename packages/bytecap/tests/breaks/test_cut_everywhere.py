"""Small programs, broken before each of their instructions in turn: what CPython keeps on the stack and in cells."""

from __future__ import annotations

import collections
import contextlib
import itertools
import traceback

import pytest
import torch

from bytecap import Broke, executor, optimize
from bytecap.testing import check
from bytecap.testing.breaking import each, forced_breaks, once
from bytecap.testing.programs import Programs

PROGRAMS = Programs()


def vector():
    return torch.linspace(0.1, 0.7, 4)


@PROGRAMS.add(vector)
def displays(x):
    first = [1, 2, 3]
    del first[0]
    return [*first, x, *"ab"], {*first, 7}, {"a": x, **{"b": 1}}, (*first, 2), [i * 2 for i in first if i > 2]


class Base:
    def __init__(self, a, b=1):
        self.a, self.b = a, b

    def scaled(self, by):
        return self.a * by


class Derived(Base):
    def __init__(self, *a, **k):
        super().__init__(*a, **k)
        self.c = super().scaled(2)
        self.d = super(Derived, self).scaled(by=3)  # noqa: UP008 (each form is compiled in its own way)


@PROGRAMS.add(vector)
def every_super(x):
    made = Derived(x, b=2)
    return made.b, made.c, made.d


class Manager:
    def __init__(self, log):
        self.log = log

    def __enter__(self):
        return self

    def __exit__(self, cls, raised, trace):
        self.log.append((cls, str(raised), trace is not None))


@PROGRAMS.add(vector)
def raised_in_with(x):
    log = []
    try:
        with Manager(log):
            raise ValueError("q")
    except ValueError as error:
        log.append((str(error), error.args, error.__traceback__ is not None))
        try:
            raise KeyError("k") from error
        except KeyError as inner:
            log.append((inner.__cause__ is error, inner.__context__ is error))
    with contextlib.suppress(KeyError):
        {}["a"]
    return x + 1, log


@PROGRAMS.add(vector)
def deques_that_change_while_they_are_walked(x):
    queue, found = collections.deque([1, 2, 3]), []
    for start in (iter, reversed):
        walk = start(queue)
        found.append(next(walk))
        queue.append(4)
        for _ in range(3):
            try:
                found.append(next(walk, "over"))
            except RuntimeError as error:
                found.append(str(error))
    return x * 2, found, list(reversed(queue))


@PROGRAMS.add(vector)
def a_generator_that_is_dropped(x):
    log = []

    def numbers():
        try:
            yield len(log)
        finally:
            log.append("closed")

    first = next(numbers())
    for _ in range(2):
        log.append(next(numbers()))
    return first, log, x * 2


class Halved(collections.OrderedDict):
    def __getitem__(self, key):
        return super().__getitem__(key)[0]


HALVED = Halved(a=(range, 3), b=(list, "xy"))


@PROGRAMS.add(vector)
def past_its_own_methods(x):
    made = dict.__getitem__(HALVED, "b")
    return made[0], x * 2, HALVED["a"]


class Hashed:
    def __hash__(self):
        return -3550055125485641917


@PROGRAMS.add(vector)
def hashes(x):
    return hash(Hashed()) == hash(Hashed()), x * 2


@PROGRAMS.add(vector)
def empty_cells(x):
    def inner():
        return later

    messages = []
    for function in (inner, lambda: later):
        try:
            function()
        except NameError as error:
            messages.append((type(error), str(error)))
    try:
        return later
    except NameError as error:
        messages.append((type(error), str(error)))
    later = x
    return messages, inner() is later


@PROGRAMS.add(vector)
def in_a_region(x):
    with torch.profiler.record_function("region"):
        y = x * 2
    return y


@torch._dynamo.dont_skip_tracing
def traced_by_torch(x):
    y = x * 2
    with torch.profiler.record_function("inner"):
        return y.sin()


@PROGRAMS.add(vector)
def under_settings_of_torch(x):
    before = torch._dynamo.config.dont_skip_tracing
    y = traced_by_torch(x)
    return y + 1, before, torch._dynamo.config.dont_skip_tracing


@PROGRAMS.add(vector)
def uncaught(x):
    y = x + 1
    if y.dim() == 1:
        raise ValueError("one")
    return y


@pytest.mark.parametrize("program", PROGRAMS, ids=str)
def test_each_instruction(program):
    for count in itertools.count():
        with forced_breaks(once(count)) as forced:
            report = check(program.make, whole=False)
        assert "BC014" not in report.codes, report.events
        if not forced.breaks:
            break
    assert count > 8


@pytest.mark.parametrize("program", PROGRAMS, ids=str)
@pytest.mark.parametrize("count", range(6))
def test_every_capture(program, count):
    with forced_breaks(each(count)) as forced:
        report = check(program.make, whole=False)
    assert forced.breaks > 0
    assert any(isinstance(event, Broke) for event in report.events)


def test_a_traceback_names_each_function_once():
    def raises(x):
        x = x + 1
        raise ValueError("here")

    with forced_breaks(each(1)):
        call = optimize(raises, lambda capture, inputs: executor(capture))
        for _ in range(2):
            with pytest.raises(ValueError, match="here") as raised:
                call(vector())
            rows = traceback.extract_tb(raised.value.__traceback__)[1:]
            assert [(row.name, row.lineno) for row in rows] == [("raises", raises.__code__.co_firstlineno + 2)]


def test_an_exception_from_outside_is_read_at_each_run():
    def f(x):
        try:
            raise ValueError(x.sum().item())
        except ValueError as error:
            zero = (x * 0).sum().item()
            return str(error), error.args, error, x * zero

    call = optimize(f, lambda capture, inputs: executor(capture), on_event=lambda event: None)
    for number in (1.0, 2.0, 3.0, 4.0, 2.0):
        got, expected = call(torch.full((2,), number)), f(torch.full((2,), number))
        assert got[:2] == expected[:2]
        assert str(got[2]) == str(expected[2])
