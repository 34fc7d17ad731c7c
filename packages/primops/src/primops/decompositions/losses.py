"""Losses and their gradients. `reduction`: 0 none, 1 mean, 2 sum."""

from __future__ import annotations

from typing import Any

from primops.builder import Builder, Value, opmath
from primops.decompositions.operands import Function, Table, broadcast_shape, by_name, literal_count, result_type
from stagewire.expr import Dim
from stagewire.types import numel

NONE, MEAN, SUM = 0, 1, 2


def reduce_loss(p: Builder, loss: Value, reduction: int) -> Value:
    """The loss summed or averaged on request."""
    if reduction == NONE:
        return loss
    dims = tuple(range(loss.rank))
    total = p.sum(loss, dims) if dims else loss
    return total if reduction == SUM else p.per_count(total, loss.shape, dims)


def _loss(compute: Function) -> Function:
    """An elementwise loss of (x, target) with a reduction."""

    def decomposition(
        p: Builder, x: Value, target: Value, reduction: int = MEAN, *arguments: Any, **keywords: Any
    ) -> Value:
        shape, common = broadcast_shape(x.shape, target.shape), result_type((x, target))
        x, target = (p.operand(v, common, shape, opmath(common)) for v in (x, target))
        loss = compute(p, x, target, *arguments, **keywords)
        return p.convert(reduce_loss(p, loss, reduction), p.out.dtype)

    return decomposition


def _loss_backward(compute: Function) -> Function:
    """Its gradient: grad * slope(x, target), divided by the count for a mean."""

    def decomposition(p: Builder, grad: Value, x: Value, target: Value, reduction: int, *arguments: Any) -> Value:
        out = p.out
        inner = opmath(out.dtype)
        grad, x, target = (p.operand(v, out.dtype, out.shape, inner) for v in (grad, x, target))
        return _shared(p, p.mul(compute(p, x, target, *arguments), grad), reduction)

    return decomposition


def _shared(p: Builder, gradient: Value, reduction: int) -> Value:
    """The gradient of each element: its part of a mean."""
    if reduction == MEAN:
        gradient = p.per_count(gradient, gradient.shape, range(gradient.rank))
    return p.convert(gradient, p.out.dtype)


def _wide_like(p: Builder, x: Value, *operands: Value) -> list[Value]:
    """Operands in the dtype that eager computes x in, and in its shape."""
    return [p.broadcast(p.convert(one, opmath(x.dtype)), x.shape) for one in operands]


def mse(p: Builder, x: Value, target: Value) -> Value:
    difference = p.sub(x, target)
    return p.mul(difference, difference)


def smooth_l1(p: Builder, x: Value, target: Value, beta: float = 1.0) -> Value:
    distance = p.abs(p.sub(x, target))
    if beta == 0:
        return distance
    near = p.div(p.mul(p.mul(distance, distance), 0.5), float(beta))
    return p.where(p.lt(distance, float(beta)), near, p.sub(distance, 0.5 * beta))


def smooth_l1_backward(p: Builder, x: Value, target: Value, beta: float) -> Value:
    difference = p.sub(x, target)
    if beta == 0:
        return p.sign(difference)
    outside = p.ge(p.abs(difference), float(beta))  # nan is inside, as in eager
    return p.where(outside, p.sign(difference), p.div(difference, float(beta)))


def huber(p: Builder, x: Value, target: Value, delta: float = 1.0) -> Value:
    distance = p.abs(p.sub(x, target))
    near = p.mul(p.mul(distance, distance), 0.5)
    return p.where(p.le(distance, float(delta)), near, p.mul(p.sub(distance, 0.5 * delta), float(delta)))


def huber_backward(p: Builder, x: Value, target: Value, delta: float) -> Value:
    difference = p.sub(x, target)
    outside = p.gt(p.abs(difference), float(delta))
    return p.where(outside, p.mul(p.sign(difference), float(delta)), difference)


def soft_margin(p: Builder, x: Value, target: Value) -> Value:
    x, target = (p.convert(v, opmath(p.out.dtype)) for v in (x, target))
    return p.log1p(_overflowing(p, p.exp(p.mul(p.neg(x), target))))


def soft_margin_backward(p: Builder, grad: Value, x: Value, target: Value, reduction: int = MEAN) -> Value:
    """-target z / (z + 1) * grad with z = exp(-target x), each step rounded as eager stores it."""
    shape = x.shape
    grad, x, target = _wide_like(p, x, grad, x, target)
    scale = -1.0 / literal_count(shape, range(len(shape))) if reduction == MEAN else -1.0
    growth = _overflowing(p, p.exp(p.mul(p.neg(target), x)))
    slope = _overflowing(p, p.mul(_overflowing(p, p.mul(target, growth)), scale))
    slope = _overflowing(p, p.div(slope, _overflowing(p, p.add(growth, 1.0))))
    return p.convert(p.mul(slope, grad), p.out.dtype)


