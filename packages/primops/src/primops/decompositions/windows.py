"""Windows: pooling and its like as the prims of that family: arguments of the ATen ops made complete."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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


def avg_pool(rank: int) -> Function:
    def decomposition(
        p: Builder, x: Value, kernel_size: Sizes, stride: Sizes = (), padding: Sizes = 0, ceil_mode: bool = False,
        count_include_pad: bool = True, divisor_override: int | None = None,
    ) -> Value:  # fmt: skip
        _known(x, rank)
        kernel = _each(kernel_size, rank)
        step = _each(stride, rank) or kernel
        return getattr(p, f"avg_pool{rank}d")(
            x, kernel, step, _each(padding, rank), bool(ceil_mode), bool(count_include_pad), divisor_override
        )

    return decomposition


def avg_pool_backward(rank: int) -> Function:
    def decomposition(
        p: Builder, grad: Value, x: Value, kernel_size: Sizes, stride: Sizes, padding: Sizes, ceil_mode: bool,
        count_include_pad: bool, divisor_override: int | None,
    ) -> Value:  # fmt: skip
        kernel = _each(kernel_size, rank)
        step = _each(stride, rank) or kernel
        return getattr(p, f"avg_pool{rank}d_backward")(
            grad, x, kernel, step, _each(padding, rank), bool(ceil_mode), bool(count_include_pad), divisor_override
        )

    return decomposition


def resized(prim: str) -> Function:
    """An adaptive pool: an operand, and the sizes of the result."""

    def decomposition(p: Builder, x: Value, output_size: Sequence[int]) -> Any:
        return getattr(p, prim)(x, tuple(output_size))

    return decomposition


def as_it_is(prim: str) -> Function:
    """An ATen op with the prim's own parameters."""

    def decomposition(p: Builder, *arguments: Any) -> Any:
        return getattr(p, prim)(*arguments)

    return decomposition


def fractional_max_pool(rank: int) -> Function:
    def decomposition(
        p: Builder, x: Value, kernel_size: Sizes, output_size: Sizes, random_samples: Value
    ) -> tuple[Value, Value]:
        sizes = _each(kernel_size, rank), _each(output_size, rank)
        return getattr(p, f"fractional_max_pool{rank}d")(x, *sizes, random_samples)

    return decomposition


def col2im(
    p: Builder, x: Value, output_size: Sizes, kernel_size: Sizes, dilation: Sizes, padding: Sizes, stride: Sizes
) -> Value:
    _known(x, 2)
    windows = (_each(v, 2) for v in (kernel_size, dilation, padding, stride))
    return p.col2im(x, _each(output_size, 2), *windows)


TABLE: Table = {
    "aten.col2im.default": col2im,
    **{f"aten.max_pool{n}d_with_indices.default": max_pool(n) for n in (2, 3)},
    **{f"aten.max_pool{n}d_with_indices_backward.default": max_pool_backward(n) for n in (2, 3)},
    "aten.avg_pool3d.default": avg_pool(3),
    "aten.avg_pool3d_backward.default": avg_pool_backward(3),
    "aten._adaptive_avg_pool3d.default": resized("adaptive_avg_pool3d"),
    "aten._adaptive_avg_pool3d_backward.default": as_it_is("adaptive_avg_pool3d_backward"),
    **{f"aten.adaptive_max_pool{n}d.default": resized(f"adaptive_max_pool{n}d") for n in (2, 3)},
    **{f"aten.adaptive_max_pool{n}d_backward.default": as_it_is(f"adaptive_max_pool{n}d_backward") for n in (2, 3)},
    **{f"aten.fractional_max_pool{n}d.default": fractional_max_pool(n) for n in (2, 3)},
    **{f"aten.fractional_max_pool{n}d_backward.default": as_it_is(f"fractional_max_pool{n}d_backward") for n in (2, 3)},
    **{f"aten.max_unpool{n}d.default": as_it_is(f"max_unpool{n}d") for n in (2, 3)},
}
