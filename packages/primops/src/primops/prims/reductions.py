"""Reductions: fewer dimensions, each element from many."""

from __future__ import annotations

from primops.prims.elementwise import NUMBERS
from primops.prims.layouts import FLOATS, tensor
from primops.prims.shapes import distinct_dims
from stagewire.types import TensorType
from stagewire.vocabulary import Constraint, Op, Rule, parameters

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


def _numbers(x: TensorType, *_: object) -> str | None:
    return None if x.dtype in NUMBERS else f"{x.dtype} is not summed; convert first"


def _floats(x: TensorType, *_: object) -> str | None:
    return None if x.dtype in FLOATS else f"{x.dtype} is no float"


def _bools(x: TensorType, *_: object) -> str | None:
    return None if x.dtype == "bool" else f"{x.dtype} is no bool"


def _nonempty(x: TensorType, dims: Dims) -> str | None:
    empty = [d for d in dims if x.shape[d] == 0]
    kept = any(n == 0 for i, n in enumerate(x.shape) if i not in dims)
    return f"dimension {empty[0]} is empty" if empty and not kept else None


def _one_dim(x: TensorType, dim: int | None) -> str | None:
    return None if dim is None or 0 <= dim < len(x.shape) else f"dim {dim} of rank {len(x.shape)}"


R1 = Constraint(
    "R1",
    "dims are distinct dimensions of the operand.",
    lambda x, dims, *_: distinct_dims(x, dims),
    ("sum", (_X, (0, 0))),
)
R2 = Constraint(
    "R2", "The operand is an integer or float; the result has its dtype.", _numbers, ("sum", (_B, (0,))), NUMBERS
)
R3 = Constraint("R3", "The operand is bool.", _bools, ("any", (_X, (0,))), frozenset({"bool"}))
R4 = Constraint("R4", "The operand is a float.", _floats, ("var_mean", (tensor("int64", (2,)), (0,), 1)), FLOATS)
R5 = Constraint(
    "R5", "No reduced dimension is empty (unless the result is).", _nonempty, ("amax", (tensor("float32", (0,)), (0,)))
)
R6 = Constraint("R6", "dim is a dimension of the operand (or None for all, flattened).", _one_dim, ("argmax", (_X, 2)))


def _reduction(name: str, doc: str, constraints: tuple[Constraint, ...], short: str = "f32") -> Op:
    example = f"{name}(x: {short}[2, 3], [1]) -> {short}[2]"
    return Op(name, "reduction", parameters("x: tensor, dims: dims"), doc, _reduce, constraints, example)


def _along(name: str, family: str, kind: str, doc: str, rule: Rule, result: str) -> Op:
    example = f"{name}(x: f32[2, 3], 1) -> {result}"
    return Op(name, family, parameters(f"x: tensor, dim: {kind}"), doc, rule, (R2, R6), example)


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
    _along(
        "argmax", "reduction", "int?", "Index (int64) of the first greatest element along dim; nan is greatest.",
        _argument, "i64[2]",
    ),
    _along(
        "argmin", "reduction", "int?", "Index (int64) of the first least element along dim; nan is least.",
        _argument, "i64[2]",
    ),
    Op(
        "var_mean", "reduction", parameters("x: tensor, dims: dims, correction: number"),
        "Mean over dims, and the sum of squared deviations from it divided by max(0, count - correction). "
        "Computed without cancellation (two passes, or Welford).",
        _var_mean, (R1, R4), "var_mean(x: f32[2, 3], [1], 1) -> f32[2], f32[2]", ("var", "mean"),
    ),
)  # fmt: skip
