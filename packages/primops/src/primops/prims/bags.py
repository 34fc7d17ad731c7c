"""Bags and segments: reductions over runs of rows whose lengths are data, and their gradients."""

from __future__ import annotations

from primops.prims.layouts import FLOATS, tensor
from primops.prims.record import Call, Constraint, Record, parameters
from stagewire.expr import Dim
from stagewire.types import TensorType

Types = tuple[TensorType, ...]
_W = tensor("float32", (10, 4))
_J = tensor("int64", (6,))
_O = tensor("int64", (3,))
_SUM, _MEAN, _MAX = 0, 1, 2


# --- rules ---------------------------------------------------------------------------------------------------------


def _bag(
    weight: TensorType, indices: TensorType, offsets: TensorType, scale: bool, mode: int, sparse: bool,
    weights: TensorType | None, last: bool, padding: int,
) -> Types:  # fmt: skip
    bags: Dim = offsets.shape[0] - 1 if last else offsets.shape[0]

    def whole(shape: tuple[Dim, ...]) -> TensorType:
        return tensor(offsets.dtype, shape, weight.device)

    out = tensor(weight.dtype, (bags, weight.shape[1]), weight.device)
    if weight.device.startswith("cuda"):  # its kernel allocates otherwise
        largest = whole(out.shape if mode == _MAX else (0,))
        return out, whole(indices.shape), whole(offsets.shape), largest
    # The fast kernel of the CPU does not say which bag an index is in.
    plain = weight.stride[1] == 1 and (weights is None or weights.stride[0] == 1)
    fast = plain and mode == _SUM and weight.dtype != "float64" and padding < 0 and weight.device == "cpu"
    return out, whole((0 if fast else indices.shape[0],)), whole((bags,)), whole(out.shape if mode == _MAX else (bags,))


def _bag_gradient(
    grad: TensorType, indices: TensorType, offsets: TensorType, bag: TensorType, size: TensorType, largest: TensorType,
    count: Dim, *_: object,
) -> Types:  # fmt: skip
    return (tensor(grad.dtype, (count, grad.shape[1]), grad.device),)


def _weights_gradient(grad: TensorType, weight: TensorType, indices: TensorType, *_: object) -> Types:
    return (tensor(grad.dtype, indices.shape, grad.device),)


def _segments(x: TensorType, reduce: str, lengths: TensorType, *_: object) -> Types:
    return (tensor(x.dtype, (*lengths.shape, *x.shape[len(lengths.shape) :]), x.device),)


def _segment_gradient(grad: TensorType, out: TensorType, x: TensorType, *_: object) -> Types:
    return (tensor(x.dtype, x.shape, x.device),)


# --- constraints ---------------------------------------------------------------------------------------------------


def _table(weight: TensorType, indices: TensorType, offsets: TensorType, *_: object) -> str | None:
    if len(weight.shape) == 2 and len(indices.shape) == len(offsets.shape) == 1 and weight.dtype in FLOATS:
        return None
    return f"bags of {list(indices.shape)} indices of {weight.dtype}{list(weight.shape)} at {list(offsets.shape)}"


def _bag_mode(
    weight: TensorType, indices: TensorType, offsets: TensorType, scale: bool, mode: int, *_: object
) -> str | None:
    return None if mode in (_SUM, _MEAN, _MAX) else f"no mode {mode}"


def _weighted(
    weight: TensorType, indices: TensorType, offsets: TensorType, scale: bool, mode: int, sparse: bool,
    weights: TensorType | None, *_: object,
) -> str | None:  # fmt: skip
    if weights is None or (mode == _SUM and weights.shape == indices.shape and weights.dtype == weight.dtype):
        return None
    return f"weights {weights.dtype}{list(weights.shape)} for {list(indices.shape)} indices in mode {mode}"


def _of_bags(grad: TensorType, *_: object) -> str | None:
    return None if len(grad.shape) == 2 and grad.dtype in FLOATS else f"a gradient {grad.dtype}{list(grad.shape)}"


def _reductions(x: object, reduce: object, *rest: object) -> str | None:
    word = next(a for a in (x, reduce, *rest) if isinstance(a, str))
    return None if word in ("sum", "mean", "max", "min", "prod") else f"no reduction {word!r}"


def _lengths(x: TensorType, reduce: str, lengths: TensorType, *_: object) -> str | None:
    if lengths.dtype in ("int64", "int32") and 1 <= len(lengths.shape) <= len(x.shape):
        return None
    return f"lengths {lengths.dtype}{list(lengths.shape)} of {list(x.shape)}"


