"""Rules of indexing, gathering, scattering and embedding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from absint.errors import DataDependentError, DimensionError, TypeRuleError, UnsupportedTensor
from absint.kernels import Question
from absint.meta import Meta, contiguous, numel
from absint.rules.constraint import Constraint, Refused, f32, i64
from absint.rules.index_constraints import (
    COUNTED,
    COUNTED_INDEX,
    INDEX_OF_SCALAR,
    NO_LARGER,
    NO_LARGER_THAN_SOURCE,
    PUT_ALL,
    SAME_SLICES,
    SAME_SLICES_COPIED,
    SELF_NO_SMALLER,
    broadcasts_to,
)
from absint.rules.pointwise import broadcast
from absint.rules.sizes import expand_stride, wrap_dim
from absint.rules.table import RuleTable
from absint.strides import elementwise_stride, preserve_stride, view_stride

__all__ = ["TABLE"]

TABLE = RuleTable()
Indices = Sequence["Meta | None"]


def _preserved(self: Meta) -> Meta:
    return Meta(self.shape, preserve_stride(self.shape, self.stride), self.dtype, self.device)


def _index_operands(self: Meta, indices: Indices) -> tuple[Meta, list[Meta | None]]:
    """`self` and `indices` padded, broadcast, with the indexed dimensions adjacent."""
    if len(indices) > self.ndim:
        raise DimensionError(f"too many indices for tensor of dimension {self.ndim} (got {len(indices)})")
    shape: tuple[int, ...] = ()
    for index in indices:
        if index is None:
            continue
        if index.dtype in (torch.bool, torch.uint8):
            raise DataDependentError("the shape of an index by a boolean mask depends on data")
        if index.dtype not in (torch.int64, torch.int32):
            raise DimensionError("tensors used as indices must be long, int, byte or bool tensors")
        shape = broadcast(shape, index.shape)
    padded: list[Meta | None] = [
        None if i is None else Meta(shape, expand_stride(i, shape), i.dtype, i.device) for i in indices
    ]
    padded += [None] * (self.ndim - len(padded))
    used = [dim for dim, index in enumerate(padded) if index is not None]
    if used and used[-1] - used[0] + 1 != len(used):
        order = used + [dim for dim in range(self.ndim) if dim not in used]
        self = Meta(
            tuple([self.shape[d] for d in order]),
            tuple([self.stride[d] for d in order]),
            self.dtype,
            self.device,
        )
        padded = [padded[d] for d in order]
    return self, padded


@TABLE.rule("index.Tensor _unsafe_index.Tensor")
def _index(self: Meta, indices: Indices) -> Meta:
    source, padded = _index_operands(self, indices)
    used = [dim for dim, index in enumerate(padded) if index is not None]
    if not used:
        return contiguous(self.shape, self.dtype, self.device)
    before, after = used[0], source.ndim - used[-1] - 1
    shape = padded[used[0]].shape
    indexed = [source.shape[dim] for dim in used]
    if 0 in indexed and 0 not in shape:
        raise DimensionError("index is out of bounds for dimension with size 0")
    result = (*source.shape[:before], *shape, *source.shape[source.ndim - after :])
    stride = (
        *source.stride[:before],
        *(0,) * len(shape),
        *source.stride[source.ndim - after :],
    )
    operands = [(result, stride)]
    for dim in used:
        index = padded[dim]
        steps = index.stride
        if index.dtype is torch.int32:
            steps = preserve_stride(index.shape, steps)
        full = (1,) * before + index.shape + (1,) * after
        operands.append((full, view_stride(index.shape, steps, full)))
    return Meta(result, elementwise_stride(result, operands), self.dtype, self.device)


def _values_fit(self: Meta, indices: Indices, values: Meta, accumulate: bool = False) -> bool:
    """Masks are left to their kernel: data decides how much they select."""
    if any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in indices):
        return True
    return broadcasts_to(values.shape, _index(self, indices).shape)


_VALUES_FIT = Constraint(
    "C1", "values broadcast to what is indexed", _values_fit,
    Refused("index_put", (f32(5, 3), [i64(2)], f32(3, 3))),
)  # fmt: skip


@TABLE.rule("index_put _unsafe_index_put", requires=(_VALUES_FIT,))
def _index_put(self: Meta, indices: Indices, values: Meta, accumulate: bool = False) -> Meta:
    return _preserved(self)


@TABLE.rule("index_select", requires=(INDEX_OF_SCALAR,))
def _index_select(self: Meta, dim: int, index: Meta) -> Meta:
    dim = wrap_dim(dim, self.ndim)
    if index.ndim > 1:
        raise DimensionError("index_select(): Index is supposed to be a vector")
    if not self.shape:
        return contiguous((), self.dtype, self.device)
    shape = (*self.shape[:dim], numel(index.shape), *self.shape[dim + 1 :])
    return contiguous(shape, self.dtype, self.device)


@TABLE.rule("index_fill.int_Scalar index_fill.int_Tensor")
def _index_fill(self: Meta, dim: int, index: Meta, value: Any) -> Meta:
    wrap_dim(dim, self.ndim)
    return _preserved(self)


@TABLE.rule("index_add index_reduce", requires=(COUNTED, SAME_SLICES))
def _index_written(self: Meta, dim: int, index: Meta, *_: Any, **__: Any) -> Meta:
    wrap_dim(dim, self.ndim)
    return contiguous(self.shape, self.dtype, self.device)


TABLE.add("index_copy", _index_written, (SAME_SLICES_COPIED, COUNTED_INDEX))


@TABLE.rule("gather", requires=(NO_LARGER,))
def _gather(self: Meta, dim: int, index: Meta, *, sparse_grad: bool = False) -> Meta:
    wrap_dim(dim, self.ndim)
    return contiguous(index.shape, self.dtype, self.device)


@TABLE.rule("scatter.value scatter.value_reduce", requires=(SELF_NO_SMALLER,))
def _scatter(self: Meta, dim: int, index: Meta, *_: Any, **__: Any) -> Meta:
    wrap_dim(dim, self.ndim)
    return contiguous(self.shape, self.dtype, self.device)


for _name in ("scatter.src", "scatter.reduce", "scatter_add", "scatter_reduce.two"):
    TABLE.add(_name, _scatter, (SELF_NO_SMALLER, NO_LARGER_THAN_SOURCE))


@TABLE.rule("masked_scatter")
def _masked_scatter(self: Meta, mask: Meta, source: Meta) -> Meta:
    shape = broadcast(self.shape, mask.shape)
    stride = self.stride if shape == self.shape else expand_stride(self, shape)
    return _preserved(Meta(shape, stride, self.dtype, self.device))


@TABLE.rule("take")
def _take(self: Meta, index: Meta) -> Meta:
    return contiguous(index.shape, self.dtype, self.device)


@TABLE.rule("put", requires=(PUT_ALL,))
def _put(self: Meta, index: Meta, source: Meta, accumulate: bool = False) -> Meta:
    return _preserved(self)


@TABLE.rule("embedding")
def _embedding(
    weight: Meta,
    indices: Meta,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Meta:
    if weight.ndim != 2:
        raise TypeRuleError("'weight' must be 2-D")
    return contiguous((*indices.shape, weight.shape[1]), weight.dtype, weight.device)


@TABLE.rule("embedding_dense_backward")
def _embedding_backward(
    grad_output: Meta, indices: Meta, num_weights: int, padding_idx: int, scale_grad_by_freq: bool
) -> Meta:
    shape = (num_weights, grad_output.shape[-1])
    return contiguous(shape, grad_output.dtype, grad_output.device)


@TABLE.rule("nonzero masked_select")
def _data_dependent(self: Meta, *_: Any, **__: Any) -> Meta:
    raise DataDependentError("the number of selected elements depends on data")


@TABLE.rule("_unique")
def _unique(self: Meta, sorted: bool = True, return_inverse: bool = False) -> Meta:
    """What torch's derivatives call; it is not tagged as one whose sizes data decides before torch 2.13."""
    raise DataDependentError("the number of different elements depends on data")


