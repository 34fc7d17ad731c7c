"""One model class, four ways: eager, captured, captured and compiled, and by torch.compile(backend="eager")."""

from __future__ import annotations

import copy
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

import bytecap
import stagefold
from bytecap.errors import NoTensorWork
from bytecap.events import Captured, Event
from integration_tests.zoo.families import Case
from integration_tests.zoo.reference import FLOOR, Tensors, double, double_inputs, step, structure, wrong_answers

FLOAT32_FLOOR = 1e-4
"""What counts as a difference where no float64 run tells rounding from wrong answers."""


@dataclass(frozen=True)
class Run:
    """What one way of running did. seconds: processor time of the first step, less a later one."""

    seen: Tensors
    structure: Any
    graphs: int
    breaks: int
    seconds: float


@dataclass(frozen=True)
class Row:
    """The results of one class. differences: sentences, none when all is equal; torch: None when not run."""

    case: Case
    captured: Run
    torch: Run | None
    differences: tuple[str, ...]


def measure(case: Case, *, with_torch: bool, with_stages: bool) -> Row:
    """Train for a step on labels, evaluate once without gradients; compare everything with eager."""
    torch.manual_seed(0)
    model = case.build()
    torch.manual_seed(1)
    inputs = case.inputs(model)
    differences: list[str] = []
    captured = None
    for train in (False, True):
        eager = _run(model, train, inputs, _plain)
        ours = _run(model, train, inputs, _captured)
        differences += [f"captured: {text}" for text in _differences(eager, ours, eager.seen, floor=FLOOR)]
        captured = ours
        if with_stages:
            compiled = _run(model, train, inputs, _compiled)
            judge, floor = _float64(model, train, inputs, eager)
            differences += [f"compiled: {text}" for text in _differences(eager, compiled, judge, floor=floor)]
    assert captured is not None
    peer = _run(model, True, inputs, _by_torch) if with_torch else None
    return Row(case, captured, peer, tuple(differences))


Counted = Callable[[], tuple[int, int]]
Way = Callable[[nn.Module], tuple[Callable[..., Any], Counted]]
"""The call of a model, and how many graphs and breaks there were."""


def _run(model: nn.Module, train: bool, inputs: Mapping[str, Any], way: Way) -> Run:
    model = copy.deepcopy(model).train(train)
    call, counted = way(model)
    kept: list[Any] = []

    def keeping(**given: Any) -> Any:
        kept.append(call(**given))
        return kept[-1]

    times = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number in range(3):
            if number == 1:
                graphs, breaks = counted()
            start = time.process_time()
            seen = step(model, keeping, inputs, train, seed=7 + number, leaves=False)
            times.append(time.process_time() - start)
    return Run(seen, structure(kept[-1]), graphs, breaks, max(0.0, times[0] - min(times[1:])))


def _plain(model: nn.Module) -> tuple[Callable[..., Any], Counted]:
    return model, lambda: (0, 0)


def _captured(model: nn.Module) -> tuple[Callable[..., Any], Counted]:
    events: list[Event] = []

    def backend(capture: Any, example_inputs: tuple[Any, ...]) -> Callable[..., Any]:
        return bytecap.executor(capture)

    backend.takes_symbols = backend.takes_data_sizes = True  # type: ignore[attr-defined]  # as stagefold's does

    def counted() -> tuple[int, int]:
        graphs = sum(isinstance(event, Captured) and not event.reused for event in events)
        errors = [event.error for event in events if not isinstance(event, Captured)]
        return graphs, len({str(error) for error in errors if not isinstance(error, NoTensorWork)})

    return bytecap.optimize(model, backend, on_event=events.append), counted


def _compiled(model: nn.Module) -> tuple[Callable[..., Any], Counted]:
    return stagefold.compile(model), lambda: (0, 0)


def _by_torch(model: nn.Module) -> tuple[Callable[..., Any], Counted]:
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    graphs: list[Any] = []

    def backend(module: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        graphs.append(module)
        return module.forward

    return torch.compile(model, backend=backend), lambda: (len(graphs), len(counters["graph_break"]))


def _float64(model: nn.Module, train: bool, inputs: Mapping[str, Any], eager: Run) -> tuple[Tensors, float]:
    """The same in float64, and the least difference that counts; where the model cannot, float32 and a larger one."""
    try:
        return _run(double(model), train, double_inputs(inputs), _plain).seen, FLOOR
    except RuntimeError:
        return eager.seen, FLOAT32_FLOOR


def _differences(eager: Run, ours: Run, judge: Tensors, *, floor: float) -> list[str]:
    found = [] if ours.structure == eager.structure else ["the output has another structure"]
    return found + wrong_answers(eager.seen, judge, ours.seen, floor=floor)