B1 = Constraint(
    "B1", "The table is a matrix of floats, indices and offsets are vectors.", _table,
    ("embedding_bag", (_W, tensor("int64", (2, 3)), _O, False, 0, False, None, False, -1)),
)  # fmt: skip
B2 = Constraint(
    "B2", "The mode is 0 (sum), 1 (mean) or 2 (max).", _bag_mode,
    ("embedding_bag", (_W, _J, _O, False, 3, False, None, False, -1)),
)  # fmt: skip
B3 = Constraint(
    "B3", "Weights are in the table's dtype, one for each index, and for sums only.", _weighted,
    ("embedding_bag", (_W, _J, _O, False, 1, False, tensor("float32", (6,)), False, -1)),
)  # fmt: skip
B4 = Constraint(
    "B4", "The gradient is a matrix of floats, a row for each bag.", _of_bags,
    ("embedding_bag_weights_backward", (tensor("float32", (3,)), _W, _J, _O, _J, 0, -1)),
)  # fmt: skip
B5 = Constraint(
    "B5", "The reduction is sum, mean, max, min or prod.", _reductions,
    ("segment_reduce", (_W, "median", _O, 0, True, None)),
)  # fmt: skip
B6 = Constraint(
    "B6", "The lengths are int32 or int64, along the first dimensions.", _lengths,
    ("segment_reduce", (_W, "sum", tensor("float32", (3,)), 0, True, None)),
)  # fmt: skip

_FAMILY = "bags"
_BAG = "scale_grad_by_freq: bool, mode: int, sparse: bool, weights: tensor?"

RECORDS: tuple[Record, ...] = (
    Record(
        "embedding_bag", _FAMILY,
        parameters(f"weight: tensor, indices: tensor, offsets: tensor, {_BAG}, include_last_offset: bool, "
                   "padding: int"),
        "Sum, mean or maximum of the rows of a table that each bag of indices names (bag i begins at offsets[i]), "
        "weighted if there are weights; rows named padding do not count. Also, for the gradient, the bag of each index "
        "(empty from the fast kernel), the size of each bag, and the index that gave each maximum.",
        _bag, (B1, B2, B3),
        "embedding_bag(weight: f32[10, 4], indices: i64[6], offsets: i64[3], false, 1, false, null, false, -1) -> "
        "f32[3, 4], i64[6], i64[3], i64[3]", ("out", "bag", "size", "largest"), Call("aten._embedding_bag.default"),
    ),
    Record(
        "embedding_bag_backward", _FAMILY,
        parameters("grad: tensor, indices: tensor, offsets: tensor, bag: tensor, size: tensor, largest: tensor, "
                   f"count: size, {_BAG}, padding: int"),
        "The gradient of the table, count rows, from that of the bags.", _bag_gradient, (B4,),
        "embedding_bag_backward(grad: f32[3, 4], indices: i64[6], offsets: i64[3], bag: i64[6], size: i64[3], "
        "largest: i64[3], 10, false, 1, false, null, -1) -> f32[10, 4]",
        call=Call("aten._embedding_bag_backward.default"),
    ),
    Record(
        "embedding_bag_weights_backward", _FAMILY,
        parameters("grad: tensor, weight: tensor, indices: tensor, offsets: tensor, bag: tensor, mode: int, "
                   "padding: int"),
        "The gradient of the weights of the indices, from that of the bags.", _weights_gradient, (B4,),
        "embedding_bag_weights_backward(grad: f32[3, 4], weight: f32[10, 4], indices: i64[6], offsets: i64[3], "
        "bag: i64[6], 0, -1) -> f32[6]", call=Call("aten._embedding_bag_per_sample_weights_backward.default"),
    ),
    Record(
        "segment_reduce", _FAMILY,
        parameters("x: tensor, reduce: word, lengths: tensor, axis: int, unsafe: bool, initial: number?"),
        "Each run of rows reduced, lengths[i] rows long; initial is what an empty run gives. unsafe: the lengths are "
        "not checked.", _segments, (B5, B6),
        "segment_reduce(x: f32[10, 4], sum, lengths: i64[3], 0, true, null) -> f32[3, 4]",
        call=Call("aten.segment_reduce.default", ("lengths", "axis", "unsafe", "initial")),
    ),
    Record(
        "segment_reduce_backward", _FAMILY,
        parameters("grad: tensor, out: tensor, x: tensor, reduce: word, lengths: tensor, axis: int, initial: number?"),
        "The gradient of each run, spread over its rows.", _segment_gradient, (B5,),
        "segment_reduce_backward(grad: f32[3, 4], out: f32[3, 4], x: f32[10, 4], sum, lengths: i64[3], 0, null) -> "
        "f32[10, 4]", call=Call("aten._segment_reduce_backward.default", ("lengths", "axis", "initial")),
    ),
)  # fmt: skip
