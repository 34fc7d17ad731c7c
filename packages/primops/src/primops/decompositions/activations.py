"""Activation functions and their gradients."""

from __future__ import annotations

import math
from typing import Any

from primops.builder import Builder, Value, opmath
from primops.decompositions.operands import Table, by_name, elementwise, is_float
from primops.decompositions.shape import window
from primops.errors import Decline
from stagewire.expr import Expr

SQRT_HALF = math.sqrt(0.5)
SQRT_2_OVER_PI = math.sqrt(2.0 / math.pi)
GELU_CUBIC = 0.044715


def _zero(x: Value) -> Any:
    return 0.0 if is_float(x.dtype) else 0


def threshold(p: Builder, x: Value, threshold: float, value: float) -> Value:
    return p.where(p.le(x, _typed(x, threshold)), _typed(x, value), x)


def _typed(x: Value, number: float) -> Any:
    if is_float(x.dtype) or type(number) is Expr:
        return number
    if number != int(number):
        raise Decline(f"{number} for {x.dtype}")
    return int(number)


def threshold_backward(p: Builder, grad: Value, x: Value, threshold: float) -> Value:
    return p.where(p.le(x, _typed(x, threshold)), _zero(x), grad)


def gelu(p: Builder, x: Value, approximate: str = "none") -> Value:
    """0.5 x (1 + erf(x / sqrt 2)), or with tanh(sqrt(2/pi) (x + 0.044715 x^3)) for erf."""
    if approximate == "tanh":
        return p.mul(p.mul(x, 0.5), p.add(p.tanh(_gelu_inner(p, x)), 1.0))
    return p.mul(p.mul(x, 0.5), p.add(p.erf(p.mul(x, SQRT_HALF)), 1.0))


def _gelu_inner(p: Builder, x: Value) -> Value:
    cube = p.mul(p.mul(x, x), x)
    return p.mul(p.add(x, p.mul(cube, GELU_CUBIC)), SQRT_2_OVER_PI)


def gelu_backward(p: Builder, grad: Value, x: Value, approximate: str = "none") -> Value:
    if approximate == "tanh":
        tanh = p.tanh(_gelu_inner(p, x))
        left = p.mul(x, 0.5)
        inner = p.mul(p.add(p.mul(p.mul(x, x), 3.0 * GELU_CUBIC), 1.0), SQRT_2_OVER_PI)
        slope = p.mul(p.mul(left, p.sub(1.0, p.mul(tanh, tanh))), inner)
        return p.mul(grad, p.add(p.mul(p.add(tanh, 1.0), 0.5), slope))
    cdf = p.mul(p.add(p.erf(p.mul(x, SQRT_HALF)), 1.0), 0.5)
    pdf = p.mul(p.exp(p.mul(p.mul(x, x), -0.5)), 1.0 / math.sqrt(2.0 * math.pi))
    return p.mul(grad, p.add(cdf, p.mul(x, pdf)))


def silu_backward(p: Builder, grad: Value, x: Value) -> Value:
    sigmoid = p.sigmoid(x)
    return p.mul(grad, p.mul(sigmoid, p.add(p.mul(x, p.sub(1.0, sigmoid)), 1.0)))


def leaky_relu_backward(p: Builder, grad: Value, x: Value, slope: float, self_is_result: bool) -> Value:
    return p.where(p.gt(x, 0.0), grad, p.mul(grad, slope))


