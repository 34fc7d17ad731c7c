"""Random numbers, and dropout as arithmetic on them: drawn by ATen in program order, so the stream is eager's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from primops.builder import Builder, Value
from primops.decompositions.activations import leaky_relu_backward
from primops.decompositions.elementwise import pointwise
from primops.decompositions.operands import Function, Table, convert, opmath, permute
from primops.errors import Decline
from primops.prims.layouts import row_major, tensor
from stagewire.expr import Dim


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
    mask = p.bernoulli_p(p.full(type.shape, False, "bool"), probability)
    return permute(p, mask, tuple(order.index(i) for i in range(len(shape))))  # type: ignore[arg-type]


def native_dropout_backward(p: Builder, grad: Value, mask: Value, scale: float) -> Value:
    return pointwise(p, lambda p, g, m: p.mul(g, p.mul(m, float(scale))), grad, mask)


def _no_generator(generator: Any) -> None:
    if generator is not None:
        raise Decline("a generator of its own")


def _made(prim: str) -> Function:
    """rand, randn: a shape, and the dtype of the result."""

    def decomposition(p: Builder, size: Sequence[Dim], *, generator: Any = None, **_: Any) -> Value:
        _no_generator(generator)
        return getattr(p, prim)(p.out.shape, p.out.dtype)

    return decomposition


def _made_like(prim: str) -> Function:
    """rand_like, randn_like: as the op without an operand, where its row-major order is that of the result's memory."""

    def decomposition(p: Builder, x: Value, **_: Any) -> Value:
        if p.out.stride != row_major(p.out.shape):
            raise Decline("numbers are drawn in the order of another layout")
        return getattr(p, prim)(p.out.shape, p.out.dtype)

    return decomposition


def randint(p: Builder, high: Dim, size: Sequence[Dim], *, generator: Any = None, **_: Any) -> Value:
    return randint_from(p, 0, high, size, generator=generator)


def randint_from(p: Builder, low: Dim, high: Dim, size: Sequence[Dim], *, generator: Any = None, **_: Any) -> Value:
    _no_generator(generator)
    return p.randint(low, high, p.out.shape, p.out.dtype)


def randperm(p: Builder, n: Dim, *, generator: Any = None, **_: Any) -> Value:
    _no_generator(generator)
    return p.randperm(n, p.out.dtype)


def _drawing(prim: str, *defaults: float) -> Function:
    """An op that draws one number for each element of its operands, with these parameters."""

    def decomposition(p: Builder, *operands: Any, generator: Any = None) -> Value:
        _no_generator(generator)
        given = sum(type(x) is Value for x in operands)
        numbers = (*operands[given:], *defaults[len(operands) - given :])
        if any(type(x) is Value and x.shape != p.out.shape for x in operands):
            raise Decline("operands of several shapes")
        return getattr(p, prim)(*operands[:given], *numbers)

    return decomposition


def multinomial(
    p: Builder, weights: Value, num_samples: Dim, replacement: bool = False, *, generator: Any = None
) -> Value:
    _no_generator(generator)
    return p.multinomial(weights, num_samples, replacement)


def rrelu(
    p: Builder, x: Value, noise: Value, lower: float = 0.125, upper: float = 1 / 3, training: bool = False,
    generator: Any = None,
) -> Any:  # fmt: skip
    _no_generator(generator)
    return p.rrelu(x, noise, lower, upper, training)


def rrelu_backward(
    p: Builder, grad: Value, x: Value, noise: Value, lower: float, upper: float, training: bool, self_is_result: bool
) -> Value:
    """The slopes drawn while training; else, or where they are all alike, their middle."""
    if training and upper - lower > 1e-6:
        return p.mul(noise, grad)
    return leaky_relu_backward(p, grad, x, (lower + upper) / 2, self_is_result)


TABLE: Table = {
    "aten.rrelu_with_noise_functional.default": rrelu,
    "aten.rrelu_with_noise_backward.default": rrelu_backward,
    "aten.rand.default": _made("rand"),
    "aten.randn.default": _made("randn"),
    "aten.rand_like.default": _made_like("rand"),
    "aten.randn_like.default": _made_like("randn"),
    "aten.randint.default": randint,
    "aten.randint.low": randint_from,
    "aten.randperm.default": randperm,
    "aten.bernoulli.default": _drawing("bernoulli"),
    "aten.bernoulli.p": _drawing("bernoulli_p"),
    "aten.uniform.default": _drawing("uniform", 0.0, 1.0),
    "aten.normal_functional.default": _drawing("normal", 0.0, 1.0),
    "aten.normal.Tensor_Tensor": _drawing("normal_of"),
    "aten.exponential.default": _drawing("exponential", 1.0),
    "aten.cauchy.default": _drawing("cauchy", 0.0, 1.0),
    "aten.log_normal.default": _drawing("log_normal", 1.0, 2.0),
    "aten.geometric.default": _drawing("geometric"),
    "aten.poisson.default": _drawing("poisson"),
    "aten.binomial.default": _drawing("binomial"),
    "aten._standard_gamma.default": _drawing("standard_gamma"),
    "aten.multinomial.default": multinomial,
    "aten.native_dropout.default": native_dropout,
    "aten.native_dropout_backward.default": native_dropout_backward,
}
