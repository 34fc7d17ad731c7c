"""Random numbers, and dropout as arithmetic on them, so that the numbers are those of eager's stream.

ATen draws them, in program order; on a GPU whose kernels are known (`Builder.most_threads`) they are computed by
formula.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from primops.builder import Builder, Value, opmath
from primops.decompositions.activations import leaky_relu_backward
from primops.decompositions.operands import Function, Table, by_name
from primops.errors import Decline
from primops.prims.layouts import HALVES, is_dense, row_major, tensor
from stagewire.expr import Dim
from stagewire.graph import Arg, DeviceArg, DTypeArg
from stagewire.philox import count_for, threads_for
from stagewire.types import ITEM_SIZE, TensorType, numel


def native_dropout(p: Builder, x: Value, probability: float, train: bool | None) -> tuple[Value, Value]:
    """x * mask / (1 - p) with the mask drawn as eager's CPU kernel does, or computed as that of a GPU draws it."""
    if train is False or 0 in x.shape:
        return x, p.full(x.shape, True, "bool")
    if x.device != "cpu":
        return _dropout_of_a_gpu(p, x, probability)
    mask = _drawn(p, 1.0 - probability)
    scale = 0.0 if probability == 1 else 1.0 / (1.0 - probability)
    inner = opmath(x.dtype)
    kept = p.convert(p.mul(p.convert(x, inner), p.convert(mask, inner)), x.dtype)  # type: ignore[arg-type]
    return p.convert(p.mul(p.convert(kept, inner), scale), x.dtype), mask  # type: ignore[return-value]


def _dropout_of_a_gpu(p: Builder, x: Value, probability: float) -> tuple[Value, Value]:
    """As fused_dropout_kernel of ATen: one rounding at the end, by a factor that is rounded first."""
    if probability == 1:
        raise Decline("all is dropped, and nothing drawn")
    width = _width(p, x)
    inner = opmath(x.dtype)
    keep = _rounded(1.0 - probability, inner)
    scale = _rounded(1.0 / keep, inner)
    shape, stride = x.shape, x.type.stride
    order = sorted(range(x.rank), key=lambda i: (-stride[i], -shape[i])) if width > 1 else list(range(x.rank))
    drawn = _by_formula(p, tuple(shape[i] for i in order), width)
    mask = p.lt(p.convert(p.permute(drawn, tuple(order.index(i) for i in range(x.rank))), inner), keep)
    kept = p.mul(p.mul(p.convert(x, inner), p.convert(mask, inner)), scale)
    return p.convert(kept, x.dtype), mask  # type: ignore[return-value]


def _width(p: Builder, x: Value) -> int:
    """How many elements the kernel takes at a time: what 16 bytes hold, or less by place and number.

    Taken together they are found in the order of memory, one by one in that of the indices: declined where the two
    differ.
    """
    _known_kernel(p, x.type)
    if p.begins_anywhere(x):
        raise Decline("a tensor that may begin anywhere")
    count, item = numel(x.shape), ITEM_SIZE[x.dtype]  # type: ignore[index]
    width = 16 // item if is_dense(x.shape, x.type.stride) else 1
    while width > 1 and (count % width or x.type.storage_offset % width):  # type: ignore[operator]
        width //= 2
    if width == 1 and p.out.stride != row_major(x.shape):
        raise Decline("numbers are drawn one by one in another layout")
    return width


def _known_kernel(p: Builder, type: TensorType) -> None:
    dims = (*type.shape, *type.stride, type.storage_offset)
    if not p.most_threads or not type.device.startswith("cuda"):
        raise Decline("ATen draws there")
    if any(not isinstance(dim, int) for dim in dims) or numel(type.shape) >= 2**31:  # type: ignore[operator]
        raise Decline("of a symbolic size, or with indices of 64 bits")


