"""Views, copies and rearrangements. A view is a value: its result is the elements, its aliasing is not modelled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from primops.builder import Builder, Value
from primops.decompositions.operands import Function, Table, by_name, wrap
from primops.errors import Decline
from primops.prims.layouts import is_dense, row_major, same_layout
from primops.prims.shapes import sliced_size
from stagewire.expr import Dim, Expr
from stagewire.types import numel


def transpose(p: Builder, x: Value, dim0: int, dim1: int) -> Value:
    order = list(range(x.rank))
    if order:
        a, b = wrap(dim0, x.rank), wrap(dim1, x.rank)
        order[a], order[b] = order[b], order[a]
    return p.permute(x, order)


def window(p: Builder, x: Value, dim: int, start: Dim, stop: Dim, step: Dim = 1) -> Value:
    """start:stop:step of one dimension (offsets resolved already); no node for all of it."""
    if start == 0 and stop == x.shape[dim] and step == 1:
        return x
    return p.slice(x, *_along(x.shape, dim, start, stop, step))


def _along(shape: Sequence[Dim], dim: int, start: Dim, stop: Dim, step: Dim) -> tuple[tuple[Dim, ...], ...]:
    """Starts, stops and steps of a window along one dimension."""
    whole = [(0, size, 1) for size in shape]
    return tuple(zip(*whole[:dim], (start, stop, step), *whole[dim + 1 :], strict=True))


def resolve(size: Dim, start: Dim | None, end: Dim | None) -> tuple[Dim, Dim]:
    """Python's slice offsets as offsets inside 0..size; an end far beyond the size is the size."""

    def clip(offset: Dim) -> Dim:
        if isinstance(offset, int) and offset >= 1 << 62:
            return size
        if isinstance(offset, int) and offset < 0:
            offset = offset + size
        return max(0, min(offset, size)) if isinstance(offset, int) and isinstance(size, int) else offset

    first = clip(0 if start is None else start)
    last = size if end is None else clip(end)
    return first, max(first, last) if isinstance(first, int) and isinstance(last, int) else last


def slice_tensor(
    p: Builder, x: Value, dim: int = 0, start: Dim | None = None, end: Dim | None = None, step: Dim = 1
) -> Value:
    dim = wrap(dim, x.rank)
    first, last = resolve(x.shape[dim], start, end)
    return window(p, x, dim, first, _end(first, last, step, p.out.shape[dim]), step)


def _end(first: Dim, last: Dim, step: Dim, count: Dim) -> Dim:
    """The end of a slice of `count` elements; `last` where that is how they are counted from the offsets.

    Otherwise facts of the sizes have given the stated count another text: n//2 for (n + 1)//2 where n is even.
    """
    return last if sliced_size(first, last, step) == count else first + (count - 1) * step + 1


def _position(x: Value, dim: int, index: Any) -> Dim:
    if type(index) is Value:
        raise Decline("the index is a tensor")
    return index + x.shape[dim] if isinstance(index, int) and index < 0 else index


def select(p: Builder, x: Value, dim: int, index: Any) -> Value:
    dim = wrap(dim, x.rank)
    index = _position(x, dim, index)
    return p.reshape(window(p, x, dim, index, index + 1), p.out.shape)


def split(p: Builder, x: Value, split_size: Dim, dim: int = 0) -> tuple[Value, ...]:
    return split_with_sizes(p, x, tuple(r.shape[wrap(dim, x.rank)] for r in p.results), dim)  # type: ignore[union-attr]


def split_with_sizes(p: Builder, x: Value, sizes: Sequence[Dim], dim: int = 0) -> tuple[Value, ...]:
    dim = wrap(dim, x.rank)
    pieces, start = [], 0
    for size in sizes:
        pieces.append(window(p, x, dim, start, start + size))
        start = start + size
    return tuple(pieces)


def unbind(p: Builder, x: Value, dim: int = 0) -> tuple[Value, ...]:
    dim = wrap(dim, x.rank)
    return tuple(p.reshape(window(p, x, dim, i, i + 1), r.shape) for i, r in enumerate(p.results))  # type: ignore[union-attr]


