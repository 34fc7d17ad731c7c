"""Activation functions and their gradients."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from primops.builder import Builder, Value
from primops.decompositions.operands import Table, is_float
from primops.errors import Decline

SQRT_HALF = math.sqrt(0.5)
SQRT_2_OVER_PI = math.sqrt(2.0 / math.pi)
GELU_CUBIC = 0.044715


def _of(compute: Callable[..., Value]) -> Callable[..., Value]:
    """A decomposition that is `compute` on tensors and literal parameters."""

    def decomposition(p: Builder, *arguments: Any, **keywords: Any) -> Value:
        tensors = [a for a in arguments if type(a) is Value]
        literals = [a for a in arguments if type(a) is not Value]
        return p.pointwise(lambda p, *xs: compute(p, *xs, *literals, **keywords), *tensors)

    decomposition.__doc__ = compute.__doc__
    return decomposition


def _zero(x: Value) -> Any:
    return 0.0 if is_float(x.dtype) else 0


def relu(p: Builder, x: Value) -> Value:
    return p.maximum(x, _zero(x))


def threshold(p: Builder, x: Value, threshold: float, value: float) -> Value:
    return p.where(p.le(x, _typed(x, threshold)), _typed(x, value), x)


def _typed(x: Value, number: float) -> Any:
    if is_float(x.dtype):
        return float(number)
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


def silu(p: Builder, x: Value) -> Value:
    return p.div(x, p.add(p.exp(p.neg(x)), 1.0))


def silu_backward(p: Builder, grad: Value, x: Value) -> Value:
    sigmoid = p.sigmoid(x)
    return p.mul(grad, p.mul(sigmoid, p.add(p.mul(x, p.sub(1.0, sigmoid)), 1.0)))


def sigmoid_backward(p: Builder, grad: Value, out: Value) -> Value:
    return p.mul(p.mul(grad, p.sub(1.0, out)), out)


def tanh_backward(p: Builder, grad: Value, out: Value) -> Value:
    return p.mul(grad, p.sub(1.0, p.mul(out, out)))


def leaky_relu(p: Builder, x: Value, slope: float = 0.01) -> Value:
    return p.where(p.gt(x, 0.0), x, p.mul(x, float(slope)))


def leaky_relu_backward(p: Builder, grad: Value, x: Value, slope: float, self_is_result: bool) -> Value:
    return p.where(p.gt(x, 0.0), grad, p.mul(grad, float(slope)))


def elu(p: Builder, x: Value, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Value:
    low = p.mul(p.expm1(p.mul(x, float(input_scale))), float(alpha * scale))
    return p.where(p.lt(x, 0.0), low, p.mul(x, float(scale)))


def elu_backward(
    p: Builder, grad: Value, x: Value, alpha: float, scale: float, input_scale: float, is_result: bool
) -> Value:
    if is_result:
        slope = p.mul(p.add(x, float(alpha * scale)), float(input_scale))
    else:
        slope = p.mul(p.exp(p.mul(x, float(input_scale))), float(alpha * scale * input_scale))
    return p.where(p.le(x, 0.0), p.mul(grad, slope), p.mul(grad, float(scale)))


def hardtanh(p: Builder, x: Value, low: float = -1, high: float = 1) -> Value:
    return p.minimum(p.maximum(x, _typed(x, low)), _typed(x, high))


def hardtanh_backward(p: Builder, grad: Value, x: Value, low: float, high: float) -> Value:
    outside = p.logical_or(p.le(x, float(low)), p.ge(x, float(high)))
    return p.where(outside, 0.0, grad)


def relu6(p: Builder, x: Value) -> Value:
    return hardtanh(p, x, 0.0, 6.0)


def hardsigmoid(p: Builder, x: Value) -> Value:
    return p.div(p.minimum(p.maximum(p.add(x, 3.0), 0.0), 6.0), 6.0)


ONE_SIXTH = 0.1666666716337204
"""1/6 as a float32, which ATen's backward kernel uses for float64 too."""


