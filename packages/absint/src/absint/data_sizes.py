"""`DataSizedMode`: an `AbstractMode` in which sizes that data decides are symbols of which nothing is known.

    mode = DataSizedMode(new_size)      # new_size(lower, upper) -> a Size, or raises DataDependentError
    x[x > 0]                            # float32[u0], where new_size gave u0

What one mask selects has one size, however often and from whatever it selects.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from absint.errors import DataDependentError
from absint.meta import Meta, contiguous
from absint.mode import AbstractMode
from absint.rules.index import indexed
from absint.rules.pointwise import broadcast
from absint.rules.shapes import wrap_dim
from absint.signatures import bind
from absint.tensor import AbstractTensor
from stagewire.types import numel

if TYPE_CHECKING:
    from torch._ops import OpOverload

NewSize = Callable[[int | None, int | None], Any]
_MASKS = (torch.bool, torch.uint8)


class DataSizedMode(AbstractMode):
    """Answers what `AbstractMode` refuses because only the data tells how large the result is."""

    def __init__(self, new_size: NewSize) -> None:
        super().__init__()
        self._new_size = new_size
        self._selected: dict[tuple[int, int], tuple[AbstractTensor, Any]] = {}
        self._sliced: dict[tuple[str, ...], Any] = {}

    def on_op(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            return super().on_op(func, args, kwargs)
        except DataDependentError:
            record = self.record(func)
            rule = _RULES.get(record.name)
            if rule is None:
                raise
            args = tuple(self._abstract_tree(arg) for arg in args)
            kwargs = {name: self._abstract_tree(value) for name, value in kwargs.items()}
            return self.finish(record, args, kwargs, bind(partial(rule, self), func)(*args, **kwargs))

    def new_size(self, lower: int | None, upper: int | None) -> Any:
        """A size of which these bounds are known."""
        return self._new_size(lower, upper)

    def selected(self, mask: AbstractTensor) -> Any:
        """How many elements of `mask` are not zero."""
        key = id(mask), mask.storage_record.version
        if key not in self._selected:
            self._selected[key] = mask, self.new_size(0, _most(mask))
        return self._selected[key][1]

    def sliced(self, size: Any, bounds: slice) -> Any:
        """How many elements of a dimension a slice has: as many as every other one of these bounds in such a size."""
        key = repr(size), repr(bounds.start), repr(bounds.stop), repr(bounds.step)
        if key not in self._sliced:
            self._sliced[key] = self.new_size(0, size if isinstance(size, int) else None)
        return self._sliced[key]


def _most(tensor: AbstractTensor) -> int | None:
    count = numel(tensor.meta.shape)
    return count if isinstance(count, int) else None


def _nonzero(mode: DataSizedMode, self: AbstractTensor) -> Meta:
    count = mode.selected(self)
    return Meta((count, self.meta.ndim), (1, count), torch.int64, self.meta.device)


def _masked_select(mode: DataSizedMode, self: AbstractTensor, mask: AbstractTensor) -> Meta:
    shape = broadcast(self.meta.shape, mask.meta.shape)
    count = mode.selected(mask) if shape == mask.meta.shape else mode.new_size(0, None)
    return contiguous((count,), self.meta.dtype, self.meta.device)


def _index(mode: DataSizedMode, self: AbstractTensor, indices: Sequence[AbstractTensor | None]) -> Meta:
    found: list[Meta | None] = []
    for index in indices:
        if index is None or index.meta.dtype not in _MASKS:
            found.append(None if index is None else index.meta)
            continue
        place = contiguous((mode.selected(index),), torch.int64, index.meta.device)
        found += [place] * index.meta.ndim
    return indexed(self.meta, found)


def _unique(mode: DataSizedMode, self: AbstractTensor, return_inverse: bool, return_counts: bool) -> tuple[Meta, ...]:
    meta, count = self.meta, mode.new_size(0, _most(self))
    return (
        contiguous((count,), meta.dtype, meta.device),
        contiguous(meta.shape if return_inverse else (0,), torch.int64, meta.device),
        contiguous((count,) if return_counts else (0,), torch.int64, meta.device),
    )


def _unique_consecutive(
    mode: DataSizedMode, self: AbstractTensor, return_inverse: bool, return_counts: bool, dim: int | None
) -> tuple[Meta, ...]:
    if dim is not None:
        raise DataDependentError("unique_consecutive() along a dimension depends on data")
    return _unique(mode, self, return_inverse, return_counts)


def _bincount(mode: DataSizedMode, self: AbstractTensor, weights: AbstractTensor | None, minlength: int) -> Meta:
    dtype = torch.int64
    if weights is not None:
        dtype = torch.float32 if weights.meta.dtype is torch.float32 else torch.float64
    least = minlength if isinstance(minlength, int) else 0
    return contiguous((mode.new_size(least, None),), dtype, self.meta.device)


def _slice(mode: DataSizedMode, self: AbstractTensor, dim: int, start: Any, end: Any, step: int) -> Meta:
    """A slice of which nothing is known but the stride."""
    meta = self.meta
    dim = wrap_dim(dim, meta.ndim)
    size = meta.shape[dim]
    shape = (*meta.shape[:dim], mode.sliced(size, slice(start, end, step)), *meta.shape[dim + 1 :])
    stride = (*meta.stride[:dim], meta.stride[dim] * step, *meta.stride[dim + 1 :])
    begins_with_it = start is None or (isinstance(start, int) and start == 0)
    offset = meta.storage_offset if begins_with_it else mode.new_size(0, None)
    return Meta(shape, stride, meta.dtype, meta.device, offset)


_RULES: dict[str, Callable[..., Any]] = {
    "aten.nonzero.default": _nonzero,
    "aten.masked_select.default": _masked_select,
    "aten.index.Tensor": _index,
    "aten._unique2.default": _unique,
    "aten.unique_consecutive.default": _unique_consecutive,
    "aten.bincount.default": _bincount,
    "aten.repeat_interleave.Tensor": lambda mode, repeats: contiguous(
        (mode.new_size(0, None),), repeats.meta.dtype, repeats.meta.device
    ),
    "aten.slice.Tensor": _slice,
}