def elu(p: Builder, x: Value, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Value:
    low = p.mul(p.expm1(p.mul(x, input_scale)), alpha * scale)
    return p.where(p.lt(x, 0.0), low, p.mul(x, scale))


def elu_backward(
    p: Builder, grad: Value, x: Value, alpha: float, scale: float, input_scale: float, is_result: bool
) -> Value:
    if is_result:
        slope = p.mul(p.add(x, alpha * scale), input_scale)
    else:
        slope = p.mul(p.exp(p.mul(x, input_scale)), alpha * scale * input_scale)
    return p.where(p.le(x, 0.0), p.mul(grad, slope), p.mul(grad, scale))


def hardtanh(p: Builder, x: Value, low: float = -1, high: float = 1) -> Value:
    return p.minimum(p.maximum(x, _typed(x, low)), _typed(x, high))


def hardtanh_backward(p: Builder, grad: Value, x: Value, low: float, high: float) -> Value:
    outside = p.logical_or(p.le(x, low), p.ge(x, high))
    return p.where(outside, 0.0, grad)


def _ramp(p: Builder, x: Value) -> Value:
    return p.minimum(p.maximum(p.add(x, 3.0), 0.0), 6.0)


ONE_SIXTH = 0.1666666716337204
"""1/6 as a float32, which ATen's backward kernel uses for float64 too."""


def hardsigmoid_backward(p: Builder, grad: Value, x: Value) -> Value:
    inside = p.logical_and(p.gt(x, -3.0), p.lt(x, 3.0))
    return p.where(inside, p.mul(grad, ONE_SIXTH), 0.0)


def hardswish_backward(p: Builder, grad: Value, x: Value) -> Value:
    middle = p.mul(grad, p.add(p.div(x, 3.0), 0.5))
    return p.where(p.le(x, -3.0), 0.0, p.where(p.lt(x, 3.0), middle, grad))


def softplus(p: Builder, x: Value, beta: float = 1, threshold: float = 20) -> Value:
    scaled = p.mul(x, beta)
    return p.where(p.gt(scaled, threshold), x, p.div(p.log1p(p.exp(scaled)), beta))


def softplus_backward(p: Builder, grad: Value, x: Value, beta: float, threshold: float) -> Value:
    scaled = p.mul(x, beta)
    growth = p.exp(scaled)
    return p.where(p.gt(scaled, threshold), grad, p.div(p.mul(grad, growth), p.add(growth, 1.0)))


def mish_backward(p: Builder, grad: Value, x: Value) -> Value:
    tanh = p.tanh(p.log1p(p.exp(x)))
    slope = p.mul(p.mul(x, p.sigmoid(x)), p.sub(1.0, p.mul(tanh, tanh)))
    return p.mul(grad, p.add(tanh, slope))


def hardshrink(p: Builder, x: Value, lambd: float = 0.5) -> Value:
    return hardshrink_backward(p, x, x, lambd)


def hardshrink_backward(p: Builder, grad: Value, x: Value, lambd: float) -> Value:
    inside = p.logical_and(p.ge(x, -lambd), p.le(x, lambd))
    return p.where(inside, 0.0, grad)


def softshrink(p: Builder, x: Value, lambd: float = 0.5) -> Value:
    low, high = p.add(x, lambd), p.sub(x, lambd)
    inner = p.where(p.lt(x, -lambd), low, p.mul(x, 0.0))
    return p.where(p.gt(x, lambd), high, inner)


def prelu_backward(p: Builder, grad: Value, x: Value, weight: Value) -> tuple[Value, Value]:
    to_x = p.pointwise(lambda p, g, x, w: p.where(p.gt(x, 0.0), g, p.mul(g, w)), grad, x, weight)
    return to_x, p.pointwise(lambda p, g, x: p.where(p.gt(x, 0.0), 0.0, p.mul(g, x)), grad, x)


def log_sigmoid_forward(p: Builder, x: Value) -> tuple[Value, Value]:
    """min(0, x) - log1p(exp(-|x|)); the second result is a buffer that eager leaves empty or holds exp(-|x|)."""

    result = p.pointwise(lambda p, x: p.sub(p.minimum(x, 0.0), p.log1p(_decay(p, x))), x)
    if p.results[1].shape != x.shape:  # type: ignore[union-attr]
        return result, p.full(p.results[1].shape, 0.0, x.dtype)  # type: ignore[union-attr]
    return result, p.pointwise(_decay, x)


def _decay(p: Builder, x: Value) -> Value:
    return p.exp(p.neg(p.abs(x)))


def log_sigmoid_backward(p: Builder, grad: Value, x: Value) -> Value:
    decay = _decay(p, x)
    negative = p.lt(x, 0.0)
    high = p.where(negative, p.full(x.shape, 1.0, x.dtype), 0.0)
    sign = p.where(negative, p.full(x.shape, 1.0, x.dtype), -1.0)
    return p.mul(grad, p.sub(high, p.mul(sign, p.div(decay, p.add(decay, 1.0)))))


def glu(p: Builder, x: Value, dim: int = -1) -> Value:
    left, right = halves(p, x, dim)
    return p.pointwise(lambda p, a, b: p.mul(a, p.sigmoid(b)), left, right)


def halves(p: Builder, x: Value, dim: int) -> tuple[Value, Value]:
    """x cut in two along dim."""
    dim = dim % x.rank
    middle = x.shape[dim] // 2
    # The end is the size, which is even, in a form that shows it.
    return window(p, x, dim, 0, middle), window(p, x, dim, middle, middle + middle)


def glu_backward(p: Builder, grad: Value, x: Value, dim: int) -> Value:
    left, right = halves(p, x, dim)
    grad, left, right = (p.convert(v, opmath(x.dtype)) for v in (grad, left, right))
    sigmoid = p.sigmoid(right)
    to_left = p.mul(sigmoid, grad)
    to_right = p.mul(p.mul(p.mul(p.sub(1.0, sigmoid), sigmoid), grad), left)
    return p.convert(p.cat((to_left, to_right), dim % x.rank), x.dtype)


_POINTWISE = (
    threshold, threshold_backward, gelu, gelu_backward, silu_backward, leaky_relu_backward, elu, elu_backward, hardtanh,
    hardtanh_backward, hardsigmoid_backward, hardswish_backward, softplus, softplus_backward, mish_backward, hardshrink,
    hardshrink_backward, softshrink,
)  # fmt: skip
TABLE: Table = {
    **by_name(*map(elementwise, _POINTWISE)),
    "aten.relu.default": elementwise(lambda p, x: p.maximum(x, _zero(x))),
    "aten.relu6.default": elementwise(lambda p, x: hardtanh(p, x, 0.0, 6.0)),
    "aten.silu.default": elementwise(lambda p, x: p.div(x, p.add(p.exp(p.neg(x)), 1.0))),
    "aten.sigmoid_backward.default": elementwise(lambda p, grad, out: p.mul(p.mul(grad, p.sub(1.0, out)), out)),
    "aten.tanh_backward.default": elementwise(lambda p, grad, out: p.mul(grad, p.sub(1.0, p.mul(out, out)))),
    "aten.leaky_relu.default": elementwise(lambda p, x, slope=0.01: p.where(p.gt(x, 0.0), x, p.mul(x, slope))),
    "aten.hardsigmoid.default": elementwise(lambda p, x: p.div(_ramp(p, x), 6.0)),
    "aten.hardswish.default": elementwise(lambda p, x: p.div(p.mul(x, _ramp(p, x)), 6.0)),
    "aten.mish.default": elementwise(lambda p, x: p.mul(x, p.tanh(p.log1p(p.exp(x))))),
    "aten.softshrink_backward.default": elementwise(hardshrink_backward),
    "aten._prelu_kernel.default": elementwise(lambda p, x, weight: p.where(p.gt(x, 0.0), x, p.mul(x, weight))),
    "aten._prelu_kernel_backward.default": prelu_backward,
    **by_name(log_sigmoid_forward, glu, glu_backward),
    "aten.log_sigmoid_backward.default": lambda p, g, x, buffer: p.pointwise(log_sigmoid_backward, g, x),
}
