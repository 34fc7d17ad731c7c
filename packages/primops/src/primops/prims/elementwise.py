"""Elementwise prims: one result element for each position; all tensors of one shape and one dtype."""

from __future__ import annotations

from typing import Any

from primops.prims.layouts import FLOATS, INTEGERS, SUPPORTED, dense_stride, tensor
from stagewire.expr import Expr
from stagewire.types import TensorType
from stagewire.vocabulary import Constraint, Op, Rule, parameters

NUMBERS = FLOATS | INTEGERS
INTEGRAL = INTEGERS | {"bool"}

_F = tensor("float32", (2, 3))
_F4 = tensor("float32", (2, 4))
_D = tensor("float64", (2, 3))
_I = tensor("int64", (2, 3))
_B = tensor("bool", (2, 3))


def _like_first(*operands: Any) -> tuple[TensorType, ...]:
    for x in operands:
        if type(x) is TensorType:
            return (TensorType(x.dtype, x.shape, dense_stride(x.shape, x.stride), 0, x.device),)
    raise AssertionError("E2 holds before the rule runs")


def _predicate(*operands: Any) -> tuple[TensorType, ...]:
    for x in operands:
        if type(x) is TensorType:
            return (TensorType("bool", x.shape, dense_stride(x.shape, x.stride), 0, x.device),)
    raise AssertionError("E2 holds before the rule runs")


def _where(cond: TensorType, a: Any, b: Any) -> tuple[TensorType, ...]:
    return _like_first(a, b)


def _tensors(operands: tuple[Any, ...]) -> list[TensorType]:
    return [x for x in operands if type(x) is TensorType]


def _same_shape(*operands: Any) -> str | None:
    shapes = [x.shape for x in _tensors(operands)]
    return None if all(s == shapes[0] for s in shapes) else f"shapes differ: {', '.join(map(str, shapes))}"


def _some_tensor(*operands: Any) -> str | None:
    return None if _tensors(operands) else "every operand is a literal"


def _same_dtype(*operands: Any) -> str | None:
    dtypes = {x.dtype for x in _tensors(operands)}
    return None if len(dtypes) == 1 else f"dtypes differ: {', '.join(sorted(dtypes))}"


def _one_device(*operands: Any) -> str | None:
    devices = {x.device for x in _tensors(operands)}
    return None if len(devices) == 1 else f"devices differ: {', '.join(sorted(devices))}"


def _literals_fit(*operands: Any) -> str | None:
    dtype = _tensors(operands)[0].dtype
    for x in operands:
        if isinstance(x, float) and dtype not in FLOATS:
            return f"the literal {x!r} is no {dtype}"
        if type(x) in (int, Expr) and dtype == "bool":
            return f"the literal {x!r} is no bool"
    return None


def _dtype_in(allowed: frozenset[str], label: str, text: str, refused: tuple[str, tuple[Any, ...]]) -> Constraint:
    def check(*operands: Any) -> str | None:
        for x in _tensors(operands):
            if x.dtype not in allowed:
                return f"{x.dtype} is not one of {', '.join(sorted(allowed))}"
        return None

    return Constraint(label, text, check, refused, allowed)


def _where_condition(cond: TensorType, a: Any, b: Any) -> str | None:
    return None if cond.dtype == "bool" else f"the condition is {cond.dtype}"


