"""Data movement prims: elements are copied to other places, never changed."""

from __future__ import annotations

from operator import mul

from primops.errors import Decline
from primops.prims.layouts import dense_like, row_major, tensor
from stagewire.expr import Dim
from stagewire.types import TensorType, numel
from stagewire.vocabulary import Op, constraint, parameters

Sizes = tuple[Dim, ...]
Dims = tuple[int, ...]
_X = tensor("float32", (2, 3))


def _known(dim: Dim) -> bool:
    return isinstance(dim, int)


def _fresh(x: TensorType, shape: Sizes) -> tuple[TensorType, ...]:
    return (TensorType(x.dtype, shape, row_major(shape), 0, x.device),)


def _view(x: TensorType, shape: Sizes, stride: Sizes) -> tuple[TensorType, ...]:
    return (TensorType(x.dtype, shape, stride, 0, x.device),)


def sliced_size(start: Dim, stop: Dim, step: Dim) -> Dim:
    """The number of elements of start:stop:step."""
    if step == 1:
        return stop - start
    return (stop - start + step - 1) // step


# --- rules ---------------------------------------------------------------------------------------------------------
def _broadcast(x: TensorType, shape: Sizes, broadcast_dimensions: Dims) -> tuple[TensorType, ...]:
    stride: list[Dim] = [0] * len(shape)
    for i, dim in enumerate(broadcast_dimensions):
        if x.shape[i] == shape[dim]:
            stride[dim] = x.stride[i]
        elif x.shape[i] != 1 and not (_known(x.shape[i]) and _known(shape[dim])):
            raise Decline(f"whether {x.shape[i]} is {shape[dim]} is not known of the sizes")
    return _view(x, shape, tuple(stride))


def _slice(x: TensorType, start: Sizes, stop: Sizes, step: Sizes) -> tuple[TensorType, ...]:
    shape = tuple(map(sliced_size, start, stop, step))
    return _view(x, shape, tuple(map(mul, x.stride, step)))


def _same(x: TensorType, *_: object) -> tuple[TensorType, ...]:
    return (dense_like(x),)


def _cat(tensors: tuple[TensorType, ...], dim: int) -> tuple[TensorType, ...]:
    first = tensors[0]
    total: Dim = 0
    for x in tensors:
        total = total + x.shape[dim]
    return _fresh(first, (*first.shape[:dim], total, *first.shape[dim + 1 :]))


# --- constraints ---------------------------------------------------------------------------------------------------
@constraint(
    "broadcast_dimensions has one increasing entry for each operand dimension.",
    ("broadcast_in_dim", (_X, (2, 3), (1, 0))),
)
def S1(x: TensorType, shape: Sizes, broadcast_dimensions: Dims) -> str | None:
    if len(broadcast_dimensions) != len(x.shape):
        return f"{len(broadcast_dimensions)} broadcast_dimensions for rank {len(x.shape)}"
    if list(broadcast_dimensions) != sorted(set(broadcast_dimensions)):
        return f"{broadcast_dimensions} does not increase"
    if any(not 0 <= d < len(shape) for d in broadcast_dimensions):
        return f"{broadcast_dimensions} leaves 0..{len(shape) - 1}"
    return None


@constraint("Each operand size is 1 or equals the size it goes to.", ("broadcast_in_dim", (_X, (2, 4), (0, 1))))
def S2(x: TensorType, shape: Sizes, broadcast_dimensions: Dims) -> str | None:
    for i, d in enumerate(broadcast_dimensions):
        if x.shape[i] != 1 and x.shape[i] != shape[d]:
            return f"size {x.shape[i]} of dimension {i} is neither 1 nor {shape[d]}"
    return None


@constraint("dims is a permutation of the dimensions.", ("permute", (_X, (0, 0))))
def S3(x: TensorType, dims: Dims) -> str | None:
    return None if sorted(dims) == list(range(len(x.shape))) else f"{dims} is no permutation of rank {len(x.shape)}"


@constraint("The number of elements stays.", ("reshape", (_X, (7,))))
def S4(x: TensorType, shape: Sizes) -> str | None:
    before, after = numel(x.shape), numel(shape)
    return f"{before} elements into {after}" if _known(before) and _known(after) and before != after else None


@constraint("start, stop and step have one entry for each dimension.", ("slice", (_X, (0,), (2,), (1,))))
def S5(x: TensorType, start: Sizes, stop: Sizes, step: Sizes) -> str | None:
    ranks = {len(x.shape), len(start), len(stop), len(step)}
    return None if len(ranks) == 1 else "start, stop and step do not have one entry a dimension"


@constraint("0 <= start <= stop <= size and step >= 1.", ("slice", (_X, (0, 0), (2, 4), (1, 1))))
def S6(x: TensorType, start: Sizes, stop: Sizes, step: Sizes) -> str | None:
    for i, (n, a, b, k) in enumerate(zip(x.shape, start, stop, step, strict=True)):
        if _known(k) and k < 1:
            return f"step {k} of dimension {i} is below 1"
        if _known(a) and _known(b) and not (0 <= a <= b and (not _known(n) or b <= n)):
            return f"{a}:{b} leaves dimension {i} of size {n}"
    return None


@constraint("dims are distinct dimensions of the operand.", ("flip", (_X, (2,))))
def S7(x: TensorType, dims: Dims) -> str | None:
    if len(set(dims)) != len(dims) or any(not 0 <= d < len(x.shape) for d in dims):
        return f"{dims} are not distinct dimensions of rank {len(x.shape)}"
    return None


