"""Rules of copies: clone, cast, concatenation, repetition, flips, triangles, scatters into views."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

from absint.errors import DimensionError, TypeRuleError
from absint.kernels import Question, ask, ones, shaped
from absint.meta import Meta, contiguous, span
from absint.promote import result_type
from absint.rules import view
from absint.rules.pointwise import broadcast, common_device
from absint.rules.reduce import sum_dtype
from absint.rules.shapes import (
    dim_checked,
    empty_like,
    fresh,
    infer_size,
    refuse_negative,
    resized,
    suggested,
    wrap_dim,
)
from absint.rules.table import Constraint, Refused, Rule, RuleTable, TypeOf, f32
from absint.rules.view import as_strided, diagonal, narrowed, selected, sliced, transposed, viewed
from absint.signatures import full_name
from absint.strides import stride_of_format, suggest_format
from stagewire.types import numel

TABLE = RuleTable()
Sizes = Sequence[int]
Format = torch.memory_format | None
DType = torch.dtype | None


def _to_copy(self: Meta | bool | int | float | complex, dtype: DType, device: Any, memory_format: Format) -> Meta:
    if not isinstance(self, Meta):
        self = contiguous((), _OF_NUMBERS[type(self)])
    return empty_like(self, memory_format, dtype, device)


_OF_NUMBERS = {bool: torch.bool, int: torch.int64, float: torch.float64, complex: torch.complex128}
"""What a number is as a tensor, on its way through C++."""


def copied(self: Meta, src: Meta) -> Meta:
    if broadcast(self.shape, src.shape) != self.shape:
        raise TypeRuleError(f"{list(src.shape)} does not expand to {list(self.shape)}")
    return span_clone(self)


def span_clone(self: Meta) -> Meta:
    """`clone_preserve_strides`: without overlap the whole span of memory is copied, offset and all."""
    return empty_like(self) if _repeats(self.shape, self.stride) else self


def _repeats(shape: Sizes, stride: Sizes) -> bool:
    """Whether there are elements that lie in one place of memory, as far as eager looks."""
    return any(n > 1 and step == 0 for n, step in zip(shape, stride, strict=True))


def _cat(tensors: Sequence[Meta], dim: int) -> Meta:
    if not tensors:
        ask(torch.ops.aten.cat.default, Question(), (tensors, dim), {})
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
    for tensor in kept:
        same = tensor.shape[:dim] == first.shape[:dim]
        if tensor.ndim != first.ndim or not same or tensor.shape[dim + 1 :] != first.shape[dim + 1 :]:
            raise TypeRuleError(f"cat along {dim} of {list(first.shape)} and {list(tensor.shape)}")
        total = total + tensor.shape[dim]
    formats = {suggest_format(t) for t in kept}
    chosen = formats.pop() if len(formats) == 1 else torch.contiguous_format
    shape = resized(first, dim, total)
    return Meta(shape, stride_of_format(shape, chosen), dtype, device)


def _stack(tensors: Sequence[Meta], dim: int) -> Meta:
    if not tensors:
        raise TypeRuleError("stack expects a non-empty TensorList")
    first = tensors[0]
    dim = wrap_dim(dim, first.ndim + 1)
    for tensor in tensors:
        if tensor.shape != first.shape:
            raise TypeRuleError(f"stack of {list(first.shape)} and {list(tensor.shape)}")
    shape = (*first.shape[:dim], len(tensors), *first.shape[dim:])
    if dim == first.ndim:
        return _cat([Meta((*t.shape, 1), (*t.stride, 1), t.dtype, t.device) for t in tensors], dim)
    return viewed(_cat(tensors, dim), shape)  # as ATen does: concatenated, then the dimension split


def _roll(self: Meta, shifts: Sizes, dims: Sizes) -> Meta:
    if 0 in self.shape and dims:
        return empty_like(self)
    if not dims or not self.shape or self.device.type != "cpu":
        return fresh(self)
    for shift, dim in zip(shifts, dims, strict=False):
        self = _rolled(self, shift, wrap_dim(dim, self.ndim))
    return self


def _rolled(self: Meta, shift: int, dim: int) -> Meta:
    """On a CPU, two pieces concatenated: the layout is that of `cat`."""
    size = self.shape[dim]
    start = (size - shift) % size
    return _cat([narrowed(self, dim, start, size - start), narrowed(self, dim, 0, start)], dim)


def _repeat(self: Meta, repeats: Sizes) -> Meta:
    lead = len(repeats) - self.ndim
    if lead < 0:
        raise TypeRuleError(f"{len(repeats)} counts for {self.ndim} dimensions")
    padded = (1,) * lead + self.shape
    shape = [size * count for size, count in zip(padded, repeats, strict=True)]
    refuse_negative(shape)
    return fresh(self, shape)


_WITHIN = Constraint(
    "C1", "the view lies within the memory of self", lambda self, size, stride, storage_offset: (
        span(as_strided(copy := span_clone(self), size, stride, storage_offset)) <= span(copy)
    ),
    Refused("as_strided_scatter", (f32(3), f32(2), (2,), (3,))),
)  # fmt: skip
_ONCE = Constraint(
    "C2", "the view has no element twice", lambda self, size, stride, storage_offset: (
        0 in size or not _repeats(size, stride)
    ),
    Refused("as_strided_scatter", (f32(3), f32(2), (2,), (0,))),
)  # fmt: skip


def _scattered(self: Meta, src: Meta, view: Meta) -> Meta:
    if src.shape != view.shape:
        raise TypeRuleError(f"src is {list(src.shape)}, the part of self {list(view.shape)}")
    return span_clone(self)


TABLE.rows({
    "clone": lambda self, memory_format: empty_like(self, memory_format),
    "_to_copy": _to_copy,
    "copy": copied,
    "cat": _cat,
    "stack": _stack,
    "flip": lambda self, dims: empty_like(dim_checked(self, *dims)),
    "roll": _roll,
    "repeat": _repeat,
    "tril triu": lambda self: fresh(self),
    "slice_scatter": lambda self, src, dim, start, end, step: (
        _scattered(self, src, sliced(self, dim, start, end, step))
    ),
    "select_scatter": lambda self, src, dim, index: _scattered(self, src, selected(self, dim, index)),
    "diagonal_scatter": lambda self, src, offset, dim1, dim2: (
        _scattered(self, src, diagonal(self, offset, dim1, dim2))
    ),
    "as_strided_scatter": Rule(
        lambda self, src, size, stride, storage_offset: (
            _scattered(self, src, as_strided(span_clone(self), size, stride, storage_offset))
        ),
        (_WITHIN, _ONCE),
    ),
    "slice_backward select_backward diagonal_backward unfold_backward": lambda grad, sizes, /: fresh(grad, sizes),
})  # fmt: skip
TABLE.ask("flip stack tril triu roll")
TABLE.ask("diagonal_scatter", Question(of=lambda self, src: {"self": ones(self), "src": ones(src), "offset": 0}))
TABLE.ask("select_scatter", Question(
    of=lambda self, src: {"self": ones(self), "src": ones(src), "index": 0}, drops_sizes=True
))  # fmt: skip


# The `*_copy` twins of views, and other ops that copy pieces of their operand.


def _copied(type_of: TypeOf) -> TypeOf:
    """The rule of `x_copy`: the view, cloned row-major."""

    @functools.wraps(type_of)
    def rule(*args: Any, **kwargs: Any) -> Any:
        seen = type_of(*args, **kwargs)
        return [fresh(part) for part in seen] if isinstance(seen, list) else fresh(seen)

    return rule


def _diag_embed(self: Meta, offset: int, dim1: int, dim2: int) -> Meta:
    rank = self.ndim + 1
    first, second = wrap_dim(dim1, rank), wrap_dim(dim2, rank)
    if first == second:
        raise TypeRuleError(f"diagonal dimensions cannot be identical {dim1}, {dim2}")
    size = self.shape[-1] + abs(offset)
    shape = list(self.shape[:-1])
    for dim in sorted((first, second)):
        shape.insert(dim, size)
    return fresh(self, shape)


def _rot90(self: Meta, k: int, dims: Sequence[int]) -> Meta:
    first, second = (wrap_dim(dim, self.ndim) for dim in dims)
    flipped = empty_like(self)
    if k % 4 == 2:
        return flipped
    return fresh(self) if k % 4 == 0 else transposed(flipped, first, second)


def _channel_shuffle(self: Meta) -> Meta:
    if 0 in self.shape:
        return self
    return suggested(self) if self.device.type == "cpu" else fresh(self)  # composed of reshapes elsewhere


def _block_diag(tensors: Sequence[Meta]) -> Meta:
    blocks = [(1,) * (2 - t.ndim) + t.shape for t in tensors]
    shape = (sum(rows for rows, _ in blocks), sum(columns for _, columns in blocks))
    return contiguous(shape, result_type(tensors), tensors[0].device)


_GROUPS = Constraint(
    "C1", "the groups divide the channels",
    lambda self, groups: groups < 1 or self.ndim < 3 or self.shape[1] % groups == 0,
    Refused("channel_shuffle", (f32(1, 4, 2, 2), 3)),
)  # fmt: skip
_DIMENSION = Constraint(
    "C3", "there is a dimension", lambda self: bool(self.shape), Refused("narrow_copy", (f32(), 0, 0, 1))
)
_START = Constraint(
    "C1", "start is in the dimension",
    lambda self, dim, start: -(size := self.shape[wrap_dim(dim, self.ndim)]) <= start <= size,
    Refused("narrow_copy", (f32(3), 0, 4, 0)), DimensionError,
)  # fmt: skip
_LENGTH = Constraint(
    "C2", "length is not negative, and ends in the dimension", lambda self, dim, start, length: (
        length >= 0 and (start if start >= 0 else start + self.shape[dim]) + length <= self.shape[dim]
    ),
    Refused("narrow_copy", (f32(3), 0, 0, 11)),
)  # fmt: skip
_OF_VIEWS = """
    alias as_strided detach diagonal expand permute select.int slice.Tensor split.Tensor split_with_sizes squeeze
    squeeze.dim squeeze.dims t transpose.int unbind.int unfold unsqueeze view.dtype
