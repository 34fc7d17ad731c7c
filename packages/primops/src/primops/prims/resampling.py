"""Resampling: gradients of interpolation, antialiased interpolation, and sampling at points of a grid."""

from __future__ import annotations

from primops.prims.layouts import FLOATS, dense_stride, tensor
from primops.prims.record import Call, Constraint, Record, parameters
from stagewire.expr import Dim
from stagewire.types import TensorType

Sizes = tuple[Dim, ...]
_X = tensor("float32", (1, 2, 4, 4))


# --- rules ---------------------------------------------------------------------------------------------------------


def _given(grad: TensorType, out: Sizes, size: Sizes, *_: object) -> tuple[TensorType, ...]:
    return (tensor(grad.dtype, size, grad.device),)


def _resized(x: TensorType, out: Sizes, *_: object) -> tuple[TensorType, ...]:
    return (tensor(x.dtype, (*x.shape[:2], *out), x.device),)


def _sampled(x: TensorType, grid: TensorType, *_: object) -> tuple[TensorType, ...]:
    return (tensor(x.dtype, (*x.shape[:2], *grid.shape[1:-1]), x.device),)


def _like(x: TensorType) -> TensorType:
    return TensorType(x.dtype, x.shape, dense_stride(x.shape, x.stride), 0, x.device)


def _sampled_gradients(grad: TensorType, x: TensorType, grid: TensorType, *_: object) -> tuple[TensorType, ...]:
    return tensor(x.dtype, x.shape, x.device), tensor(grid.dtype, grid.shape, grid.device)


# --- constraints ---------------------------------------------------------------------------------------------------


def _sizes(grad: TensorType, out: Sizes, size: Sizes, *_: object) -> str | None:
    if len(size) != len(grad.shape) or grad.shape[2:] != out or grad.shape[:2] != size[:2]:
        return f"a gradient {list(grad.shape)} of {list(size)} resized to {list(out)}"
    return None


def _planes(x: TensorType, out: Sizes, *_: object) -> str | None:
    return None if len(x.shape) == len(out) + 2 else f"{len(out)} sizes for rank {len(x.shape)}"


def _points(x: TensorType, grid: TensorType, *_: object) -> str | None:
    spatial = len(x.shape) - 2
    if len(grid.shape) != len(x.shape) or grid.shape[-1] != spatial or grid.dtype != x.dtype:
        return f"a grid {grid.dtype}{list(grid.shape)} for {x.dtype}{list(x.shape)}"
    return None


def _modes(x: TensorType, grid: TensorType, interpolation: int, padding: int, align: bool) -> str | None:
    return None if interpolation in (0, 1, 2) and padding in (0, 1, 2) else f"modes {interpolation} and {padding}"


def _floats(x: TensorType, *_: object) -> str | None:
    return None if x.dtype in FLOATS else f"{x.dtype} is no float"


def _sampled_at(grad: TensorType, x: TensorType, grid: TensorType, *_: object) -> str | None:
    if grad.shape == (*x.shape[:2], *grid.shape[1:-1]) and grad.dtype == x.dtype:
        return None
    return f"a gradient {grad.dtype}{list(grad.shape)} of {list(x.shape)} at {list(grid.shape)}"


def _both(*arguments: object) -> str | None:
    return None if arguments[-1] == (True, True) else f"the gradients {arguments[-1]}"


U1 = Constraint(
    "U1", "The gradient has the size after, the result the size before resizing.", _sizes,
    ("upsample_linear_backward2d", (_X, (4, 5), (1, 2, 2, 2), False, None, None)),
)  # fmt: skip
U2 = Constraint(
    "U2", "The operand has two dimensions more than there are sizes.", _planes,
    ("upsample_linear_aa2d", (_X, (4,), False, None, None)),
)  # fmt: skip
U3 = Constraint(
    "U3", "The grid has the operand's dtype and rank, and one coordinate for each spatial dimension.", _points,
    ("grid_sample2d", (_X, tensor("float32", (1, 3, 3, 3)), 0, 0, False)),
)  # fmt: skip
U4 = Constraint(
    "U4", "Interpolation is 0 (linear), 1 (nearest) or 2 (cubic); padding 0 (zeros), 1 (border) or 2 (reflection).",
    _modes, ("grid_sample2d", (_X, tensor("float32", (1, 3, 3, 2)), 3, 0, False)),
)  # fmt: skip
U5 = Constraint(
    "U5", "The operand is a float.", _floats,
    ("grid_sample2d", (tensor("int64", (1, 2, 4, 4)), tensor("int64", (1, 3, 3, 2)), 0, 0, False)), FLOATS,
)  # fmt: skip

U6 = Constraint(
    "U6", "The gradient has the type of what was sampled.", _sampled_at,
    ("grid_sample2d_backward", (_X, _X, tensor("float32", (1, 3, 3, 2)), 0, 0, False, (True, True))),
)  # fmt: skip
U7 = Constraint(
    "U7", "Both gradients are computed.", _both,
    ("grid_sample2d_backward", (tensor("float32", (1, 2, 3, 3)), _X, tensor("float32", (1, 3, 3, 2)), 0, 0, False,
                                (False, True))),
)  # fmt: skip