def cat(p: Builder, tensors: Sequence[Value], dim: int = 0) -> Value:
    """Operands converted to the result's dtype; the legacy empty 1-D operand is skipped."""
    kept = [x for x in tensors if not (x.shape == (0,) and len(p.out.shape) != 1)]
    kept = [p.convert(x, p.out.dtype) for x in kept]
    if not kept:
        return p.full(p.out.shape, 0, p.out.dtype)
    return p.cat(tuple(kept), wrap(dim, len(p.out.shape))) if len(kept) > 1 else kept[0]


def stack(p: Builder, tensors: Sequence[Value], dim: int = 0) -> Value:
    dim = wrap(dim, len(p.out.shape))
    shape = p.out.shape
    single = (*shape[:dim], 1, *shape[dim + 1 :])
    return p.cat(tuple(p.reshape(p.convert(x, p.out.dtype), single) for x in tensors), dim)


def repeat(p: Builder, x: Value, repeats: Sequence[Dim]) -> Value:
    """x tiled: every dimension n becomes (repeat, n) and is merged."""
    lead = len(repeats) - x.rank
    shape = (*(1,) * lead, *x.shape)
    wide: list[Dim] = []
    places: list[int] = []
    for i, (count, size) in enumerate(zip(repeats, shape, strict=True)):
        if count != 1:
            wide.append(count)
        if i >= lead:
            places.append(len(wide))
            wide.append(size)
        elif count == 1:
            wide.append(1)
    return p.reshape(p.broadcast_in_dim(x, tuple(wide), tuple(places)), p.out.shape)


def flip(p: Builder, x: Value, dims: Sequence[int]) -> Value:
    wrapped = tuple(sorted({wrap(d, x.rank) for d in dims}))
    return p.flip(x, wrapped) if wrapped and x.rank else x


def roll(p: Builder, x: Value, shifts: Any, dims: Any = ()) -> Value:
    shifts = (shifts,) if not isinstance(shifts, tuple) else shifts
    dims = (dims,) if not isinstance(dims, tuple) else dims
    if not dims:
        (shift,) = shifts
        flat = p.reshape(x, (numel(x.shape),))
        return p.reshape(_roll_dim(p, flat, shift, 0), x.shape)
    for shift, dim in zip(shifts, dims, strict=True):
        x = _roll_dim(p, x, shift, wrap(dim, x.rank))
    return x


def _roll_dim(p: Builder, x: Value, shift: int, dim: int) -> Value:
    size = x.shape[dim]
    if not isinstance(size, int) or not isinstance(shift, int):
        raise Decline("a symbolic size")
    shift = shift % size if size else 0
    if shift == 0:
        return x
    return p.cat((window(p, x, dim, size - shift, size), window(p, x, dim, 0, size - shift)), dim)


# --- strided views -------------------------------------------------------------------------------------------------
def diagonal_window(
    shape: Sequence[Dim], offset: int, dim1: int, dim2: int
) -> tuple[tuple[Dim, ...], tuple[Dim, ...], Dim]:
    """Size, stride and offset of a diagonal within the row-major elements of `shape`."""
    rank = len(shape)
    dim1, dim2 = wrap(dim1, rank), wrap(dim2, rank)
    strides = row_major(tuple(shape))
    rows, columns = shape[dim1], shape[dim2]
    if not isinstance(rows, int) or not isinstance(columns, int):
        raise Decline("a symbolic diagonal")
    length = max(0, min(rows, columns - offset) if offset >= 0 else min(rows + offset, columns))
    start = offset * strides[dim2] if offset >= 0 else -offset * strides[dim1]
    rest = [i for i in range(rank) if i not in (dim1, dim2)]
    size = (*(shape[i] for i in rest), length)
    stride = (*(strides[i] for i in rest), strides[dim1] + strides[dim2])
    return size, stride, start if length else 0


