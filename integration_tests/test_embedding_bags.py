"""Bags of embeddings and their gradients: bags given by offsets, empty ones among them, or as rows; weights; widths."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import stagefold

OFFSETS = (0, 3, 3, 7, 12)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("kind", ["offsets", "last offset", "rows", "one bag", "padding", "frequencies"])
@pytest.mark.parametrize("width", [1, 64])
def test_gradients(mode: str, kind: str, width: int) -> None:
    torch.manual_seed(0)
    indices, offsets = torch.randint(0, 9, (12,)), torch.tensor(OFFSETS)
    given = {"mode": mode}
    match kind:
        case "last offset":
            given["include_last_offset"] = True
        case "rows":
            indices, offsets = indices.view(4, 3), None
        case "one bag":
            offsets = offsets[:1]
        case "padding":
            given["padding_idx"] = 2
        case "frequencies":
            given["scale_grad_by_freq"] = mode != "max"
    for dtype, index in ((torch.float32, torch.int64), (torch.float64, torch.int32)):
        table = torch.randn(9, width, dtype=dtype)
        where = None if offsets is None else offsets.to(index)
        compare(lambda table, i, o=where, g=given: F.embedding_bag(i, table, o, **g), table, indices.to(index))


def compare(function, table: torch.Tensor, *inputs: torch.Tensor) -> None:
    found = []
    for call in (function, stagefold.compile(function, fullgraph=True)):
        leaf = table.clone().requires_grad_()
        result = call(leaf, *inputs)
        result.backward(torch.linspace(-1, 1, result.numel(), dtype=table.dtype).view_as(result))
        found.append((result.detach(), leaf.grad))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(other, one)


def test_weights_of_samples() -> None:
    torch.manual_seed(1)
    indices, offsets, table = torch.randint(0, 9, (12,)), torch.tensor(OFFSETS), torch.randn(9, 8)
    weights = torch.randn(12, requires_grad=True)
    found = []
    function = lambda t, w: F.embedding_bag(indices, t, offsets, mode="sum", per_sample_weights=w)  # noqa: E731
    for call in (function, stagefold.compile(function, fullgraph=True)):
        leaf = table.clone().requires_grad_()
        found.append(torch.autograd.grad(call(leaf, weights).sin().sum(), (leaf, weights)))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(other, one)


def test_no_indices() -> None:
    compare(lambda t, i, o: F.embedding_bag(i, t, o), torch.randn(4, 3), torch.empty(0, dtype=torch.int64),
            torch.tensor([0, 0]))  # fmt: skip
