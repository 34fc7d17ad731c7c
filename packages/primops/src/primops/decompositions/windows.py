"""Max pooling: arguments of the ATen ops made complete."""

from __future__ import annotations

from collections.abc import Sequence

from primops.builder import Builder, Value
from primops.decompositions.operands import Function, Table
from primops.errors import Decline

Sizes = Sequence[int] | int


def _each(value: Sizes, rank: int) -> tuple[int, ...]:
    items = (value,) if isinstance(value, int) else tuple(value)
    return items * rank if len(items) == 1 else items


def _known(x: Value, rank: int) -> None:
    if any(not isinstance(n, int) for n in x.shape[-rank:]):
        raise Decline("symbolic sizes")


def max_pool(rank: int) -> Function:
    def decomposition(
        p: Builder, x: Value, kernel_size: Sizes, stride: Sizes = (), padding: Sizes = 0, dilation: Sizes = 1,
        ceil_mode: bool = False,
    ) -> tuple[Value, Value]:  # fmt: skip
        if ceil_mode:  # whether a window hangs over is a question about sizes
            _known(x, rank)
        kernel = _each(kernel_size, rank)
        step = _each(stride, rank) or kernel
        return getattr(p, f"max_pool{rank}d")(
            x, kernel, step, _each(padding, rank), _each(dilation, rank), bool(ceil_mode)
        )

    return decomposition


def max_pool_backward(rank: int) -> Function:
    def decomposition(
        p: Builder, grad: Value, x: Value, kernel_size: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes,
        ceil_mode: bool, indices: Value,
    ) -> Value:  # fmt: skip
        kernel = _each(kernel_size, rank)
        step = _each(stride, rank) or kernel
        return getattr(p, f"max_pool{rank}d_backward")(
            grad, x, kernel, step, _each(padding, rank), _each(dilation, rank), bool(ceil_mode), indices
        )

    return decomposition


TABLE: Table = {
    **{f"aten.max_pool{n}d_with_indices.default": max_pool(n) for n in (2, 3)},
    **{f"aten.max_pool{n}d_with_indices_backward.default": max_pool_backward(n) for n in (2, 3)},
}