def diagonal(p: Builder, x: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Value:
    return p.as_strided(x, *diagonal_window(x.shape, offset, dim1, dim2))


def unfold_window(shape: Sequence[Dim], dim: int, size: Dim, step: Dim) -> tuple[tuple[Dim, ...], tuple[Dim, ...], Dim]:
    """Size, stride and offset of the sliding windows within the row-major elements of `shape`."""
    if not shape:
        return (size,), (1,), 0
    strides = list(row_major(tuple(shape)))
    dim = wrap(dim, len(shape))
    sizes = list(shape)
    sizes[dim] = (shape[dim] - size) // step + 1
    inner = strides[dim]
    strides[dim] = strides[dim] * step
    return (*sizes, size), (*strides, inner), 0


def unfold(p: Builder, x: Value, dimension: int, size: Dim, step: Dim) -> Value:
    return p.as_strided(x, *unfold_window(x.shape, dimension, size, step))


def scatter_window(
    p: Builder, x: Value, src: Value, size: Any, stride: Any, offset: Dim, accumulate: bool = False
) -> Value:
    """x with the strided window (of its row-major elements) replaced by src, or increased by it."""
    count = numel(x.shape)
    positions = p.as_strided(p.iota(count, 0, 1, "int64"), tuple(size), tuple(stride), offset)
    flat_count = numel(positions.shape)
    positions = p.reshape(positions, (flat_count,))
    src = p.reshape(p.convert(src, x.dtype), (flat_count,))
    flat = p.index_put(p.reshape(x, (count,)), (positions,), src, accumulate, False)
    return p.reshape(flat, x.shape)


def storage_order(p: Builder, x: Value) -> Value:
    """x permuted so that its row-major order is the order of its elements in memory."""
    if not is_dense(x.shape, x.type.stride):
        raise Decline("as_strided of a tensor with gaps")
    if same_layout(x.shape, x.type.stride, row_major(x.shape)):
        return p.permute(x, list(range(x.rank)))
    if not all(isinstance(step, int) for step in x.type.stride):
        raise Decline("as_strided of symbolic strides")
    return p.permute(x, sorted(range(x.rank), key=lambda i: -x.type.stride[i]))  # type: ignore[operator]


def _relative(x: Value, size: Any, stride: Any, offset: Any) -> Dim:
    offset = 0 if offset is None else offset - x.type.storage_offset
    if not all(isinstance(v, int) for v in (*size, *stride, offset, *x.shape)):
        raise Decline("symbolic strides")
    last = offset + sum((n - 1) * s for n, s in zip(size, stride, strict=True))
    if offset < 0 or last >= numel(x.shape):
        raise Decline("as_strided reaches outside of its operand")
    return offset


def as_strided(p: Builder, x: Value, size: Any, stride: Any, storage_offset: Any = None) -> Value:
    ordered = storage_order(p, x)
    offset = _relative(x, size, stride, storage_offset)
    return p.as_strided(ordered, tuple(size), tuple(stride), offset)


def as_strided_scatter(p: Builder, x: Value, src: Value, size: Any, stride: Any, storage_offset: Any = None) -> Value:
    if not same_layout(x.shape, x.type.stride, row_major(x.shape)):
        raise Decline("as_strided_scatter of a tensor that is not row-major")
    return scatter_window(p, x, src, size, stride, _relative(x, size, stride, storage_offset))


def diagonal_scatter(p: Builder, x: Value, src: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Value:
    return scatter_window(p, x, src, *diagonal_window(x.shape, offset, dim1, dim2))


def diagonal_backward(p: Builder, grad: Value, input_sizes: Any, offset: int, dim1: int, dim2: int) -> Value:
    zeros = p.full(tuple(input_sizes), 0, grad.dtype)
    return scatter_window(p, zeros, grad, *diagonal_window(input_sizes, offset, dim1, dim2))


def unfold_backward(p: Builder, grad: Value, input_sizes: Any, dim: int, size: Dim, step: Dim) -> Value:
    zeros = p.full(tuple(input_sizes), 0, grad.dtype)
    return scatter_window(p, zeros, grad, *unfold_window(input_sizes, dim, size, step), accumulate=True)


# --- writing back --------------------------------------------------------------------------------------------------
def slice_scatter(
    p: Builder, x: Value, src: Value, dim: int = 0, start: Any = None, end: Any = None, step: Dim = 1
) -> Value:
    dim = wrap(dim, x.rank)
    first, last = resolve(x.shape[dim], start, end)
    last = _end(first, last, step, src.shape[dim])
    size = sliced_size(first, last, step)
    src = p.broadcast(p.convert(src, x.dtype), (*x.shape[:dim], size, *x.shape[dim + 1 :]))
    return p.slice_scatter(x, src, *_along(x.shape, dim, first, last, step))


def select_scatter(p: Builder, x: Value, src: Value, dim: int, index: Any) -> Value:
    dim = wrap(dim, x.rank)
    index = _position(x, dim, index)
    row = p.reshape(src, (*x.shape[:dim], 1, *x.shape[dim + 1 :]))
    return slice_scatter(p, x, row, dim, index, index + 1)


def padded(p: Builder, x: Value, dim: int, low: Dim, high: Dim, value: float = 0) -> Value:
    """x with elements of one value before and behind it along one dimension."""
    lows, highs = [0] * x.rank, [0] * x.rank
    lows[dim], highs[dim] = low, high  # type: ignore[call-overload]
    return p.pad(x, tuple(lows), tuple(highs), value)


def slice_backward(p: Builder, grad: Value, input_sizes: Any, dim: int, start: Any, end: Any, step: Dim) -> Value:
    dim = wrap(dim, grad.rank)
    first, last = resolve(input_sizes[dim], start, end)
    if step == 1:
        return padded(p, grad, dim, first, input_sizes[dim] - first - grad.shape[dim])
    return slice_scatter(p, p.full(tuple(input_sizes), 0, grad.dtype), grad, dim, first, last, step)


def select_backward(p: Builder, grad: Value, input_sizes: Any, dim: int, index: Any) -> Value:
    if not isinstance(index, int):
        raise Decline("a symbolic index")
    dim = wrap(dim, len(input_sizes))
    row = p.reshape(grad, (*input_sizes[:dim], 1, *input_sizes[dim + 1 :]))
    return slice_backward(p, row, input_sizes, dim, index, index + 1 if index != -1 else None, 1)


def constant_pad_nd(p: Builder, x: Value, pad: Sequence[Dim], value: Any = 0) -> Value:
    """Negative widths cut."""
    if any(isinstance(width, Expr) and "-" in width.text for width in pad):
        raise Decline("a symbolic width that may be negative")
    low, high = [0] * x.rank, [0] * x.rank
    for i in range(len(pad) // 2):
        low[x.rank - 1 - i], high[x.rank - 1 - i] = pad[2 * i], pad[2 * i + 1]  # type: ignore[call-overload]
    for dim in range(x.rank):
        cut_low, cut_high = (max(0, -w) if isinstance(w, int) else 0 for w in (low[dim], high[dim]))
        x = window(p, x, dim, cut_low, x.shape[dim] - cut_high)
    low, high = ([max(w, 0) if isinstance(w, int) else w for w in widths] for widths in (low, high))
    fill = float(value) if "float" in x.dtype else bool(value) if x.dtype == "bool" else int(value)
    return p.pad(x, tuple(low), tuple(high), fill) if any((*low, *high)) else x


# --- copies --------------------------------------------------------------------------------------------------------
def to_copy(p: Builder, x: Value, **options: Any) -> Value:
    """A dtype conversion; a move between devices stays with ATen."""
    if p.out.device != x.device:
        raise Decline(f"a copy from {x.device} to {p.out.device}")
    return p.convert(x, p.out.dtype) if p.out.dtype != x.dtype else p.clone(x)


def view_dtype(p: Builder, x: Value, dtype: Any) -> Value:
    if x.dtype == p.out.dtype:
        return x
    if x.shape != p.out.shape or "bool" in (x.dtype, p.out.dtype):
        raise Decline("a view of another width")
    return p.bitcast(x, p.out.dtype)


def _triangle(keep: str) -> Function:
    """tril and triu: rows and columns compared."""

    def decomposition(p: Builder, x: Value, diagonal: int = 0) -> Value:
        rows, columns = x.shape[-2:]
        row = p.broadcast_in_dim(p.iota(rows, diagonal, 1, "int64"), (rows, columns), (0,))
        column = p.broadcast_in_dim(p.iota(columns, 0, 1, "int64"), (rows, columns), (1,))
        mask = p.broadcast(getattr(p, keep)(column, row), x.shape)
        zero = 0.0 if "float" in x.dtype else False if x.dtype == "bool" else 0
        return p.where(mask, x, zero)

    return decomposition


def _shuffled(cells: Callable[..., tuple[Dim, ...]], order: Sequence[int]) -> Function:
    """The last three dimensions as cells, in another order."""

    def decomposition(p: Builder, x: Value, factor: int) -> Value:
        n = x.rank - 3
        split = p.reshape(x, (*x.shape[:n], *cells(*x.shape[n:], factor)))
        return p.reshape(p.permute(split, (*range(n), *(n + d for d in order))), p.out.shape)

    return decomposition


def broadcast_tensors(p: Builder, tensors: Sequence[Value]) -> tuple[Value, ...]:
    return tuple(p.broadcast(x, r.shape) for x, r in zip(tensors, p.results, strict=True))  # type: ignore[union-attr]


VIEWS: Table = {
    **{
        f"aten.{n}": lambda p, x, *_: p.reshape(x, p.out.shape)
        for n in (
            "view.default", "_unsafe_view.default", "reshape.default", "_reshape_alias.default", "unsqueeze.default",
            "squeeze.default", "view_as.default", "squeeze.dim", "squeeze.dims",
        )
    },
    "aten.expand.default": lambda p, x, size, implicit=False: p.broadcast(x, p.out.shape),
    "aten.permute.default": lambda p, x, dims: p.permute(x, [wrap(d, x.rank) for d in dims]),
    "aten.transpose.int": transpose,
    **by_name(split_with_sizes, diagonal, unfold, as_strided, broadcast_tensors),
    **{f"aten.{n}.default": lambda p, x: p.permute(x, range(x.rank - 1, -1, -1)) for n in ("t", "numpy_T")},
    **{f"aten.{n}.default": lambda p, x, *_, **__: x for n in ("alias", "detach", "lift", "lift_fresh")},
    "aten.slice.Tensor": slice_tensor,
    "aten.select.int": select,
    "aten.split.Tensor": split,
    "aten.unbind.int": unbind,
    "aten.view.dtype": view_dtype,
}  # fmt: skip
"""The ops whose result may be the operand itself; a fresh result of any other op is never its operand."""

_COPIED = (
    "view", "unsqueeze", "squeeze", "expand", "permute", "transpose", "t", "alias", "detach", "slice", "select",
    "split", "split_with_sizes", "unbind", "diagonal", "unfold",
)  # fmt: skip


def _copying(name: str) -> str:
    """The op that copies what a view shows: its name."""
    _, packet, overload = name.split(".")
    return f"aten.{packet}_copy.{overload}"


TABLE: Table = {
    **VIEWS,
    **by_name(
        cat, stack, repeat, flip, roll, slice_scatter, select_scatter, slice_backward, select_backward,
        diagonal_scatter, diagonal_backward, unfold_backward, as_strided_scatter, constant_pad_nd,
    ),
    "aten.pixel_shuffle.default": _shuffled(lambda c, h, w, k: (c // (k * k), k, k, h, w), (0, 3, 1, 4, 2)),
    "aten.pixel_unshuffle.default": _shuffled(lambda c, h, w, k: (c, h // k, k, w // k, k), (0, 2, 4, 1, 3)),
    **{
        f"aten.{n}.default": lambda p, x, memory_format=None: p.clone(x)
        for n in ("clone", "contiguous", "lift_fresh_copy")
    },
    "aten._to_copy.default": to_copy,
    "aten.tril.default": _triangle("le"),
    "aten.triu.default": _triangle("ge"),
    **{_copying(name): f for name, f in VIEWS.items() if name.split(".")[1] in _COPIED and name != "aten.view.dtype"},
}  # fmt: skip
