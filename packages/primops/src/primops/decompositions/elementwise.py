"""Arithmetic, comparisons and logic. Half precision computes in float32 and rounds once a call, as eager does."""

from __future__ import annotations

import math
from typing import Any

from primops.builder import Builder, Value, opmath
from primops.decompositions.operands import Function, Table, by_name, elementwise, is_float, result_type
from primops.errors import Decline
from primops.passes.fold_constants import in_dtype
from primops.prims.layouts import FLOATS, HALVES, INTEGERS
from stagewire.expr import Expr


def _simple(prim: str, of_bools: str = "") -> Function:
    """An ATen op that is one prim; perhaps another one of bool."""
    return lambda p, *operands: p.pointwise(of_bools if of_bools and p.out.dtype == "bool" else prim, *operands)


def _of(kinds: frozenset[str], prim: str) -> Function:
    """A prim of some dtypes (ceil of floats, abs of numbers); the identity for others."""
    return lambda p, x: p.pointwise(lambda p, x: getattr(p, prim)(x) if x.dtype in kinds else x, x)


def scaled(p: Builder, x: Any, alpha: Any) -> Any:
    """x * alpha for an operand that may be a number."""
    if type(alpha) in (int, float, bool) and alpha == 1:
        return x
    if type(x) is not Value:
        if type(alpha) is Expr and type(x) is float:
            raise Decline(f"{x} times a number that is open")
        return x * alpha
    if type(alpha) not in (int, float, bool, Expr):
        raise Decline(f"alpha is {alpha!r}")
    return p.mul(x, alpha if type(alpha) is Expr else float(alpha) if x.dtype in FLOATS else int(alpha))


def _plus(p: Builder, x: Any, y: Any, alpha: Any) -> Any:
    """x + alpha * y; eager's kernels multiply and add floats with one rounding."""
    if type(y) is Value and y.dtype in FLOATS and (type(alpha) is Expr or abs(alpha) != 1):
        return p.fma(y, alpha, x)
    if alpha == -1:
        return p.sub(x, y)
    return p.add(x, scaled(p, y, alpha))


def _stored(p: Builder, *operands: Any) -> tuple[Any, ...]:
    """Numbers as the result's dtype holds them: in half precision eager adds those, where it multiplies by the number
    itself."""
    rounded = [x if type(x) is Value or p.out.dtype not in HALVES else in_dtype(x, p.out.dtype) for x in operands]
    if None in rounded:
        raise Decline("a number that the dtype does not hold")
    return tuple(rounded)


def _of_stored(prim: str) -> Function:
    return lambda p, x, y: p.pointwise(prim, *_stored(p, x, y))


def add(p: Builder, x: Any, y: Any, alpha: Any = 1) -> Value:
    if p.out.dtype == "bool":
        if alpha != 1:
            raise Decline("bool with alpha")
        return p.pointwise("logical_or", x, y)
    x, y, alpha = _stored(p, x, y, alpha)
    return p.pointwise(lambda p, x, y: _plus(p, x, y, alpha), x, y)


def sub(p: Builder, x: Any, y: Any, alpha: Any = 1) -> Value:
    x, y, alpha = _stored(p, x, y, alpha)
    return p.pointwise(lambda p, x, y: _plus(p, x, y, -alpha), x, y)


def _by_scalar(p: Builder, prim: str, x: Any, y: Any) -> Value:
    if type(y) is not Value or p.out.dtype not in HALVES or not _is_number(p, y):
        return p.pointwise(prim, x, y)
    y = p.broadcast(p.convert(y, opmath(p.out.dtype)), p.out.shape)
    return p.pointwise(lambda p, x: getattr(p, prim)(x, y), x)


def _is_number(p: Builder, y: Any) -> bool:
    """Whether a kernel does not round y to half precision: on a CPU, one without dimensions."""
    return type(y) is not Value or (not y.rank and p.out.device == "cpu")


def div_mode(p: Builder, x: Any, y: Any, rounding_mode: str | None = None) -> Value:
    if rounding_mode and p.out.dtype in HALVES and not _is_number(p, y):
        raise Decline("eager rounds to half precision before it rounds to an integer, and what it subtracts")
    prim = {None: "div", "floor": "floor_div", "trunc": "trunc_div"}[rounding_mode]
    return _by_scalar(p, prim, x, y)