@TABLE.rule("repeat_interleave.Tensor")
def _repeat_interleave(repeats: Meta, *, output_size: int | None = None) -> Meta:
    if output_size is None:
        raise DataDependentError("the number of repeated elements depends on data")
    if repeats.ndim != 1:
        raise DimensionError("repeat_interleave only accept 1D vector as repeat")
    return contiguous((output_size,), repeats.dtype, repeats.device)


@TABLE.rule("nonzero_static")
def _nonzero_static(self: Meta, *, size: int, fill_value: int = -1) -> Meta:
    return contiguous((size, self.ndim), torch.int64, self.device)


@TABLE.rule("_embedding_bag")
def _embedding_bag(
    weight: Meta,
    indices: Meta,
    offsets: Meta,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: Meta | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[Meta, ...]:
    bags = offsets.shape[0] - (1 if include_last_offset else 0)
    output = contiguous((bags, weight.shape[1]), weight.dtype, weight.device)
    dtype, device = offsets.dtype, weight.device
    if device.type == "cuda":  # its kernel allocates otherwise
        unused = contiguous((0,), dtype, device)
        bag_of = contiguous(indices.shape, dtype, device)
        largest = contiguous(output.shape, dtype, device) if mode == _BAG_MAX else unused
        return output, bag_of, contiguous(offsets.shape, dtype, device), largest
    bag_size = contiguous((bags,), dtype, device)
    largest = contiguous(output.shape, dtype, device) if mode == _BAG_MAX else bag_size
    fast = _bag_is_fast(weight, per_sample_weights, mode, padding_idx)
    # The fast kernel of the CPU leaves offset2bag empty.
    offset2bag = contiguous((0 if fast else indices.shape[0],), dtype, device)
    return output, offset2bag, bag_size, largest


@TABLE.rule("_embedding_bag_forward_only")
def _embedding_bag_forward_only(
    weight: Meta, indices: Meta, offsets: Meta, scale_grad_by_freq: bool = False, mode: int = 0, *rest: Any
) -> tuple[Meta, ...]:
    output, offset2bag, bag_size, largest = _embedding_bag(weight, indices, offsets, scale_grad_by_freq, mode, *rest)
    if mode != _BAG_SUM or weight.device.type == "cuda":
        return output, offset2bag, bag_size, largest
    # Without a gradient the bag sizes of a sum are not needed, and keep the size they were allocated with.
    unused = contiguous(offsets.shape, offsets.dtype, weight.device)
    return output, offset2bag, unused, unused


_BAG_SUM, _BAG_MEAN, _BAG_MAX = 0, 1, 2


def _bag_is_fast(weight: Meta, scale: Meta | None, mode: int, padding_idx: int) -> bool:
    return (
        weight.device.type == "cpu"
        and mode == _BAG_SUM
        and weight.dtype in (torch.float32, torch.float16, torch.bfloat16)
        and weight.stride[1] == 1
        and (scale is None or scale.stride[0] == 1)
        and padding_idx < 0
    )


@TABLE.rule("_embedding_bag_dense_backward")
def _embedding_bag_backward(
    grad: Meta,
    indices: Meta,
    offset2bag: Meta,
    bag_size: Meta,
    maximum_indices: Meta,
    num_weights: int,
    *_: Any,
    **__: Any,
) -> Meta:
    return contiguous((num_weights, grad.shape[1]), grad.dtype, grad.device)


@TABLE.rule("_embedding_bag_per_sample_weights_backward")
def _embedding_bag_weights_backward(grad: Meta, weight: Meta, indices: Meta, *_: Any, **__: Any) -> Meta:
    return contiguous(indices.shape, grad.dtype, grad.device)


@TABLE.rule("_embedding_bag_backward")
def _embedding_bag_backward_any(
    grad: Meta,
    indices: Meta,
    offsets: Meta,
    offset2bag: Meta,
    bag_size: Meta,
    maximum_indices: Meta,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    *_: Any,
    **__: Any,
) -> Meta:
    if sparse:
        raise UnsupportedTensor("the gradient of a sparse embedding bag is a sparse tensor")
    return contiguous((num_weights, grad.shape[1]), grad.dtype, grad.device)


@TABLE.rule("embedding_renorm")
def _embedding_renorm(self: Meta, indices: Meta, max_norm: float, norm_type: float) -> Meta:
    return _preserved(self)


@TABLE.rule("_unsafe_masked_index")
def _masked_index(self: Meta, mask: Meta, indices: Indices, fill: Any) -> Meta:
    return contiguous(_index(self, indices).shape, self.dtype, self.device)


@TABLE.rule("_unsafe_masked_index_put_accumulate")
def _masked_index_put(self: Meta, mask: Meta, indices: Indices, values: Meta) -> Meta:
    return _preserved(self)


TABLE.ask(
    """index_select index_fill.int_Scalar index_fill.int_Tensor index_add index_copy index_reduce index_put
    _unsafe_index_put gather scatter.src scatter.value scatter.reduce scatter.value_reduce scatter_add
    scatter_reduce.two masked_scatter embedding _unsafe_masked_index take put""",
    question=Question(fill=0, empties=True),
)
