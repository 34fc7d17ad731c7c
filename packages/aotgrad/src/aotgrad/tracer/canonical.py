"""Offsets of slices and selections as later stages want them: counted from the front, inside of the dimension.

What is negative or beyond the end only the trace can tell where sizes are symbolic: it knows ranges and conditions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from absint import Meta
from absint.rules.shapes import wrap_dim
from absint.rules.view import clamp_slice
from absint.symbolic import is_symbolic
from stagewire.graph import Ref

Arguments = list[Any]
Canonical = Callable[[dict[str, Meta], Arguments], Arguments]
ShapeOf = Callable[[dict[str, Meta], Arguments], Sequence[Any]]


def _of_tensor(metas: dict[str, Meta], args: Arguments) -> Sequence[Any]:
    return metas[args[0].name].shape


def _stated(metas: dict[str, Meta], args: Arguments) -> Sequence[Any]:
    return args[1]


def _sliced(leading: int, shape_of: ShapeOf = _of_tensor) -> Canonical:
    """For (dim, start, end, step) after `leading` arguments."""

    def canonical(metas: dict[str, Meta], args: Arguments) -> Arguments:
        dim, start, end, *rest = [*args[leading:], *(0, None, None, 1)[len(args) - leading :]]
        shape = shape_of(metas, args)
        size = shape[wrap_dim(dim, len(shape))]
        if not any(map(is_symbolic, (size, start, end))):
            return args
        return [*args[:leading], dim, *clamp_slice(size, start, end), *rest]

    return canonical


def _selected(leading: int, shape_of: ShapeOf = _of_tensor) -> Canonical:
    """For (dim, index) after `leading` arguments."""

    def canonical(metas: dict[str, Meta], args: Arguments) -> Arguments:
        dim, index = args[leading:]
        shape = shape_of(metas, args)
        size = shape[wrap_dim(dim, len(shape))]
        if type(index) is Ref or not (is_symbolic(size) or is_symbolic(index)):
            return args
        return [*args[:leading], dim, index + size if index < 0 else index]

    return canonical


CANONICAL: dict[str, Canonical] = {
    "aten.slice.Tensor": _sliced(1),
    "aten.slice_scatter.default": _sliced(2),
    "aten.slice_backward.default": _sliced(2, _stated),
    "aten.select.int": _selected(1),
    "aten.select_scatter.default": _selected(2),
    "aten.select_backward.default": _selected(2, _stated),
}
"""From the types of values and the arguments of a call to its arguments, by target."""
