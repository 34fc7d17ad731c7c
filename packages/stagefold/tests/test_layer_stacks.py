"""Stacks of equal layers: the program that follows from few layers is the one that the stages make of all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import event, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

import bytecap
from stagefold.backend import StagefoldBackend
from stagefold.layer_stacks import (
    COUNTS,
    FEWEST,
    _numbered,
    _renamed,
    cut_stack,
    find_stack,
    grown_program,
    program_of,
)
from stagefold.options import Options
from stagefold.pipeline import Pipeline
from stagewire import Capture, Program
from stagewire.capture import Local
from stagewire.verify import verify

LAYERS = FEWEST + 1
PIPELINE = Pipeline.build(Options())


def captured(function: Callable[..., Any], *args: Any, dynamic: bool | None = None) -> Capture:
    found: list[Capture] = []

    def backend(capture: Capture, inputs: object) -> Any:
        found.append(capture)
        return bytecap.executor(capture)

    bytecap.optimize(function, backend, dynamic=dynamic)(*args)
    (capture,) = found
    return capture


def by_few_layers(capture: Capture) -> Program | None:
    stack = find_stack(capture)
    if stack is None:
        return None
    few = None
    for count in COUNTS:
        more = PIPELINE.run(cut_stack(capture, stack, count))
        grown = None if few is None else grown_program(few, more, capture, stack.count - count)
        if grown is not None:
            return grown
        few = more
    return None


def is_same(capture: Capture) -> bool:
    """Whether few layers gave the program that all give, up to names; False where they gave none."""
    grown = by_few_layers(capture)
    if grown is None:
        return False
    verify(grown, capture)
    assert _numbered(grown) == _numbered(PIPELINE.run(capture))
    assert [item.name for item in grown.binding.inputs] == [item.value.name for item in capture.inputs]
    return True


class Stack(nn.Module):
    def __init__(self, layer: Callable[[], nn.Module], layers: int = LAYERS) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layer() for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def perceptron() -> nn.Module:
    return nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))


def transformer(norm_first: bool = False) -> nn.Module:
    return nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=norm_first)


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("layer", [perceptron, transformer, lambda: transformer(norm_first=True)])
def test_models(layer: Callable[[], nn.Module], train: bool, dynamic: bool) -> None:
    model = Stack(layer).train(train)
    with torch.set_grad_enabled(train):
        assert is_same(captured(model, torch.randn(2, 3, 8), dynamic=dynamic))


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("returns", [False, True])
def test_what_layers_write_or_return(returns: bool, dynamic: bool) -> None:
    layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(LAYERS))

    def program(x: Tensor, caches: list[Tensor], at: int) -> tuple[Tensor, ...]:
        kept = []
        for layer, cache in zip(layers, caches, strict=True):
            if returns:
                x = torch.tanh(layer(x))
                kept.append(x * 2)
            else:
                cache[at] = layer(x)
                x = torch.tanh(x + cache.sum(0))
        return x, *kept

    with torch.no_grad():
        caches = [torch.zeros(4, 8) for _ in range(LAYERS)]
        assert is_same(captured(program, torch.randn(8), caches, 2, dynamic=dynamic))


@pytest.mark.parametrize("layer", [perceptron, transformer])
def test_gpu_programs(layer: Callable[[], nn.Module]) -> None:
    """Documents only: nothing runs on a GPU."""
    from stagewire import decode, encode

    capture = captured(Stack(layer), torch.randn(2, 3, 8))
    moved = decode(encode(capture).replace(b'"cpu"', b'"cuda:0"'))
    assert isinstance(moved, Capture)
    assert is_same(moved)


def _with(change: Callable[[Stack], object]) -> Callable[[], Capture]:
    def make() -> Capture:
        stack = Stack(lambda: nn.Linear(8, 8), 2 * FEWEST - 2)
        change(stack)
        return captured(stack, torch.randn(3, 8))

    return make


def _share(stack: Stack) -> None:
    stack.layers[FEWEST - 2].weight = stack.layers[2].weight


def _hold_back(stack: Stack) -> None:
    stack.layers[FEWEST - 2].weight.requires_grad_(False)


def _widen(stack: Stack) -> None:
    stack.layers[FEWEST - 2] = nn.Sequential(nn.Linear(8, 8), nn.ReLU())


def _transpose(stack: Stack) -> None:
    stack.layers[FEWEST - 2].weight = nn.Parameter(torch.randn(8, 8).t())


def test_a_plain_stack_is_found() -> None:
    stack = find_stack(_with(lambda stack: None)())
    assert stack is not None
    assert stack.count >= 2 * FEWEST - 3


@pytest.mark.parametrize("change", [_share, _hold_back, _widen, _transpose])
def test_one_layer_that_is_another(change: Callable[[Stack], object]) -> None:
    """It stands in the middle, so that fewer than `FEWEST` layers in a row are alike."""
    assert find_stack(_with(change)()) is None


def test_inputs_in_another_order() -> None:
    weights = [torch.randn(8, 8) for _ in range(LAYERS)]
    order = [*range(5), 6, 5, *range(7, LAYERS)]

    def program(x: Tensor, weights: list[Tensor]) -> Tensor:
        first = sum(weights[at].sum() for at in order)  # these become inputs first
        for weight in weights:
            x = torch.relu(x @ weight)
        return x + first

    with torch.no_grad():
        assert find_stack(captured(program, torch.randn(3, 8), weights)) is None


def test_results_of_all_layers_used_behind_them() -> None:
    def program(x: Tensor) -> Tensor:
        kept = [x]
        for _ in range(LAYERS):
            kept.append(torch.relu(kept[-1] + 1))
        return torch.stack(kept)

    assert find_stack(captured(program, torch.randn(3))) is None


def test_constants_that_differ() -> None:
    def program(x: Tensor) -> Tensor:
        for layer in range(LAYERS):
            x = torch.relu(x * (1 + layer / 10))
        return x

    assert find_stack(captured(program, torch.randn(3))) is None


def test_few_layers_are_compiled_whole() -> None:
    runs: list[str] = []
    capture = captured(Stack(perceptron, FEWEST - 1), torch.randn(3, 8))
    program_of(PIPELINE, capture, lambda event: runs.append(event.stage))
    assert len(runs) == 5
    capture = captured(Stack(perceptron), torch.randn(3, 8))
    program_of(PIPELINE, capture, lambda event: runs.append(event.stage))
    assert len(runs) == 5 + 5 * 2


def test_arguments_by_any_name() -> None:
    """A tensor that is passed by a name that is a field of documents, too, is renamed like any other."""
    unit = {"instructions": [{"kwargs": {"source": {"kind": "ref", "name": "a"}, "base": 2.0, "reuse": "floor"}}]}
    (call,) = _renamed(unit, str.upper)["instructions"]
    assert call["kwargs"] == {"source": {"kind": "ref", "name": "A"}, "base": 2.0, "reuse": "floor"}


STEPS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "linear": lambda x, weight, first: x @ weight,
    "transposed": lambda x, weight, first: x @ weight.t(),
    "scale": lambda x, weight, first: x * weight[0],
    "shared": lambda x, weight, first: x + first,
    "relu": lambda x, weight, first: torch.relu(x),
    "norm": lambda x, weight, first: F.layer_norm(x, (4,)),
    "softmax": lambda x, weight, first: torch.softmax(x, 0),
    "scan": lambda x, weight, first: x.cumsum(1),
    "turn": lambda x, weight, first: x.t().contiguous().t(),
    "drop": lambda x, weight, first: F.dropout(x, 0.3),
    "write": lambda x, weight, first: x.clone().add_(weight.sum()),
    "halves": lambda x, weight, first: torch.cat([part.sin() for part in x.split(2, 1)], 1),
}


@settings(max_examples=60)
@given(
    steps=st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=5),
    residual=st.booleans(), train=st.booleans(), returns=st.booleans(), dynamic=st.booleans(),
)  # fmt: skip
def test_drawn_layers(steps: list[str], residual: bool, train: bool, returns: bool, dynamic: bool) -> None:
    weights = [torch.randn(4, 4, requires_grad=train) for _ in range(LAYERS)]

    def program(x: Tensor, weights: list[Tensor]) -> tuple[Tensor, ...]:
        first, kept = x, []
        for weight in weights:
            y = x
            for step in steps:
                y = STEPS[step](y, weight, first)
            x = x + y if residual else y
            if returns:
                kept.append(x.mean(0))
        return x.sum(), *kept

    capture = captured(program, torch.randn(3, 4), weights, dynamic=dynamic)
    grown = by_few_layers(capture)
    event(f"found: {grown is not None}")
    if grown is None:
        return
    verify(grown, capture)
    full = PIPELINE.run(capture)
    if _numbered(grown) != _numbered(full):  # which of independent instructions is first may be another
        event("another order")
        given = [torch.randn(3, 4) if item.source == Local("x") else torch.randn(4, 4) for item in capture.inputs]
        results = []
        for one in (grown, full):
            torch.manual_seed(0)
            inputs = [tensor.clone().requires_grad_(train and tensor.shape == (4, 4)) for tensor in given]
            outputs = StagefoldBackend(Options()).load(one)(*inputs)
            if train:
                sum(output.sum() for output in outputs).backward()
            results.append([*outputs, *(tensor.grad for tensor in inputs)])
        torch.testing.assert_close(*results)
