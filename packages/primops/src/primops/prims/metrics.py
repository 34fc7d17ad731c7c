"""Metrics: distances between rows, and losses whose algorithm is a recurrence or depends on the targets."""

from __future__ import annotations

from math import inf

from primops.prims.layouts import FLOATS, tensor
from primops.prims.record import Call, Constraint, Record, parameters
from stagewire.expr import Dim
from stagewire.types import TensorType

Types = tuple[TensorType, ...]
_X, _Y = tensor("float32", (4, 3)), tensor("float32", (5, 3))
_LOGS = tensor("float32", (7, 2, 5))
_T = tensor("int64", (2, 3))


# --- rules ---------------------------------------------------------------------------------------------------------


def _batches(x: TensorType, y: TensorType) -> tuple[Dim, ...]:
    mine, theirs = x.shape[:-2], y.shape[:-2]
    rank = max(len(mine), len(theirs))
    padded = [((1,) * (rank - len(sizes))) + sizes for sizes in (mine, theirs)]
    return tuple(n if m == 1 else m for m, n in zip(*padded, strict=True))


def _pairs(x: TensorType, y: TensorType, *_: object) -> Types:
    return (tensor(x.dtype, (*_batches(x, y), x.shape[-2], y.shape[-2]), x.device),)


def _pairs_gradient(grad: TensorType, x: TensorType, y: TensorType, *_: object) -> Types:
    return (tensor(x.dtype, (*_batches(x, y), *x.shape[-2:]), x.device),)


