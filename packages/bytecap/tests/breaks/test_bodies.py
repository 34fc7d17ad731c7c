"""Drivers and segments without any capture: a function cut at each of its instructions gives what it gives whole."""

from __future__ import annotations

import inspect
import types

import pytest

from bytecap.breaks.flow import shapes_of
from bytecap.breaks.points import Continue, Resumption, Unbound, make_driver

LOG: list[object] = []


class Manager:
    def __init__(self, name):
        self.name = name

    def __enter__(self):
        LOG.append(("enter", self.name))
        return self

    def __exit__(self, *raised):
        LOG.append(("exit", self.name, raised[0]))
        return raised[0] is KeyError

    def method(self, *args, **kwargs):
        return self.name, args, tuple(kwargs.items())


def blocks(a, b, *c, d=3, **e):
    x = a
    r = []

    def g():
        nonlocal x
        x += 1
        return x

    try:
        with Manager(b) as q:
            for i in c:
                x += i
                r.append(q.method(i, *c, k=g()))
                if i == 2:
                    raise ValueError("two")
                if i == 5:
                    raise KeyError("five")
            else:
                y = len(r)
    except ValueError as error:
        r.append(repr(error))
        try:
            r.append(repr(error.__context__))
            raise TypeError("in")
        except TypeError as inner:
            r.append((repr(inner), repr(inner.__context__)))
    finally:
        r.append(g())
    z = [k * 2 for k in c if k]
    s = {k: [v] for k, v in e.items()}
    try:
        r.append(y)
    except UnboundLocalError as error:
        r.append(str(error))
    return x, r, z, s, d, (a if a else b), f"{a!r:>4}"


def loops(a, b, *c):
    total = 0
    for i in c:
        for j in range(i):
            if j > 3:
                continue
            total += a * j
        if total > 40:
            break
    else:
        total = -total
    while total > 5:
        total //= 2
        if total % 7 == b:
            return "early", total
    return [total, *c], {**{"a": a}}, total if a and b else (lambda: total)()


def matches(a, b, *c):
    match (a, {"b": b}, list(c)):
        case (0, {"b": n}, [first, *rest]):
            return n, first, rest
        case (n, {"b": 2 | 8}, _) if n > 1:
            return "two", n
        case _:
            del a
            try:
                return a
            except NameError as error:
                return type(error).__name__, b


ARGUMENTS = ((1, 2, 3, 4), (1, 2, 1, 2, 3), (0, 9, 4, 5), (7, 8))


def observed(function, arguments):
    LOG.clear()
    return repr(function(*arguments)), repr(LOG)


def entered_at_start(function, resumption):
    """The function by way of its driver."""
    code = function.__code__

    def call(*args):
        bound = inspect.signature(function).bind(*args)
        bound.apply_defaults()
        values = bound.arguments
        cells = tuple(
            types.CellType(values[name]) if name in values else types.CellType() for name in resumption.closure_names
        )
        point = resumption.target(resumption.start)
        state = Continue((point, [values.get(name, Unbound) for name in point.variables]))
        return make_driver(resumption, function.__globals__, cells)(state)

    assert code.co_freevars == ()
    return call


@pytest.mark.parametrize("function", [blocks, loops, matches])
def test_cut_at_each_instruction(function):
    expected = [observed(function, arguments) for arguments in ARGUMENTS]
    for index, shape in enumerate(shapes_of(function.__code__)):
        if shape is not None:
            resumption = Resumption(function.__code__)
            resumption.add_break(index)
            call = entered_at_start(function, resumption)
            assert [observed(call, arguments) for arguments in ARGUMENTS] == expected, index


@pytest.mark.parametrize("function", [blocks, loops, matches])
def test_cut_everywhere_at_once(function):
    resumption = Resumption(function.__code__)
    for index, shape in enumerate(shapes_of(function.__code__)):
        if shape is not None:
            resumption.add_break(index)
    assert len(resumption.plan.segments) > 40
    call = entered_at_start(function, resumption)
    for arguments in ARGUMENTS:
        assert observed(call, arguments) == observed(function, arguments)


def test_a_function_that_reads_its_frame_is_not_cut():
    def reads(x):
        return locals(), x

    def shadows(x):
        return dir(x), vars(x)

    assert not Resumption(reads.__code__).is_possible
    assert Resumption(shadows.__code__).is_possible
