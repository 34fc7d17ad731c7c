"""Indexing prims: elements chosen, or written, by index tensors. An index outside the operand is an error.

Indices are in 0..size-1, but for `index` and `index_put` with wrap: these take -size..size-1."""

from __future__ import annotations

from primops.prims.layouts import dense_like, tensor
from primops.prims.shapes import S6, Sizes, sliced_size
from stagewire.types import TensorType
from stagewire.vocabulary import Op, constraint, parameters

Indices = tuple[TensorType | None, ...]
_X = tensor("float32", (2, 3))
_I = tensor("int64", (2, 3))
_J = tensor("int64", (4,))
_POSITIONS = ("int64", "int32")


def indexed_shape(x: TensorType, indices: Indices) -> Sizes:
    """The shape of x[indices]: the index dimensions stand where the indices do, or first if those are apart."""
    used = [i for i, index in enumerate(indices) if index is not None]
    common = next(index.shape for index in indices if index is not None)
    rest = [n for i, n in enumerate(x.shape) if i not in used]
    adjacent = used == list(range(used[0], used[0] + len(used)))
    place = used[0] if adjacent else 0
    return (*rest[:place], *common, *rest[place:])


# --- rules ---------------------------------------------------------------------------------------------------------
def _like(x: TensorType, *_: object) -> tuple[TensorType, ...]:
    return (dense_like(x),)


def _differs(what: str, found: TensorType, dtype: str, shape: Sizes) -> str | None:
    """What is wrong with the type of an operand that has to be of another one."""
    if found.dtype == dtype and found.shape == shape:
        return None
    return f"{what} {found.dtype}{list(found.shape)} for {dtype}{list(shape)}"


# --- constraints ---------------------------------------------------------------------------------------------------
@constraint("The index is int64 or int32, of the operand's rank; dim is a dimension.", ("gather", (_X, 0, _J)))
def I1(x: TensorType, dim: int, index: TensorType, *_: object) -> str | None:
    if index.dtype not in _POSITIONS:
        return f"the index is {index.dtype}"
    if len(index.shape) != len(x.shape) or not 0 <= dim < max(1, len(x.shape)):
        return f"rank {len(index.shape)} of the index, rank {len(x.shape)} of the operand, dim {dim}"
    return None


@constraint("Outside dim the index is no larger than the operand.", ("gather", (_X, 0, tensor("int64", (2, 4)))))
def I2(x: TensorType, dim: int, index: TensorType, *_: object) -> str | None:
    for i, (n, m) in enumerate(zip(x.shape, index.shape, strict=True)):
        if i != dim and isinstance(n, int) and isinstance(m, int) and m > n and 0 not in index.shape:
            return f"index size {m} exceeds {n} in dimension {i}"
    return None


@constraint(
    "The source has the operand's dtype and the index's shape (or is a literal).",
    ("scatter", (_X, 0, _I, tensor("float64", (2, 3)))),
)
def I3(x: TensorType, dim: int, index: TensorType, src: object, *_: object) -> str | None:
    return _differs("the source is", src, x.dtype, index.shape) if isinstance(src, TensorType) else None


@constraint(
    "At least one index tensor; all int64 or int32 and of one shape; no more than the rank.",
    ("index", (_X, (_J, tensor("int64", (5,))), True)),
)
def I4(x: TensorType, indices: Indices, *_: object) -> str | None:
    used = [index for index in indices if index is not None]
    if not used or len(indices) > len(x.shape):
        return f"{len(indices)} indices ({len(used)} tensors) for rank {len(x.shape)}"
    if any(index.dtype not in _POSITIONS for index in used):
        return "an index is no int64 or int32"
    return "the index tensors differ in shape" if any(index.shape != used[0].shape for index in used) else None


@constraint(
    "The values have the operand's dtype and the shape of operand[indices].",
    ("index_put", (_X, (_J,), _X, False, True)),
)
def I5(x: TensorType, indices: Indices, values: TensorType, *_: object) -> str | None:
    return _differs("values are", values, x.dtype, indexed_shape(x, indices))


@constraint(
    "The window lies inside of the operand; the source has the operand's dtype and the shape of the window.",
    ("slice_scatter", (_X, _X, (0, 0), (1, 3), (1, 1))),
)
def I6(x: TensorType, src: TensorType, start: Sizes, stop: Sizes, step: Sizes) -> str | None:
    if not len(x.shape) == len(src.shape) == len(start) == len(stop) == len(step):
        return "start, stop, step and the source do not have the operand's rank"
    outside = S6.check(x, start, stop, step)
    return outside or _differs("the source is", src, x.dtype, tuple(map(sliced_size, start, stop, step)))


_BOOLS = tensor("bool", (2, 3))


@constraint("The operand is an integer or float.", ("scatter_add", (_BOOLS, 0, _I, _BOOLS)))
def I7(x: TensorType, *_: object) -> str | None:
    return "bool is not added" if x.dtype == "bool" else None


_FAMILY = "indexing"
OPS: tuple[Op, ...] = (
    Op(
        "gather", _FAMILY, parameters("x: tensor, dim: int, index: tensor"),
        "Element (i, j, k) is x[index[i, j, k], j, k] for dim 0, and so on for the others. Indices are in 0..size-1.",
        lambda x, dim, index: (tensor(x.dtype, index.shape, x.device),), (I1, I2),
        "gather(x: f32[2, 3], 0, index: i64[1, 3]) -> f32[1, 3]",
    ),
    Op(
        "index", _FAMILY, parameters("x: tensor, indices: indices, wrap: bool"),
        "Advanced indexing: dimension i is chosen by indices[i], or kept whole for None (also for those not given). "
        "The index tensors have one shape; its dimensions stand where the indices do, or first if the indices are "
        "apart. With wrap, negative indices count from the end; without it they are an error.",
        lambda x, indices, wrap: (tensor(x.dtype, indexed_shape(x, indices), x.device),), (I4,),
        "index(x: f32[2, 3], [None, index: i64[4]], True) -> f32[2, 4]",
    ),
    Op(
        "scatter", _FAMILY, parameters("x: tensor, dim: int, index: tensor, src: operand"),
        "x with x[index[i, j, k], j, k] = src[i, j, k] (for dim 0). "
        "Which write wins is unspecified when indices repeat.",
        _like, (I1, I2, I3), "scatter(x: f32[2, 3], 0, index: i64[1, 3], src: f32[1, 3]) -> f32[2, 3]",
    ),
    Op(
        "scatter_add", _FAMILY, parameters("x: tensor, dim: int, index: tensor, src: operand"),
        "x with x[index[i, j, k], j, k] += src[i, j, k] (for dim 0), every repetition counted.",
        _like, (I1, I2, I3, I7), "scatter_add(x: f32[2, 3], 0, index: i64[1, 3], src: f32[1, 3]) -> f32[2, 3]",
    ),
    Op(
        "index_put", _FAMILY, parameters("x: tensor, indices: indices, values: tensor, accumulate: bool, wrap: bool"),
        "x with x[indices] = values (or += values, every repetition counted); indices as for index.",
        _like, (I4, I5), "index_put(x: f32[2, 3], [index: i64[4]], values: f32[4, 3], True, False) -> f32[2, 3]",
    ),
    Op(
        "slice_scatter", _FAMILY, parameters("x: tensor, src: tensor, start: sizes, stop: sizes, step: sizes"),
        "x with the window start:stop:step replaced by src.",
        _like, (I6,), "slice_scatter(x: f32[2, 3], src: f32[2, 1], [0, 1], [2, 2], [1, 1]) -> f32[2, 3]",
    ),
)  # fmt: skip