def nextafter(p: Builder, x: Value, y: Value) -> Value:
    """Of half precision by its bits: the next float32 would be rounded back to what it was."""
    dtype = p.out.dtype
    if dtype not in HALVES:
        return p.pointwise("nextafter", x, y)
    a, b = (p.bitcast(p.operand(v, dtype, p.out.shape), "int16") for v in (x, y))
    size_a, size_b = (p.bitwise_and(bits, 0x7FFF) for bits in (a, b))
    zeros = p.logical_and(p.eq(size_a, 0), p.eq(size_b, 0))
    # With the magnitude turned where the sign is set, bits are ordered as the numbers are.
    rising = p.lt(*(p.bitwise_xor(bits, p.bitwise_and(p.shift_right(bits, 15), 0x7FFF)) for bits in (a, b)))
    step = p.where(p.eq(rising, p.ge(a, 0)), p.full(p.out.shape, 1, "int16"), -1)
    least = p.bitwise_or(p.bitwise_and(b, -(2**15)), 1)  # the one behind zero, with the sign of y
    found = p.where(p.logical_or(zeros, p.eq(a, b)), b, p.where(p.eq(size_a, 0), least, p.add(a, step)))
    infinite = 0x7C00 if dtype == "float16" else 0x7F80
    is_nan = p.logical_or(p.gt(size_a, infinite), p.gt(size_b, infinite))
    return p.bitcast(p.where(is_nan, infinite + 1, found), dtype)


def pow_scalar(p: Builder, x: Value, exponent: Any) -> Value:
    """Eager's own special cases: 0, 1, 2, 3, -2; and roots and the reciprocal, but for float16 on a CPU."""
    if isinstance(exponent, Expr):
        raise Decline(f"the exponent {exponent} is a symbol")
    special = p.out.dtype != "float16" or p.out.device != "cpu"
    if p.out.dtype in HALVES:
        exponent = in_dtype(exponent, p.out.dtype)  # its kernel is given it in half precision
    return p.pointwise(lambda p, x: _power(p, x, exponent, special), x)


def _power(p: Builder, x: Value, exponent: Any, special: bool = True) -> Value:
    if exponent == 0:
        return p.full(x.shape, 1.0 if is_float(x.dtype) else 1, x.dtype)
    if exponent == 1:
        return x
    if exponent == 2:
        return p.mul(x, x)
    if exponent == 3:
        return p.mul(p.mul(x, x), x)
    if is_float(x.dtype):
        known = {0.5: p.sqrt, -0.5: p.rsqrt, -1: p.reciprocal}.get(exponent) if special else None
        if known is not None:
            return known(x)
        if exponent == -2:
            return p.reciprocal(p.mul(x, x))
        return p.pow(x, float(exponent))
    if exponent < 0 or exponent != int(exponent):
        raise Decline(f"an integer to the power {exponent}")
    return p.pow(x, int(exponent))


def compare(prim: str) -> Function:
    """Comparisons in the common dtype of the operands."""
    return lambda p, *xs: getattr(p, prim)(*[p.operand(x, result_type(xs), p.out.shape) for x in xs])


def truth(p: Builder, x: Any) -> Value:
    """x != 0 as a bool tensor of the result's shape."""
    if type(x) is not Value:
        return p.full(p.out.shape, bool(x), "bool")
    return p.broadcast(p.convert(x, "bool"), p.out.shape)


def _logical(prim: str) -> Function:
    return lambda p, *operands: p.convert(getattr(p, prim)(*[truth(p, x) for x in operands]), p.out.dtype)


def _test(compute: Function, kinds: frozenset[str] = FLOATS, other: bool = False) -> Function:
    """A question about numbers of some dtypes, to which all others have one answer."""
    return lambda p, x: compute(p, x) if x.dtype in kinds else p.full(x.shape, other, "bool")


def where(p: Builder, cond: Value, x: Any, y: Any) -> Value:
    out = p.out
    a, b = (p.operand(v, out.dtype, out.shape) for v in (x, y))
    if type(a) is not Value and type(b) is not Value:
        a = p.full(out.shape, a, out.dtype)
    return p.where(p.broadcast(p.convert(cond, "bool"), out.shape), a, b)


def clamp(p: Builder, x: Value, min: Any = None, max: Any = None) -> Value:
    """nan stays nan; where min > max the result is max."""
    bounds = {prim: b for prim, b in (("maximum", min), ("minimum", max)) if b is not None}

    def compute(p: Builder, x: Value, *operands: Any) -> Value:
        for prim, bound in zip(bounds, operands, strict=True):
            x = getattr(p, prim)(x, bound)
        return x

    if any(isinstance(b, float) and b != b for b in bounds.values()):
        raise Decline("a nan bound")
    return p.pointwise(compute, x, *bounds.values())


