"""Dropout. Randomness itself stays with ATen, in program order, so that the stream is eager's."""

from __future__ import annotations

from primops.builder import Builder, Value
from primops.decompositions.elementwise import pointwise
from primops.decompositions.operands import Table, convert, opmath, permute
from primops.errors import Decline
from primops.prims.layouts import row_major, tensor


def native_dropout(p: Builder, x: Value, probability: float, train: bool | None) -> tuple[Value, Value]:
    """x * mask / (1 - p) with the mask drawn as eager's CPU kernel does; on other devices the kernel is kept whole."""
    if train is False or 0 in x.shape:
        return x, p.full(x.shape, True, "bool")
    if x.device != "cpu":
        raise Decline("dropout is one kernel there, with its own random stream")
    mask = _drawn(p, 1.0 - probability)
    scale = 0.0 if probability == 1 else 1.0 / (1.0 - probability)
    inner = opmath(x.dtype)
    kept = convert(p, p.mul(convert(p, x, inner), convert(p, mask, inner)), x.dtype)  # type: ignore[arg-type]
    return convert(p, p.mul(convert(p, kept, inner), scale), x.dtype), mask  # type: ignore[return-value]


def _drawn(p: Builder, probability: float) -> Value:
    """The mask, the second result: bernoulli draws in row-major order, dropout in the order of the mask's memory."""
    shape, stride = p.results[1].shape, p.results[1].stride  # type: ignore[union-attr]
    order = tuple(range(len(shape)))
    if stride != row_major(shape):
        if any(not isinstance(step, int) for step in stride):
            raise Decline("a symbolic layout")
        order = tuple(sorted(order, key=lambda i: -stride[i]))
    type = tensor("bool", tuple(shape[i] for i in order), p.out.device)
    (mask,) = p.extern("aten.bernoulli.p", (p.full(type.shape, False, "bool"), probability), (type,))
    return permute(p, mask, tuple(order.index(i) for i in range(len(shape))))  # type: ignore[arg-type]


def native_dropout_backward(p: Builder, grad: Value, mask: Value, scale: float) -> Value:
    return pointwise(p, lambda p, g, m: p.mul(g, p.mul(m, float(scale))), grad, mask)


TABLE: Table = {
    "aten.native_dropout.default": native_dropout,
    "aten.native_dropout_backward.default": native_dropout_backward,
}
