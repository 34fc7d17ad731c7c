"""Ordering: sorting, selection by rank, and search in sorted values."""

from __future__ import annotations

from primops.prims.layouts import FLOATS, dense_stride, tensor
from primops.prims.record import Call, Constraint, Record, parameters
from primops.prims.scans import is_dimension
from stagewire.expr import Dim
from stagewire.types import TensorType

_X = tensor("float32", (2, 3))
_J = tensor("int64", (4,))


# --- rules ---------------------------------------------------------------------------------------------------------


def _pair(x: TensorType, shape: tuple[Dim, ...]) -> tuple[TensorType, ...]:
    return tensor(x.dtype, shape, x.device), tensor("int64", shape, x.device)


def _sort(x: TensorType, stable: bool, dim: int, descending: bool) -> tuple[TensorType, ...]:
    stride = dense_stride(x.shape, x.stride)
    return (TensorType(x.dtype, x.shape, stride, 0, x.device), TensorType("int64", x.shape, stride, 0, x.device))


def _topk(x: TensorType, k: Dim, dim: int, largest: bool, ordered: bool) -> tuple[TensorType, ...]:
    return _pair(x, tuple(k if i == dim else n for i, n in enumerate(x.shape)))


def _without(x: TensorType, dim: int) -> tuple[Dim, ...]:
    return tuple(n for i, n in enumerate(x.shape) if i != dim)


def _kthvalue(x: TensorType, k: Dim, dim: int) -> tuple[TensorType, ...]:
    return _pair(x, _without(x, dim))


def _selected(x: TensorType, dim: int) -> tuple[TensorType, ...]:
    return _pair(x, _without(x, dim))


def _searchsorted(boundaries: TensorType, values: TensorType, out_int32: bool, right: bool) -> tuple[TensorType, ...]:
    return (tensor("int32" if out_int32 else "int64", values.shape, values.device),)


def _counts(x: TensorType, bins: int, *_: object) -> tuple[TensorType, ...]:
    return (tensor(x.dtype, (bins,), x.device),)


# --- constraints ---------------------------------------------------------------------------------------------------


def _sort_dim(x: TensorType, stable: bool, dim: int, descending: bool) -> str | None:
    return is_dimension(x, dim)


def _rank_dim(x: TensorType, k: Dim, dim: int, *_: object) -> str | None:
    return is_dimension(x, dim)


def _available(x: TensorType, k: Dim, dim: int, *_: object) -> str | None:
    size = x.shape[dim] if x.shape else 1
    if type(k) is int and type(size) is int and not 0 <= k <= size:
        return f"{k} of {size} elements"
    return None


def _some(x: TensorType, dim: int, *_: object) -> str | None:
    return f"dimension {dim} is empty" if x.shape and x.shape[dim] == 0 else None


def _rows(boundaries: TensorType, values: TensorType, *_: object) -> str | None:
    if len(boundaries.shape) == 1 or boundaries.shape[:-1] == values.shape[:-1]:
        return None
    return f"boundaries {list(boundaries.shape)} for values {list(values.shape)}"


def _one_dtype(boundaries: TensorType, values: TensorType, *_: object) -> str | None:
    return None if boundaries.dtype == values.dtype else f"{boundaries.dtype} and {values.dtype}"


def _bins(x: TensorType, bins: int, *_: object) -> str | None:
    return None if bins > 0 and x.dtype in FLOATS else f"{bins} bins for {x.dtype}"


O1 = Constraint("O1", "dim is a dimension of the operand, 0 for a scalar.", _sort_dim, ("sort", (_X, True, 2, False)))
O2 = Constraint("O2", "dim is a dimension of the operand, 0 for a scalar.", _rank_dim, ("topk", (_X, 1, 2, True, True)))
O3 = Constraint("O3", "k is between 0 and the size of dim.", _available, ("topk", (_X, 4, 1, True, True)))
O4 = Constraint("O4", "dim is a dimension of the operand, 0 for a scalar.", is_dimension, ("median", (_X, 2)))
O5 = Constraint("O5", "dim is not empty.", _some, ("median", (tensor("float32", (2, 0)), 1)))
O6 = Constraint(
    "O6", "The boundaries have one dimension, or the values' dimensions but the last.", _rows,
    ("searchsorted", (_X, tensor("float32", (3, 3)), False, False)),
)  # fmt: skip
O7 = Constraint(
    "O7", "Boundaries and values have one dtype.", _one_dtype,
    ("searchsorted", (tensor("float32", (3,)), _J, False, False)),
)  # fmt: skip

O8 = Constraint("O8", "There are bins, and the operand is a float.", _bins, ("histc", (_X, 0, 0.0, 1.0)))

_FAMILY = "ordering"
_BOTH = ("values", "indices")


def _chosen(name: str, doc: str) -> Record:
    overload = "default" if name == "mode" else "dim"
    return Record(
        name, _FAMILY, parameters("x: tensor, dim: int"), doc, _selected, (O4, O5),
        f"{name}(x: f32[2, 3], 1) -> f32[2], i64[2]", _BOTH, Call(f"aten.{name}.{overload}"),
    )  # fmt: skip


RECORDS: tuple[Record, ...] = (
    Record(
        "sort", _FAMILY, parameters("x: tensor, stable: bool, dim: int, descending: bool"),
        "The elements along dim in order, nan greatest, and where each was. stable: equal elements keep their order.",
        _sort, (O1,), "sort(x: f32[2, 3], true, 1, false) -> f32[2, 3], i64[2, 3]", _BOTH,
        Call("aten.sort.stable", ("stable", "dim", "descending")),
    ),
    Record(
        "topk", _FAMILY, parameters("x: tensor, k: size, dim: int, largest: bool, sorted: bool"),
        "The k largest (or smallest) elements along dim, nan greatest, and where they were; in order if sorted.",
        _topk, (O2, O3), "topk(x: f32[2, 3], 2, 1, true, true) -> f32[2, 2], i64[2, 2]", _BOTH,
        Call("aten.topk.default"),
    ),
    Record(
        "kthvalue", _FAMILY, parameters("x: tensor, k: size, dim: int"),
        "The k-th smallest element along dim (the first is 1), which disappears, and where it was.",
        _kthvalue, (O2, O3), "kthvalue(x: f32[2, 3], 2, 1) -> f32[2], i64[2]", _BOTH, Call("aten.kthvalue.default"),
    ),
    _chosen("median", "The lower median along dim, which disappears, and where it was; nan if one element is nan."),
    _chosen("nanmedian", "The lower median along dim, which disappears, of what is not nan, and where it was."),
    _chosen("mode", "The most frequent element along dim, which disappears (the least of several); its last place."),
    Record(
        "searchsorted", _FAMILY, parameters("boundaries: tensor, values: tensor, out_int32: bool, right: bool"),
        "For each value the first position at which it keeps the boundaries sorted, or the last one if right. "
        "Boundaries are sorted along their last dimension; one row for all values, or a row for each of theirs.",
        _searchsorted, (O6, O7), "searchsorted(boundaries: f32[5], values: f32[2, 3], false, true) -> i64[2, 3]",
        call=Call("aten.searchsorted.Tensor", ("out_int32", "right")),
    ),
    Record(
        "histc", _FAMILY, parameters("x: tensor, bins: int, low: number, high: number"),
        "How many elements fall into each of so many equal bins from low to high (from the least to the greatest "
        "element if both are 0); what lies outside does not count.", _counts, (O8,),
        "histc(x: f32[2, 3], 4, 0.0, 1.0) -> f32[4]", call=Call("aten.histc.default"),
    ),
)  # fmt: skip