def hardsigmoid_backward(p: Builder, grad: Value, x: Value) -> Value:
    inside = p.logical_and(p.gt(x, -3.0), p.lt(x, 3.0))
    return p.where(inside, p.mul(grad, ONE_SIXTH), 0.0)


def hardswish(p: Builder, x: Value) -> Value:
    return p.div(p.mul(x, p.minimum(p.maximum(p.add(x, 3.0), 0.0), 6.0)), 6.0)


def hardswish_backward(p: Builder, grad: Value, x: Value) -> Value:
    middle = p.mul(grad, p.add(p.div(x, 3.0), 0.5))
    return p.where(p.le(x, -3.0), 0.0, p.where(p.lt(x, 3.0), middle, grad))


def softplus(p: Builder, x: Value, beta: float = 1, threshold: float = 20) -> Value:
    scaled = p.mul(x, float(beta))
    return p.where(p.gt(scaled, float(threshold)), x, p.div(p.log1p(p.exp(scaled)), float(beta)))


def softplus_backward(p: Builder, grad: Value, x: Value, beta: float, threshold: float) -> Value:
    scaled = p.mul(x, float(beta))
    growth = p.exp(scaled)
    return p.where(p.gt(scaled, float(threshold)), grad, p.div(p.mul(grad, growth), p.add(growth, 1.0)))


def mish(p: Builder, x: Value) -> Value:
    return p.mul(x, p.tanh(p.log1p(p.exp(x))))


def mish_backward(p: Builder, grad: Value, x: Value) -> Value:
    tanh = p.tanh(p.log1p(p.exp(x)))
    slope = p.mul(p.mul(x, p.sigmoid(x)), p.sub(1.0, p.mul(tanh, tanh)))
    return p.mul(grad, p.add(tanh, slope))


def hardshrink(p: Builder, x: Value, lambd: float = 0.5) -> Value:
    inside = p.logical_and(p.ge(x, -float(lambd)), p.le(x, float(lambd)))
    return p.where(inside, 0.0, x)


def shrink_backward(p: Builder, grad: Value, x: Value, lambd: float) -> Value:
    inside = p.logical_and(p.ge(x, -float(lambd)), p.le(x, float(lambd)))
    return p.where(inside, 0.0, grad)


def softshrink(p: Builder, x: Value, lambd: float = 0.5) -> Value:
    low, high = p.add(x, float(lambd)), p.sub(x, float(lambd))
    inner = p.where(p.lt(x, -float(lambd)), low, p.mul(x, 0.0))
    return p.where(p.gt(x, float(lambd)), high, inner)


def prelu(p: Builder, x: Value, weight: Value) -> Value:
    return p.where(p.gt(x, 0.0), x, p.mul(x, weight))


def prelu_backward(p: Builder, grad: Value, x: Value, weight: Value) -> tuple[Value, Value]:
    def to_x(p: Builder, grad: Value, x: Value, weight: Value) -> Value:
        return p.where(p.gt(x, 0.0), grad, p.mul(grad, weight))

    def to_weight(p: Builder, grad: Value, x: Value) -> Value:
        return p.where(p.gt(x, 0.0), 0.0, p.mul(grad, x))

    return p.pointwise(to_x, grad, x, weight), p.pointwise(to_weight, grad, x)


def log_sigmoid_forward(p: Builder, x: Value) -> tuple[Value, Value]:
    """min(0, x) - log1p(exp(-|x|)); the second result is a buffer that eager leaves empty or holds exp(-|x|)."""

    def value(p: Builder, x: Value) -> Value:
        return p.sub(p.minimum(x, 0.0), p.log1p(p.exp(p.neg(p.abs(x)))))

    def buffer(p: Builder, x: Value) -> Value:
        return p.exp(p.neg(p.abs(x)))

    if p.results[1].shape != x.shape:  # type: ignore[union-attr]
        return p.pointwise(value, x), p.full(p.results[1].shape, 0.0, x.dtype)  # type: ignore[union-attr]
    return p.pointwise(value, x), p.pointwise(buffer, x)