def lerp(p: Builder, start: Any, end: Any, weight: Any) -> Value:
    """start + w * (end - start) for |w| < 1/2, else end - (end - start) * (1 - w), as eager."""

    def compute(p: Builder, a: Any, b: Any, w: Any) -> Value:
        difference = p.sub(b, a)
        if type(w) is Expr:
            raise Decline("a weight that is open")
        if type(w) is not Value:
            return p.add(a, p.mul(difference, w)) if abs(w) < 0.5 else p.sub(b, p.mul(difference, 1.0 - w))
        low = p.add(a, p.mul(w, difference))
        high = p.sub(b, p.mul(difference, p.sub(1.0, w)))
        return p.where(p.lt(p.abs(w), 0.5), low, high)

    return p.pointwise(compute, start, end, weight)


def _add_joined(prim: str) -> Function:
    """x + value * a (* or /) b."""
    return elementwise(lambda p, x, a, b, value=1: p.add(x, getattr(p, prim)(scaled(p, a, value), b)))


def x_log(prim: str) -> Function:
    """x * log(y), or another logarithm of y; 0 where x is 0, nan where y is nan."""

    def compute(p: Builder, x: Any, y: Any) -> Value:
        y = y if type(y) is Value else p.full(p.out.shape, y, x.dtype)
        x = x if type(x) is Value else p.full(p.out.shape, x, y.dtype)
        product = p.where(p.eq(x, 0.0), 0.0, p.mul(x, getattr(p, prim)(y)))
        return p.where(p.isnan(y), math.nan, product)

    return lambda p, x, y: p.pointwise(compute, x, y)


@elementwise
def heaviside(p: Builder, x: Value, values: Value) -> Value:
    if x.dtype == "bool":
        raise Decline("bool")
    zero, one = (0.0, 1.0) if is_float(x.dtype) else (0, 1)
    step = p.where(p.gt(x, zero), one, p.full(x.shape, zero, x.dtype))
    return p.where(p.eq(x, zero), values, step)


@elementwise
def logaddexp(p: Builder, x: Value, y: Value) -> Value:
    greatest = p.maximum(x, y)
    tail = p.log1p(p.exp(p.neg(p.abs(p.sub(x, y)))))
    return p.where(p.logical_and(p.isinf(x), p.eq(x, y)), x, p.add(greatest, tail))


@elementwise
def logit(p: Builder, x: Value, eps: float | None = None) -> Value:
    if eps is not None:
        x = p.where(p.lt(x, float(eps)), float(eps), p.minimum(x, 1.0 - eps))  # eps may be above a half
    return p.log(p.div(x, p.sub(1.0, x)))


@elementwise
def sinc(p: Builder, x: Value) -> Value:
    angle = p.mul(x, math.pi)
    return p.where(p.eq(x, 0.0), 1.0, p.div(p.sin(angle), angle))


@elementwise
def nan_to_num(
    p: Builder, x: Value, nan: float | None = None, posinf: float | None = None, neginf: float | None = None
) -> Value:
    if not is_float(x.dtype):
        return x
    greatest = GREATEST[p.out.dtype]
    x = p.where(p.isnan(x), 0.0 if nan is None else float(nan), x)
    x = p.where(p.eq(x, math.inf), greatest if posinf is None else float(posinf), x)
    return p.where(p.eq(x, -math.inf), -greatest if neginf is None else float(neginf), x)


GREATEST = {
    "float64": 1.7976931348623157e308, "float32": 3.4028234663852886e38,
    "float16": 65504.0, "bfloat16": 3.3895313892515355e38,
}  # fmt: skip


_UNARY_FLOAT = (
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "reciprocal", "sin", "cos", "tan", "asin",
    "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc", "erfinv", "lgamma", "digamma",
    "sigmoid",
)  # fmt: skip
_BINARY = ("atan2", "hypot")
_OVERLOADS = ("Tensor", "Scalar")


@elementwise
def mvlgamma(p: Builder, x: Value, order: int) -> Value:
    """log of the multivariate gamma function: lgamma at x, x - 1/2, ..., added up with order*(order-1)/4 * log(pi)."""
    total = p.lgamma(x)
    for i in range(1, order):
        total = p.add(total, p.lgamma(p.sub(x, i / 2)))
    return p.add(total, order * (order - 1) / 4 * math.log(math.pi)) if order > 1 else total


