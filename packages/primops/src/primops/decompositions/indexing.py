"""Indexing, gathering, scattering and embedding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from primops.builder import Builder, Value, literal, opmath
from primops.decompositions.operands import Function, Table, broadcast_shape, by_name, wrap
from primops.errors import Decline
from primops.prims.indexing import indexed_shape
from primops.prims.layouts import tensor
from stagewire.expr import Dim
from stagewire.types import numel


def ready_indices(p: Builder, x: Value, indices: Sequence[Value | None]) -> tuple[Value | None, ...]:
    """Index tensors as int64 of one shape on x's device; masks have a size that depends on data: declined."""
    used = [i for i in indices if i is not None]
    if any(i.dtype in ("bool", "uint8") for i in used):
        raise Decline("a mask")
    if not used:
        raise Decline("no index tensor")
    shape = broadcast_shape(*(i.shape for i in used))
    return tuple(
        None if i is None else p.broadcast(p.convert(p.to_device(i, x.device), "int64"), shape) for i in indices
    )


def index(p: Builder, x: Value, indices: Sequence[Value | None]) -> Value:
    return p.index(x, ready_indices(p, x, indices), True)


def index_put(
    p: Builder, x: Value, indices: Sequence[Value | None], values: Value, accumulate: bool = False, unsafe: bool = False
) -> Value:
    if accumulate and x.dtype == "bool":
        raise Decline("bool accumulated")
    ready = ready_indices(p, x, indices)
    types = tuple(None if i is None else i.type for i in ready)
    values = p.broadcast(p.convert(p.to_device(values, x.device), x.dtype), indexed_shape(x.type, types))
    return accumulated(p, x, ready, values, True) if accumulate else p.index_put(x, ready, values, False, True)


def accumulated(p: Builder, x: Value, indices: tuple[Value | None, ...], values: Value, wrap: bool = False) -> Value:
    """x with values added at the indices; `wrap`: negative ones count from the end."""
    inner = _dtype_of_sums(p, x, values)
    return p.convert(p.index_put(p.convert(x, inner), indices, p.convert(values, inner), True, wrap), x.dtype)


def _dtype_of_sums(p: Builder, x: Value, values: Value) -> str:
    """The dtype in which values are added to places of x. Sums of halves in a new tensor, or of more values than there
    are known to be places, are found in float32: rounded after each addend they are neither right nor fast (BEiT's
    table of relative positions on an H200: 2.5 ms, ATen 43 us)."""
    count, places = numel(values.shape), numel(x.shape)
    is_more = isinstance(count, int) and isinstance(places, int) and count > places
    return opmath(x.dtype) if is_more or p.is_filled(x) else x.dtype


def _at(dim: int, index: Value) -> tuple[Value | None, ...]:
    return (*(None,) * dim, index)


def index_select(p: Builder, x: Value, dim: int, index: Value) -> Value:
    index = p.convert(p.reshape(index, p.out.shape[wrap(dim, x.rank) :][:1] or (1,)), "int64")
    if x.rank == 0:
        return p.reshape(p.index(_rank1(p, x), (index,), False), p.out.shape)
    return p.index(x, _at(wrap(dim, x.rank), index), False)


def _rows(p: Builder, x: Value, dim: int, index: Value) -> tuple[tuple[Value | None, ...], tuple[Dim, ...]]:
    """A vector of indices along a dimension: in its place among the indices of x, and the shape of what it chooses."""
    if x.rank == 0:
        raise Decline("a scalar")
    dim = wrap(dim, x.rank)
    index = p.convert(_rank1(p, index), "int64")
    return _at(dim, index), (*x.shape[:dim], index.shape[0], *x.shape[dim + 1 :])


def index_add(p: Builder, x: Value, dim: int, index: Value, source: Value, alpha: Any = 1) -> Value:
    if x.dtype == "bool" or type(alpha) not in (int, float):
        raise Decline("bool, or a symbolic alpha")
    rows, shape = _rows(p, x, dim, index)
    source = p.convert(p.reshape(source, shape), x.dtype)
    if alpha != 1:
        source = p.convert(p.mul(p.convert(source, opmath(x.dtype)), literal(alpha, x.dtype)), x.dtype)
    return accumulated(p, x, rows, source)


def index_copy(p: Builder, x: Value, dim: int, index: Value, source: Value) -> Value:
    rows, shape = _rows(p, x, dim, index)
    return p.index_put(x, rows, p.reshape(source, shape), False, False)


