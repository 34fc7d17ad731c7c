"""Scans: every element from those before it along one dimension."""

from __future__ import annotations

from primops.prims.elementwise import NUMBERS
from primops.prims.layouts import FLOATS, dense_stride, tensor
from stagewire.types import TensorType
from stagewire.vocabulary import Constraint, Op, Rule, parameters

_X = tensor("float32", (2, 3))


def _like(x: TensorType, dim: int) -> tuple[TensorType, ...]:
    return (TensorType(x.dtype, x.shape, dense_stride(x.shape, x.stride), 0, x.device),)


def _with_positions(x: TensorType, dim: int) -> tuple[TensorType, ...]:
    stride = dense_stride(x.shape, x.stride)
    return (TensorType(x.dtype, x.shape, stride, 0, x.device), TensorType("int64", x.shape, stride, 0, x.device))


def is_dimension(x: TensorType, dim: int, *_: object) -> str | None:
    """What is wrong with a dimension number; a scalar counts as rank 1 where ATen's own op does the work."""
    return None if 0 <= dim < max(len(x.shape), 1) else f"dim {dim} of rank {len(x.shape)}"


def _inside(x: TensorType, dim: int) -> str | None:
    return None if 0 <= dim < len(x.shape) else f"dim {dim} of rank {len(x.shape)}"


def _numbers(x: TensorType, dim: int) -> str | None:
    return None if x.dtype in NUMBERS else f"{x.dtype} is not added up; convert first"


def _floats(x: TensorType, dim: int) -> str | None:
    return None if x.dtype in FLOATS else f"{x.dtype} is no float"


K1 = Constraint("K1", "dim is a dimension of the operand.", _inside, ("cumsum", (_X, 2)))
K2 = Constraint(
    "K2", "The operand is an integer or float; the result has its dtype.", _numbers,
    ("cumsum", (tensor("bool", (2, 3)), 0)), NUMBERS,
)  # fmt: skip
K3 = Constraint("K3", "dim is a dimension of the operand, 0 for a scalar.", is_dimension, ("cummax", (_X, 2)))
K4 = Constraint(
    "K4", "The operand is a float.", _floats, ("logcumsumexp", (tensor("int64", (2, 3)), 0)), FLOATS
)  # fmt: skip


def _scan(name: str, doc: str, constraints: tuple[Constraint, ...], rule: Rule = _like) -> Op:
    results = ("out",) if rule is _like else ("values", "indices")
    made = "f32[2, 3]" if rule is _like else "f32[2, 3], i64[2, 3]"
    return Op(
        name, "scan", parameters("x: tensor, dim: int"), doc, rule, constraints, f"{name}(x: f32[2, 3], 1) -> {made}",
        results,
    )  # fmt: skip


OPS: tuple[Op, ...] = (
    _scan("cumsum", "Running sum along dim.", (K1, K2)),
    _scan("cumprod", "Running product along dim.", (K1, K2)),
    _scan("cummax", "Running maximum along dim, nan once one is nan, and the position of its last occurrence.", (K3,),
          _with_positions),
    _scan("cummin", "Running minimum along dim, nan once one is nan, and the position of its last occurrence.", (K3,),
          _with_positions),
    _scan("logcumsumexp", "Logarithm of the running sum of exponentials along dim, without overflow.", (K3, K4)),
)  # fmt: skip