def _by_formula(p: Builder, shape: tuple[Dim, ...], width: int) -> Value:
    """The numbers of a kernel that draws for so many elements, in row-major order."""
    count: int = numel(shape)  # type: ignore[assignment]
    threads = threads_for(count, p.most_threads)
    seed, offset = p.philox_state(count_for(count, threads), p.out.device)
    return p.philox_uniform(seed, offset, shape, threads, width, p.out.device)


def _rounded(number: float, dtype: str) -> float:
    return struct.unpack("f", struct.pack("f", number))[0] if dtype == "float32" else number


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
    assert mask is not None
    return p.permute(mask, tuple(order.index(i) for i in range(len(shape))))  # type: ignore[arg-type]


def native_dropout_backward(p: Builder, grad: Value, mask: Value, scale: float) -> Value:
    return p.pointwise(lambda p, g, m: p.mul(g, p.mul(m, float(scale))), grad, mask)


def rand(p: Builder, size: Sequence[Dim], *, generator: Any = None, **_: Any) -> Value:
    """Computed by formula of a GPU, where there are few."""
    if generator is not None or not _is_small(p):
        raise Decline("ATen draws")
    return _rand_of_a_gpu(p)


def _made_like(name: str) -> Function:
    """rand_like, randn_like: as the op without an operand, where its row-major order is that of the result's memory."""

    def decomposition(p: Builder, x: Value, **_: Any) -> Value:
        if p.out.stride != row_major(p.out.shape):
            raise Decline("numbers are drawn in the order of another layout")
        if name == "rand" and _is_small(p):
            return _rand_of_a_gpu(p)
        kwargs: dict[str, Arg] = {"dtype": DTypeArg(p.out.dtype)}
        if p.out.device != "cpu":
            kwargs["device"] = DeviceArg(p.out.device)
        (drawn,) = p.extern(f"aten.{name}.default", (p.out.shape,), (p.out,), kwargs)
        assert drawn is not None
        return drawn

    return decomposition


SMALL = 1 << 17
"""Elements up to which numbers that a GPU draws one by one are computed in place: four are made for each, which costs
less than a launch."""


def _is_small(p: Builder, *dtypes: str) -> bool:
    type = p.out
    fits = p.most_threads > 0 and type.device.startswith("cuda") and type.dtype in (*HALVES, "float32", *dtypes)
    fits = fits and all(isinstance(n, int) for n in type.shape) and 0 < numel(type.shape) <= SMALL  # type: ignore[operator]
    return fits and type.stride == row_major(type.shape)


def _rand_of_a_gpu(p: Builder) -> Value:
    """In 0 <= x < 1, where the formula's are in 0 < x <= 1: what is 1 after rounding becomes 0."""
    drawn = p.convert(_by_formula(p, p.out.shape, 1), p.out.dtype)  # type: ignore[arg-type]
    return p.where(p.eq(drawn, 1.0), 0.0, drawn)


def bernoulli_p(p: Builder, x: Value, probability: float = 0.5, *, generator: Any = None) -> Value:
    """On a GPU: its kernel compares the numbers with it, in float32."""
    if generator is not None or x.shape != p.out.shape or not _is_small(p, "bool"):
        raise Decline("ATen draws")
    drawn = _by_formula(p, p.out.shape, 1)
    return p.convert(p.lt(drawn, _rounded(probability, "float32")), p.out.dtype)  # type: ignore[arg-type]


def rrelu_backward(
    p: Builder, grad: Value, x: Value, noise: Value, lower: float, upper: float, training: bool, self_is_result: bool
) -> Value:
    """The slopes drawn while training, else their middle."""
    if training:
        return p.mul(noise, grad)
    return leaky_relu_backward(p, grad, x, (lower + upper) / 2, self_is_result)


TABLE: Table = {
    "aten.rrelu_with_noise_backward.default": rrelu_backward,
    **by_name(rand, native_dropout, native_dropout_backward),
    "aten.rand_like.default": _made_like("rand"),
    "aten.randn_like.default": _made_like("randn"),
    "aten.bernoulli.p": bernoulli_p,
}
