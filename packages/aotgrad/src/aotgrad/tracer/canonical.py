"""Offsets of slices and selections as later stages want them: counted from the front, inside of the dimension.

What is negative or beyond the end only the trace can tell where sizes are symbolic: it knows ranges and conditions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from absint import Meta
from absint.rules.shapes import wrap_dim
from absint.symbolic import is_symbolic
from stagewire.graph import Ref

Arguments = list[Any]
Canonical = Callable[[dict[str, Meta], Arguments], Arguments]
ShapeOf = Callable[[dict[str, Meta], Arguments], Sequence[Any]]


def _slice(size: Any, start: Any, end: Any) -> tuple[Any, Any]:
    """Offsets in 0..size, the second not before the first."""

    def clip(offset: Any, missing: Any) -> Any:
        if offset is None:
            return missing
        offset = offset + size if offset < 0 else offset
        return 0 if offset < 0 else size if offset > size else offset

    first, last = clip(start, 0), clip(end, size)
    return first, first if last < first else last


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
        return [*args[:leading], dim, *_slice(size, start, end), *rest] if _is_open((size, start, end)) else args

    return canonical


def _selected(leading: int, shape_of: ShapeOf = _of_tensor) -> Canonical:
    """For (dim, index) after `leading` arguments."""

    def canonical(metas: dict[str, Meta], args: Arguments) -> Arguments:
        dim, index = args[leading:]
        shape = shape_of(metas, args)
        size = shape[wrap_dim(dim, len(shape))]
        if type(index) is Ref or not _is_open((size, index)):
            return args
        return [*args[:leading], dim, index + size if index < 0 else index]

    return canonical


def _is_open(values: Sequence[Any]) -> bool:
    return any(is_symbolic(value) for value in values)


CANONICAL: dict[str, Canonical] = {
    "aten.slice.Tensor": _sliced(1),
    "aten.slice_scatter.default": _sliced(2),
    "aten.slice_backward.default": _sliced(2, _stated),
    "aten.select.int": _selected(1),
    "aten.select_scatter.default": _selected(2),
    "aten.select_backward.default": _selected(2, _stated),
}
"""From the types of values and the arguments of a call to its arguments, by target."""
