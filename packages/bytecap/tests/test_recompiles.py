"""What a recompile says, and what happens when there are too many."""

from __future__ import annotations

import re
import time
import types
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

from bytecap import Broke, Captured, CaptureWarning, LimitReached, executor, optimize

X = torch.ones(3)


class Thing:
    __slots__ = ("v",)

    def __init__(self, v: int) -> None:
        self.v = v


def inference_tensor() -> torch.Tensor:
    with torch.inference_mode():
        return torch.ones(3)


CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...], tuple[Any, ...], str]] = {
    "a number": (lambda x, n: x * n, (X, True), (X, 3), "n was True and is 3"),
    "a slot that is gone": (
        lambda x, t: x * getattr(t, "v", 5), (X, Thing(2)), (X, Thing.__new__(Thing)), "t.v was 2 and is missing",
    ),
    "an attribute that is gone": (
        lambda x, t: x * getattr(t, "v", 5), (X, types.SimpleNamespace(v=2)), (X, types.SimpleNamespace()), "v",
    ),
    "dispatch keys": (
        lambda x: x * 2, (X,), (inference_tensor(),), r"the dispatch keys of x were \(CPU, .*AD.*and are \(CPU, .*\)",
    ),
    "a set": (lambda x, s: x * sum(s), (X, {1, 2}), (X, {1, 3}), r"the keys of s were \(1, 2\) and are \(1, 3\)"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_sentence_names_value_and_line(name: str) -> None:
    function, before, after, sentence = CASES[name]
    events: list[Any] = []
    compiled = optimize(function, lambda capture, inputs: executor(capture), on_event=events.append)
    compiled(*before)
    assert torch.equal(compiled(*after), function(*after))
    reason = next(event.reason for event in events[1:] if isinstance(event, Captured))
    assert re.search(sentence, reason), reason
    line = function.__code__.co_firstlineno
    assert re.search(rf"\(read at {re.escape(__file__)}:{line}\)$", reason), reason


def test_the_state_of_torch_is_told_with_the_call() -> None:
    def function(x):
        return x * 2

    events: list[Any] = []
    compiled = optimize(function, lambda capture, inputs: executor(capture), on_event=events.append)
    compiled(X)
    with torch.no_grad():
        compiled(X)
    assert events[1].reason.startswith("grad mode was on and is off (at the call of ")
    assert events[1].reason.endswith(f"function, {__file__}:{function.__code__.co_firstlineno})")


def power(x, n):
    return x if n == "" else x * len(n)


def test_past_the_limit_there_is_one_warning_and_the_plain_result() -> None:
    compiled = optimize(power, lambda capture, inputs: executor(capture), recompile_limit=3)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for n in range(1, 12):
            assert torch.equal(compiled(X, "a" * n), X * n)
    texts = [str(item.message) for item in caught if item.category is CaptureWarning]
    assert len(texts) == 1
    assert re.search(r"BC010.*power was captured 3 times; the last reason: n was 'aaa' and is 'aaaa'", texts[0])
    assert compiled.owner.misses == 11
    hits = compiled.owner.hits
    assert torch.equal(compiled(X, "aa"), X * 2)
    assert compiled.owner.hits == hits + 1


def register(module, names):
    for name, child in module.named_children():
        register(child, names)
        names[id(child)] = name, weakref.finalize(child, print)


def test_what_has_no_graph_behind_its_breaks_either_is_left_alone() -> None:
    """Walking over modules breaks at each of them, and takes as many versions as there are classes: no warning."""
    kinds = [type(f"Kind{number}", (torch.nn.ReLU,), {}) for number in range(12)]
    model, names = torch.nn.Sequential(*(torch.nn.Sequential(kind()) for kind in kinds)), {}

    def run(x):
        register(model, names)
        return model(x) + len(names)

    events: list[Any] = []
    compiled = optimize(run, lambda capture, inputs: executor(capture), on_event=events.append)
    assert torch.equal(compiled(X), run(X))
    assert len(names) == 24
    assert any(isinstance(event, Broke) for event in events)
    assert not any(isinstance(event, LimitReached) for event in events)


def test_past_the_limit_a_miss_is_cheap() -> None:
    events: list[Any] = []
    compiled = optimize(power, lambda capture, inputs: executor(capture), recompile_limit=2, on_event=events.append)
    for n in range(1, 5):
        compiled(X, "a" * n)
    assert [type(event) for event in events] == [Captured, Captured, LimitReached]
    start = time.perf_counter()
    for _ in range(1000):
        compiled(X, "aaaaaaa")
    assert (time.perf_counter() - start) / 1000 < 1e-3


def test_a_class_method_of_c_is_known_by_its_class_and_name() -> None:
    """Each read of `float.fromhex` gives another object of the same meaning."""

    class Doubled(float):
        @classmethod
        def fromhex(cls, text: str, /) -> Any:
            return 2 * float.fromhex(text)

    captures: list[Any] = []
    compiled = optimize(lambda x, read: x * read("0x1.8p+1"), lambda capture, inputs: executor(capture),
                        on_event=captures.append)  # fmt: skip
    for _ in range(2):
        assert torch.equal(compiled(X, float.fromhex), X * 3)
    assert [type(event) for event in captures] == [Captured]
    assert torch.equal(compiled(X, Doubled.fromhex), X * 6)
