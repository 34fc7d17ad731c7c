"""Rules of elementwise arithmetic, comparison and selection.

Families: unary keeping the dtype, unary to float, predicates; binary promoting, binary to float,
comparisons; ternary.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from absint.errors import TypeRuleError
from absint.kernels import Question
from absint.meta import Meta, contiguous
from absint.promote import complex_dtype, float_dtype, is_integral, real_dtype, result_type
from absint.rules.pointwise import broadcast, cast, float_pointwise, pointwise
from absint.rules.table import RuleTable, full_name
from absint.strides import contiguous_stride, preserve_stride

__all__ = ["TABLE"]

TABLE = RuleTable()

_UNARY_SAME = """
    neg sign sgn floor ceil round round.decimals trunc frac bitwise_not
    _conj_physical relu threshold hardtanh hardswish hardsigmoid elu celu leaky_relu softplus
    softshrink hardshrink silu mish gelu
"""
_UNARY_FLOAT = """
    exp exp2 expm1 log log2 log10 log1p sqrt rsqrt sin cos tan sinh cosh tanh asin acos atan asinh acosh
    atanh erf erfc erfinv sigmoid lgamma digamma reciprocal i0 sinc special_entr special_erfcx special_i0e
    special_i1 special_i1e special_log_ndtr special_ndtri special_bessel_j0 special_bessel_j1
    special_bessel_y0 special_bessel_y1 special_modified_bessel_i0 special_modified_bessel_i1
    special_modified_bessel_k0 special_modified_bessel_k1 special_scaled_modified_bessel_k0
    special_scaled_modified_bessel_k1 special_spherical_bessel_j0 special_airy_ai logit
    deg2rad rad2deg
"""
_UNARY_BOOL = "isposinf isneginf signbit logical_not"
_BINARY = """
    mul.Tensor mul.Scalar maximum minimum fmax fmin
    remainder.Tensor remainder.Scalar remainder.Scalar_Tensor fmod.Tensor fmod.Scalar
    floor_divide floor_divide.Scalar bitwise_and.Tensor bitwise_and.Scalar bitwise_and.Scalar_Tensor
    bitwise_or.Tensor bitwise_or.Scalar bitwise_or.Scalar_Tensor bitwise_xor.Tensor bitwise_xor.Scalar
    bitwise_xor.Scalar_Tensor bitwise_left_shift.Tensor bitwise_left_shift.Tensor_Scalar
    bitwise_left_shift.Scalar_Tensor bitwise_right_shift.Tensor bitwise_right_shift.Tensor_Scalar
    bitwise_right_shift.Scalar_Tensor __lshift__.Tensor __lshift__.Scalar __rshift__.Tensor
    __rshift__.Scalar gcd lcm hypot nextafter logaddexp logaddexp2 heaviside pow.Tensor_Tensor pow.Scalar
    igamma igammac
"""
_SUMS = "add.Tensor add.Scalar sub.Tensor sub.Scalar rsub.Tensor rsub.Scalar"
_BINARY_FLOAT = """
    div.Tensor div.Scalar atan2 copysign.Tensor copysign.Scalar xlogy.Tensor xlogy.Scalar_Other
    xlogy.Scalar_Self special_xlog1py special_xlog1py.other_scalar special_xlog1py.self_scalar special_zeta
    special_zeta.other_scalar special_zeta.self_scalar
"""
_POLYNOMIALS = """
    chebyshev_polynomial_t chebyshev_polynomial_u chebyshev_polynomial_v chebyshev_polynomial_w
    hermite_polynomial_h hermite_polynomial_he laguerre_polynomial_l legendre_polynomial_p
    shifted_chebyshev_polynomial_t shifted_chebyshev_polynomial_u shifted_chebyshev_polynomial_v
    shifted_chebyshev_polynomial_w
