"""Whole numbers in buffers on the CPU: known when the program asks for them, guarded, and left open if they count."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from bytecap import Broke, Captured, executor, optimize

NUMBERS = {"kernel": 5, "stride": 2, "flag": False, "steps": 0}


class Base(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        for name, number in NUMBERS.items():
            self.register_buffer(name, torch.tensor(number))
        self.register_buffer("pair", torch.tensor([1, 2]))
        self.register_buffer("part", self.pair[1])


class Padded(Base):
    def forward(self, x):
        frames = torch.ceil((x.shape[-1] - self.kernel) / self.stride + 1).to(torch.int64) - 1
        extra = frames * self.stride + self.kernel - x.shape[-1]
        x = torch.nn.functional.pad(x, (self.kernel - self.stride, extra))
        return x + 1 if self.flag else x


class Written(Base):
    def forward(self, x):
        before = self.steps + 1
        self.steps.add_(5)
        return x * before.item()


class WrittenFirst(Base):
    def forward(self, x):
        self.steps.add_(1)
        return x * self.steps.item()


class Counter(Base):
    def forward(self, x):
        x = x + 1 if self.steps < 3 else x
        self.steps += 1
        return x * 2


class OfMore(Base):
    def forward(self, x):
        return x * self.part.item()


class Asserted(Base):
    def forward(self, x):
        assert self.steps < 50, "too many steps"
        return x * 2


def run(module: torch.nn.Module, xs: list[torch.Tensor], between: Any = None) -> list[list[str]]:
    """What each call did (captures of tensor work, breaks), its results and buffers being those of the plain module."""
    plain, events, found = copy.deepcopy(module), [], []
    compiled = optimize(module, lambda capture, inputs: executor(capture), on_event=events.append)
    for x in xs:
        events.clear()
        assert torch.equal(compiled(x), plain(x))
        assert all(torch.equal(a, b) for a, b in zip(module.buffers(), plain.buffers(), strict=True))
        found.append([type(event).__name__ for event in events if isinstance(event, (Captured, Broke))])
        if between is not None:
            for each in (module, plain):
                between(each, len(found))
    return found


X = torch.ones(2, 8)


def test_paddings_that_are_computed_of_buffers_are_one_graph() -> None:
    assert run(Padded(), [X, X]) == [["Captured"], []]


def test_a_buffer_that_was_asked_for_is_guarded() -> None:
    calls = run(Padded(), [X, X, X], lambda module, count: module.flag.fill_(count > 1))
    assert calls == [["Captured"], [], ["Captured"]]


def test_what_was_computed_before_a_write_is_what_is_asked_for() -> None:
    assert run(Written(), [X])[0].count("Broke") == 0


@pytest.mark.parametrize("module", [WrittenFirst, OfMore], ids=lambda cls: cls.__name__)
def test_what_no_guard_tells_ends_the_graph(module: type[Base]) -> None:
    assert "Broke" in run(module(), [X])[0]


def test_a_counter_is_left_open_after_one_capture() -> None:
    calls = run(Counter(), [X] * 8)
    assert sum(len(call) for call in calls) <= 6
    assert calls[-3:] == [[], [], []]


def test_an_assertion_stays_a_check() -> None:
    module = Asserted()
    assert run(module, [X] * 6, lambda module, _: module.steps.add_(1)) == [["Captured"], *[[]] * 5]
    module.steps.fill_(60)
    with pytest.raises(AssertionError, match="too many steps"):
        optimize(module, lambda capture, inputs: executor(capture))(X)
