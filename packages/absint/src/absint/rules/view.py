"""Rules of views: results that share memory with their operand."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from absint.errors import DimensionError, TypeRuleError
from absint.meta import CPU, Meta, contiguous
from absint.rules.shapes import expand_stride, infer_size, wrap_dim, wrap_dims
from absint.rules.table import Constraint, Refused, Rule, RuleTable, f32
from absint.strides import view_stride
from absint.symbolic.size import is_unbacked, known_negative, surely_equal, sym_max, sym_min
from stagewire.types import numel

TABLE = RuleTable()
Sizes = Sequence[int]


def _restrided(
    self: Meta, shape: tuple[int, ...], stride: tuple[int, ...], offset: int | None = None,
    dtype: torch.dtype | None = None,
) -> Meta:  # fmt: skip
    return Meta(shape, stride, dtype or self.dtype, self.device, self.storage_offset if offset is None else offset)


def _without(self: Meta, dims: Sequence[int], offset: int | None = None) -> Meta:
    kept = [dim for dim in range(self.ndim) if dim not in dims]
    return _restrided(self, tuple([self.shape[d] for d in kept]), tuple([self.stride[d] for d in kept]), offset)


def viewed(self: Meta, size: Sizes) -> Meta:
    """`self.view(size)`; raises where strides cannot express it."""
    shape = infer_size(size, numel(self.shape))
    stride = view_stride(self.shape, self.stride, shape)
    if stride is None:
        raise TypeRuleError(f"no view of {self} has the shape {list(shape)}")
    return _restrided(self, shape, stride)


def _view_dtype(self: Meta, dtype: torch.dtype) -> Meta:
    old, new = self.dtype.itemsize, dtype.itemsize
    if old == new:
        return _restrided(self, self.shape, self.stride, dtype=dtype)
    if not self.shape:
        raise TypeRuleError(f"self.dim() cannot be 0 to view {self.dtype} as {dtype} (different element sizes)")
    if self.stride[-1] != 1:
        raise TypeRuleError(f"self.stride(-1) must be 1 to view {self.dtype} as {dtype}")
    if old > new:
        ratio = old // new
        shape = (*self.shape[:-1], self.shape[-1] * ratio)
        stride = tuple([step * ratio for step in self.stride[:-1]])
        return _restrided(self, shape, (*stride, 1), self.storage_offset * ratio, dtype)
    ratio = new // old
    steps = (self.shape[-1], self.storage_offset, *self.stride[:-1])
    if any(step % ratio != 0 for step in steps):
        raise TypeRuleError(f"sizes and strides must be divisible by {ratio} to view as {dtype}")
    shape = (*self.shape[:-1], self.shape[-1] // ratio)
    stride = tuple([step // ratio for step in self.stride[:-1]])
    return _restrided(self, shape, (*stride, 1), self.storage_offset // ratio, dtype)


_IS_COMPLEX = Constraint(
    "C1", "self is complex", lambda self: self.dtype.is_complex, Refused("view_as_real", (f32(2),))
)
_IS_REAL = Constraint(
    "C1", "self is of half, float or double",
    lambda self: self.dtype in (torch.float16, torch.float32, torch.float64),
    Refused("view_as_complex", (contiguous((3, 2), torch.bfloat16),)),
)  # fmt: skip
_IN_PAIRS = Constraint(
    "C2", "self begins at an even place of its memory", lambda self: self.storage_offset % 2 == 0,
    Refused("view_as_complex", (Meta((3, 2), (2, 1), torch.float32, CPU, 1),)),
)  # fmt: skip


def _view_as_real(self: Meta) -> Meta:
    shape, stride = (*self.shape, 2), (*[step * 2 for step in self.stride], 1)
    return _restrided(self, shape, stride, self.storage_offset * 2, self.dtype.to_real())


def _view_as_complex(self: Meta) -> Meta:
    if not self.shape or self.shape[-1] != 2 or self.stride[-1] != 1:
        raise TypeRuleError("Tensor must have a last dimension of size 2 with stride 1")
    stride = tuple([step // 2 for step in self.stride[:-1]])
    return _restrided(self, self.shape[:-1], stride, self.storage_offset // 2, self.dtype.to_complex())


def _expand(self: Meta, size: Sizes) -> Meta:
    lead = len(size) - self.ndim
    if lead < 0:
        raise TypeRuleError(f"expand: {len(size)} sizes for {self.ndim} dimensions")
    shape = []
    for dim, wanted in enumerate(size):
        if isinstance(wanted, int) and wanted == -1:
            if dim < lead:
                raise TypeRuleError("expand: -1 is not allowed in a leading, non-existing dimension")
            wanted = self.shape[dim - lead]
        shape.append(wanted)
    return _restrided(self, tuple(shape), expand_stride(self, tuple(shape)))


def _permute(self: Meta, dims: Sizes) -> Meta:
    if len(dims) != self.ndim:
        raise TypeRuleError(f"permute: {len(dims)} numbers for {self.ndim} dimensions")
    order = [wrap_dim(dim, self.ndim) for dim in dims]
    if len(set(order)) != len(order):
        raise TypeRuleError("permute(): duplicate dims are not allowed.")
    return _restrided(self, tuple([self.shape[d] for d in order]), tuple([self.stride[d] for d in order]))


def transposed(self: Meta, dim0: int, dim1: int) -> Meta:
    first, second = wrap_dim(dim0, self.ndim), wrap_dim(dim1, self.ndim)
    if first == second:
        return self
    shape, stride = list(self.shape), list(self.stride)
    shape[first], shape[second] = shape[second], shape[first]
    stride[first], stride[second] = stride[second], stride[first]
    return _restrided(self, tuple(shape), tuple(stride))


def _t(self: Meta) -> Meta:
    if self.ndim > 2:
        raise TypeRuleError(f"t() expects a tensor with <= 2 dimensions, but self is {self.ndim}D")
    return _restrided(self, self.shape[::-1], self.stride[::-1])


def selected(self: Meta, dim: int, index: int) -> Meta:
    if not self.shape:
        raise DimensionError("select() cannot be applied to a 0-dim tensor.")
    dim = wrap_dim(dim, self.ndim)
    size = self.shape[dim]
    if not -size <= index < size:
        raise DimensionError(f"select: index {index} is out of range in dimension {dim} of {list(self.shape)}")
    if index < 0:
        index = index + size
    return _without(self, (dim,), self.storage_offset + index * self.stride[dim])


def clamp_slice(size: int, start: int | None, end: int | None) -> tuple[int, int]:
    """Bounds of a slice as ATen clamps them."""
    start = 0 if start is None else start
    end = size if end is None else end
    if is_unbacked(size) or is_unbacked(start) or is_unbacked(end):
        return _clamp_unknown(size, start, end)
    start = start + size if start < 0 else start
    end = end + size if end < 0 else end
    start = 0 if start < 0 else (size if start > size else start)
    end = start if end < start else (size if end > size else end)
    return start, end


def _clamp_unknown(size: int, start: int, end: int) -> tuple[int, int]:
    """The same where data decides one of the numbers: they may be 0 and 1, so that nothing is taken for granted.

    (Where nothing is selected, it begins at `start`.)
    """
    first = _counted_from_the_end(start, size)
    first = start if first is None else first
    last = _counted_from_the_end(end, size)
    last = sym_min(end, size) if last is None else last
    return first, first + sym_max(last - first, 0)


def _counted_from_the_end(bound: int, size: int) -> int | None:
    """Where a negative bound is; None for one that is counted from the front."""
    if surely_equal(bound, size - 1):  # negative only where it is -1, counted from the end of nothing
        return sym_max(bound, 0)
    return sym_max(bound + size, 0) if known_negative(bound) else None


def sliced(self: Meta, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Meta:
    if not self.shape:
        raise DimensionError("slice() cannot be applied to a 0-dim tensor.")
    dim = wrap_dim(dim, self.ndim)
    if step <= 0:
        raise TypeRuleError("slice step must be positive")
    start, end = clamp_slice(self.shape[dim], start, end)
    count = (end - start + step - 1) // step
    return _restrided(
        self,
        (*self.shape[:dim], count, *self.shape[dim + 1 :]),
        (*self.stride[:dim], self.stride[dim] * step, *self.stride[dim + 1 :]),
        self.storage_offset + start * self.stride[dim],
    )


def narrowed(self: Meta, dim: int, start: int, length: int) -> Meta:
    """`self.narrow(dim, start, length)` with everything canonical."""
    shape = (*self.shape[:dim], length, *self.shape[dim + 1 :])
    return _restrided(self, shape, self.stride, self.storage_offset + start * self.stride[dim])


def _split(self: Meta, split_size: int, dim: int) -> list[Meta]:
    if not self.shape:
        raise TypeRuleError("split expects at least a 1-dimensional tensor")
    if split_size < 0:
        raise TypeRuleError("split expects split_size be non-negative")
    dim = wrap_dim(dim, self.ndim)
    size = self.shape[dim]
    if split_size == 0:
        if size != 0:
            raise TypeRuleError("split_size can only be 0 if dimension size is 0")
        return [narrowed(self, dim, 0, size)]
    count = (size + split_size - 1) // split_size
    starts = [part * split_size for part in range(count if count > 1 else 1)]
    return [narrowed(self, dim, s, min(split_size, size - s)) for s in starts]


def _split_with_sizes(self: Meta, split_sizes: Sizes, dim: int) -> list[Meta]:
    if not self.shape:
        raise TypeRuleError("split expects at least a 1-dimensional tensor")
    dim = wrap_dim(dim, self.ndim)
    if sum(split_sizes) != self.shape[dim]:
        raise TypeRuleError(f"split_with_sizes: {list(split_sizes)} for a size of {self.shape[dim]}")
    parts, start = [], 0
    for length in split_sizes:
        parts.append(narrowed(self, dim, start, length))
        start = start + length
    return parts


def _unbind(self: Meta, dim: int) -> list[Meta]:
    if not self.shape:
        raise DimensionError("unbind(): dimension specified but tensor has no dimensions")
    dim = wrap_dim(dim, self.ndim)
    return [selected(self, dim, index) for index in range(self.shape[dim])]


def _squeeze(self: Meta, dim: int | Sizes | None = None) -> Meta:
    dims = (dim,) if isinstance(dim, int) else range(self.ndim) if dim is None else dim
    wrapped = wrap_dims(dims, self.ndim) if dims else ()
    return _without(self, [d for d, size in enumerate(self.shape) if d in wrapped and size == 1])


def _unsqueeze(self: Meta, dim: int) -> Meta:
    dim = wrap_dim(dim, self.ndim + 1)
    step = self.shape[dim] * self.stride[dim] if dim < self.ndim else 1
    return _restrided(
        self,
        (*self.shape[:dim], 1, *self.shape[dim:]),
        (*self.stride[:dim], step, *self.stride[dim:]),
    )


def as_strided(self: Meta, size: Sizes, stride: Sizes, storage_offset: int | None = None) -> Meta:
    if len(size) != len(stride):
        raise TypeRuleError("mismatch in length of strides and shape")
    if any(step < 0 for step in stride) or (storage_offset is not None and storage_offset < 0):
        raise TypeRuleError("as_strided: negative strides and offsets are not supported")
    return _restrided(self, tuple(size), tuple(stride), storage_offset)


def diagonal(self: Meta, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Meta:
    first, second = wrap_dim(dim1, self.ndim), wrap_dim(dim2, self.ndim)
    if first == second:
        raise TypeRuleError(f"diagonal dimensions cannot be identical {dim1}, {dim2}")
    if offset >= 0:
        length = min(self.shape[first], self.shape[second] - offset)
    else:
        length = min(self.shape[first] + offset, self.shape[second])
    length = max(length, 0)
    start = self.storage_offset
    if length > 0:
        start += offset * self.stride[second] if offset >= 0 else -offset * self.stride[first]
    rest = [d for d in range(self.ndim) if d not in (first, second)]
    return _restrided(
        self,
        (*[self.shape[d] for d in rest], length),
        (*[self.stride[d] for d in rest], self.stride[first] + self.stride[second]),
        start,
    )


def _unfold(self: Meta, dimension: int, size: int, step: int) -> Meta:
    dim = wrap_dim(dimension, self.ndim)
    extent = self.shape[dim] if self.shape else 1
    if size > extent:
        raise TypeRuleError(f"maximum size for tensor at dimension {dim} is {extent!r} but size is {size!r}")
    if step <= 0:
        raise TypeRuleError(f"step is {step} but must be > 0")
    if not self.shape:
        return _restrided(self, (size,), (1,))
    count = (extent - size) // step + 1
    return _restrided(
        self,
        (*self.shape[:dim], count, *self.shape[dim + 1 :], size),
        (*self.stride[:dim], self.stride[dim] * step, *self.stride[dim + 1 :], self.stride[dim]),
    )


TABLE.rows({
    "view _unsafe_view": viewed,
    "_reshape_alias": lambda self, size, stride: _restrided(self, tuple(size), tuple(stride)),
    "detach alias lift_fresh lift _conj _neg_view": lambda self: self,
    "view.dtype": _view_dtype,
    "view_as_real": Rule(_view_as_real, (_IS_COMPLEX,)),
    "view_as_complex": Rule(_view_as_complex, (_IS_REAL, _IN_PAIRS)),
    "expand": _expand,
    "permute": _permute,
    "transpose.int": transposed,
    "t": _t,
    "select.int": selected,
    "slice.Tensor": sliced,
    "split.Tensor": _split,
    "split_with_sizes": _split_with_sizes,
    "unbind.int": _unbind,
    "squeeze squeeze.dim squeeze.dims": _squeeze,
    "unsqueeze": _unsqueeze,
    "as_strided": as_strided,
    "diagonal": diagonal,
    "unfold": _unfold,
})  # fmt: skip
