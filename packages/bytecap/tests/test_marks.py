"""Marks on callables and stances, as the evaluator and the hook see them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from bytecap import (
    Captured,
    assume_constant,
    disable,
    executor,
    graph_break,
    hook,
    is_compiling,
    optimize,
    reset,
    set_stance,
)
from bytecap.driver.stances import STANCES, current_stance
from bytecap.hook.directives import mark_of, original_of, reason_of

X = torch.ones(3)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (disable(lambda x: x), "disabled"),
        (disable(lambda x: x, recursive=False), "skipped"),
        (torch.compiler.disable(lambda x: x), "disabled"),
        (torch.compiler.disable(lambda x: x, recursive=False), "skipped"),
        (assume_constant(lambda: 3), "constant"),
        (torch.compiler.assume_constant_result(lambda: 3), "constant"),
        (graph_break, "break"),
        (is_compiling, None),
        (lambda x: x, None),
    ],
)
def test_marks(function: Any, expected: str | None) -> None:
    assert mark_of(function) == expected


def test_reasons_and_originals() -> None:
    def f(x):
        return x

    assert reason_of(disable(f, reason="slow")) == "slow"
    assert reason_of(torch.compiler.disable(f, reason="slow")) == "slow"
    assert original_of(torch.compile(f, backend="eager")) is f
    assert original_of(f) is None


def test_disabled_code_hides_what_it_calls() -> None:
    events: list[Any] = []
    inner = optimize(lambda x: x * 2, lambda capture, inputs: executor(capture), on_event=events.append)
    disable(inner)(X)
    assert events == []
    inner(X)
    assert [type(event) for event in events] == [Captured]


def test_a_bound_method_keeps_its_object() -> None:
    class Thing:
        factor = 3

        def scale(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.factor

    thing = Thing()
    plain = disable(thing.scale)
    assert plain.__self__ is thing
    assert torch.equal(plain(X), X * 3)


def compiled(function: Callable[..., Any]) -> tuple[Callable[..., Any], list[Any]]:
    events: list[Any] = []
    return optimize(function, lambda capture, inputs: executor(capture), on_event=events.append), events


def test_every_stance_gives_the_plain_result() -> None:
    for stance in STANCES:
        call, _ = compiled(lambda x, n: x * n)
        if stance == "fail_on_recompile":
            call(X, 2)
        with set_stance(stance):
            assert current_stance() == stance
            for _ in range(3):
                assert torch.equal(call(X, 2), X * 2)
    assert current_stance() == "default"


def test_stances_nest_and_survive_errors() -> None:
    def fail() -> None:
        with set_stance("force_eager"):
            with set_stance("eager_on_recompile"):
                assert current_stance() == "eager_on_recompile"
            assert current_stance() == "force_eager"
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert current_stance() == "default"


def helper(x):
    return x * 3


def test_reset_reaches_what_plain_code_called() -> None:
    def function(x):
        y = helper(x)
        graph_break()
        return y + helper(x)

    call, events = compiled(function)
    call(X)
    first = sum(isinstance(event, Captured) for event in events)
    reset()
    call(X)
    assert sum(isinstance(event, Captured) for event in events) == 2 * first
    assert not any(hook.entries(code) and hook.status(code, call.owner) == "skipped" for code in call.owner.marked)


def test_reset_reaches_every_callable_that_lives() -> None:
    pairs = [compiled(lambda x, k=k: x * k) for k in range(3)]
    for call, _ in pairs:
        call(X)
    reset()
    for k, (call, events) in enumerate(pairs):
        assert torch.equal(call(X), X * k)
        assert [event.reason for event in events] == [None, None]