@constraint(
    "There is at least one tensor, all have one rank, dim is one of its dimensions.",
    ("cat", ((_X, tensor("float32", (2,))), 0)),
)
def S8(tensors: tuple[TensorType, ...], dim: int) -> str | None:
    if not tensors:
        return "no tensors"
    rank = len(tensors[0].shape)
    if any(len(x.shape) != rank for x in tensors) or not 0 <= dim < rank:
        return f"ranks {[len(x.shape) for x in tensors]} with dim {dim}"
    return None


@constraint("The tensors agree in size outside dim.", ("cat", ((_X, tensor("float32", (2, 4))), 0)))
def S9(tensors: tuple[TensorType, ...], dim: int) -> str | None:
    def rest(x: TensorType) -> Sizes:
        return (*x.shape[:dim], *x.shape[dim + 1 :])

    return None if all(rest(x) == rest(tensors[0]) for x in tensors) else f"sizes differ outside dimension {dim}"


@constraint("The tensors have one dtype and one device.", ("cat", ((_X, tensor("int64", (2, 3))), 0)))
def S10(tensors: tuple[TensorType, ...], dim: int) -> str | None:
    kinds = {(x.dtype, x.device) for x in tensors}
    return None if len(kinds) == 1 else f"dtypes or devices differ: {sorted(kinds)}"


@constraint("low and high have one width >= 0 for each dimension.", ("pad", (_X, (0, -1), (0, 0), 0.0)))
def S11(x: TensorType, low: Sizes, high: Sizes, value: float) -> str | None:
    if len(low) != len(x.shape) or len(high) != len(x.shape):
        return f"{len(low)} and {len(high)} widths for rank {len(x.shape)}"
    bad = [w for w in (*low, *high) if _known(w) and w < 0]
    return f"negative width {bad[0]}" if bad else None


@constraint("Every element read lies inside the operand.", ("as_strided", (_X, (2, 2), (3, 3), 0)))
def S12(x: TensorType, size: Sizes, stride: Sizes, offset: Dim) -> str | None:
    if len(size) != len(stride):
        return "size and stride differ in rank"
    count = numel(x.shape)
    if not all(map(_known, (*size, *stride, offset, count))) or 0 in size:
        return None
    last = offset + sum((n - 1) * s for n, s in zip(size, stride, strict=True))
    return None if offset >= 0 and last < count else f"element {last} of {count}"


_FAMILY = "shape"
OPS: tuple[Op, ...] = (
    Op(
        "broadcast_in_dim", _FAMILY, parameters("x: tensor, shape: sizes, broadcast_dimensions: dims"),
        "Operand dimension i becomes result dimension broadcast_dimensions[i]; sizes of 1 and new dimensions repeat. "
        "Stride 0 in the result type marks a repeated dimension.",
        _broadcast, (S1, S2), "broadcast_in_dim(x: f32[3], [2, 3], [1]) -> f32[2, 3]",
        is_view=True,
    ),
    Op(
        "permute", _FAMILY, parameters("x: tensor, dims: dims"), "Result dimension i is operand dimension dims[i].",
        lambda x, dims: _view(x, tuple(x.shape[d] for d in dims), tuple(x.stride[d] for d in dims)),
        (S3,), "permute(x: f32[2, 3], [1, 0]) -> f32[3, 2]", is_view=True,
    ),
    Op(
        "reshape", _FAMILY, parameters("x: tensor, shape: sizes"),
        "The same elements in row-major order under another shape.",
        _fresh, (S4,), "reshape(x: f32[2, 3], [6]) -> f32[6]", is_view=True,
    ),
    Op(
        "slice", _FAMILY, parameters("x: tensor, start: sizes, stop: sizes, step: sizes"),
        "Every dimension i cut to start[i]:stop[i]:step[i]; offsets are never negative.",
        _slice, (S5, S6), "slice(x: f32[2, 3], [0, 1], [2, 3], [1, 1]) -> f32[2, 2]", is_view=True,
    ),
    Op(
        "flip", _FAMILY, parameters("x: tensor, dims: dims"), "The order of the elements reversed along dims.",
        _same, (S7,), "flip(x: f32[2, 3], [1]) -> f32[2, 3]", is_view=True,
    ),
    Op(
        "cat", _FAMILY, parameters("tensors: tensors, dim: int"), "The tensors one after the other along dim.",
        _cat, (S8, S9, S10), "cat([x: f32[2, 3], y: f32[1, 3]], 0) -> f32[3, 3]",
    ),
    Op(
        "pad", _FAMILY, parameters("x: tensor, low: sizes, high: sizes, value: number"),
        "low[i] elements of value before and high[i] after the operand along each dimension i.",
        lambda x, low, high, value: _fresh(x, tuple(a + n + b for a, n, b in zip(low, x.shape, high, strict=True))),
        (S11,), "pad(x: f32[2, 3], [0, 1], [0, 2], 0.0) -> f32[2, 6]",
    ),
    Op(
        "as_strided", _FAMILY, parameters("x: tensor, size: sizes, stride: sizes, offset: size"),
        "Element (i, j, ...) is element offset + i*stride[0] + j*stride[1] + ... of the operand in row-major order.",
        lambda x, size, stride, offset: _view(x, size, stride), (S12,),
        "as_strided(x: f32[6], [2, 2], [3, 1], 1) -> f32[2, 2]",
    ),
    Op(
        "clone", _FAMILY, parameters("x: tensor"),
        "The same elements in a fresh tensor; the result's type states the layout.",
        _same, (), "clone(x: f32[2, 3]) -> f32[2, 3]",
    ),
)  # fmt: skip
