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


def _slice(size: Any, start: Any, end: Any) -> tuple[Any, Any]:
    """Offsets in 0..size, the second not before the first."""

    def clip(offset: Any, missing: Any) -> Any:
        if offset is None:
            return missing
        offset = offset + size if offset < 0 else offset
        return 0 if offset < 0 else size if offset > size else offset

    first, last = clip(start, 0), clip(end, size)
    return first, first if last < first else last


def _sliced(source: int, leading: int) -> Callable[[dict[str, Meta], Arguments], Arguments]:
    """For (..., dim, start, end, step) after `leading` tensors, of which number `source` is sliced."""

    def canonical(metas: dict[str, Meta], args: Arguments) -> Arguments:
        dim, start, end, *rest = [*args[leading:], *(0, None, None, 1)[len(args) - leading :]]
        shape = metas[args[source].name].shape
        if not _is_open((shape[dim], start, end)):
            return args
        return [*args[:leading], dim, *_slice(shape[wrap_dim(dim, len(shape))], start, end), *rest]

    return canonical


def _selected(leading: int) -> Callable[[dict[str, Meta], Arguments], Arguments]:
    def canonical(metas: dict[str, Meta], args: Arguments) -> Arguments:
        dim, index = args[leading:]
        shape = metas[args[0].name].shape
        size = shape[wrap_dim(dim, len(shape))]
        if type(index) is Ref or not _is_open((size, index)):
            return args
        return [*args[:leading], dim, index + size if index < 0 else index]

    return canonical


def _slice_backward(metas: dict[str, Meta], args: Arguments) -> Arguments:
    grad, sizes, dim, start, end, step = args
    size = sizes[dim]
    if not _is_open((size, start, end)):
        return args
    return [grad, sizes, dim, *_slice(size, start, end), step]


def _select_backward(metas: dict[str, Meta], args: Arguments) -> Arguments:
    grad, sizes, dim, index = args
    if type(index) is Ref or not _is_open((sizes[dim], index)):
        return args
    return [grad, sizes, dim, index + sizes[dim] if index < 0 else index]


def _is_open(values: Sequence[Any]) -> bool:
    return any(is_symbolic(value) for value in values)


CANONICAL: dict[str, Callable[[dict[str, Meta], Arguments], Arguments]] = {
    "aten.slice.Tensor": _sliced(0, 1),
    "aten.slice_scatter.default": _sliced(0, 2),
    "aten.slice_backward.default": _slice_backward,
    "aten.select.int": _selected(1),
    "aten.select_scatter.default": _selected(2),
    "aten.select_backward.default": _select_backward,
}
"""From the types of values and the arguments of a call to its arguments, by target."""
