"""Rules of factories: tensors from sizes, `*_like` and `new_*`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from absint.errors import TypeRuleError
from absint.meta import CPU, Meta, contiguous
from absint.promote import number_dtype
from absint.rules.constraint import Constraint, Refused
from absint.rules.movement import like, numbered
from absint.rules.table import RuleTable
from absint.strides import stride_of_format

__all__ = ["TABLE", "device_of"]

TABLE = RuleTable()
Sizes = Sequence[int]
DType = torch.dtype | None


def device_of(device: Any) -> torch.device:
    """The device a factory uses: None means the CPU, an accelerator without index its first."""
    return CPU if device is None else numbered(torch.device(device))


def _made(size: Sizes, dtype: DType, device: Any) -> Meta:
    if any(isinstance(n, int) and n < 0 for n in size):
        raise TypeRuleError(f"Trying to create tensor with negative dimension: {list(size)}")
    return contiguous(size, dtype or torch.get_default_dtype(), device_of(device))


@TABLE.rule("zeros ones rand randn rand.generator randn.generator")
def _zeros(size: Sizes, *, dtype: DType = None, device: Any = None, **_: Any) -> Meta:
    return _made(size, dtype, device)


@TABLE.rule("empty.memory_format")
def _empty(size: Sizes, *, dtype: DType = None, device: Any = None, memory_format: Any = None, **_: Any) -> Meta:
    made = _made(size, dtype, device)
    if memory_format is None or memory_format is torch.contiguous_format:
        return made
    return Meta(made.shape, stride_of_format(made.shape, memory_format), made.dtype, made.device)


@TABLE.rule("empty_strided")
def _empty_strided(size: Sizes, stride: Sizes, *, dtype: DType = None, device: Any = None, **_: Any) -> Meta:
    return Meta(tuple(size), tuple(stride), dtype or torch.get_default_dtype(), device_of(device))


_PERMUTES = Constraint(
    "C1", "the layout names each dimension once",
    lambda size, physical_layout, **_: sorted(physical_layout) == list(range(len(size))),
    Refused("empty_permuted", ([2, 3], [0, 0])),
)  # fmt: skip


@TABLE.rule("empty_permuted", requires=(_PERMUTES,))
def _empty_permuted(size: Sizes, physical_layout: Sizes, *, dtype: DType = None, device: Any = None, **_: Any) -> Meta:
    physical = contiguous([size[dim] for dim in physical_layout], torch.float32).stride
    stride = [0] * len(size)
    for step, dim in zip(physical, physical_layout, strict=True):
        stride[dim] = step
    return _empty_strided(size, stride, dtype=dtype, device=device)


@TABLE.rule("full")
def _full(size: Sizes, fill_value: Any, *, dtype: DType = None, device: Any = None, **_: Any) -> Meta:
    return _made(size, dtype or number_dtype(fill_value), device)


@TABLE.rule("scalar_tensor")
def _scalar_tensor(s: Any, *, dtype: DType = None, device: Any = None, **_: Any) -> Meta:
    return _made((), dtype, device)


@TABLE.rule("arange")
def _arange(end: Any, **options: Any) -> Meta:
    return _arange_step(0, end, 1, **options)


@TABLE.rule("arange.start")
def _arange_start(start: Any, end: Any, **options: Any) -> Meta:
    return _arange_step(start, end, 1, **options)


@TABLE.rule("arange.start_step")
def _arange_step(start: Any, end: Any, step: Any = 1, *, dtype: DType = None, device: Any = None, **_: Any) -> Meta:
    if step == 0:
        raise TypeRuleError("step must be nonzero")
    if (step > 0 and start > end) or (step < 0 and start < end):
        raise TypeRuleError("upper bound and lower bound inconsistent with step sign")
    whole = all(not isinstance(bound, float) for bound in (start, end, step))
    if dtype is None:
        dtype = torch.int64 if whole else torch.get_default_dtype()
    start, end, step = (_as_whole(bound, dtype) for bound in (start, end, step))
    if any(isinstance(bound, float) for bound in (start, end, step)):
        count = math.ceil((end - start) / step)
    else:
        count = (end - start + step - (1 if step > 0 else -1)) // step
    return _made((count,), dtype, device)


def _as_whole(bound: Any, dtype: DType) -> Any:
    """A float as an integer where that counts the same: of an integer's value, or cut off, as int64 has it."""
    return int(bound) if isinstance(bound, float) and (dtype is torch.int64 or bound.is_integer()) else bound


@TABLE.rule(
    """linspace logspace linspace.Tensor_Tensor linspace.Tensor_Scalar linspace.Scalar_Tensor
    logspace.Tensor_Tensor logspace.Tensor_Scalar logspace.Scalar_Tensor"""
)
def _linspace(start: Any, end: Any, steps: int, *_: Any, dtype: DType = None, device: Any = None, **__: Any) -> Meta:
    return _made((steps,), dtype, device)


@TABLE.rule("eye")
def _eye(n: int, *, dtype: DType = None, device: Any = None, **_: Any) -> Meta:
    return _made((n, n), dtype, device)


@TABLE.rule("eye.m")
def _eye_m(n: int, m: int, *, dtype: DType = None, device: Any = None, **_: Any) -> Meta:
    return _made((n, m), dtype, device)


def _triangle_count(row: int, col: int, offset: int) -> int:
    """Elements on or below the diagonal `offset` of a row x col matrix."""
    return sum(max(0, min(col, line + offset + 1)) for line in range(row))


@TABLE.rule("tril_indices")
def _tril_indices(row: int, col: int, offset: int = 0, *, dtype: DType = None, device: Any = None, **_: Any) -> Meta:
    return _made((2, _triangle_count(row, col, offset)), dtype or torch.int64, device)


@TABLE.rule("triu_indices")
def _triu_indices(row: int, col: int, offset: int = 0, *, dtype: DType = None, device: Any = None, **_: Any) -> Meta:
    count = row * col - _triangle_count(row, col, offset - 1)
    return _made((2, count), dtype or torch.int64, device)


@TABLE.rule("zeros_like ones_like empty_like rand_like randn_like")
def _like(self: Meta, *, dtype: DType = None, device: Any = None, memory_format: Any = None, **_: Any) -> Meta:
    return like(self, memory_format, dtype, device)


@TABLE.rule("full_like randint_like")
def _full_like(self: Meta, fill_value: Any, **options: Any) -> Meta:
    return _like(self, **options)


@TABLE.rule("randint_like.low_dtype")
def _randint_like(self: Meta, low: int, high: int, **options: Any) -> Meta:
    return _like(self, **options)


@TABLE.rule("new_empty new_zeros new_ones")
def _new(self: Meta, size: Sizes, *, dtype: DType = None, device: Any = None, **_: Any) -> Meta:
    return _made(size, dtype or self.dtype, self.device if device is None else device)


@TABLE.rule("new_full")
def _new_full(self: Meta, size: Sizes, fill_value: Any, **options: Any) -> Meta:
    return _new(self, size, **options)


@TABLE.rule("new_empty_strided")
def _new_empty_strided(
    self: Meta, size: Sizes, stride: Sizes, *, dtype: DType = None, device: Any = None, **_: Any
) -> Meta:
    made = _new(self, size, dtype=dtype, device=device)
    return Meta(made.shape, tuple(stride), made.dtype, made.device)


@TABLE.rule("zero")
def _zero(self: Meta) -> Meta:
    return like(self, None)


@TABLE.rule("fill.Scalar fill.Tensor")
def _fill(self: Meta, value: Any) -> Meta:
    return like(self, None)
