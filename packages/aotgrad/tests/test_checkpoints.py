"""Checkpoints of the program: what is made inside is computed again, what leaves them may be kept."""

from __future__ import annotations

import msgspec
import torch

from aotgrad import AotGrad, bind_interpreted, cut
from aotgrad.testing import capture_by_torch_function
from stagewire.capture import Checkpoint
from stagewire.grad import SavedResult
from stagewire.prim import Prim

WIDTH = 16


def two_layers(x: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    x = x + torch.relu(x @ first) @ second
    x = x + torch.relu(x @ first) @ second
    return x.sum()


def tensors() -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    shapes = ((8, WIDTH), (WIDTH, 4 * WIDTH), (4 * WIDTH, WIDTH))
    return tuple(torch.randn(shape, generator=generator).requires_grad_() for shape in shapes)


def grad_of(*parts: Checkpoint) -> tuple[Prim, tuple[torch.Tensor, ...]]:
    capture, inputs = capture_by_torch_function(two_layers, tensors())
    assert len(capture.graph.nodes) == 9  # four for each layer, and the sum
    return cut(AotGrad().run(msgspec.structs.replace(capture, checkpoints=parts))), inputs


def kept_widths(grad: Prim) -> list[int]:
    values = {value.name: value for node in grad.forward.nodes for value in node.results}
    outputs = [grad.forward.outputs[slot.result] for slot in grad.binding.saved if isinstance(slot, SavedResult)]
    return sorted(values[output.name].type.shape[-1] for output in outputs)


def test_only_what_leaves_a_checkpoint_is_kept() -> None:
    free, inputs = grad_of()
    assert 4 * WIDTH in kept_widths(free)
    bound, _ = grad_of(Checkpoint(0, 4), Checkpoint(4, 8))
    assert kept_widths(bound) == [WIDTH]
    assert bound.partition.saved_bytes < free.partition.saved_bytes
    found = []
    for grad in (free, bound):
        leaves = [tensor.detach().clone().requires_grad_() for tensor in inputs]
        bind_interpreted(grad)(*leaves)[0].backward()
        found.append([leaf.grad for leaf in leaves])
    torch.testing.assert_close(*found)


def test_each_checkpoint_is_computed_again_where_its_backward_begins() -> None:
    grad, _ = grad_of(Checkpoint(0, 4), Checkpoint(4, 8))
    kinds = [node.target for node in grad.backward.nodes]
    again = [at for at, kind in enumerate(kinds) if kind == "aten.relu.default"]
    first_gradient = kinds.index("aten.threshold_backward.default") if again else 0
    assert len(again) == 2
    assert again[0] < first_gradient < again[1]


def test_random_numbers_are_kept() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return (torch.nn.functional.dropout(x.sin(), 0.5) * x.cos()).sum()

    capture, inputs = capture_by_torch_function(program, (torch.randn(8, requires_grad=True),))
    parts = (Checkpoint(0, len(capture.graph.nodes)),)
    grad = cut(AotGrad().run(msgspec.structs.replace(capture, checkpoints=parts)))
    results = [slot for slot in grad.binding.saved if isinstance(slot, SavedResult)]
    assert len(results) == 1
    found = []
    for call in (program, lambda x: bind_interpreted(grad)(x)[0]):
        leaf = inputs[0].detach().clone().requires_grad_()
        torch.manual_seed(0)
        call(leaf).backward()
        found.append(leaf.grad)
    torch.testing.assert_close(*found)