E1 = Constraint("E1", "All tensor operands have the same shape.", _same_shape, ("add", (_F, _F4)))
E2 = Constraint("E2", "At least one operand is a tensor.", _some_tensor, ("add", (1, 2)))
E3 = Constraint("E3", "All tensor operands have the same dtype.", _same_dtype, ("add", (_F, _D)))
E4 = Constraint(
    "E4", "All tensor operands are on one device.", _one_device, ("add", (_F, tensor("float32", (2, 3), "cuda:0")))
)
E5 = Constraint(
    "E5", "A literal fits the dtype: no float for integers, only bool for bool.", _literals_fit, ("add", (_I, 0.5))
)
E6 = _dtype_in(FLOATS, "E6", "Operands are of a floating dtype.", ("exp", (_I,)))
E7 = _dtype_in(NUMBERS, "E7", "Operands are integers or floats, not bool.", ("add", (_B, _B)))
E8 = _dtype_in(INTEGRAL, "E8", "Operands are integers or bool.", ("bitwise_and", (_F, _F)))
E9 = _dtype_in(INTEGERS, "E9", "Operands are integers.", ("shift_left", (_B, _B)))
E10 = _dtype_in(frozenset({"bool"}), "E10", "Operands are bool.", ("logical_and", (_F, _F)))
E11 = _dtype_in(
    SUPPORTED,
    "E11",
    "Operands are of a supported dtype.",
    ("eq", (tensor("complex64", (2,)), tensor("complex64", (2,)))),
)
E12 = Constraint("E12", "The condition is bool.", _where_condition, ("where", (_I, _F, _F)))
E13 = Constraint("E13", "The condition has the shape and device of the tensors chosen from.",
                 lambda cond, a, b: _same_shape(cond, a, b) or _one_device(cond, a, b),
                 ("where", (tensor("bool", (3,)), _F, 0.0)))  # fmt: skip
E14 = Constraint("E14", "The values chosen from have one dtype; a literal fits it; one of them is a tensor.",
                 lambda cond, a, b: _some_tensor(a, b) or _same_dtype(a, b) or _literals_fit(a, b),
                 ("where", (_B, _F, _D)))  # fmt: skip


_EXAMPLES = {1: "{0}(x: f32[2, 3]) -> f32[2, 3]", 2: "{0}(x: f32[2, 3], y: f32[2, 3]) -> f32[2, 3]"}


def _elementwise(name: str, count: int, dtypes: Constraint, doc: str, rule: Rule = _like_first) -> Op:
    names = ("x", "y", "z")[:count]
    kind = "tensor" if count == 1 else "operand"
    common = (E2, E1, E3, E4, E5) if count > 1 else ()
    short = {"E6": "f32", "E7": "f32", "E8": "i64", "E9": "i64", "E10": "b8", "E11": "f32"}[dtypes.label]
    result = "b8" if rule is _predicate else short
    operands = ", ".join(f"{n}: {short}[2, 3]" for n in names)
    return Op(
        name, "elementwise", parameters(", ".join(f"{n}: {kind}" for n in names)), doc, rule,
        (*common, dtypes), f"{name}({operands}) -> {result}[2, 3]",
    )  # fmt: skip