def _overflowing(p: Builder, x: Value) -> Value:
    """x rounded to the dtype of the result: eager stores this step, so float16 overflows here."""
    return p.convert(p.convert(x, p.out.dtype), x.dtype)


def binary_cross_entropy(
    p: Builder, x: Value, target: Value, weight: Value | None = None, reduction: int = MEAN
) -> Value:
    """-(t log x + (1 - t) log(1 - x)), the logarithms not below -100; x outside of 0..1 is an error."""
    inner, out = opmath(x.dtype), x.dtype
    x, target = p.check_range(p.convert(x, inner), 0.0, 1.0), p.convert(target, inner)
    low = p.maximum(p.log(x), -100.0)
    high = p.maximum(p.log1p(p.neg(x)), -100.0)
    loss = p.sub(p.mul(p.sub(target, 1.0), high), p.mul(target, low))
    if weight is not None:
        loss = p.mul(loss, *_wide_like(p, loss, weight))
    return p.convert(reduce_loss(p, loss, reduction), out)


def binary_cross_entropy_backward(
    p: Builder, grad: Value, x: Value, target: Value, weight: Value | None = None, reduction: int = MEAN
) -> Value:
    grad, x, target = _wide_like(p, x, grad, x, target)
    slope = p.div(p.sub(x, target), p.maximum(p.mul(p.sub(1.0, x), x), 1e-12))
    result = p.mul(grad, slope)
    if weight is not None:
        result = p.mul(result, *_wide_like(p, x, weight))
    return _shared(p, result, reduction)


def binary_cross_entropy_with_logits(
    p: Builder, x: Value, target: Value, weight: Value | None = None, pos_weight: Value | None = None,
    reduction: int = MEAN,
) -> Value:  # fmt: skip
    """(1 - t) x + w (log1p(exp(-|x|)) + max(-x, 0)) with w = 1 + (pos_weight - 1) t, stored as t is."""
    inner, out = opmath(result_type((x, target))), p.out.dtype
    x = p.operand(x, x.dtype, target.shape, opmath(x.dtype))
    tail = p.add(p.log1p(p.exp(p.neg(p.abs(x)))), p.maximum(p.neg(x), 0.0))
    x, tail, target = (p.convert(v, inner) for v in (x, tail, target))
    if pos_weight is not None:
        (positive,) = _wide_like(p, x, pos_weight)
        tail = p.mul(tail, p.add(p.mul(p.sub(positive, 1.0), target), 1.0))
    loss = p.add(p.mul(p.sub(1.0, target), x), tail)
    if weight is not None:
        loss = p.mul(loss, *_wide_like(p, loss, weight))
    return p.convert(reduce_loss(p, loss, reduction), out)


# --- negative log likelihood ---------------------------------------------------------------------------------------
def _picked(p: Builder, x: Value, target: Value, ignore_index: int) -> tuple[Value, Value, tuple[Dim, ...], int]:
    """Which targets count; the targets made safe; the shape that has size 1 for the classes, and that dimension."""
    dim = 1 if x.rank > 1 else 0
    target = p.convert(target, "int64")
    valid = p.ne(target, int(ignore_index))
    return valid, p.where(valid, target, 0), (*x.shape[:dim], 1, *x.shape[dim + 1 :]), dim


def _weights(p: Builder, weight: Value | None, safe: Value, valid: Value, dtype: str) -> Value:
    """The weight of each target's class, 0 for ignored ones."""
    if weight is None:
        return p.convert(valid, dtype)
    flat = p.reshape(weight, (numel(weight.shape),))  # for images it may have more dimensions
    chosen = p.index(p.convert(flat, dtype), (safe,), False)
    return p.where(valid, chosen, 0.0)


def nll_loss(
    p: Builder, x: Value, target: Value, weight: Value | None, reduction: int, ignore_index: int
) -> tuple[Value, Value]:
    """-weight[t] * x[t] for each target t that is not ignored; the second result is the sum of the weights."""
    inner, out = opmath(x.dtype), x.dtype
    x = p.convert(x, inner)
    valid, safe, shape, dim = _picked(p, x, target, ignore_index)
    chosen = p.reshape(p.gather(x, dim, p.reshape(safe, shape)), target.shape)
    weights = _weights(p, weight, safe, valid, inner)
    loss = p.where(valid, p.neg(p.mul(chosen, weights)), 0.0)
    if reduction == NONE and x.rank > 1:
        return p.convert(loss, out), p.full(p.results[1].shape, 0.0, p.results[1].dtype)  # type: ignore[union-attr]
    dims = tuple(range(loss.rank))
    total = p.sum(loss, dims) if dims else loss
    total_weight = p.sum(weights, dims) if dims else weights
    if reduction == MEAN:
        total = p.div(total, total_weight)
    return p.convert(total, out), p.convert(total_weight, p.results[1].dtype)  # type: ignore[union-attr]


