"""Dropout. Randomness itself stays with ATen, in program order, so that the stream is eager's."""

from __future__ import annotations

from primops.builder import Builder, Value
from primops.decompositions.elementwise import pointwise
from primops.decompositions.operands import Table, convert, opmath
from primops.errors import Decline
from primops.prims.layouts import tensor


def native_dropout(p: Builder, x: Value, probability: float, train: bool | None) -> tuple[Value, Value]:
    """x * mask / (1 - p) with the mask drawn as eager's CPU kernel does; on other devices the kernel is kept whole."""
    if train is False or probability == 0 or 0 in x.shape:
        return x, p.full(x.shape, True, "bool")
    if x.device != "cpu":
        raise Decline("dropout is one kernel there, with its own random stream")
    like = p.full(x.shape, False, "bool")
    mask_type = tensor("bool", x.shape, x.device)
    (mask,) = p.extern("aten.bernoulli.p", (like, 1.0 - probability), (mask_type,))
    scale = 0.0 if probability == 1 else 1.0 / (1.0 - probability)
    inner = opmath(x.dtype)
    kept = convert(p, p.mul(convert(p, x, inner), convert(p, mask, inner)), x.dtype)  # type: ignore[arg-type]
    return convert(p, p.mul(convert(p, kept, inner), scale), x.dtype), mask  # type: ignore[return-value]


def native_dropout_backward(p: Builder, grad: Value, mask: Value, scale: float) -> Value:
    return pointwise(p, lambda p, g, m: p.mul(g, p.mul(m, float(scale))), grad, mask)


TABLE: Table = {
    "aten.native_dropout.default": native_dropout,
    "aten.native_dropout_backward.default": native_dropout_backward,
}