"""
_COMPARISON = [
    f"{op}.{overload}" for op in ("eq", "ne", "lt", "le", "gt", "ge") for overload in ("Tensor", "Scalar")
] + ["logical_and", "logical_or", "logical_xor"]


def _unary_same(self: Meta, *_: Any, **__: Any) -> Meta:
    return pointwise((self,), self.dtype)


def _unary_float(self: Meta, *_: Any, **__: Any) -> Meta:
    return pointwise((self,), float_dtype(self.dtype))


def _unary_bool(self: Meta) -> Meta:
    return pointwise((self,), self.dtype, torch.bool)


def _binary(self: Any, other: Any, *_: Any, **__: Any) -> Meta:
    alike = type(self) is Meta and type(other) is Meta and len(self.shape) == len(other.shape) and self == other
    if alike and self.stride == contiguous_stride(self.shape):
        # The common case, answered without a new object.
        return self if self.storage_offset == 0 else pointwise((self,), self.dtype)
    return pointwise((self, other))


def _sum(self: Any, other: Any, alpha: Any = 1) -> Meta:
    made = _binary(self, other)
    if type(alpha) is float and is_integral(made.dtype):
        raise TypeRuleError("For integral input tensors, argument alpha must not be a floating point number.")
    return made


def _binary_float(self: Any, other: Any) -> Meta:
    return float_pointwise((self, other))


def _comparison(self: Any, other: Any) -> Meta:
    return pointwise((self, other), None, torch.bool)


for _name in _POLYNOMIALS.split():
    for _overload in ("default", "n_scalar", "x_scalar"):
        TABLE.add(f"special_{_name}.{_overload}", _binary_float)
for _names, _function in (
    (_UNARY_SAME.split(), _unary_same),
    (_UNARY_FLOAT.split(), _unary_float),
    (_UNARY_BOOL.split(), _unary_bool),
    (_BINARY.split(), _binary),
    (_SUMS.split(), _sum),
    (_BINARY_FLOAT.split(), _binary_float),
    (_COMPARISON, _comparison),
):
    for _name in _names:
        TABLE.add(_name, _function)


@TABLE.rule("abs")
def _abs(self: Meta) -> Meta:
    if self.dtype.is_complex:
        stride = preserve_stride(self.shape, self.stride)
        return Meta(self.shape, stride, real_dtype(self.dtype), self.device)
    return pointwise((self,), self.dtype, real_dtype(self.dtype))


@TABLE.rule("nan_to_num")
def _nan_to_num(self: Meta, *_: Any, **__: Any) -> Meta:
    return Meta(self.shape, preserve_stride(self.shape, self.stride), self.dtype, self.device)


@TABLE.rule("isinf")
def _isinf(self: Meta) -> Meta:
    if is_integral(self.dtype):
        stride = preserve_stride(self.shape, self.stride)
        return Meta(self.shape, stride, torch.bool, self.device)
    # Eager computes abs(x) == inf.
    return pointwise((_abs(self), math.inf), None, torch.bool)


@TABLE.rule("isnan")
def _isnan(self: Meta) -> Meta:
    # Eager computes x != x.
    return pointwise((self, self), None, torch.bool)


@TABLE.rule("angle")
def _angle(self: Meta) -> Meta:
    common = float_dtype(self.dtype)
    return pointwise((self,), common, real_dtype(common))


@TABLE.rule("div.Tensor_mode div.Scalar_mode")
def _div_mode(self: Meta, other: Any, *, rounding_mode: str | None) -> Meta:
    return float_pointwise((self, other)) if rounding_mode is None else pointwise((self, other))


@TABLE.rule("pow.Tensor_Scalar")
def _pow_scalar(self: Meta, exponent: Any) -> Meta:
    return pointwise((self,), result_type((self, exponent)))


@TABLE.rule("polygamma")
def _polygamma(n: int, self: Meta) -> Meta:
    return _unary_float(self)


@TABLE.rule("clamp")
def _clamp(self: Meta, min: Any = None, max: Any = None) -> Meta:
    operands = [operand for operand in (self, min, max) if operand is not None]
    if len(operands) == 1:
        raise TypeRuleError("torch.clamp: At least one of 'min' or 'max' must not be None")
    common = result_type(operands)
    return pointwise((self,), common)


@TABLE.rule("clamp.Tensor")
def _clamp_tensor(self: Meta, min: Meta | None = None, max: Meta | None = None) -> Meta:
    operands = [operand for operand in (self, min, max) if operand is not None]
    if len(operands) == 1:
        raise TypeRuleError("torch.clamp: At least one of 'min' or 'max' must not be None")
    return pointwise(operands)


@TABLE.rule("clamp_min clamp_max")
def _clamp_one(self: Meta, bound: Any) -> Meta:
    return pointwise((self,), result_type((self, bound)))


@TABLE.rule("clamp_min.Tensor clamp_max.Tensor")
def _clamp_one_tensor(self: Meta, bound: Meta) -> Meta:
    return pointwise((self, bound))


@TABLE.rule("addcmul addcdiv")
def _addc(self: Meta, tensor1: Meta, tensor2: Meta, *, value: Any = 1) -> Meta:
    return pointwise((self, tensor1, tensor2))


@TABLE.rule("lerp.Scalar")
def _lerp_scalar(self: Meta, end: Meta, weight: Any) -> Meta:
    if self.dtype is not end.dtype:
        raise TypeRuleError(f"expected dtype {self.dtype} for `end` but got dtype {end.dtype}")
    return pointwise((self, end))


@TABLE.rule("lerp.Tensor")
def _lerp_tensor(self: Meta, end: Meta, weight: Meta) -> Meta:
    if self.dtype is not end.dtype:
        raise TypeRuleError(f"expected dtype {self.dtype} for `end` but got dtype {end.dtype}")
    return pointwise((self, end, weight))


@TABLE.rule("where.self")
def _where(condition: Meta, self: Any, other: Any) -> Meta:
    common = result_type((self, other))
    # The condition enters the stride rule unconverted, whatever its dtype.
    unconverted = Meta(condition.shape, condition.stride, common, condition.device)
    return pointwise((unconverted, cast(self, common), cast(other, common)), common)


@TABLE.rule("masked_fill.Scalar masked_fill.Tensor")
def _masked_fill(self: Meta, mask: Meta, value: Any) -> Meta:
    return contiguous(broadcast(self.shape, mask.shape), self.dtype, self.device)


@TABLE.rule("complex")
def _complex(real: Meta, imag: Meta) -> Meta:
    return pointwise((real, imag), real.dtype, complex_dtype(real.dtype))


@TABLE.rule("polar")
def _polar(abs: Meta, angle: Meta) -> Meta:
    return _complex(abs, angle)


@TABLE.rule("ldexp.Tensor")
def _ldexp(self: Meta, other: Meta) -> Meta:
    # Eager computes x * 2.0 ** other.
    return pointwise((self, pointwise((other,), result_type((other, 2.0)))))


@TABLE.rule("frexp.Tensor")
def _frexp(self: Meta) -> tuple[Meta, Meta]:
    mantissa = pointwise((self,), self.dtype)
    return mantissa, Meta(mantissa.shape, mantissa.stride, torch.int32, self.device)


@TABLE.rule("mvlgamma")
def _mvlgamma(self: Meta, p: int) -> Meta:
    return contiguous(self.shape, float_dtype(self.dtype), self.device)


_BY_NOTHING = "remainder.Scalar fmod.Scalar floor_divide floor_divide.Scalar div.Scalar_mode"
"""Division by zero is an error where there are integers to divide."""
TABLE.ask(*set(TABLE).difference(map(full_name, _BY_NOTHING.split())))
TABLE.ask(_BY_NOTHING, question=Question(empties=True))