def nll_loss_backward(
    p: Builder, grad: Value, x: Value, target: Value, weight: Value | None, reduction: int, ignore_index: int,
    total_weight: Value,
) -> Value:  # fmt: skip
    inner = opmath(x.dtype)
    valid, safe, _, dim = _picked(p, x, target, ignore_index)
    weights = _weights(p, weight, safe, valid, inner)
    grad = p.convert(grad, inner)
    if reduction == MEAN:
        grad = p.div(grad, p.convert(total_weight, inner))
    scaled = p.where(valid, p.neg(p.mul(p.broadcast(grad, target.shape), weights)), 0.0)
    classes = p.along(p.iota(x.shape[dim], 0, 1, "int64"), x.shape, dim)

    def repeated(one: Value) -> Value:
        return p.spread(p.reshape(one, (*x.shape[:dim], *x.shape[dim + 1 :])), x.shape, (dim,))

    chosen = p.logical_and(p.eq(classes, repeated(safe)), repeated(valid))
    return p.convert(p.where(chosen, repeated(scaled), 0.0), p.out.dtype)


def _margins(
    p: Builder, x: Value, target: Value, margin: Any, weight: Value | None
) -> tuple[Value, Value, Value | None]:
    """For multi_margin_loss, all (rows, classes): by how much each class comes too near, where it is the target, and
    the weight of the row's target."""
    shape = (*(1,) * (2 - x.rank), *x.shape)
    x = p.reshape(p.convert(x, opmath(x.dtype)), shape)
    target = p.reshape(p.convert(target, "int64"), (shape[0], 1))
    near = p.add(p.sub(x, p.broadcast(p.gather(x, 1, target), shape)), float(margin))
    own = p.eq(p.along(p.iota(shape[1], 0, 1, "int64"), shape, 1), p.broadcast(target, shape))
    if weight is not None:
        weight = p.reshape(p.convert(weight, x.dtype), shape[1:])  # of one class, it may be a number
        weight = p.broadcast(p.index(weight, (target,), False), shape)
    return near, own, weight


def multi_margin_loss(
    p: Builder, x: Value, target: Value, power: Any = 1, margin: Any = 1, weight: Value | None = None,
    reduction: int = MEAN,
) -> Value:  # fmt: skip
    """The mean over the classes but the target's of max(0, margin - x[target] + x)**power."""
    near, own, weights = _margins(p, x, target, margin, weight)
    cost = p.where(p.gt(near, 0.0), near, 0.0)  # nan costs nothing, as in eager
    cost = p.mul(cost, cost) if power == 2 else cost
    cost = p.where(own, 0.0, cost if weights is None else p.mul(cost, weights))
    loss = p.per_count(p.sum(cost, (1,)), near.shape, (1,))
    return p.convert(p.reshape(reduce_loss(p, loss, reduction), p.out.shape), p.out.dtype)


def multi_margin_loss_backward(
    p: Builder, grad: Value, x: Value, target: Value, power: Any, margin: Any, weight: Value | None = None,
    reduction: int = MEAN,
) -> Value:  # fmt: skip
    near, own, weights = _margins(p, x, target, margin, weight)
    rows, shape = near.shape[:1], near.shape
    slope = p.mul(near, 2.0) if power == 2 else p.full(shape, 1.0, near.dtype)
    costs = p.logical_and(p.logical_not(own), p.gt(near, 0.0))
    slope = p.where(costs, slope if weights is None else p.mul(slope, weights), 0.0)
    slope = p.per_count(slope, shape, (0, 1) if reduction == MEAN else (1,))
    slope = p.where(own, p.spread(p.neg(p.sum(slope, (1,))), shape, (1,)), slope)
    grad = p.broadcast(p.convert(p.reshape(grad, rows if grad.rank else ()), near.dtype), rows)
    return p.convert(p.reshape(p.mul(slope, p.spread(grad, shape, (1,))), x.shape), x.dtype)


TABLE: Table = {
    **by_name(
        multi_margin_loss, multi_margin_loss_backward, binary_cross_entropy, binary_cross_entropy_backward,
        binary_cross_entropy_with_logits,
    ),
    "aten.mse_loss.default": _loss(mse),
    "aten.mse_loss_backward.default": _loss_backward(lambda p, x, target: p.mul(p.sub(x, target), 2.0)),
    "aten.smooth_l1_loss.default": _loss(smooth_l1),
    "aten.smooth_l1_loss_backward.default": _loss_backward(smooth_l1_backward),
    "aten.huber_loss.default": _loss(huber),
    "aten.huber_loss_backward.default": _loss_backward(huber_backward),
    "aten.soft_margin_loss.default": _loss(soft_margin),
    "aten.soft_margin_loss_backward.default": soft_margin_backward,
    **{f"aten.{name}_forward.default": nll_loss for name in ("nll_loss", "nll_loss2d")},
    **{f"aten.{name}_backward.default": nll_loss_backward for name in ("nll_loss", "nll_loss2d")},
}  # fmt: skip