def _own_pairs(x: TensorType, p: float) -> Types:
    rows = x.shape[0]
    return (tensor(x.dtype, (rows * (rows - 1) // 2,), x.device),)


def _second(grad: TensorType, x: TensorType, *_: object) -> Types:
    return (tensor(x.dtype, x.shape, x.device),)


def _ctc(logs: TensorType, targets: TensorType, inputs: tuple[int, ...], lengths: tuple[int, ...], *_: object) -> Types:
    time, batch = logs.shape[:2]
    alpha = (batch, time, 2 * max(lengths, default=0) + 1)
    return tensor(logs.dtype, (batch,), logs.device), tensor(logs.dtype, alpha, logs.device)


def _margins(x: TensorType, target: TensorType, reduction: int) -> Types:
    shape = x.shape[:-1] if reduction == 0 else ()
    return tensor(x.dtype, shape, x.device), tensor(x.dtype, target.shape, x.device)


# --- constraints ---------------------------------------------------------------------------------------------------


def _columns(x: TensorType, y: TensorType, *_: object) -> str | None:
    if min(len(x.shape), len(y.shape)) >= 2 and x.shape[-1] == y.shape[-1] and x.dtype == y.dtype:
        return None
    return f"rows of {x.dtype}{list(x.shape)} and {y.dtype}{list(y.shape)}"


def _exponent(*operands: object) -> str | None:
    p = next(x for x in operands if isinstance(x, (int, float)))
    return None if 0 <= p <= inf else f"no norm with exponent {p}"


def _rows(x: TensorType, *_: object) -> str | None:
    return None if len(x.shape) == 2 and x.dtype in FLOATS else f"rows of {x.dtype}{list(x.shape)}"


def _alphabet(logs: TensorType, targets: TensorType, *_: object) -> str | None:
    if len(logs.shape) == 3 and logs.dtype in ("float32", "float64") and len(targets.shape) in (1, 2):
        return None
    return f"{logs.dtype}{list(logs.shape)} against targets {list(targets.shape)}"


def _lengths(
    logs: TensorType, targets: TensorType, inputs: tuple[int, ...], lengths: tuple[int, ...], *_: object
) -> str | None:
    batch = logs.shape[1]
    if type(batch) is int and not len(inputs) == len(lengths) == batch:
        return f"{len(inputs)} and {len(lengths)} lengths for a batch of {batch}"
    return None


def _classes(x: TensorType, target: TensorType, *_: object) -> str | None:
    if target.dtype == "int64" and target.shape == x.shape and len(x.shape) <= 2:
        return None
    return f"targets {target.dtype}{list(target.shape)} for {list(x.shape)}"


def _losses(grad: TensorType, *_: object) -> str | None:
    return None if len(grad.shape) == 1 else f"a gradient {list(grad.shape)}"


def _flat(grad: TensorType, x: TensorType, *_: object) -> str | None:
    return None if len(x.shape) <= 2 else f"an operand {list(x.shape)}"


M1 = Constraint(
    "M1", "Both operands are matrices in one dtype, with rows of one length; batches in front broadcast.", _columns,
    ("cdist", (_X, tensor("float32", (5, 4)), 2.0, None)),
)  # fmt: skip
M2 = Constraint("M2", "The exponent of the norm is not negative.", _exponent, ("cdist", (_X, _Y, -1.0, None)))
M3 = Constraint("M3", "The operand is a matrix of floats.", _rows, ("pdist", (tensor("float32", (4,)), 2.0)))
M4 = Constraint(
    "M4", "The logarithms are (time, batch, class) in float32 or float64; targets have one dimension or two.",
    _alphabet, ("ctc_loss", (tensor("float32", (7, 5)), _T, (7, 7), (3, 3), 0, False)),
)  # fmt: skip
M5 = Constraint(
    "M5", "There is an input length and a target length for each element of the batch.", _lengths,
    ("ctc_loss", (_LOGS, _T, (7,), (3, 3), 0, False)),
)  # fmt: skip
M6 = Constraint(
    "M6", "The targets are int64, in the shape of the operand, which has at most two dimensions.", _classes,
    ("multilabel_margin_loss", (_X, tensor("int64", (4, 2)), 1)),
)  # fmt: skip

M7 = Constraint(
    "M7", "The gradient has one dimension: an element for each loss.", _losses,
    ("ctc_loss_backward", (_X, _LOGS, _T, (7, 7), (3, 3), tensor("float32", (2,)), tensor("float32", (2, 7, 7)), 0,
                           False)),
)  # fmt: skip
M8 = Constraint(
    "M8", "The operand has at most two dimensions.", _flat,
    ("multilabel_margin_loss_backward", (tensor("float32", ()), _LOGS, _LOGS, 1, _LOGS)),
)  # fmt: skip

_FAMILY = "metrics"
_LENGTHS = "inputs: dims, lengths: dims"
_ROWS, _PAIRS = "x: f32[4, 3], y: f32[5, 3]", "f32[4, 5]"

RECORDS: tuple[Record, ...] = (
    Record(
        "cdist", _FAMILY, parameters("x: tensor, y: tensor, p: number, mode: int?"),
        "The p-norm of the difference of each row of x and each row of y. mode: 0 or null computes Euclidean ones by a "
        "matrix product where there are more than 25 rows, 1 always, 2 never.",
        _pairs, (M1, M2), f"cdist({_ROWS}, 2.0, null) -> {_PAIRS}", call=Call("aten._cdist_forward.default"),
    ),
    Record(
        "cdist_backward", _FAMILY, parameters("grad: tensor, x: tensor, y: tensor, p: number, distances: tensor"),
        "The gradient of x, from that of the distances.", _pairs_gradient, (M2,),
        f"cdist_backward(grad: {_PAIRS}, {_ROWS}, 2.0, distances: {_PAIRS}) -> f32[4, 3]",
        call=Call("aten._cdist_backward.default"),
    ),
    Record(
        "euclidean_dist", _FAMILY, parameters("x: tensor, y: tensor"),
        "Euclidean distances of rows by a matrix product.", _pairs, (M1,), f"euclidean_dist({_ROWS}) -> {_PAIRS}",
        call=Call("aten._euclidean_dist.default"),
    ),
    Record(
        "pdist", _FAMILY, parameters("x: tensor, p: number"),
        "The p-norm of the difference of each row and each later one.", _own_pairs, (M3, M2),
        "pdist(x: f32[4, 3], 2.0) -> f32[6]", call=Call("aten._pdist_forward.default"),
    ),
    Record(
        "pdist_backward", _FAMILY, parameters("grad: tensor, x: tensor, p: number, distances: tensor"),
        "The gradient of the rows, from that of their distances.", _second, (M2,),
        "pdist_backward(grad: f32[6], x: f32[4, 3], 2.0, distances: f32[6]) -> f32[4, 3]",
        call=Call("aten._pdist_backward.default"),
    ),
    Record(
        "ctc_loss", _FAMILY, parameters(f"logs: tensor, targets: tensor, {_LENGTHS}, blank: int, zero_infinity: bool"),
        "The negative logarithm of the probability of each target sequence (connectionist temporal classification), "
        "and the logarithms of the forward variables.", _ctc, (M4, M5),
        "ctc_loss(logs: f32[7, 2, 5], targets: i64[2, 3], [7, 7], [3, 3], 0, false) -> f32[2], f32[2, 7, 7]",
        ("loss", "alpha"), Call("aten._ctc_loss.default"),
    ),
    Record(
        "ctc_loss_backward", _FAMILY,
        parameters(f"grad: tensor, logs: tensor, targets: tensor, {_LENGTHS}, loss: tensor, alpha: tensor, "
                   "blank: int, zero_infinity: bool"),
        "The gradient of the logarithms, from that of the losses.", _second, (M7,),
        "ctc_loss_backward(grad: f32[2], logs: f32[7, 2, 5], targets: i64[2, 3], [7, 7], [3, 3], loss: f32[2], "
        "alpha: f32[2, 7, 7], 0, false) -> f32[7, 2, 5]", call=Call("aten._ctc_loss_backward.default"),
    ),
    Record(
        "multilabel_margin_loss", _FAMILY, parameters("x: tensor, target: tensor, reduction: int"),
        "For each row the hinges between its target classes (up to the first -1) and the others, over the number of "
        "classes; reduced to their mean (1) or sum (2), or not (0); and which classes are targets.", _margins, (M6,),
        "multilabel_margin_loss(x: f32[4, 3], target: i64[4, 3], 1) -> f32[], f32[4, 3]", ("loss", "is_target"),
        Call("aten.multilabel_margin_loss_forward.default"),
    ),
    Record(
        "multilabel_margin_loss_backward", _FAMILY,
        parameters("grad: tensor, x: tensor, target: tensor, reduction: int, is_target: tensor"),
        "The gradient of the operand, from that of the loss.", _second, (M8,),
        "multilabel_margin_loss_backward(grad: f32[], x: f32[4, 3], target: i64[4, 3], 1, is_target: f32[4, 3]) -> "
        "f32[4, 3]", call=Call("aten.multilabel_margin_loss_backward.default"),
    ),
)  # fmt: skip
