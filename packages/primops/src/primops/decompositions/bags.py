"""Bags of embeddings and reductions of segments, as the prims of the family "bags"."""

from __future__ import annotations

from typing import Any

from primops.builder import Builder, Value
from primops.decompositions.linalg import exactly
from primops.decompositions.operands import Table, convert, first_of, spread
from primops.errors import Decline

SUM, MEAN = 0, 1
"""Modes of bags, as ATen numbers them; 2 is the maximum."""


def embedding_bag(
    p: Builder, weight: Value, indices: Value, offsets: Value, scale_grad_by_freq: bool = False, mode: int = 0,
    sparse: bool = False, per_sample_weights: Value | None = None, include_last_offset: bool = False,
    padding_idx: int = -1,
) -> Any:  # fmt: skip
    return p.embedding_bag(
        weight, indices, offsets, scale_grad_by_freq, mode, sparse, per_sample_weights, include_last_offset, padding_idx
    )


def embedding_bag_backward(
    p: Builder, grad: Value, indices: Value, offsets: Value, offset2bag: Value, bag_size: Value,
    maximum_indices: Value, num_weights: Any, scale_grad_by_freq: bool, mode: int, sparse: bool,
    per_sample_weights: Value | None, padding_idx: int = -1,
) -> Value:  # fmt: skip
    return p.embedding_bag_backward(
        grad, indices, offsets, offset2bag, bag_size, maximum_indices, num_weights, scale_grad_by_freq, mode, sparse,
        per_sample_weights, padding_idx,
    )  # fmt: skip


def embedding_bag_backward_by_rows(
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
    bag = convert(p, p.sub(p.searchsorted(offsets, positions, False, True), 1), "int64")
    rows = p.index(grad, (bag,), False)
    if mode == MEAN:
        rows = p.div(rows, spread(p, convert(p, p.index(bag_size, (bag,), False), grad.dtype), rows.shape, (1,)))
    if per_sample_weights is not None:
        rows = p.mul(rows, spread(p, per_sample_weights, rows.shape, (1,)))
    zeros = p.full((num_weights, grad.shape[1]), 0.0, grad.dtype)
    return p.index_put(zeros, (convert(p, indices, "int64"),), rows, True, False)


def embedding_bag_weights_backward(
    p: Builder, grad: Value, weight: Value, indices: Value, offsets: Value, offset2bag: Value, mode: int,
    padding_idx: int = -1,
) -> Value:  # fmt: skip
    return p.embedding_bag_weights_backward(grad, weight, indices, offsets, offset2bag, mode, padding_idx)


def segment_reduce(
    p: Builder, data: Value, reduce: str, *, lengths: Value | None = None, indices: Value | None = None,
    offsets: Value | None = None, axis: int = 0, unsafe: bool = False, initial: Any = None,
) -> Value:  # fmt: skip
    if lengths is None or indices is not None or offsets is not None:
        raise Decline("segments given by offsets")
    return p.segment_reduce(data, reduce, lengths, axis, unsafe, initial)


def segment_reduce_backward(
    p: Builder, grad: Value, output: Value, data: Value, reduce: str, *, lengths: Value | None = None,
    offsets: Value | None = None, axis: int = 0, initial: Any = None,
) -> Value:  # fmt: skip
    if lengths is None or offsets is not None:
        raise Decline("segments given by offsets")
    return p.segment_reduce_backward(grad, output, data, reduce, lengths, axis, initial)


TABLE: Table = {
    name: exactly(function)
    for name, function in {
        "aten._embedding_bag.default": embedding_bag,
        "aten._embedding_bag_backward.default": embedding_bag_backward,
        "aten._embedding_bag_per_sample_weights_backward.default": embedding_bag_weights_backward,
        "aten.segment_reduce.default": segment_reduce,
        "aten._segment_reduce_backward.default": segment_reduce_backward,
    }.items()
}
TABLE["aten._embedding_bag_backward.default"] = first_of(
    embedding_bag_backward_by_rows, TABLE["aten._embedding_bag_backward.default"]
)
