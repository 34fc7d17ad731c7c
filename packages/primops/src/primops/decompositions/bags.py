"""Gradients of bags of embeddings."""

from __future__ import annotations

from typing import Any

from primops.builder import Builder, Value
from primops.decompositions.operands import Table
from primops.errors import Decline
from primops.prims.layouts import tensor

SUM, MEAN = 0, 1
"""Modes of bags, as ATen numbers them; 2 is the maximum."""


def embedding_bag_backward(
    p: Builder, grad: Value, indices: Value, offsets: Value, offset2bag: Value, bag_size: Value,
    maximum_indices: Value, num_weights: Any, scale_grad_by_freq: bool, mode: int, sparse: bool,
    per_sample_weights: Value | None, padding_idx: int = -1,
) -> Value:  # fmt: skip
    """Sums and means on a CPU: the row of its bag is added to that of each index, without sorting the indices first.

    The bag of a position is the last that begins there or before (`offset2bag` has no elements where ATen's forward
    did not need it).
    """
    plain = mode in (SUM, MEAN) and not sparse and not scale_grad_by_freq and padding_idx < 0
    if not plain or grad.device != "cpu" or grad.dtype not in ("float32", "float64") or indices.rank != 1:
        raise Decline("of bags other than sums and means of rows on a CPU")
    (count,) = indices.shape
    positions = p.iota(count, 0, 1, offsets.dtype)
    places = tensor("int64", (count,), grad.device)
    (after,) = p.extern("aten.searchsorted.Tensor", (offsets, positions), (places,), {"right": True})
    assert after is not None
    bag = p.sub(after, 1)
    rows = p.index(grad, (bag,), False)
    if mode == MEAN:
        rows = p.div(rows, p.spread(p.convert(p.index(bag_size, (bag,), False), grad.dtype), rows.shape, (1,)))
    if per_sample_weights is not None:
        rows = p.mul(rows, p.spread(per_sample_weights, rows.shape, (1,)))
    zeros = p.full((num_weights, grad.shape[1]), 0.0, grad.dtype)
    return p.index_put(zeros, (p.convert(indices, "int64"),), rows, True, False)


TABLE: Table = {"aten._embedding_bag_backward.default": embedding_bag_backward}