"""
for _name in _OF_VIEWS.split():
    _packet, *_overload = _name.split(".")
    TABLE.rows({".".join([f"{_packet}_copy", *_overload]): _copied(view.TABLE[full_name(_name)].type_of)})
TABLE.rows({
    # These return views in all but the schema.
    "unsafe_split.Tensor": view.TABLE[full_name("split.Tensor")],
    "unsafe_split_with_sizes": view.TABLE[full_name("split_with_sizes")],
    "view_copy": lambda self, size: fresh(self, infer_size(size, numel(self.shape))),  # of what no view has, too
    "diag_embed": _diag_embed,
    "rot90": _rot90,
    "channel_shuffle": Rule(_channel_shuffle, (_GROUPS,)),
    "block_diag": _block_diag,
    "masked_scatter_backward": lambda grad_output, sizes: fresh(grad_output, sizes),
    "trace": lambda self: fresh(self, (), sum_dtype(self)),
    "narrow_copy": Rule(
        lambda self, dim, length: fresh(self, resized(self, dim, length)), (_DIMENSION, _START, _LENGTH)
    ),
})  # fmt: skip
TABLE.ask("rot90 trace block_diag")
TABLE.ask("channel_shuffle", Question(of=lambda self, groups: {
    "self": shaped(self, [max(groups, 1) if dim == 1 else 1 for dim in range(self.ndim)])
}))  # fmt: skip
