"""Elementwise prims: one result element for each position; all tensors of one shape and one dtype.

Each is the loop op of its name (`stagewire.loop_ops`) at every position, on the dtypes that prims have.
"""

from __future__ import annotations

from typing import Any

from primops.prims.layouts import FLOATS, INTEGERS, SUPPORTED, dense_like, tensor
from stagewire import loop_ops
from stagewire.expr import Expr
from stagewire.types import TensorType
from stagewire.vocabulary import Constraint, Op, constraint, of_dtypes, parameters

NUMBERS = FLOATS | INTEGERS

_F = tensor("float32", (2, 3))
_I = tensor("int64", (2, 3))
_B = tensor("bool", (2, 3))
_C = tensor("complex64", (2,))


def _tensors(operands: tuple[Any, ...]) -> list[TensorType]:
    return [x for x in operands if type(x) is TensorType]


def _like_first(*operands: Any) -> tuple[TensorType, ...]:
    return (dense_like(_tensors(operands)[0]),)


def _predicate(*operands: Any) -> tuple[TensorType, ...]:
    return (dense_like(_tensors(operands)[0], "bool"),)


def _differ(what: str, operands: tuple[Any, ...]) -> str | None:
    found = {str(getattr(x, what)) for x in _tensors(operands)}
    return None if len(found) == 1 else f"{what}s differ: {', '.join(sorted(found))}"


@constraint("All tensor operands have the same shape.", ("add", (_F, tensor("float32", (2, 4)))))
def E1(*operands: Any) -> str | None:
    shapes = [x.shape for x in _tensors(operands)]
    return None if all(s == shapes[0] for s in shapes) else _differ("shape", operands)


@constraint("At least one operand is a tensor.", ("add", (1, 2)))
def E2(*operands: Any) -> str | None:
    return None if _tensors(operands) else "every operand is a literal"


@constraint("All tensor operands have the same dtype.", ("add", (_F, tensor("float64", (2, 3)))))
def E3(*operands: Any) -> str | None:
    return _differ("dtype", operands)


@constraint("All tensor operands are on one device.", ("add", (_F, tensor("float32", (2, 3), "cuda:0"))))
def E4(*operands: Any) -> str | None:
    return _differ("device", operands)


@constraint("A literal fits the dtype: no float for integers, only bool for bool.", ("add", (_I, 0.5)))
def E5(*operands: Any) -> str | None:
    dtype = _tensors(operands)[0].dtype
    for x in operands:
        if isinstance(x, float) and dtype not in FLOATS:
            return f"the literal {x!r} is no {dtype}"
        if type(x) in (int, Expr) and dtype == "bool":
            return f"the literal {x!r} is no bool"
    return None


E6 = of_dtypes("E6", FLOATS, "Operands are of a floating dtype.", ("exp", (_I,)))
E7 = of_dtypes("E7", NUMBERS, "Operands are integers or floats, not bool.", ("add", (_B, _B)))
E8 = of_dtypes("E8", INTEGERS | {"bool"}, "Operands are integers or bool.", ("bitwise_and", (_F, _F)))
E9 = of_dtypes("E9", INTEGERS, "Operands are integers.", ("shift_left", (_B, _B)))
E10 = of_dtypes("E10", frozenset({"bool"}), "Operands are bool.", ("logical_and", (_F, _F)))
E11 = of_dtypes("E11", SUPPORTED, "Operands are of a supported dtype.", ("eq", (_C, _C)))


@constraint("The condition is bool.", ("where", (_I, _F, _F)))
def E12(cond: TensorType, a: Any, b: Any) -> str | None:
    return None if cond.dtype == "bool" else f"the condition is {cond.dtype}"


@constraint(
    "The condition has the shape and device of the tensors chosen from.", ("where", (tensor("bool", (3,)), _F, 0.0))
)
def E13(cond: TensorType, a: Any, b: Any) -> str | None:
    return E1.check(cond, a, b) or E4.check(cond, a, b)


@constraint(
    "The values chosen from have one dtype; a literal fits it; one of them is a tensor.",
    ("where", (_B, _F, tensor("float64", (2, 3)))),
)
def E14(cond: TensorType, a: Any, b: Any) -> str | None:
    return E2.check(a, b) or E3.check(a, b) or E5.check(a, b)


_SHORT = {"E8": "i64", "E9": "i64", "E10": "b8"}


def _elementwise(name: str, dtypes: Constraint) -> Op:
    meaning = loop_ops.VOCABULARY.op(name)
    letters = [p.name for p in meaning.parameters]
    kind, common = ("operand", (E2, E1, E3, E4, E5)) if len(letters) > 1 else ("tensor", ())
    short = _SHORT.get(dtypes.label, "f32")
    is_predicate = name in loop_ops.PREDICATES and dtypes is not E10
    operands = ", ".join(f"{letter}: {short}[2, 3]" for letter in letters)
    return Op(
        name, "elementwise", parameters(", ".join(f"{letter}: {kind}" for letter in letters)),
        f"{meaning.doc}.", _predicate if is_predicate else _like_first, (*common, dtypes),
        f"{name}({operands}) -> {'b8' if is_predicate else short}[2, 3]",
    )  # fmt: skip


_NAMES: dict[str, Constraint] = {
    "neg abs sign": E7,
    "exp exp2 expm1 log log2 log10 log1p sqrt rsqrt reciprocal sin cos tan asin acos atan sinh cosh tanh asinh acosh "
    "atanh erf erfc erfinv lgamma digamma sigmoid ceil floor round trunc isnan isinf": E6,
    "signbit": E7,
    "logical_not": E10,
    "bitwise_not": E8,
    "div atan2 hypot copysign nextafter": E6,
    "add sub mul floor_div trunc_div remainder fmod pow maximum minimum fmax fmin": E7,
    "eq ne lt le gt ge": E11,
    "bitwise_and bitwise_or bitwise_xor": E8,
    "shift_left shift_right": E9,
    "logical_and logical_or logical_xor": E10,
    "fma": E6,
    "check_range": E7,
}
OPS: tuple[Op, ...] = (
    *(_elementwise(name, dtypes) for names, dtypes in _NAMES.items() for name in names.split()),
    Op(
        "where", "elementwise", parameters("cond: tensor, x: operand, y: operand"), "x where cond holds, else y.",
        lambda cond, x, y: _like_first(x, y), (E12, E14, E13), "where(cond: b8[2, 3], x: f32[2, 3], 0.0) -> f32[2, 3]",
    ),
)  # fmt: skip