_FAMILY = "resampling"
_SCALES = {1: "scale: number?", 2: "scale_h: number?, scale_w: number?",
           3: "scale_d: number?, scale_h: number?, scale_w: number?"}  # fmt: skip
_LINEAR = {1: "linear1d", 2: "bilinear2d", 3: "trilinear3d"}


def _shape(rank: int, size: int) -> str:
    return f"f32[1, 2{f', {size}' * rank}]"


def _backward(name: str, rank: int, target: str, aligned: bool, doc: str) -> Record:
    align = "align_corners: bool, " if aligned else ""
    sizes = f"[{', '.join(['4'] * rank)}], [1, 2{', 2' * rank}]"
    return Record(
        name, _FAMILY, parameters(f"grad: tensor, out: sizes, size: sizes, {align}{_SCALES[rank]}"), doc, _given,
        (U5, U1), f"{name}(grad: {_shape(rank, 4)}, {sizes}{', false' if aligned else ''}{', null' * rank}) -> "
        f"{_shape(rank, 2)}", call=Call(target),
    )  # fmt: skip


def _antialiased(name: str, target: str, doc: str) -> Record:
    return Record(
        name, _FAMILY, parameters(f"x: tensor, out: sizes, align_corners: bool, {_SCALES[2]}"), doc, _resized, (U5, U2),
        f"{name}(x: {_shape(2, 4)}, [2, 2], false, null, null) -> {_shape(2, 2)}", call=Call(target),
    )  # fmt: skip


def _grid_backward(rank: int) -> Record:
    grid, x, grad = f"f32[1{', 3' * rank}, {rank}]", _shape(rank, 4), _shape(rank, 3)
    return Record(
        f"grid_sample{rank}d_backward", _FAMILY,
        parameters("grad: tensor, x: tensor, grid: tensor, interpolation: int, padding: int, align_corners: bool, "
                   "wanted: flags"),
        "The gradients of x and of the points, from that of the samples.", _sampled_gradients, (U5, U6, U7),
        f"grid_sample{rank}d_backward(grad: {grad}, x: {x}, grid: {grid}, 0, 0, false, [true, true]) -> {x}, {grid}",
        ("x", "grid"), Call(f"aten.grid_sampler_{rank}d_backward.default"),
    )  # fmt: skip


def _grid(rank: int) -> Record:
    grid = f"f32[1{', 3' * rank}, {rank}]"
    return Record(
        f"grid_sample{rank}d", _FAMILY,
        parameters("x: tensor, grid: tensor, interpolation: int, padding: int, align_corners: bool"),
        "x at the points of the grid, whose coordinates run from -1 to 1, the last spatial dimension first.",
        _sampled, (U5, U3, U4),
        f"grid_sample{rank}d(x: {_shape(rank, 4)}, grid: {grid}, 0, 0, false) -> {_shape(rank, 3)}",
        call=Call(f"aten.grid_sampler_{rank}d.default"),
    )  # fmt: skip


RECORDS: tuple[Record, ...] = (
    *(
        _backward(f"upsample_nearest_backward{n}d", n, f"aten.upsample_nearest{n}d_backward.default", False,
                  "The gradient of each element, added up over its repetitions.")
        for n in (1, 2, 3)
    ),
    *(
        _backward(f"upsample_nearest_exact_backward{n}d", n, f"aten._upsample_nearest_exact{n}d_backward.default",
                  False, "The same for interpolation that takes the centres of elements.")
        for n in (1, 2, 3)
    ),
    *(
        _backward(f"upsample_linear_backward{n}d", n, f"aten.upsample_{_LINEAR[n]}_backward.default", True,
                  "The gradient of linear interpolation, weighted and added up.")
        for n in (1, 2, 3)
    ),
    _backward("upsample_cubic_backward2d", 2, "aten.upsample_bicubic2d_backward.default", True,
              "The gradient of cubic interpolation, weighted and added up."),
    _backward("upsample_linear_aa_backward2d", 2, "aten._upsample_bilinear2d_aa_backward.default", True,
              "The gradient of antialiased linear interpolation."),
    _backward("upsample_cubic_aa_backward2d", 2, "aten._upsample_bicubic2d_aa_backward.default", True,
              "The gradient of antialiased cubic interpolation."),
    _antialiased("upsample_linear_aa2d", "aten._upsample_bilinear2d_aa.default",
                 "Linear interpolation whose filter widens with the reduction of the size."),
    _antialiased("upsample_cubic_aa2d", "aten._upsample_bicubic2d_aa.default",
                 "Cubic interpolation whose filter widens with the reduction of the size."),
    _grid(2),
    _grid(3),
    _grid_backward(2),
    _grid_backward(3),
)  # fmt: skip
