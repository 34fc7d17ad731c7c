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
from absint.meta import Meta
from absint.promote import float_dtype, is_integral, result_type
from absint.rules.pointwise import broadcast, cast, float_pointwise, pointwise
from absint.rules.shapes import empty_like, fresh, resized, suggested, wrap_dim
from absint.rules.table import RuleTable
from absint.signatures import full_name
from absint.strides import contiguous_stride

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
    __rshift__.Scalar gcd lcm hypot nextafter logaddexp logaddexp2 heaviside pow.Tensor_Tensor
    igamma igammac
"""
_SUMS = "add.Tensor add.Scalar sub.Tensor sub.Scalar rsub.Scalar"
_BINARY_FLOAT = """
    div.Tensor div.Scalar atan2 copysign.Tensor copysign.Scalar xlogy.Tensor xlogy.Scalar_Other
    xlogy.Scalar_Self special_xlog1py special_xlog1py.other_scalar special_xlog1py.self_scalar special_zeta
    special_zeta.other_scalar special_zeta.self_scalar
"""
_POLYNOMIALS = " ".join(
    f"special_{kind}.{overload}"
    for kind in (
        "chebyshev_polynomial_t", "chebyshev_polynomial_u", "chebyshev_polynomial_v", "chebyshev_polynomial_w",
        "hermite_polynomial_h", "hermite_polynomial_he", "laguerre_polynomial_l", "legendre_polynomial_p",
        "shifted_chebyshev_polynomial_t", "shifted_chebyshev_polynomial_u", "shifted_chebyshev_polynomial_v",
        "shifted_chebyshev_polynomial_w",
    )
    for overload in ("default", "n_scalar", "x_scalar")
)  # fmt: skip
_COMPARISON = """
    eq.Tensor eq.Scalar ne.Tensor ne.Scalar lt.Tensor lt.Scalar le.Tensor le.Scalar gt.Tensor gt.Scalar ge.Tensor
    ge.Scalar logical_and logical_or logical_xor
