"""Scans: every element from those before it along one dimension."""

from __future__ import annotations

from primops.prims.elementwise import NUMBERS
from primops.prims.layouts import FLOATS, dense_like, tensor
from stagewire.types import TensorType
from stagewire.vocabulary import Constraint, Op, Rule, constraint, of_dtypes, parameters

_X = tensor("float32", (2, 3))


def _like(x: TensorType, dim: int) -> tuple[TensorType, ...]:
    return (dense_like(x),)


def _with_positions(x: TensorType, dim: int) -> tuple[TensorType, ...]:
    return dense_like(x), dense_like(x, "int64")


@constraint("dim is a dimension of the operand.", ("cumsum", (_X, 2)))
def K1(x: TensorType, dim: int) -> str | None:
    return None if 0 <= dim < len(x.shape) else f"dim {dim} of rank {len(x.shape)}"


K2 = of_dtypes(
    "K2", NUMBERS, "The operand is an integer or float; the result has its dtype.",
    ("cumsum", (tensor("bool", (2, 3)), 0)),
)  # fmt: skip


@constraint("dim is a dimension of the operand, 0 for a scalar.", ("cummax", (_X, 2)))
def K3(x: TensorType, dim: int) -> str | None:
    return None if 0 <= dim < max(len(x.shape), 1) else f"dim {dim} of rank {len(x.shape)}"


K4 = of_dtypes("K4", FLOATS, "The operand is a float.", ("logcumsumexp", (tensor("int64", (2, 3)), 0)))


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
