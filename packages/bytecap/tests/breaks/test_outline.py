"""Generators and coroutines as roots: what lies between two suspensions is captured."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bytecap import Broke, Captured, Refused, executor, optimize
from bytecap.errors import UnsupportedFrame
from bytecap.testing import check
from bytecap.testing.breaking import each, forced_breaks, once
from bytecap.testing.strategies import arguments, define, driven, moves, sources

X = torch.tensor([[0.0, 1.0], [2.0, 3.0]])


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(source=sources(suspends=True), make_arguments=arguments(), moves=moves())
def test_generated(source, make_arguments, moves):
    function = define(source)
    check(lambda: (function, make_arguments(function)), whole=False, use=lambda function: driven(function, moves))


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    source=sources(suspends=True), make_arguments=arguments(), moves=moves(),
    rule=st.one_of(st.integers(0, 80).map(once), st.integers(0, 20).map(each)),
)  # fmt: skip
def test_generated_with_forced_breaks(source, make_arguments, moves, rule):
    function = define(source)
    with forced_breaks(rule):
        check(lambda: (function, make_arguments(function)), whole=False, use=lambda function: driven(function, moves))


def captured(function: Any, use: Any, *, fullgraph: bool = True) -> list[int]:
    """How many calls each graph has; what `use` makes of the captured function is what it makes of the plain one."""
    events: list[Any] = []
    call = optimize(function, lambda capture, _: executor(capture), fullgraph=fullgraph, on_event=events.append)
    got, expected = use(call), use(function)
    assert len(got) == len(expected)
    assert all(torch.equal(*pair) if isinstance(pair[0], torch.Tensor) else pair[0] == pair[1]
               for pair in zip(got, expected, strict=True))  # fmt: skip
    assert not any(isinstance(event, Broke) for event in events)
    return [len(event.capture.graph.nodes) for event in events if isinstance(event, Captured)]


def listed(function: Any) -> list[Any]:
    return list(function(X))


def awaited(function: Any) -> list[Any]:
    return [asyncio.run(function(X))]


def test_a_loop_around_a_yield_runs_in_the_outline():
    def rows(x):
        y = x.sin()
        for scale in (2, 3):
            for _ in range(2):
                y = y * scale
            yield y.cos()

    assert captured(rows, listed) == [1, 3, 3]


def test_values_are_sent_in_and_returned():
    def steps(x):
        first = yield x + 1
        second = yield x * first
        return x - second

    def use(function):
        generator = function(X)
        seen = [next(generator), generator.send(2.0)]
        with pytest.raises(StopIteration) as stop:
            generator.send(X)
        return [*seen, stop.value.value]

    assert captured(steps, use) == [1, 1, 1]


def test_what_is_thrown_in_is_handled_and_the_end_is_cleaned_up():
    def guarded(x, log):
        try:
            yield x + 1
            yield x + 2
        except ValueError:
            yield x * 2
        finally:
            log.append(float(x.sum()))

    def use(function):
        log: list[Any] = []
        generator = function(X, log)
        seen = [next(generator), generator.throw(ValueError)]
        generator.close()
        with pytest.raises(StopIteration):
            next(generator)
        return [*seen, *log]

    captured(guarded, use, fullgraph=False)


def test_modes_are_open_across_a_suspension():
    def unrecorded(x):
        with torch.no_grad():
            y = x * 2
            yield y, torch.is_grad_enabled()
            yield (y + 1).requires_grad, torch.is_grad_enabled()
        yield (x * 3).requires_grad

    def use(function):
        generator = function(X.clone().requires_grad_())
        seen = [*next(generator)]
        torch.set_grad_enabled(True)
        return [*seen[1:], *next(generator), next(generator)]

    assert len(captured(unrecorded, use)) == 3


def test_a_coroutine_without_awaits_is_one_graph():
    async def scaled(x, *, scale=2):
        return (x * scale).sin()

    assert captured(scaled, awaited) == [2]


def test_a_coroutine_is_captured_around_its_awaits():
    async def waits(x):
        y = x * 2
        await asyncio.sleep(0)
        async with asyncio.Lock():
            y = y + 1
        return y.sin() + await asyncio.sleep(0, 1)

    assert captured(waits, awaited) == [1, 1, 1, 1]


def test_an_asynchronous_generator():
    async def ticks(x):
        for index in range(2):
            yield x + index
            await asyncio.sleep(0)
        yield x * 5

    async def collect(function):
        return [value async for value in function(X)]

    assert captured(ticks, lambda function: asyncio.run(collect(function))) == [1, 1, 1]


def test_comprehensions_that_await():
    async def scaled(x, factor):
        await asyncio.sleep(0)
        return x * factor

    async def ticks(x):
        for index in range(2):
            yield x + index

    async def gathers(x):
        y = x.sin()
        parts = [await scaled(y, factor) for factor in range(3)]
        z = torch.stack(parts).sum()
        more = [tick async for tick in ticks(z)]
        return sum(more) * 2

    assert captured(gathers, awaited) == [1, 2, 3]


def test_it_yields_from_others():
    def inner(x):
        yield x + 1
        return x * 2

    def outer(x):
        y = yield from inner(x.sin())
        yield y.cos()

    assert captured(outer, listed) == [1, 1]


def test_a_method_with_cells_and_super():
    class Base:
        def scale(self) -> int:
            return 3

    class Rows(Base):
        def rows(self, x, *more, factor=1, **named):
            def scaled():
                return x * super(Rows, self).scale() * factor

            yield scaled()
            x = x + len(more) + len(named)
            yield scaled() * super().scale()

    self = Rows()
    call = optimize(self.rows, lambda capture, _: executor(capture), fullgraph=True)
    for values in ((X,), (X, 1, 2)):
        got, expected = list(call(*values, factor=2, key=1)), list(self.rows(*values, factor=2, key=1))
        assert all(map(torch.equal, got, expected))


def test_a_generator_waits_for_its_first_step():
    def late(x):
        yield x * 2

    x = torch.ones(2)
    generator = optimize(late, lambda capture, _: executor(capture))(x)
    x.add_(1)
    assert torch.equal(next(generator), torch.full((2,), 4.0))


def test_stop_iteration_does_not_leave_it():
    def stops(x):
        yield x + 1
        raise StopIteration(x * 2)

    def use(function):
        generator = function(X)
        seen = [next(generator)]
        with pytest.raises(RuntimeError, match="generator raised StopIteration") as error:
            next(generator)
        return [*seen, type(error.value.__cause__)]

    captured(stops, use)


def test_it_is_made_once_for_all_generators():
    def doubles(x):
        yield x * 2
        yield x * 4

    events: list[Any] = []
    call = optimize(doubles, lambda capture, _: executor(capture), on_event=events.append)
    first, second = call(X), call(X)
    assert torch.equal(next(first), next(second))
    assert all(torch.equal(*pair) for pair in zip(first, second, strict=True))
    assert len(events) == 2
    assert inspect.isgenerator(first)
    assert first.__qualname__ == doubles.__qualname__
    again = optimize(call, lambda capture, _: executor(capture), fullgraph=True)
    assert torch.equal(next(again(X)), X * 2)


def test_one_that_reads_its_own_frame_runs_plain():
    def looks(x):
        yield sorted(locals())

    events: list[Any] = []
    call = optimize(looks, lambda capture, _: executor(capture), on_event=events.append)
    assert list(call(X)) == [["x"]]
    assert [(type(event), event.error.code) for event in events] == [(Refused, "BC007")]
    with pytest.raises(UnsupportedFrame, match="looks suspends and looks at its own frame"):
        optimize(looks, lambda capture, _: executor(capture), fullgraph=True)
