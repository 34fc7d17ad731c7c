"""Padding by the tensor's own elements: reflection and replication, forward and backward.

`padding` counts from the last dimension: (left, right, top, bottom, front, back).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from primops.builder import Builder, Value
from primops.decompositions.operands import Function, Table
from primops.decompositions.shape import padded, window
from primops.errors import Decline
from stagewire.expr import Dim

Position = Callable[[Builder, Value, int], Value]


def _widths(padding: Sequence[Dim], rank: int) -> list[tuple[int, int, int]]:
    """(dimension, low, high) of the padded dimensions; negative widths, which cut, stay with ATen."""
    widths = []
    for i in range(len(padding) // 2):
        low, high = padding[2 * i], padding[2 * i + 1]
        if not isinstance(low, int) or not isinstance(high, int) or low < 0 or high < 0:
            raise Decline("a symbolic or negative width")
        widths.append((rank - 1 - i, low, high))
    return widths


def _forward(place: Position) -> Function:
    """Every result element reads the position that `place` gives for it."""

    def decomposition(p: Builder, x: Value, padding: Sequence[Dim]) -> Value:
        widths = sorted(_widths(padding, x.rank))
        sizes = tuple(p.out.shape[dim] for dim, _, _ in widths)
        indices: list[Value | None] = [None] * widths[0][0]
        for i, (dim, low, _) in enumerate(widths):
            size = x.shape[dim]
            if not isinstance(size, int):
                raise Decline("a symbolic size")
            position = place(p, p.iota(sizes[i], -low, 1, "int64"), size)
            indices.append(p.broadcast_in_dim(position, sizes, (i,)))
        return p.index(x, tuple(indices), False)

    return decomposition


def _backward(fold: Callable[[Builder, Value, int], Value], gap: int) -> Function:
    """The borders folded back onto the elements that they repeat, `gap` elements from the ends."""

    def decomposition(p: Builder, grad: Value, x: Value, padding: Sequence[Dim]) -> Value:
        for dim, low, high in _widths(padding, x.rank):
            size = x.shape[dim]
            inner = window(p, grad, dim, low, low + size)
            if low:
                border = fold(p, window(p, grad, dim, 0, low), dim)
                inner = p.add(inner, padded(p, border, dim, gap, size - gap - border.shape[dim], 0.0))
            if high:
                border = fold(p, window(p, grad, dim, low + size, low + size + high), dim)
                inner = p.add(inner, padded(p, border, dim, size - gap - border.shape[dim], gap, 0.0))
            grad = inner
        return grad

    return decomposition


_reflected = _forward(lambda p, i, size: p.sub(size - 1, p.abs(p.sub(size - 1, p.abs(i)))))
_replicated = _forward(lambda p, i, size: p.minimum(p.maximum(i, 0), size - 1))
_unreflected = _backward(lambda p, border, dim: p.flip(border, (dim,)), gap=1)
_unreplicated = _backward(lambda p, border, dim: p.reduced("sum", border, (dim,), True), gap=0)

TABLE: Table = {
    **{f"aten.reflection_pad{n}d.default": _reflected for n in (1, 2, 3)},
    **{f"aten.replication_pad{n}d.default": _replicated for n in (1, 2, 3)},
    **{f"aten.reflection_pad{n}d_backward.default": _unreflected for n in (1, 2, 3)},
    **{f"aten.replication_pad{n}d_backward.default": _unreplicated for n in (1, 2, 3)},
}
