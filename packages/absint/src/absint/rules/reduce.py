"""Rules of reductions, scans, softmax, sorting and searching.

Reductions allocate row-major results whatever the strides of the operand.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from absint.errors import TypeRuleError
from absint.kernels import Question, ones
from absint.meta import Meta, contiguous
from absint.promote import float_dtype, is_integral, real_dtype
from absint.rules.constraint import Constraint, Refused, f32, i64
from absint.rules.sizes import reduced_shape, wrap_dim, wrap_dims
from absint.rules.table import RuleTable, full_name
from absint.strides import preserve_stride

__all__ = ["TABLE"]

TABLE = RuleTable()
Dims = int | Sequence[int] | None


def _reduced(self: Meta, dims: Dims, keepdim: bool, dtype: torch.dtype) -> Meta:
    axes = wrap_dims(dims, self.ndim)
    return contiguous(reduced_shape(self.shape, axes, keepdim), dtype, self.device)


def _sum_dtype(self: Meta, dtype: torch.dtype | None) -> torch.dtype:
    if dtype is not None:
        return dtype
    return torch.int64 if is_integral(self.dtype) else self.dtype


@TABLE.rule("sum prod")
def _sum(self: Meta, *, dtype: torch.dtype | None = None) -> Meta:
    return _reduced(self, None, False, _sum_dtype(self, dtype))


@TABLE.rule("sum.dim_IntList prod.dim_int")
def _sum_dim(self: Meta, dim: Dims, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Meta:
    return _reduced(self, dim, keepdim, _sum_dtype(self, dtype))


@TABLE.rule("nansum")
def _nansum(self: Meta, dim: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Meta:
    return _reduced(self, dim, keepdim, _sum_dtype(self, dtype))


@TABLE.rule("mean")
def _mean(self: Meta, *, dtype: torch.dtype | None = None) -> Meta:
    return _mean_dim(self, None, dtype=dtype)


@TABLE.rule("mean.dim")
def _mean_dim(self: Meta, dim: Dims, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Meta:
    if is_integral(dtype or self.dtype):
        raise TypeRuleError(
            "mean(): could not infer output dtype. Input dtype must be either a floating point or complex "
            f"dtype. Got: {self.dtype}"
        )
    return _reduced(self, dim, keepdim, dtype or self.dtype)


def _bool_dtype(self: Meta) -> torch.dtype:
    return torch.uint8 if self.dtype is torch.uint8 else torch.bool


@TABLE.rule("any all")
def _any(self: Meta) -> Meta:
    return _reduced(self, None, False, _bool_dtype(self))


@TABLE.rule("_is_all_true _is_any_true")
def _is_true(self: Meta) -> Meta:
    return _reduced(self, None, False, torch.bool)


@TABLE.rule("any.dim all.dim")
def _any_dim(self: Meta, dim: int, keepdim: bool = False) -> Meta:
    return _reduced(self, dim, keepdim, _bool_dtype(self))


@TABLE.rule("any.dims all.dims")
def _any_dims(self: Meta, dim: Dims = None, keepdim: bool = False) -> Meta:
    if dim is not None and len(dim) == 0:
        return contiguous(self.shape, _bool_dtype(self), self.device)
    return _reduced(self, dim, keepdim, _bool_dtype(self))


@TABLE.rule("amax amin")
def _amax(self: Meta, dim: Dims = (), keepdim: bool = False) -> Meta:
    return _reduced(self, dim, keepdim, self.dtype)


@TABLE.rule("max min median nanmedian")
def _max(self: Meta) -> Meta:
    return contiguous((), self.dtype, self.device)


@TABLE.rule("max.dim min.dim median.dim nanmedian.dim")
def _max_dim(self: Meta, dim: int, keepdim: bool = False) -> tuple[Meta, Meta]:
    values = _reduced(self, dim, keepdim, self.dtype)
    return values, contiguous(values.shape, torch.int64, self.device)


@TABLE.rule("mode")
def _mode(self: Meta, dim: int = -1, keepdim: bool = False) -> tuple[Meta, Meta]:
    return _max_dim(self, dim, keepdim)


_KTH = Constraint(
    "C1", "k is between 1 and the size of the dimension", lambda self, k, dim=-1, keepdim=False: (
        1 <= k <= (self.shape[wrap_dim(dim, self.ndim)] if self.shape else 1)
    ),
    Refused("kthvalue", (f32(3), 4)),
)  # fmt: skip


@TABLE.rule("kthvalue", requires=(_KTH,))
def _kthvalue(self: Meta, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Meta, Meta]:
    return _max_dim(self, dim, keepdim)


@TABLE.rule("aminmax")
def _aminmax(self: Meta, *, dim: int | None = None, keepdim: bool = False) -> tuple[Meta, Meta]:
    if dim is None:
        shape = (1,) * self.ndim if keepdim else ()
        result = contiguous(shape, self.dtype, self.device)
    else:
        result = _reduced(self, dim, keepdim, self.dtype)
    return result, result


@TABLE.rule("argmax argmin")
def _argmax(self: Meta, dim: int | None = None, keepdim: bool = False) -> Meta:
    return _reduced(self, dim, keepdim, torch.int64)


@TABLE.rule("count_nonzero")
def _count_nonzero(self: Meta, dim: int | None = None) -> Meta:
    return _reduced(self, dim, False, torch.int64)


@TABLE.rule("count_nonzero.dim_IntList")
def _count_nonzero_dims(self: Meta, dim: Sequence[int]) -> Meta:
    return _reduced(self, dim, False, torch.int64)


_SPREADS = Constraint(
    "C1", "self is of floats or complex numbers",
    lambda self, *_, **__: self.dtype.is_floating_point or self.dtype.is_complex,
    Refused("var.correction", (i64(3),)),
)  # fmt: skip


@TABLE.rule("var.correction std.correction", requires=(_SPREADS,))
def _var_correction(self: Meta, dim: Dims = None, *, correction: Any = None, keepdim: bool = False) -> Meta:
    return _reduced(self, dim, keepdim, real_dtype(self.dtype))


@TABLE.rule("var_mean.correction std_mean.correction", requires=(_SPREADS,))
def _var_mean(self: Meta, dim: Dims = None, *, correction: Any = None, keepdim: bool = False) -> tuple[Meta, Meta]:
    mean = _reduced(self, dim, keepdim, self.dtype)
    return _reduced(self, dim, keepdim, real_dtype(self.dtype)), mean


@TABLE.rule("logsumexp")
def _logsumexp(self: Meta, dim: Dims, keepdim: bool = False) -> Meta:
    return _reduced(self, dim, keepdim, float_dtype(self.dtype))


@TABLE.rule("norm.Scalar")
def _norm(self: Meta, p: Any = 2) -> Meta:
    return _reduced(self, None, False, real_dtype(self.dtype))


@TABLE.rule("norm.ScalarOpt_dim")
def _norm_dim(self: Meta, p: Any, dim: Dims, keepdim: bool = False) -> Meta:
    return _reduced(self, dim, keepdim, real_dtype(self.dtype))


@TABLE.rule("norm.ScalarOpt_dim_dtype")
def _norm_dim_dtype(self: Meta, p: Any, dim: Dims, keepdim: bool, *, dtype: torch.dtype) -> Meta:
    return _reduced(self, dim, keepdim, real_dtype(dtype))


@TABLE.rule("linalg_vector_norm")
def _vector_norm(
    self: Meta,
    ord: Any = 2,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Meta:
    return _reduced(self, dim, keepdim, real_dtype(dtype or self.dtype))


@TABLE.rule("cumsum cumprod")
def _cumsum(self: Meta, dim: int, *, dtype: torch.dtype | None = None) -> Meta:
    wrap_dim(dim, self.ndim)
    return contiguous(self.shape, _sum_dtype(self, dtype), self.device)


@TABLE.rule("logcumsumexp")
def _logcumsumexp(self: Meta, dim: int) -> Meta:
    wrap_dim(dim, self.ndim)
    return contiguous(self.shape, self.dtype, self.device)


@TABLE.rule("cummax cummin")
def _cummax(self: Meta, dim: int) -> tuple[Meta, Meta]:
    if 0 not in self.shape:
        wrap_dim(dim, self.ndim)
    values = contiguous(self.shape, self.dtype, self.device)
    return values, contiguous(self.shape, torch.int64, self.device)


@TABLE.rule("_softmax _log_softmax")
def _softmax(self: Meta, dim: int, half_to_float: bool) -> Meta:
    wrap_dim(dim, self.ndim)
    return contiguous(self.shape, torch.float32 if half_to_float else self.dtype, self.device)


@TABLE.rule("_safe_softmax")
def _safe_softmax(self: Meta, dim: int, dtype: torch.dtype | None = None) -> Meta:
    wrap_dim(dim, self.ndim)
    return contiguous(self.shape, dtype or self.dtype, self.device)


_LIKE_OUTPUT = Constraint(
    "C1", "grad_output and output have the same shape",
    lambda grad_output, output, dim, input_dtype: grad_output.shape == output.shape,
    Refused("_softmax_backward_data", (f32(2, 3), f32(2, 4), 0, torch.float32)),
)  # fmt: skip


@TABLE.rule("_softmax_backward_data _log_softmax_backward_data", requires=(_LIKE_OUTPUT,))
def _softmax_backward(grad_output: Meta, output: Meta, dim: int, input_dtype: torch.dtype) -> Meta:
    return contiguous(grad_output.shape, input_dtype, grad_output.device)


def _sorted(self: Meta, dim: int) -> tuple[Meta, Meta]:
    wrap_dim(dim, self.ndim)
    stride = preserve_stride(self.shape, self.stride)
    return (
        Meta(self.shape, stride, self.dtype, self.device),
        Meta(self.shape, stride, torch.int64, self.device),
    )


@TABLE.rule("sort")
def _sort(self: Meta, dim: int = -1, descending: bool = False) -> tuple[Meta, Meta]:
    return _sorted(self, dim)


@TABLE.rule("sort.stable")
def _sort_stable(self: Meta, *, stable: bool | None, dim: int = -1, descending: bool = False) -> tuple[Meta, Meta]:
    return _sorted(self, dim)


@TABLE.rule("topk")
def _topk(self: Meta, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> tuple[Meta, Meta]:
    dim = wrap_dim(dim, self.ndim)
    if self.shape and not 0 <= k <= self.shape[dim]:
        raise TypeRuleError("selected index k out of range")
    shape = (*self.shape[:dim], k, *self.shape[dim + 1 :]) if self.shape else ()
    return contiguous(shape, self.dtype, self.device), contiguous(shape, torch.int64, self.device)


@TABLE.rule("bucketize.Tensor")
def _bucketize(self: Meta, boundaries: Meta, *, out_int32: bool = False, right: bool = False) -> Meta:
    return contiguous(self.shape, torch.int32 if out_int32 else torch.int64, self.device)


def _is_searched(sorted_sequence: Meta, self: Meta, **_: Any) -> bool:
    return sorted_sequence.ndim == 1 or sorted_sequence.shape[:-1] == self.shape[:-1]


_SEARCHED = Constraint(
    "C1", "boundaries are one row, or one for each row of values", _is_searched,
    Refused("searchsorted.Tensor", (f32(2, 3), f32(5, 3))),
)  # fmt: skip
_SORTED_BY = Constraint(
    "C2", "sorter has the shape of the boundaries",
    lambda sorted_sequence, self, sorter=None, **_: sorter is None or sorter.shape == sorted_sequence.shape,
    Refused("searchsorted.Tensor", (f32(3), f32(5)), {"sorter": i64(2)}),
)  # fmt: skip


@TABLE.rule("searchsorted.Tensor", requires=(_SEARCHED, _SORTED_BY))
def _searchsorted(
    sorted_sequence: Meta,
    self: Meta,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Meta | None = None,
) -> Meta:
    return contiguous(self.shape, torch.int32 if out_int32 else torch.int64, self.device)


@TABLE.rule("histc")
def _histc(self: Meta, bins: int = 100, min: Any = 0, max: Any = 0) -> Meta:
    return contiguous((bins,), self.dtype, self.device)


@TABLE.rule("isin.Tensor_Tensor isin.Tensor_Scalar")
def _isin(elements: Meta, test_elements: Any, **_: Any) -> Meta:
    return contiguous(elements.shape, torch.bool, elements.device)


@TABLE.rule("searchsorted.Scalar")
def _searchsorted_scalar(sorted_sequence: Meta, self: Any, *, out_int32: bool = False, **_: Any) -> Meta:
    return contiguous((), torch.int32 if out_int32 else torch.int64, sorted_sequence.device)


@TABLE.rule("bucketize.Scalar")
def _bucketize_scalar(self: Any, boundaries: Meta, *, out_int32: bool = False, right: bool = False) -> Meta:
    return contiguous((), torch.int32 if out_int32 else torch.int64, boundaries.device)


@TABLE.rule("histogram.bin_ct")
def _histogram(self: Meta, bins: int = 100, **_: Any) -> tuple[Meta, Meta]:
    return contiguous((bins,), self.dtype, self.device), contiguous((bins + 1,), self.dtype, self.device)


@TABLE.rule("histogram.bins_tensor")
def _histogram_edges(self: Meta, bins: Meta, **_: Any) -> tuple[Meta, Meta]:
    hist = contiguous((bins.shape[0] - 1,), self.dtype, self.device)
    return hist, contiguous(bins.shape, bins.dtype, self.device)


_SEGMENTS = Constraint(
    "C1", "there are lengths, unless they are not to be looked at",
    lambda data, reduce, *, lengths=None, unsafe=False, **_: lengths is None or unsafe or 0 not in lengths.shape,
    Refused("segment_reduce", (f32(3), "sum"), {"lengths": i64(0)}),
)  # fmt: skip


@TABLE.rule("segment_reduce", requires=(_SEGMENTS,))
def _segment_reduce(
    data: Meta,
    reduce: str,
    *,
    lengths: Meta | None = None,
    indices: Meta | None = None,
    offsets: Meta | None = None,
    axis: int = 0,
    unsafe: bool = False,
    initial: Any = None,
) -> Meta:
    given = lengths or offsets
    if given is None:
        raise TypeRuleError("segment_reduce(): Either lengths or offsets must be defined.")
    axis = wrap_dim(axis, data.ndim)
    count = given.shape[-1] if lengths is not None else given.shape[-1] - 1
    return contiguous((*data.shape[:axis], count, *data.shape[axis + 1 :]), data.dtype, data.device)


@TABLE.rule("_segment_reduce_backward")
def _segment_reduce_backward(grad: Meta, output: Meta, data: Meta, reduce: str, **_: Any) -> Meta:
    return contiguous(data.shape, grad.dtype, data.device)


_WARNS = "var.correction std.correction var_mean.correction std_mean.correction"
_OF_EXTENT = "topk kthvalue segment_reduce _segment_reduce_backward histogram.bins_tensor"
_OF_SOMETHING = """
    amax amin max min max.dim min.dim median.dim nanmedian.dim mode aminmax argmax argmin logsumexp norm.Scalar
    norm.ScalarOpt_dim norm.ScalarOpt_dim_dtype linalg_vector_norm
"""
_OF_INDICES = "searchsorted.Tensor searchsorted.Scalar"
_OTHERS = set(TABLE).difference(map(full_name, f"{_WARNS} {_OF_EXTENT} {_OF_SOMETHING} {_OF_INDICES}".split()))
TABLE.ask(*sorted(_OTHERS))
TABLE.ask("histogram.bins_tensor", question=Question(size=2))
TABLE.ask(_OF_INDICES, question=Question(fill=0))
TABLE.ask(_OF_SOMETHING, question=Question(empties=True))
TABLE.ask("topk kthvalue", question=Question(
    of=lambda self, k, dim=-1, *rest, **_: (ones(self), 1, dim, *rest), drops_sizes=True
))  # fmt: skip
