"""One model in one mode in one process: compare with eager, time the first call and the steady state. Prints JSON."""

from __future__ import annotations

import copy
import json
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import stagefold
from examples.models import CASES, Case

SEED = 20


def main() -> int:
    model, mode, temperature, peer = sys.argv[1:5]
    case = CASES[model]
    torch.manual_seed(SEED)
    original = case.build()
    original.train(mode == "training")
    arguments = case.training() if mode == "training" else case.inference()
    row: dict[str, Any] = {"model": model, "mode": mode}

    eager = Program(case, copy.deepcopy(original), None, mode)
    expected = eager.step(arguments)
    ours = Program(case, copy.deepcopy(original), "stagefold", mode)
    start = time.perf_counter()
    got = ours.step(arguments)
    row["ours_cold"] = time.perf_counter() - start
    row["graphs"] = len(ours.reports)
    row["cached"] = all(report.cached for report in ours.reports)
    row["stages"] = [dict(report.seconds) for report in ours.reports]
    row["error_max"], row["compared"] = largest_error(expected, got)
    programs = {"eager": eager, "ours": ours}
    if peer == "peer":
        programs["peer"] = Program(case, copy.deepcopy(original), "torch", mode)
        start = time.perf_counter()
        programs["peer"].step(arguments)
        row["peer_cold"] = time.perf_counter() - start
    if temperature == "cold":
        for name, seconds in steady_state(
            {name: lambda p=p: p.step(arguments) for name, p in programs.items()}
        ).items():
            row[f"{name}_ms"] = seconds * 1e3
    print(json.dumps(row))
    return 0


class Program:
    """A model under one engine: None (eager), "stagefold" or "torch"."""

    def __init__(self, case: Case, model: nn.Module, engine: str | None, mode: str) -> None:
        self.case, self.model, self.mode = case, model, mode
        self.optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        self.reports: list[Any] = []
        self.call: Callable[..., Any] = model
        if engine == "stagefold":
            self.call = stagefold.compile(model, fullgraph=True)
            self.reports = self.call._backend.reports
        elif engine == "torch":
            self.call = torch.compile(model)

    def step(self, arguments: tuple[tuple[Any, ...], dict[str, Any]]) -> dict[str, torch.Tensor]:
        """One inference call, or one training step with the optimizer; returns everything that can be compared."""
        args, kwargs = arguments
        if self.mode == "inference":
            with torch.no_grad():
                return tensors_of(self.call(*args, **kwargs))
        self.optimizer.zero_grad()
        result = self.call(*args, **kwargs)
        self.case.loss(result).backward()
        seen = {f"output.{key}": value.detach() for key, value in tensors_of(result).items()}
        for name, parameter in self.model.named_parameters():
            if parameter.grad is None:
                continue
            seen[f"grad.{name}"] = parameter.grad
        self.optimizer.step()
        seen |= {f"buffer.{name}": buffer for name, buffer in self.model.named_buffers()}
        seen |= {f"parameter.{name}": parameter.detach() for name, parameter in self.model.named_parameters()}
        return seen


def tensors_of(result: Any) -> dict[str, torch.Tensor]:
    """The tensors of a model's result by name or position."""
    if isinstance(result, torch.Tensor):
        return {"0": result}
    items = result.items() if isinstance(result, dict) else enumerate(result)
    return {str(key): value for key, value in items if isinstance(value, torch.Tensor)}


def largest_error(expected: dict[str, torch.Tensor], got: dict[str, torch.Tensor]) -> tuple[float, int]:
    """The largest error of any tensor, relative to the tensor's largest magnitude; missing or NaN counts as inf.

    A tensor that is rounding noise throughout (the gradient of a key bias is zero in exact arithmetic) is measured
    against a thousandth of the largest magnitude among the tensors of its kind (outputs, gradients, ...).
    """
    if expected.keys() != got.keys():
        return float("inf"), len(expected)
    floors: dict[str, float] = {}
    for name, want in expected.items():
        kind = name.partition(".")[0]
        floors[kind] = max(floors.get(kind, 1e-12), 1e-3 * magnitude(want))
    worst = 0.0
    for name, want in expected.items():
        have = got[name]
        if have.shape != want.shape or have.dtype != want.dtype:
            return float("inf"), len(expected)
        scale = max(magnitude(want), floors[name.partition(".")[0]])
        error = magnitude(have.double() - want.double()) / scale
        worst = max(worst, error if error == error else float("inf"))
    return worst, len(expected)


def magnitude(tensor: torch.Tensor) -> float:
    """The largest absolute value (0 for an empty tensor)."""
    return float(tensor.double().abs().max()) if tensor.numel() else 0.0


def steady_state(programs: dict[str, Callable[[], Any]], rounds: int = 9) -> dict[str, float]:
    """Median seconds of each, run in turn so that the machine's noise falls on all alike."""
    times: dict[str, list[float]] = {name: [] for name in programs}
    for run in programs.values():
        run()
    for _ in range(rounds):
        for name, run in programs.items():
            start = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(seconds) for name, seconds in times.items()}


if __name__ == "__main__":
    warnings.filterwarnings("ignore", module="torch")
    raise SystemExit(main())
