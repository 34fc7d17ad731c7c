"""Flat memory: calls, recompiles, resets, refusals. (`nox -s leaks` does the same a thousand times longer.)"""

from __future__ import annotations

import contextlib
import gc
import os
import types
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from bytecap import executor, hook, optimize, reset
from bytecap.testing.memory import growth

SCALE = int(os.environ.get("BYTECAP_LEAKS", "1"))
"""How many times longer than in the tests."""
X = torch.ones(3)


def eager(capture: Any, inputs: Any) -> Callable[..., Any]:
    return executor(capture)


def compiled(function: Callable[..., Any], **settings: Any) -> Callable[..., Any]:
    return optimize(function, eager, on_event=lambda event: None, **settings)


def calls() -> Callable[[], object]:
    scale = nn.Parameter(torch.ones(3))
    run = compiled(lambda x, n, *rest, **named: x * scale * n + len(rest) + len(named))
    return lambda: [run(X, 2, 3, a=4) for _ in range(300)]


def misses() -> Callable[[], object]:
    """New versions up to the limit, then plain calls; a new callable each round."""

    def round_() -> None:
        run = compiled(lambda x, n: x * n, recompile_limit=3)
        for n in range(5):
            run(X, n)

    return round_


def resets() -> Callable[[], object]:
    run = compiled(lambda x, n: torch.relu(x) * n)

    def round_() -> None:
        run(X, 2)
        reset()

    return round_


def models() -> Callable[[], object]:
    def round_() -> None:
        run = compiled(nn.Sequential(nn.Linear(3, 3), nn.ReLU()))
        run(X).sum().backward()

    return round_


def refusals() -> Callable[[], object]:
    def refused(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.sum() > 0 else x

    def round_() -> None:
        code = refused.__code__.replace()
        run = compiled(types.FunctionType(code, globals(), "refused"))
        run(X)
        run(X)

    return round_


def failures() -> Callable[[], object]:
    run = compiled(lambda x, n: x @ torch.ones(n))

    def round_() -> None:
        with pytest.raises(RuntimeError):
            run(X, 4)

    return round_


# What one round does, how many rounds, and what it may keep (KiB; measuring is not finer than a page in some rounds).
CASES: dict[str, tuple[Callable[[], Callable[[], object]], int, float]] = {
    "calls": (calls, 90, 2.0),
    "recompiles": (misses, 40, 2.0),
    "resets": (resets, 60, 2.0),
    "models": (models, 40, 4.0),
    "refusals": (refusals, 60, 2.0),
    "failures": (failures, 100, 1.0),
}


@pytest.mark.parametrize("name", CASES)
def test_memory_is_flat(name: str) -> None:
    make, rounds, bound = CASES[name]
    assert growth(make(), rounds * SCALE, warm=rounds) < bound / SCALE


def test_what_is_dropped_is_collected() -> None:
    model = nn.Linear(3, 3)
    graphs: list[Any] = []

    def backend(capture: Any, inputs: Any) -> Callable[..., Any]:
        run = executor(capture)
        graphs.append(weakref.ref(run))
        return run

    run = optimize(model, backend)
    run(X)
    run(torch.ones(2, 3))
    references = [weakref.ref(run), weakref.ref(run.owner), weakref.ref(model), weakref.ref(model.weight), *graphs]
    del run, model
    gc.collect()
    assert [reference() for reference in references] == [None] * 6


def test_values_of_a_graph_live_no_longer_than_they_are_used() -> None:
    """As in eager: backend="eager" would need more memory than the program else."""
    made: list[weakref.ref[Any]] = []
    alive: list[int] = []

    @torch.library.custom_op("bytecap_leaks::noted", mutates_args=())
    def noted(x: torch.Tensor) -> torch.Tensor:
        result = x * 2
        made.append(weakref.ref(result))
        alive.append(sum(reference() is not None for reference in made))
        return result

    @noted.register_fake
    def _(x: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(x)

    def function(x: torch.Tensor) -> torch.Tensor:
        for _ in range(6):
            x = noted(x)
        return x

    with torch.no_grad():
        function(X)
        expected = list(alive)
        made.clear()
        alive.clear()
        compiled(function, fullgraph=True)(X)
    assert alive == expected


class Holder:
    """Holds what is compiled from its own method, whose code holds it."""

    def __init__(self) -> None:
        self.factor = 3

    def broken(self, x: torch.Tensor) -> Any:
        y = x * self.factor
        if y.sum() > 0:
            y = y + 1
        return y * 2, self, Holder


def test_cycles_through_replacement_code_are_collected() -> None:
    def made() -> tuple[weakref.ref[Any], ...]:
        class Own(Holder):
            def whole(self, x: torch.Tensor) -> Any:
                return x * self.factor, self, Own

        holder = Own()
        holder.run_whole = compiled(holder.whole)
        holder.run_broken = compiled(holder.broken)
        for _ in range(2):
            holder.run_whole(X)
            holder.run_broken(X)
        return weakref.ref(holder), weakref.ref(Own), weakref.ref(holder.run_broken.owner)

    references = made()
    gc.collect()
    assert [reference() for reference in references] == [None] * 3


def test_reset_drops_graphs_and_constants() -> None:
    constant = torch.ones(3)
    held = [constant]
    graphs: list[Any] = []

    def backend(capture: Any, inputs: Any) -> Callable[..., Any]:
        run = executor(capture)
        graphs.append(weakref.ref(run))
        return run

    def function(x: torch.Tensor) -> torch.Tensor:
        return x + held[0] if held else x * 2

    run = optimize(function, backend)
    run(X)
    assert len(hook.entries(function.__code__)) == 1
    reference = weakref.ref(constant)
    held.clear()
    reset()
    del constant
    gc.collect()
    assert (reference(), graphs[0]()) == (None, None)
    assert hook.entries(function.__code__) == ()
    assert torch.equal(run(X), X * 2)


class Thing:
    def __init__(self) -> None:
        self.factor = 2
        self.weight = torch.ones(3)


def scaled_by(factor: torch.Tensor) -> Callable[..., Any]:
    return lambda x: x * factor


def branches(x: torch.Tensor, thing: Thing) -> torch.Tensor:
    return x * thing.factor if x.sum() > 0 else x


# A program, and what makes the argument beside a tensor.
GUESTS: dict[str, tuple[Callable[..., Any], Callable[[], Any]]] = {
    "tensor": (lambda x, y: x + y, lambda: torch.ones(3)),
    "object": (lambda x, thing: x * thing.factor + thing.weight, Thing),
    "changed object": (lambda x, thing: setattr(thing, "weight", x * 2), Thing),
    "closure": (lambda x, function: function(x), lambda: scaled_by(torch.ones(3))),
    "module": (lambda x, module: module(x), lambda: nn.Linear(3, 3)),
    "generator": (lambda x, numbers: x * next(numbers), lambda: (n for n in range(3))),
    "in a broken frame": (branches, Thing),
    "in a frame that raises": (lambda x, thing: x @ torch.ones(4) + thing.weight, Thing),
}


@pytest.mark.parametrize("name", GUESTS)
def test_arguments_live_no_longer_than_the_call(name: str) -> None:
    """By their reference counts alone: a capture leaves no cycles behind, and guards refer weakly."""
    function, make = GUESTS[name]
    run = compiled(function)
    for _ in range(2):
        gc.collect()
        gc.disable()
        try:
            guest = make()
            reference = weakref.ref(guest)
            with contextlib.suppress(RuntimeError):
                run(X, guest)
            del guest
            assert reference() is None
        finally:
            gc.enable()