TABLE: Table = {
    **by_name(mvlgamma, nextafter, clamp, heaviside, logaddexp, logit, sinc, nan_to_num),
    **{f"aten.{name}.default": _simple(name) for name in (*_UNARY_FLOAT, "neg", *_BINARY, "fmax", "fmin")},
    **{f"aten.{name}.default": _of(FLOATS, name) for name in ("ceil", "floor", "round", "trunc")},
    **{f"aten.{name}.default": _of(FLOATS | INTEGERS, name) for name in ("abs", "sign")},
    "aten.sgn.default": _of(FLOATS | INTEGERS, "sign"),
    "aten.positive.default": lambda p, x: x,
    **{f"aten.{name}.{o}": compare(name) for name in ("eq", "ne", "lt", "le", "gt", "ge") for o in _OVERLOADS},
    **{f"aten.add.{o}": add for o in _OVERLOADS},
    **{f"aten.sub.{o}": sub for o in _OVERLOADS},
    **{f"aten.rsub.{o}": lambda p, x, y, alpha=1: sub(p, y, x, alpha) for o in _OVERLOADS},
    **{
        f"aten.mul.{o}": lambda p, x, y: _by_scalar(p, "logical_and" if p.out.dtype == "bool" else "mul", x, y)
        for o in _OVERLOADS
    },
    **{f"aten.div.{o}": div_mode for o in (*_OVERLOADS, "Tensor_mode", "Scalar_mode")},
    **{f"aten.true_divide.{o}": div_mode for o in _OVERLOADS},
    "aten.floor_divide.default": lambda p, x, y: div_mode(p, x, y, "floor"),
    "aten.floor_divide.Scalar": lambda p, x, y: div_mode(p, x, y, "floor"),
    **{f"aten.remainder.{o}": _of_stored("remainder") for o in (*_OVERLOADS, "Scalar_Tensor")},
    **{f"aten.fmod.{o}": _of_stored("fmod") for o in _OVERLOADS},
    "aten.pow.Tensor_Scalar": pow_scalar,
    "aten.pow.Tensor_Tensor": _simple("pow"),
    "aten.pow.Scalar": _simple("pow"),
    **{f"aten.copysign.{o}": _simple("copysign") for o in _OVERLOADS},
    "aten.maximum.default": _simple("maximum", "logical_or"),
    "aten.minimum.default": _simple("minimum", "logical_and"),
    **{
        f"aten.bitwise_{name}.{o}": _simple(f"bitwise_{name}")
        for name in ("and", "or", "xor") for o in (*_OVERLOADS, "Scalar_Tensor")
    },
    "aten.bitwise_not.default": _simple("bitwise_not"),
    **{
        f"aten.{name}": _simple(f"shift_{way}")
        for way in ("left", "right")
        for name in (
            *(f"bitwise_{way}_shift.{o}" for o in ("Tensor", "Tensor_Scalar", "Scalar_Tensor")),
            *(f"__{way[0]}shift__.{o}" for o in _OVERLOADS),
        )
    },
    **{f"aten.logical_{name}.default": _logical(f"logical_{name}") for name in ("and", "or", "xor", "not")},
    "aten.isnan.default": _test(lambda p, x: p.isnan(x)),
    "aten.isinf.default": _test(lambda p, x: p.isinf(x)),
    "aten.isfinite.default": _test(lambda p, x: p.lt(p.abs(x), math.inf), other=True),
    "aten.isposinf.default": _test(lambda p, x: p.eq(x, math.inf)),
    "aten.isneginf.default": _test(lambda p, x: p.eq(x, -math.inf)),
    "aten.signbit.default": _test(lambda p, x: p.signbit(x), FLOATS | INTEGERS),
    **{f"aten.where.{o}": where for o in ("self", "ScalarSelf", "ScalarOther", "Scalar")},
    **{f"aten.masked_fill.{o}": lambda p, x, mask, value: where(p, mask, value, x) for o in _OVERLOADS},
    "aten.clamp.Tensor": clamp,
    **{f"aten.clamp_min.{o}": lambda p, x, min: clamp(p, x, min) for o in ("default", "Tensor")},
    **{f"aten.clamp_max.{o}": lambda p, x, max: clamp(p, x, None, max) for o in ("default", "Tensor")},
    "aten.lerp.Scalar": lerp,
    "aten.lerp.Tensor": lerp,
    **{f"aten.xlogy.{o}": x_log("log") for o in ("Tensor", "Scalar_Other", "Scalar_Self")},
    **{f"aten.special_xlog1py.{o}": x_log("log1p") for o in ("default", "self_scalar", "other_scalar")},
    "aten.addcmul.default": _add_joined("mul"),
    "aten.addcdiv.default": _add_joined("div"),
    "aten.frac.default": elementwise(lambda p, x: p.sub(x, p.trunc(x))),
    "aten.square.default": elementwise(lambda p, x: p.mul(x, x)),
    "aten.deg2rad.default": elementwise(lambda p, x: p.mul(x, math.pi / 180.0)),
    "aten.rad2deg.default": elementwise(lambda p, x: p.mul(x, 180.0 / math.pi)),
    **{
        f"aten.{name}": lambda p, x, value, non_blocking=False: p.filled(value, p.out.dtype, p.out.shape)
        for name in ("fill.Scalar", "fill.Tensor", "copy.default")
    },
}  # fmt: skip
