"""Rules of reductions, scans, softmax, sorting and searching.

Reductions allocate row-major results whatever the strides of the operand.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from absint.errors import TypeRuleError
from absint.kernels import Question, ones
from absint.meta import Meta, contiguous
from absint.promote import float_dtype, is_integral
from absint.rules.shapes import dim_checked, empty_like, fresh, reduced, resized, wrap_dim
from absint.rules.table import Constraint, Refused, Rule, RuleTable, f32, i64
from absint.signatures import full_name

TABLE = RuleTable()
Dims = int | Sequence[int] | None
DType = torch.dtype | None
Pair = tuple[Meta, Meta]

_KTH = Constraint(
    "C1", "k is between 1 and the size of the dimension", lambda self, k, dim: (
        1 <= k <= (self.shape[wrap_dim(dim, self.ndim)] if self.shape else 1)
    ),
    Refused("kthvalue", (f32(3), 4)),
)  # fmt: skip
_SPREADS = Constraint(
    "C1", "self is of floats or complex numbers", lambda self: self.dtype.is_floating_point or self.dtype.is_complex,
    Refused("var.correction", (i64(3),)),
)  # fmt: skip
_LIKE_OUTPUT = Constraint(
    "C1", "grad_output and output have the same shape", lambda grad_output, output: grad_output.shape == output.shape,
    Refused("_softmax_backward_data", (f32(2, 3), f32(2, 4), 0, torch.float32)),
)  # fmt: skip
_SEARCHED = Constraint(
    "C1", "boundaries are one row, or one for each row of values", lambda sorted_sequence, self: (
        sorted_sequence.ndim == 1 or sorted_sequence.shape[:-1] == self.shape[:-1]
    ),
    Refused("searchsorted.Tensor", (f32(2, 3), f32(5, 3))),
)  # fmt: skip
_SORTED_BY = Constraint(
    "C2", "sorter has the shape of the boundaries",
    lambda sorted_sequence, sorter: sorter is None or sorter.shape == sorted_sequence.shape,
    Refused("searchsorted.Tensor", (f32(3), f32(5)), {"sorter": i64(2)}),
)  # fmt: skip
_SEGMENTS = Constraint(
    "C1", "there are lengths, unless they are not to be looked at",
    lambda lengths, unsafe: lengths is None or unsafe or 0 not in lengths.shape,
    Refused("segment_reduce", (f32(3), "sum"), {"lengths": i64(0)}),
)  # fmt: skip


def sum_dtype(self: Meta, dtype: DType = None) -> torch.dtype:
    """The dtype of a sum: int64 of integers."""
    return dtype or (torch.int64 if is_integral(self.dtype) else self.dtype)


def _truth_dtype(self: Meta) -> torch.dtype:
    return torch.uint8 if self.dtype is torch.uint8 else torch.bool


def _sum(self: Meta, dim: Dims = None, keepdim: bool = False, dtype: DType = None) -> Meta:
    return reduced(self, dim, keepdim, sum_dtype(self, dtype))


def _mean(self: Meta, dim: Dims = None, keepdim: bool = False, dtype: DType = None) -> Meta:
    if is_integral(dtype or self.dtype):
        raise TypeRuleError(f"the mean of {self.dtype}")
    return reduced(self, dim, keepdim, dtype)


def _norm(self: Meta, dim: Dims = None, keepdim: bool = False, dtype: DType = None) -> Meta:
    return reduced(self, dim, keepdim, (dtype or self.dtype).to_real())


def _any(self: Meta, dim: Dims = None, keepdim: bool = False) -> Meta:
    return reduced(self, dim, keepdim, _truth_dtype(self))


def _max(self: Meta, dim: int, keepdim: bool) -> Pair:
    values = reduced(self, dim, keepdim)
    return values, fresh(values, dtype=torch.int64)


def _scanned(self: Meta, dim: int, dtype: DType = None) -> Meta:
    return fresh(dim_checked(self, dim), dtype=dtype)


def _topk(self: Meta, k: int, dim: int) -> Pair:
    dim = wrap_dim(dim, self.ndim)
    if not 0 <= k <= (self.shape[dim] if self.shape else 1):
        raise TypeRuleError("selected index k out of range")
    values = fresh(self, resized(self, dim, k) if self.shape else ())
    return values, fresh(values, dtype=torch.int64)


def _places(boundaries: Meta, values: Meta | float, out_int32: bool) -> Meta:
    shape = values.shape if isinstance(values, Meta) else ()
    device = values.device if isinstance(values, Meta) else boundaries.device
    return contiguous(shape, torch.int32 if out_int32 else torch.int64, device)


def _segment_reduce(data: Meta, lengths: Meta | None, offsets: Meta | None, axis: int) -> Meta:
    given = lengths or offsets
    if given is None:
        raise TypeRuleError("segment_reduce(): Either lengths or offsets must be defined.")
    return fresh(data, resized(data, axis, given.shape[-1] if lengths is not None else given.shape[-1] - 1))


TABLE.rows({
    "sum prod sum.dim_IntList prod.dim_int nansum": _sum,
    "mean mean.dim": _mean,
    "any all any.dim all.dim": _any,
    "any.dims all.dims": lambda self, dim, keepdim: (
        fresh(self, dtype=_truth_dtype(self)) if dim is not None and not dim else _any(self, dim, keepdim)
    ),
    "_is_all_true _is_any_true": lambda self: reduced(self, None, False, torch.bool),
    "amax amin": lambda self, dim, keepdim: reduced(self, dim, keepdim),
    "max min median nanmedian": lambda self: fresh(self, ()),
    "max.dim min.dim median.dim nanmedian.dim mode": _max,
    "kthvalue": Rule(_max, (_KTH,)),
    "aminmax": lambda self, dim, keepdim: (reduced(self, dim, keepdim),) * 2,
    "argmax argmin": lambda self, dim, keepdim: reduced(self, dim, keepdim, torch.int64),
    "count_nonzero count_nonzero.dim_IntList": lambda self, dim: reduced(self, dim, False, torch.int64),
    "var.correction std.correction": Rule(_norm, (_SPREADS,)),
    "var_mean.correction std_mean.correction": Rule(
        lambda self, dim, keepdim: (_norm(self, dim, keepdim), reduced(self, dim, keepdim)), (_SPREADS,)
    ),
    "logsumexp": lambda self, dim, keepdim: reduced(self, dim, keepdim, float_dtype(self.dtype)),
    "norm.Scalar norm.ScalarOpt_dim norm.ScalarOpt_dim_dtype linalg_vector_norm": _norm,
    "cumsum cumprod": lambda self, dim, dtype: _scanned(self, dim, sum_dtype(self, dtype)),
    "logcumsumexp _safe_softmax": _scanned,
    "cummax cummin": lambda self, dim: (
        fresh(dim_checked(self, *() if 0 in self.shape else (dim,))), fresh(self, dtype=torch.int64)
    ),
    "_softmax _log_softmax": lambda self, dim, half_to_float: (
        _scanned(self, dim, torch.float32 if half_to_float else None)
    ),
    "_softmax_backward_data _log_softmax_backward_data": Rule(
        lambda grad_output, input_dtype: fresh(grad_output, dtype=input_dtype), (_LIKE_OUTPUT,)
    ),
    "sort sort.stable": lambda self, dim: (
        empty_like(dim_checked(self, dim)), empty_like(self, dtype=torch.int64)
    ),
    "topk": _topk,
    "bucketize.Tensor bucketize.Scalar": lambda self, boundaries, out_int32: _places(boundaries, self, out_int32),
    "searchsorted.Tensor": Rule(
        lambda sorted_sequence, self, out_int32: _places(sorted_sequence, self, out_int32), (_SEARCHED, _SORTED_BY)
    ),
    "searchsorted.Scalar": lambda sorted_sequence, self, out_int32: _places(sorted_sequence, self, out_int32),
    "histc": lambda self, bins: fresh(self, (bins,)),
    "histogram.bin_ct": lambda self, bins: (fresh(self, (bins,)), fresh(self, (bins + 1,))),
    "histogram.bins_tensor": lambda self, bins: (
        fresh(self, (bins.shape[0] - 1,)), contiguous(bins.shape, bins.dtype, self.device)
    ),
    "isin.Tensor_Tensor isin.Tensor_Scalar": lambda elements: fresh(elements, dtype=torch.bool),
    "segment_reduce": Rule(_segment_reduce, (_SEGMENTS,)),
    "_segment_reduce_backward": lambda grad, data: contiguous(data.shape, grad.dtype, data.device),
})  # fmt: skip

_WARNS = "var.correction std.correction var_mean.correction std_mean.correction"
_OF_EXTENT = "topk kthvalue segment_reduce _segment_reduce_backward histogram.bins_tensor"
_OF_SOMETHING = """
    amax amin max min max.dim min.dim median.dim nanmedian.dim mode aminmax argmax argmin logsumexp norm.Scalar
    norm.ScalarOpt_dim norm.ScalarOpt_dim_dtype linalg_vector_norm
"""
_OF_INDICES = "searchsorted.Tensor searchsorted.Scalar"
_NOT_OF_ONES = map(full_name, f"{_WARNS} {_OF_EXTENT} {_OF_SOMETHING} {_OF_INDICES}".split())
TABLE.ask(" ".join(set(TABLE).difference(_NOT_OF_ONES)))
TABLE.ask("histogram.bins_tensor", Question(size=2))
TABLE.ask(_OF_INDICES, Question(fill=0))
TABLE.ask(_OF_SOMETHING, Question(empties=True))
TABLE.ask("topk kthvalue", Question(of=lambda self: {"self": ones(self), "k": 1}, drops_sizes=True))
