"""Whether an op reads elements that it writes.

Eager refuses most of such calls (`x[1:].add_(x[:-1])`), and where its look at the memory is too coarse it computes with
what it has written already, in the order of its kernel. Neither is what the op computes of the values before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from absint.meta import Meta
from absint.schema import OpRecord, argument_value
from absint.symbolic.size import is_unbacked
from absint.tensor import AbstractTensor

_MOST_ELEMENTS = 1 << 16
"""Of a tensor whose elements are looked at one by one."""
_POINTWISE = ("aten.copy_.", "aten._foreach_", "aten.floor_divide_.")
"""Names of ops that ATen does not tag."""
_Storage = Callable[[Any], Any]
Placed = tuple[int | None, AbstractTensor]


def reads_what_it_writes(
    record: OpRecord, args: tuple[Any, ...], kwargs: dict[str, Any], storage_of: _Storage
) -> AbstractTensor | None:
    """An operand that shares elements with what the op writes, and is not looked at just as that is by a pointwise op.

    A question about symbolic sizes becomes a guard; None where data decides one.
    """
    written = {place for place, _ in record.writes} | {name for _, name in record.writes}
    given = (*enumerate(args), *kwargs.items())
    operands = [one for place, value in given if place not in written for one in _tensors(value)]
    if not operands:
        return None
    targets = [one for write in record.writes for one in _tensors(argument_value(write, args, kwargs))]
    tags = (*record.func.tags, *(() if record.functional is None else record.functional.tags))
    in_place = torch.Tag.pointwise in tags or record.name.startswith(_POINTWISE)
    for place, operand in operands:
        for at, target in targets:
            if storage_of(operand) is not storage_of(target) or _is_unbacked(operand.meta) or _is_unbacked(target.meta):
                continue
            if in_place and operand.meta.ndim == target.meta.ndim and operand.meta == target.meta:
                if place == at or place is None or at is None:
                    continue
                return operand
            if shares_elements(operand.meta, target.meta):
                return operand
    return None


def _tensors(value: Any) -> Iterator[Placed]:
    if isinstance(value, AbstractTensor):
        yield None, value
    elif isinstance(value, (list, tuple)):
        yield from ((place, item) for place, item in enumerate(value) if isinstance(item, AbstractTensor))


def _is_unbacked(meta: Meta) -> bool:
    return any(map(is_unbacked, (*meta.shape, *meta.stride, meta.storage_offset)))


def shares_elements(first: Meta, second: Meta) -> bool:
    """Whether two views of one memory have an element in common, as far as that is looked at.

    >>> row, other = (Meta((4,), (1,), torch.float32, torch.device("cpu"), start) for start in (0, 2))
    >>> shares_elements(row, other)
    True
    """
    if 0 in first.shape or 0 in second.shape:
        return False
    (start, dims), (other, others) = ((meta.storage_offset, _dims(meta)) for meta in (first, second))
    if _is_apart(start, dims, other, others):
        return False
    if first.dtype.itemsize != second.dtype.itemsize:
        return True
    while dims and others and dims[0] == others[0]:  # outer dimensions that both have, and that keep the rest apart
        inner, outer = max(start + _reach(dims[1:]), other + _reach(others[1:])), min(start, other)
        if inner - outer >= dims[0][0]:
            break
        dims, others = dims[1:], others[1:]
    if _is_apart(start, dims, other, others):
        return False
    elements = [_places(start, dims), _places(other, others)]
    return None in elements or not elements[0].isdisjoint(elements[1])  # type: ignore[union-attr,arg-type]


def _dims(meta: Meta) -> list[tuple[int, int]]:
    """(stride, size), outermost first."""
    return sorted(((s, n) for s, n in zip(meta.stride, meta.shape, strict=True) if n > 1 and s > 0), reverse=True)


def _is_apart(start: int, dims: list[tuple[int, int]], other: int, others: list[tuple[int, int]]) -> bool:
    """Whether the one ends where the other has not begun."""
    return max(start, other) > min(start + _reach(dims), other + _reach(others))


def _reach(dims: list[tuple[int, int]]) -> int:
    return sum((size - 1) * step for step, size in dims)


def _places(start: int, dims: list[tuple[int, int]]) -> set[int] | None:
    """None for too many. Symbolic sizes are fixed."""
    found = {int(start)}
    for step, size in ((int(step), int(size)) for step, size in dims):
        if len(found) * size > _MOST_ELEMENTS:
            return None
        found = {place + step * number for place in found for number in range(size)}
    return found
