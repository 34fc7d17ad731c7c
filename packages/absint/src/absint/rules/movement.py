"""Rules of copies: clone, cast, concatenation, repetition, flips, triangles, scatters into views."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from absint.errors import TypeRuleError
from absint.kernels import Question, ones
from absint.meta import Meta, contiguous
from absint.promote import result_type
from absint.rules.constraint import Constraint, Refused, f32
from absint.rules.pointwise import broadcast, common_device
from absint.rules.sizes import wrap_dim
from absint.rules.table import RuleTable
from absint.rules.view import as_strided, diagonal, narrowed, selected, sliced, viewed
from absint.strides import preserve_stride, stride_of_format, suggest_format

__all__ = ["TABLE"]

TABLE = RuleTable()
Sizes = Sequence[int]
Format = torch.memory_format | None


def like(self: Meta, memory_format: Format, dtype: torch.dtype | None = None, device: Any = None) -> Meta:
    """`torch.empty_like` of `self`; None means preserve_format."""
    if memory_format is None or memory_format is torch.preserve_format:
        stride = preserve_stride(self.shape, self.stride)
    else:
        stride = stride_of_format(self.shape, memory_format)
    return Meta(self.shape, stride, dtype or self.dtype, _device(device, self.device))


def _device(device: Any, default: torch.device) -> torch.device:
    if device is None:
        return default
    found = torch.device(device)
    return numbered(found, default.index or 0 if default.type == found.type else 0)


def numbered(device: torch.device, default: int = 0) -> torch.device:
    """A device that comes in several gets a number if it has none."""
    is_one = device.index is not None or device.type in ("cpu", "meta")
    return device if is_one else torch.device(device.type, default)


@TABLE.rule("clone")
def _clone(self: Meta, *, memory_format: Format = None) -> Meta:
    return like(self, memory_format)


_OF_NUMBERS = {bool: torch.bool, int: torch.int64, float: torch.float64, complex: torch.complex128}
"""What a number is as a tensor, on its way through C++."""


@TABLE.rule("_to_copy")
def _to_copy(
    self: Meta | bool | int | float | complex,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: Any = None,
    pin_memory: bool | None = None,
    non_blocking: bool = False,
    memory_format: Format = None,
) -> Meta:
    if not isinstance(self, Meta):
        self = contiguous((), _OF_NUMBERS[type(self)])
    return like(self, memory_format, dtype, device)


@TABLE.rule("copy")
def _copy(self: Meta, src: Meta, non_blocking: bool = False) -> Meta:
    if broadcast(self.shape, src.shape) != self.shape:
        raise TypeRuleError(
            f"The size of tensor a {list(self.shape)} must match the size of tensor b {list(src.shape)}"
        )
    return span_clone(self)


def span_clone(self: Meta) -> Meta:
    """`clone_preserve_strides`: without overlap the whole span of memory is copied, offset and all."""
    overlaps = any(n > 1 and step == 0 for n, step in zip(self.shape, self.stride, strict=True))
    return like(self, None) if overlaps else self


@TABLE.rule("cat")
def _cat(tensors: Sequence[Meta], dim: int = 0) -> Meta:
    if not tensors:
        raise TypeRuleError("torch.cat(): expected a non-empty list of Tensors")
    kept = [t for t in tensors if t.ndim != 1 or t.shape != (0,)]
    dtype = result_type(tensors)
    device = common_device(tensors)
    if not kept:
        return contiguous((0,), dtype, device)
    first = kept[0]
    dim = wrap_dim(dim, first.ndim)
    if not first.shape:
        raise TypeRuleError("zero-dimensional tensor (at position 0) cannot be concatenated")
    total = 0
    for position, tensor in enumerate(kept):
        same = tensor.shape[:dim] == first.shape[:dim]
        if tensor.ndim != first.ndim or not same or tensor.shape[dim + 1 :] != first.shape[dim + 1 :]:
            raise TypeRuleError(
                f"Sizes of tensors must match except in dimension {dim}. Expected {list(first.shape)} but "
                f"got {list(tensor.shape)} for tensor number {position} in the list."
            )
        total = total + tensor.shape[dim]
    formats = {suggest_format(t) for t in kept}
    chosen = formats.pop() if len(formats) == 1 else torch.contiguous_format
    shape = (*first.shape[:dim], total, *first.shape[dim + 1 :])
    return Meta(shape, stride_of_format(shape, chosen), dtype, device)


@TABLE.rule("stack")
def _stack(tensors: Sequence[Meta], dim: int = 0) -> Meta:
    if not tensors:
        raise TypeRuleError("stack expects a non-empty TensorList")
    first = tensors[0]
    dim = wrap_dim(dim, first.ndim + 1)
    for position, tensor in enumerate(tensors):
        if tensor.shape != first.shape:
            raise TypeRuleError(
                f"stack expects each tensor to be equal size, but got {list(first.shape)} at entry 0 and "
                f"{list(tensor.shape)} at entry {position}"
            )
    shape = (*first.shape[:dim], len(tensors), *first.shape[dim:])
    if dim == first.ndim:
        return _cat([Meta((*t.shape, 1), (*t.stride, 1), t.dtype, t.device) for t in tensors], dim)
    return viewed(_cat(tensors, dim), shape)  # as ATen does: concatenated, then the dimension split


@TABLE.rule("flip")
def _flip(self: Meta, dims: Sizes) -> Meta:
    for dim in dims:
        wrap_dim(dim, self.ndim)
    return like(self, None)


@TABLE.rule("roll")
def _roll(self: Meta, shifts: Sizes, dims: Sizes = ()) -> Meta:
    if 0 in self.shape and dims:
        return like(self, None)
    if not dims or not self.shape or self.device.type != "cpu":
        return contiguous(self.shape, self.dtype, self.device)
    for shift, dim in zip(shifts, dims, strict=False):
        self = _rolled(self, shift, wrap_dim(dim, self.ndim))
    return self


def _rolled(self: Meta, shift: int, dim: int) -> Meta:
    """On a CPU, two pieces concatenated: the layout is that of `cat`."""
    size = self.shape[dim]
    start = (size - shift) % size
    return _cat([narrowed(self, dim, start, size - start), narrowed(self, dim, 0, start)], dim)


@TABLE.rule("repeat")
def _repeat(self: Meta, repeats: Sizes) -> Meta:
    lead = len(repeats) - self.ndim
    if lead < 0:
        raise TypeRuleError(
            "Number of dimensions of repeat dims can not be smaller than number of dimensions of tensor"
        )
    padded = (1,) * lead + self.shape
    shape = [size * count for size, count in zip(padded, repeats, strict=True)]
    return contiguous(shape, self.dtype, self.device)


@TABLE.rule("tril triu")
def _triangle(self: Meta, diagonal: int = 0) -> Meta:
    return contiguous(self.shape, self.dtype, self.device)


@TABLE.rule("slice_scatter")
def _slice_scatter(
    self: Meta, src: Meta, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Meta:
    return _scattered(self, src, sliced(self, dim, start, end, step))


@TABLE.rule("select_scatter")
def _select_scatter(self: Meta, src: Meta, dim: int, index: int) -> Meta:
    return _scattered(self, src, selected(self, dim, index))


@TABLE.rule("diagonal_scatter")
def _diagonal_scatter(self: Meta, src: Meta, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Meta:
    return _scattered(self, src, diagonal(self, offset, dim1, dim2))


def _span(meta: Meta) -> int:
    """The elements of memory from its start to the last one of a tensor."""
    if 0 in meta.shape:
        return 0
    return meta.storage_offset + sum((n - 1) * step for n, step in zip(meta.shape, meta.stride, strict=True)) + 1


def _lies_within(self: Meta, src: Meta, size: Sizes, stride: Sizes, storage_offset: int | None = None) -> bool:
    copy = span_clone(self)
    return _span(as_strided(copy, size, stride, storage_offset)) <= _span(copy)


_WITHIN = Constraint(
    "C1", "the view lies within the memory of self", _lies_within,
    Refused("as_strided_scatter", (f32(3), f32(2), (2,), (3,))),
)  # fmt: skip


@TABLE.rule("as_strided_scatter", requires=(_WITHIN,))
def _strided_scatter(self: Meta, src: Meta, size: Sizes, stride: Sizes, storage_offset: int | None = None) -> Meta:
    return _scattered(self, src, as_strided(span_clone(self), size, stride, storage_offset))


def _scattered(self: Meta, src: Meta, view: Meta) -> Meta:
    if src.shape != view.shape:
        raise TypeRuleError(
            f"expected src to have a size equal to the slice of self. src size = {list(src.shape)}, "
            f"slice size = {list(view.shape)}"
        )
    return span_clone(self)


@TABLE.rule("slice_backward select_backward diagonal_backward unfold_backward")
def _view_backward(grad_output: Meta, input_sizes: Sizes, *_: Any) -> Meta:
    return contiguous(input_sizes, grad_output.dtype, grad_output.device)


TABLE.ask("flip stack tril triu")
TABLE.ask("diagonal_scatter", question=Question(of=lambda self, src, offset=0, *dims, **named: (
    ones(self), ones(src), 0, *(dims or (named.get("dim1", 0), named.get("dim2", 1)))
)))  # fmt: skip
TABLE.ask("select_scatter", question=Question(
    of=lambda self, src, dim, index: (ones(self), ones(src), dim, 0), drops_sizes=True
))  # fmt: skip