_FLOAT_UNARY = {
    "exp": "e to the x.", "exp2": "2 to the x.", "expm1": "exp(x) - 1, accurate near 0.",
    "log": "Natural logarithm.", "log2": "Logarithm to base 2.", "log10": "Logarithm to base 10.",
    "log1p": "log(1 + x), accurate near 0.",
    "sqrt": "Square root, correctly rounded.", "rsqrt": "1 / sqrt(x).", "reciprocal": "1 / x, correctly rounded.",
    "sin": "Sine of x in radians.", "cos": "Cosine of x in radians.", "tan": "Tangent of x in radians.",
    "asin": "Inverse sine.", "acos": "Inverse cosine.", "atan": "Inverse tangent.",
    "sinh": "Hyperbolic sine.", "cosh": "Hyperbolic cosine.", "tanh": "Hyperbolic tangent.",
    "asinh": "Inverse hyperbolic sine.", "acosh": "Inverse hyperbolic cosine.", "atanh": "Inverse hyperbolic tangent.",
    "erf": "The error function.", "erfc": "1 - erf(x), accurate for large x.", "erfinv": "Inverse of erf.",
    "lgamma": "Logarithm of the absolute value of gamma(x).", "digamma": "Derivative of lgamma.",
    "sigmoid": "1 / (1 + exp(-x)).",
    "ceil": "Least integer not below x.", "floor": "Greatest integer not above x.",
    "round": "Nearest integer, ties to even.", "trunc": "x without its fraction.",
}  # fmt: skip
_FLOAT_TESTS = {"isnan": "Whether x is nan.", "isinf": "Whether x is inf or -inf."}
_NUMBER_UNARY = {
    "neg": "-x; wraps for integers.", "abs": "Absolute value; the least integer maps to itself.",
    "sign": "-1, 0 or 1 (0 for nan).",
}  # fmt: skip
_FLOAT_BINARY = {
    "div": "True division.", "atan2": "Angle of the point (y, x) in radians: atan2(x=ordinate, y=abscissa).",
    "hypot": "sqrt(x*x + y*y) without overflow.", "copysign": "|x| with the sign of y.",
    "nextafter": "The next float after x towards y.",
}  # fmt: skip
_NUMBER_BINARY = {
    "add": "x + y; integers wrap.", "sub": "x - y; integers wrap.", "mul": "x * y; integers wrap.",
    "floor_div": "Floor of x / y (Python's //). An integer divisor of 0 is an error.",
    "trunc_div": "x / y rounded towards 0. An integer divisor of 0 is an error.",
    "remainder": "x - y * floor(x / y): the sign of y (Python's %).", "fmod": "x - y * trunc(x / y): the sign of x.",
    "pow": "x to the y. Integers: y >= 0 as repeated multiplication, y < 0 as 1/x truncated.",
    "maximum": "The greater; nan if either is nan.", "minimum": "The lesser; nan if either is nan.",
    "fmax": "The greater; the other one if one is nan.", "fmin": "The lesser; the other one if one is nan.",
}  # fmt: skip
_COMPARISONS = {
    "eq": "x == y.", "ne": "x != y.", "lt": "x < y.", "le": "x <= y.", "gt": "x > y.", "ge": "x >= y.",
}  # fmt: skip
_INTEGRAL_BINARY = {
    "bitwise_and": "Bitwise and.", "bitwise_or": "Bitwise or.", "bitwise_xor": "Bitwise exclusive or.",
}  # fmt: skip
_SHIFTS = {
    "shift_left": "x * 2**y; 0 when y is negative or not below the width.",
    "shift_right": "Arithmetic shift; y negative or not below the width gives 0 or -1 by the sign of x.",
}  # fmt: skip
_LOGICAL = {"logical_and": "x and y.", "logical_or": "x or y.", "logical_xor": "x != y."}

OPS: tuple[Op, ...] = (
    *(_elementwise(name, 1, E7, doc) for name, doc in _NUMBER_UNARY.items()),
    *(_elementwise(name, 1, E6, doc) for name, doc in _FLOAT_UNARY.items()),
    *(_elementwise(name, 1, E6, doc, _predicate) for name, doc in _FLOAT_TESTS.items()),
    _elementwise("signbit", 1, E7, "Whether the sign bit is set (also of -0.0 and of nan).", _predicate),
    _elementwise("logical_not", 1, E10, "not x."),
    _elementwise("bitwise_not", 1, E8, "Bitwise complement (not x for bool)."),
    *(_elementwise(name, 2, E6, doc) for name, doc in _FLOAT_BINARY.items()),
    *(_elementwise(name, 2, E7, doc) for name, doc in _NUMBER_BINARY.items()),
    *(_elementwise(name, 2, E11, doc, _predicate) for name, doc in _COMPARISONS.items()),
    *(_elementwise(name, 2, E8, doc) for name, doc in _INTEGRAL_BINARY.items()),
    *(_elementwise(name, 2, E9, doc) for name, doc in _SHIFTS.items()),
    *(_elementwise(name, 2, E10, doc) for name, doc in _LOGICAL.items()),
    _elementwise("fma", 3, E6, "x * y + z, rounded once."),
    _elementwise("check_range", 3, E7, "x. An element that is not in y..z, both included, is an error; so is nan."),
    Op(
        "where", "elementwise", parameters("cond: tensor, x: operand, y: operand"), "x where cond holds, else y.",
        _where,
        (E12, E14, E13), "where(cond: b8[2, 3], x: f32[2, 3], 0.0) -> f32[2, 3]",
    ),
)  # fmt: skip
