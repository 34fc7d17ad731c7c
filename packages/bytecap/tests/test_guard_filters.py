"""`guard_filter`: what a filter sees, what it may drop, and what stays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bytecap import CannotCapture, Captured, GuardEntry, executor, optimize

X = torch.ones(3)
RATE = 2


def compiled(function: Callable[..., Any], keep: Any) -> tuple[Callable[..., Any], list[Captured]]:
    events: list[Any] = []

    def backend(capture: Any, inputs: Any) -> Any:
        return executor(capture)

    backend.takes_symbols = True  # type: ignore[attr-defined]
    call = optimize(function, backend, fullgraph=True, on_event=events.append, guard_filter=keep)
    return call, events


def scaled(x: torch.Tensor, holder: Any, n: int) -> torch.Tensor:
    return x * holder.rate * n * RATE


def test_what_a_filter_sees() -> None:
    seen: list[GuardEntry] = []

    def keep(entries: Sequence[GuardEntry]) -> list[bool]:
        seen.extend(entries)
        return [True] * len(entries)

    compiled(scaled, keep)[0](X, SimpleNamespace(rate=5), 7)
    by_name = {entry.name: entry for entry in seen if entry.guard_type == "EQUALS_MATCH" and "torch." not in entry.name}
    assert {name: entry.value for name, entry in by_name.items()} == {"holder.rate": 5, "n": 7, "RATE": 2}
    assert [entry.is_global for entry in by_name.values()] == [name == "RATE" for name in by_name]
    assert all(entry.has_value for entry in by_name.values())
    assert "GLOBAL_STATE" in {entry.guard_type for entry in seen}
    assert not {"TENSOR_MATCH", "SHAPE_ENV"} & {entry.guard_type for entry in seen}


def test_dropped_guards_are_not_checked() -> None:
    call, events = compiled(scaled, lambda entries: [entry.name != "holder.rate" for entry in entries])
    assert call(X, SimpleNamespace(rate=5), 7).equal(X * 70)
    assert call(X, SimpleNamespace(rate=6), 7).equal(X * 70)
    assert call(X, SimpleNamespace(rate=6), 8).equal(X * 96)
    assert len(events) == 2


def test_what_a_graph_reads_is_guarded_all_the_same() -> None:
    call, events = compiled(lambda x, y: (x * 2, x + y), lambda entries: [False] * len(entries))
    for size in (3, 4, 5, 1):
        x = torch.ones(size)
        assert call(x, x + 1)[1].equal(x * 2 + 1)
    assert call(X.double(), X)[0].dtype is torch.float64
    assert len(events) >= 3


def test_a_filter_answers_for_each_guard() -> None:
    with pytest.raises(CannotCapture, match="gave 0 answers for"):
        compiled(scaled, lambda entries: [])[0](X, SimpleNamespace(rate=5), 7)