def log_sigmoid_backward(p: Builder, grad: Value, x: Value, buffer: Value) -> Value:
    def compute(p: Builder, grad: Value, x: Value) -> Value:
        decay = p.exp(p.neg(p.abs(x)))
        negative = p.lt(x, 0.0)
        high = p.where(negative, p.full(x.shape, 1.0, x.dtype), 0.0)
        sign = p.where(negative, p.full(x.shape, 1.0, x.dtype), -1.0)
        return p.mul(grad, p.sub(high, p.mul(sign, p.div(decay, p.add(decay, 1.0)))))

    return p.pointwise(compute, grad, x)


def glu(p: Builder, x: Value, dim: int = -1) -> Value:
    left, right = halves(p, x, dim)
    return p.pointwise(lambda p, a, b: p.mul(a, p.sigmoid(b)), left, right)


def halves(p: Builder, x: Value, dim: int) -> tuple[Value, Value]:
    """x cut in two along dim."""
    dim = dim % x.rank
    middle = x.shape[dim] // 2
    start, step = [0] * x.rank, (1,) * x.rank
    stop = list(x.shape)
    stop[dim] = middle
    left = p.slice(x, tuple(start), tuple(stop), step)
    start[dim], stop[dim] = middle, middle + middle  # the size, which is even, in a form that shows it
    return left, p.slice(x, tuple(start), tuple(stop), step)


def glu_backward(p: Builder, grad: Value, x: Value, dim: int) -> Value:
    left, right = halves(p, x, dim)
    inner = "float32" if x.dtype in ("bfloat16", "float16") else x.dtype
    grad, left, right = (v if v.dtype == inner else p.convert_element_type(v, inner) for v in (grad, left, right))
    sigmoid = p.sigmoid(right)
    to_left = p.mul(sigmoid, grad)
    to_right = p.mul(p.mul(p.mul(p.sub(1.0, sigmoid), sigmoid), grad), left)
    both = p.cat((to_left, to_right), dim % x.rank)
    return both if both.dtype == x.dtype else p.convert_element_type(both, x.dtype)


TABLE: Table = {
    "aten.relu.default": _of(relu),
    "aten.relu6.default": _of(relu6),
    "aten.threshold.default": _of(threshold),
    "aten.threshold_backward.default": _of(threshold_backward),
    "aten.gelu.default": _of(gelu),
    "aten.gelu_backward.default": _of(gelu_backward),
    "aten.silu.default": _of(silu),
    "aten.silu_backward.default": _of(silu_backward),
    "aten.sigmoid_backward.default": _of(sigmoid_backward),
    "aten.tanh_backward.default": _of(tanh_backward),
    "aten.leaky_relu.default": _of(leaky_relu),
    "aten.leaky_relu_backward.default": _of(leaky_relu_backward),
    "aten.elu.default": _of(elu),
    "aten.elu_backward.default": _of(elu_backward),
    "aten.hardtanh.default": _of(hardtanh),
    "aten.hardtanh_backward.default": _of(hardtanh_backward),
    "aten.hardsigmoid.default": _of(hardsigmoid),
    "aten.hardsigmoid_backward.default": _of(hardsigmoid_backward),
    "aten.hardswish.default": _of(hardswish),
    "aten.hardswish_backward.default": _of(hardswish_backward),
    "aten.softplus.default": _of(softplus),
    "aten.softplus_backward.default": _of(softplus_backward),
    "aten.mish.default": _of(mish),
    "aten.mish_backward.default": _of(mish_backward),
    "aten.hardshrink.default": _of(hardshrink),
    "aten.hardshrink_backward.default": _of(shrink_backward),
    "aten.softshrink.default": _of(softshrink),
    "aten.softshrink_backward.default": _of(shrink_backward),
    "aten._prelu_kernel.default": _of(prelu),
    "aten._prelu_kernel_backward.default": prelu_backward,
    "aten.log_sigmoid_forward.default": log_sigmoid_forward,
    "aten.log_sigmoid_backward.default": log_sigmoid_backward,
    "aten.glu.default": glu,
    "aten.glu_backward.default": glu_backward,
}
