"""Reductions: fewer dimensions, each element from many."""

from __future__ import annotations

from primops.prims import shapes
from primops.prims.elementwise import NUMBERS
from primops.prims.layouts import FLOATS, tensor
from stagewire.types import TensorType
from stagewire.vocabulary import Constraint, Op, constraint, of_dtypes, parameters

Dims = tuple[int, ...]
_X = tensor("float32", (2, 3))
_B = tensor("bool", (2, 3))


def _reduced(x: TensorType, dims: Dims, dtype: str) -> TensorType:
    return tensor(dtype, tuple(n for i, n in enumerate(x.shape) if i not in dims), x.device)


def _reduce(x: TensorType, dims: Dims) -> tuple[TensorType, ...]:
    return (_reduced(x, dims, x.dtype),)


def _argument(x: TensorType, dim: int | None) -> tuple[TensorType, ...]:
    return (_reduced(x, tuple(range(len(x.shape))) if dim is None else (dim,), "int64"),)


def _var_mean(x: TensorType, dims: Dims, correction: float) -> tuple[TensorType, ...]:
    return (_reduced(x, dims, x.dtype), _reduced(x, dims, x.dtype))


@constraint("dims are distinct dimensions of the operand.", ("sum", (_X, (0, 0))))
def R1(x: TensorType, dims: Dims, *_: object) -> str | None:
    return shapes.S7.check(x, dims)


R2 = of_dtypes("R2", NUMBERS, "The operand is an integer or float; the result has its dtype.", ("sum", (_B, (0,))))
R3 = of_dtypes("R3", frozenset({"bool"}), "The operand is bool.", ("any", (_X, (0,))))
R4 = of_dtypes("R4", FLOATS, "The operand is a float.", ("var_mean", (tensor("int64", (2,)), (0,), 1)))


@constraint("No reduced dimension is empty (unless the result is).", ("amax", (tensor("float32", (0,)), (0,))))
def R5(x: TensorType, dims: Dims) -> str | None:
    empty = [d for d in dims if x.shape[d] == 0]
    kept = any(n == 0 for i, n in enumerate(x.shape) if i not in dims)
    return f"dimension {empty[0]} is empty" if empty and not kept else None


@constraint("dim is a dimension of the operand (or None for all, flattened).", ("argmax", (_X, 2)))
def R6(x: TensorType, dim: int | None) -> str | None:
    return None if dim is None or 0 <= dim < len(x.shape) else f"dim {dim} of rank {len(x.shape)}"


def _reduction(name: str, doc: str, constraints: tuple[Constraint, ...], short: str = "f32") -> Op:
    example = f"{name}(x: {short}[2, 3], [1]) -> {short}[2]"
    return Op(name, "reduction", parameters("x: tensor, dims: dims"), doc, _reduce, constraints, example)


def _position(name: str, doc: str) -> Op:
    example = f"{name}(x: f32[2, 3], 1) -> i64[2]"
    return Op(name, "reduction", parameters("x: tensor, dim: int?"), doc, _argument, (R2, R6), example)


OPS: tuple[Op, ...] = (
    _reduction(
        "sum",
        "Sum over dims, which disappear; 0 for none. Floats accumulate in at least the operand's precision.",
        (R1, R2),
    ),
    _reduction("prod", "Product over dims; 1 for none.", (R1, R2)),
    _reduction("amax", "Greatest over dims; nan if one is nan.", (R1, R2, R5)),
    _reduction("amin", "Least over dims; nan if one is nan.", (R1, R2, R5)),
    _reduction("any", "Whether some element over dims holds.", (R1, R3), "b8"),
    _reduction("all", "Whether every element over dims holds.", (R1, R3), "b8"),
    _position("argmax", "Index (int64) of the first greatest element along dim; nan is greatest."),
    _position("argmin", "Index (int64) of the first least element along dim; nan is least."),
    Op(
        "var_mean", "reduction", parameters("x: tensor, dims: dims, correction: number"),
        "Mean over dims, and the sum of squared deviations from it divided by max(0, count - correction). "
        "Computed without cancellation (two passes, or Welford).",
        _var_mean, (R1, R4), "var_mean(x: f32[2, 3], [1], 1) -> f32[2], f32[2]", ("var", "mean"),
    ),
)  # fmt: skip