def index_fill(p: Builder, x: Value, dim: int, index: Value, value: Any) -> Value:
    rows, shape = _rows(p, x, dim, index)
    return p.index_put(x, rows, p.filled(value, x.dtype, shape), False, True)


def gather(p: Builder, x: Value, dim: int, index: Value, sparse_grad: bool = False) -> Value:
    index = p.convert(index, "int64")
    if x.rank == 0 or index.rank == 0:
        return p.reshape(p.gather(_rank1(p, x), 0, _rank1(p, index)), p.out.shape)
    return p.gather(x, wrap(dim, x.rank), index)


def _rank1(p: Builder, x: Value) -> Value:
    return p.reshape(x, (1,)) if x.rank == 0 else x


def _scatter(prim: str) -> Function:
    """scatter and scatter_add; the part of src beyond the index is not used."""

    def decomposition(p: Builder, x: Value, dim: int, index: Value, src: Any) -> Value:
        if prim == "scatter_add" and x.dtype == "bool":
            raise Decline("bool added")
        if index.shape == (0,) or 0 in index.shape:
            return x
        flat, wide_index = _rank1(p, x), p.convert(_rank1(p, index), "int64")
        if type(src) is Value:
            src = p.convert(_rank1(p, src), x.dtype)
            if src.shape != wide_index.shape:
                src = p.slice(src, (0,) * src.rank, wide_index.shape, (1,) * src.rank)
        else:
            src = p.filled(src, x.dtype, wide_index.shape)
        inner = _dtype_of_sums(p, x, src) if prim == "scatter_add" else x.dtype
        args = p.convert(flat, inner), wrap(dim, flat.rank), wide_index, p.convert(src, inner)
        return p.reshape(p.convert(getattr(p, prim)(*args), x.dtype), x.shape)

    return decomposition


def scatter_reduce(
    p: Builder, x: Value, dim: int, index: Value, src: Value, reduce: str, include_self: bool = True
) -> Value:
    if reduce == "sum" and include_self and x.dtype != "bool":
        return _scatter("scatter_add")(p, x, dim, index, src)
    raise Decline("another reduction than a sum")


def embedding(
    p: Builder, weight: Value, indices: Value, padding_idx: int = -1, scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Value:  # fmt: skip
    return p.index(weight, (p.convert(indices, "int64"),), False)


def embedding_dense_backward(
    p: Builder, grad: Value, indices: Value, num_weights: Dim, padding_idx: int, scale_grad_by_freq: bool
) -> Value:
    """Rows of grad added up by index, float32 for halves; the padding row receives nothing."""
    inner = opmath(grad.dtype)
    grad, indices = p.convert(grad, inner), p.convert(indices, "int64")
    lead = tuple(range(indices.rank, grad.rank))
    if scale_grad_by_freq:
        ones = p.full(indices.shape, 1.0, inner)
        counts = p.index_put(p.full((num_weights,), 0.0, inner), (indices,), ones, True, False)
        grad = p.div(grad, p.spread(p.index(counts, (indices,), False), grad.shape, lead))
    if padding_idx >= 0:
        padding = p.eq(indices, padding_idx)
        grad = p.where(p.spread(padding, grad.shape, lead), 0.0, grad)
    zeros = p.full((num_weights, *grad.shape[indices.rank :]), 0.0, inner)
    return p.convert(p.index_put(zeros, (indices,), grad, True, False), p.out.dtype)


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


TABLE: Table = {
    "aten.index.Tensor": index,
    "aten._unsafe_index.Tensor": index,
    **by_name(index_put, index_select, index_add, index_copy, gather, embedding, embedding_dense_backward),
    "aten._unsafe_index_put.default": index_put,
    "aten._index_put_impl.default": index_put,
    "aten.index_fill.int_Scalar": index_fill,
    "aten.index_fill.int_Tensor": index_fill,
    "aten.scatter.src": _scatter("scatter"),
    "aten.scatter.value": _scatter("scatter"),
    "aten.scatter_add.default": _scatter("scatter_add"),
    "aten.scatter_reduce.two": scatter_reduce,
    "aten._embedding_bag_backward.default": embedding_bag_backward,
    "aten.take.default": lambda p, x, i: p.index(p.reshape(x, (numel(x.shape),)), (p.convert(i, "int64"),), True),
}
