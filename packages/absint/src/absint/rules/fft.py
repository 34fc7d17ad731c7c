"""Rules of Fourier transforms, in the layout that MKL's and cuFFT's drivers leave behind.

The drivers move the transformed dimensions to the end, transform, and return the result permuted back
(`aten/src/ATen/native/mkl/SpectralOps.cpp`, `_exec_fft`).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from absint.errors import TypeRuleError
from absint.kernels import Question
from absint.meta import Meta
from absint.rules.shapes import fresh, resized, wrap_dim, wrap_dims
from absint.rules.table import RuleTable
from absint.strides import packed_stride

TABLE = RuleTable()
Dims = Sequence[int]


def _transformed(self: Meta, shape: tuple[int, ...], dims: Dims, dtype: torch.dtype) -> Meta:
    """A result of `shape`: memory order is the other dimensions by their strides in `self`, then `dims`."""
    batch = sorted(_others_first(self.ndim, dims), key=lambda dim: -self.stride[dim])
    return Meta(shape, packed_stride(shape, (*reversed(dims), *reversed(batch))), dtype, self.device)


def _others_first(rank: int, dims: Dims) -> list[int]:
    """The dimensions outside `dims`, in the order in which `std::partition` brings them to the front."""
    order = list(range(rank))
    first, last = 0, rank
    while True:
        while first != last and order[first] not in dims:
            first += 1
        if first == last:
            return order[:first]
        last -= 1
        while first != last and order[last] in dims:
            last -= 1
        if first == last:
            return order[:first]
        order[first], order[last] = order[last], order[first]
        first += 1


def _by_stride(self: Meta, dims: Dims) -> list[int]:
    return sorted(dims, key=lambda dim: -self.stride[dim])


def _r2c(self: Meta, dim: Dims, onesided: bool) -> Meta:
    if self.dtype.is_complex:
        raise TypeRuleError("the real Fourier transform takes a real tensor")
    *dims, last = wrap_dims(dim, self.ndim)
    shape = resized(self, last, self.shape[last] // 2 + 1) if onesided else self.shape
    return _transformed(self, shape, [*_by_stride(self, dims), last], self.dtype.to_complex())


def _c2c(self: Meta, dim: Dims) -> Meta:
    return (
        _transformed(self, self.shape, _by_stride(self, wrap_dims(dim, self.ndim)), self.dtype) if dim else fresh(self)
    )


def _c2r(self: Meta, dim: Dims, last_dim_size: int) -> Meta:
    last = wrap_dim(dim[-1], self.ndim)
    source = _c2c(self, dim[:-1]) if len(dim) > 1 else self
    return _transformed(source, resized(self, last, last_dim_size), [last], self.dtype.to_real())


TABLE.rows({"_fft_r2c": _r2c, "_fft_c2c": _c2c}, Question())
TABLE.rows({"_fft_c2r": _c2r})