"""


def _binary(self: Any, other: Any, /) -> Meta:
    alike = type(self) is Meta and type(other) is Meta and len(self.shape) == len(other.shape) and self == other
    if alike and self.stride == contiguous_stride(self.shape):
        # The common case, answered without a new object.
        return self if self.storage_offset == 0 else pointwise((self,), self.dtype)
    return pointwise((self, other))


def _sum(self: Any, other: Any, alpha: Any) -> Meta:
    made = _binary(self, other)
    if type(alpha) is float and is_integral(made.dtype):
        raise TypeRuleError("For integral input tensors, argument alpha must not be a floating point number.")
    return made


def _abs(self: Meta) -> Meta:
    dtype = self.dtype.to_real()
    return empty_like(self, dtype=dtype) if self.dtype.is_complex else pointwise((self,), self.dtype, dtype)


def _isinf(self: Meta) -> Meta:
    if is_integral(self.dtype):
        return empty_like(self, dtype=torch.bool)
    return pointwise((_abs(self), math.inf), None, torch.bool)  # eager computes abs(x) == inf


def _bounds(self: Meta, *bounds: Any) -> list[Any]:
    given = [bound for bound in bounds if bound is not None]
    if not given:
        raise TypeRuleError("torch.clamp: At least one of 'min' or 'max' must not be None")
    return [self, *given]


def _lerp(self: Meta, end: Meta, weight: Any) -> Meta:
    if self.dtype is not end.dtype:
        raise TypeRuleError(f"expected dtype {self.dtype} for `end` but got dtype {end.dtype}")
    return pointwise((self, end, weight) if type(weight) is Meta else (self, end))


def _where(condition: Meta, self: Any, other: Any) -> Meta:
    common = result_type((self, other))
    # The condition enters the stride rule unconverted, whatever its dtype.
    unconverted = Meta(condition.shape, condition.stride, common, condition.device)
    return pointwise((unconverted, cast(self, common), cast(other, common)), common)


TABLE.rows({
    _UNARY_SAME: lambda self: pointwise((self,), self.dtype),
    _UNARY_FLOAT: lambda self, /: pointwise((self,), float_dtype(self.dtype)),
    "deg2rad rad2deg": lambda self: empty_like(self, dtype=float_dtype(self.dtype)),
    "polygamma": lambda self: pointwise((self,), float_dtype(self.dtype)),
    _UNARY_BOOL: lambda self: pointwise((self,), self.dtype, torch.bool),
    f"{_BINARY} clamp_min.Tensor clamp_max.Tensor": _binary,
    _SUMS: _sum,
    "rsub.Tensor": lambda self, other, alpha: _sum(other, self, alpha),
    "pow.Scalar": lambda self, exponent: fresh(exponent, dtype=result_type((self, exponent))),
    f"{_BINARY_FLOAT} {_POLYNOMIALS}": lambda self, other, /: float_pointwise((self, other)),
    _COMPARISON: lambda self, other, /: pointwise((self, other), None, torch.bool),
    "abs": _abs,
    "nan_to_num": lambda self: empty_like(self),
    "isinf": _isinf,
    "isnan": lambda self: pointwise((self, self), None, torch.bool),  # eager computes x != x
    "angle": lambda self: pointwise((self,), common := float_dtype(self.dtype), common.to_real()),
    "div.Tensor_mode div.Scalar_mode": lambda self, other, rounding_mode: (
        float_pointwise((self, other)) if rounding_mode is None else pointwise((self, other))
    ),
    "pow.Tensor_Scalar clamp_min clamp_max": lambda self, other, /: pointwise((self,), result_type((self, other))),
    "clamp": lambda self, min, max: pointwise((self,), result_type(_bounds(self, min, max))),
    "clamp.Tensor": lambda self, min, max: pointwise(_bounds(self, min, max)),
    "addcmul addcdiv": lambda self, tensor1, tensor2: pointwise((self, tensor1, tensor2)),
    "lerp.Scalar lerp.Tensor": _lerp,
    "where.self": _where,
    "masked_fill.Scalar masked_fill.Tensor": lambda self, mask: fresh(self, broadcast(self.shape, mask.shape)),
    "complex polar": lambda real, imag, /: pointwise((real, imag), real.dtype, real.dtype.to_complex()),
    # Eager scales by whole exponents, and else computes x * 2.0 ** other.
    "ldexp.Tensor": lambda self, other: (
        pointwise((self, other), self.dtype)
        if self.dtype.is_floating_point and not (other.dtype.is_floating_point or other.dtype.is_complex)
        else pointwise((self, pointwise((other,), result_type((other, 2.0)))))
    ),
    "frexp.Tensor": lambda self: (pointwise((self,), self.dtype), pointwise((self,), self.dtype, torch.int32)),
    "mvlgamma": lambda self: fresh(self, dtype=float_dtype(self.dtype)),
})  # fmt: skip

_BY_NOTHING = "remainder.Scalar fmod.Scalar floor_divide floor_divide.Scalar div.Scalar_mode"
"""Division by zero is an error where there are integers to divide."""
TABLE.ask(" ".join(set(TABLE).difference(map(full_name, _BY_NOTHING.split()))))
TABLE.ask(_BY_NOTHING, Question(empties=True))


# Activation functions' backwards, GLU, PReLU and dropout's backward.


def _glu(self: Meta, dim: int) -> Meta:
    dim = wrap_dim(dim, self.ndim)
    if self.shape[dim] % 2 != 0:
        raise TypeRuleError(f"Halving dimension must be even, but dimension {dim} is size {self.shape[dim]!r}")
    return pointwise((Meta(resized(self, dim, self.shape[dim] // 2), self.stride, self.dtype, self.device),))


def _weight_norm(v: Meta, g: Meta) -> tuple[Meta, Meta]:
    """The norms of half precision are float32; kernels of CUDA keep those of bfloat16."""
    halves = (torch.float16,) if g.device.type == "cuda" else (torch.float16, torch.bfloat16)
    return suggested(v), fresh(g, dtype=torch.float32 if g.dtype in halves else None)


TABLE.rows({
    # The operands of TensorIterator are (grad_output, self) in the order given; scalars follow.
    """gelu_backward silu_backward mish_backward hardswish_backward hardsigmoid_backward hardshrink_backward
    softshrink_backward softplus_backward hardtanh_backward tanh_backward sigmoid_backward logit_backward
    """: lambda grad_output, self, /: pointwise((grad_output, self)),
    "threshold_backward leaky_relu_backward": lambda grad_output, self: pointwise((self, grad_output)),
    "elu_backward": lambda grad_output, self_or_result: pointwise((grad_output, self_or_result)),
    "log_sigmoid_forward": lambda self: (fresh(self), fresh(self, None if self.device.type == "cpu" else (0,))),
    "log_sigmoid_backward": lambda grad_output: empty_like(grad_output),
    "glu": _glu,
    "glu_backward": lambda self: fresh(self),
    "_prelu_kernel": lambda self, weight: pointwise((self, weight)),
    "_prelu_kernel_backward": lambda grad_output, self, weight: (pointwise((self, weight, grad_output)),) * 2,
    "native_dropout_backward": lambda grad_output, mask, scale: pointwise((pointwise((grad_output, mask)), scale)),
    "_weight_norm_interface": _weight_norm,
    "_weight_norm_interface_backward": lambda saved_v, saved_g: (fresh(saved_v), fresh(saved_g)),
})  # fmt: skip
TABLE.ask("log_sigmoid_forward _prelu_kernel _weight_norm_interface")
TABLE.ask("glu", Question(size=2))
