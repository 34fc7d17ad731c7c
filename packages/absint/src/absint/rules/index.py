"""Rules of indexing, gathering, scattering and embedding.

An index says where in one dimension; in the others it counts through the operand, which has to be that large.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from absint.errors import DataDependentError, DimensionError, TypeRuleError, UnsupportedTensor
from absint.kernels import Question, ones
from absint.meta import Meta
from absint.rules.pointwise import broadcast
from absint.rules.shapes import broadcasts_to, dim_checked, empty_like, expand_stride, fresh, resized, wrap_dim
from absint.rules.table import Constraint, Refused, Rule, RuleTable, f32, i64, of_data
from absint.strides import elementwise_stride, preserve_stride, view_stride
from stagewire.types import numel

TABLE = RuleTable()
Indices = Sequence["Meta | None"]


def _sizes(meta: Meta) -> tuple[int, ...]:
    """The shape; a number counts as one element of one dimension."""
    return meta.shape or (1,)


def _fits_beside(inner: Meta, outer: Meta, dim: int | None) -> bool:
    """Whether no dimension of `inner` but `dim` is larger than that of `outer`; nothing fits everywhere."""
    pairs = enumerate(zip(_sizes(inner), _sizes(outer), strict=False))
    return all(small <= large for axis, (small, large) in pairs if axis != dim) or 0 in inner.shape


_NO_LARGER = Constraint(
    "C1", "no dimension of index is larger than that of self, apart from dim",
    lambda self, dim, index: _fits_beside(index, self, wrap_dim(dim, self.ndim)),
    Refused("gather", (f32(3, 2), 0, i64(3, 5))),
)  # fmt: skip
_SELF_NO_SMALLER = replace(_NO_LARGER, refused=Refused("scatter.value", (f32(3, 2), 0, i64(3, 5), 1.0)))
_NO_LARGER_THAN_SOURCE = Constraint(
    "C2", "no dimension of index is larger than that of src",
    lambda self, dim, index, src, /: _fits_beside(index, src, None),
    Refused("scatter.src", (f32(3, 5), 0, i64(3, 5), f32(1, 5))),
)  # fmt: skip


def _counted(self: Meta, dim: int, index: Meta, source: Meta) -> bool:
    rows = source.shape[wrap_dim(dim, source.ndim)] if source.shape else 1
    return numel(index.shape) == rows


_COUNTED = Constraint(
    "C1", "there are as many indices as rows of source", _counted,
    Refused("index_add", (f32(3, 2), 0, i64(4), f32(2, 2))),
)  # fmt: skip
_COUNTED_INDEX = replace(
    _COUNTED,
    holds=lambda self, dim, index, source: not source.shape or _counted(self, dim, index, source),
    refused=Refused("index_copy", (f32(3, 2), 0, i64(4), f32(2, 2))),
    error=DimensionError,
)
_SAME_SLICES = Constraint(
    "C2", "self and source have the same sizes, apart from dim",
    lambda self, dim, source: resized(self, dim, 0) == resized(source, dim, 0),
    Refused("index_add", (f32(3, 2), 0, i64(2), f32(2, 3))),
)  # fmt: skip
_SAME_SLICES_COPIED = replace(_SAME_SLICES, refused=Refused("index_copy", (f32(3, 2), 0, i64(2), f32(2, 3))))
_INDEX_OF_SCALAR = Constraint(
    "C1", "a tensor without dimensions is selected from once",
    lambda self, index: bool(self.shape) or numel(index.shape) == 1, Refused("index_select", (f32(), 0, i64(2))),
)  # fmt: skip
_PUT_ALL = Constraint(
    "C1", "there are as many indices as elements of source",
    lambda index, source: numel(index.shape) == numel(source.shape), Refused("put", (f32(3), i64(5), f32(2))),
    DimensionError,
)  # fmt: skip


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
        shape, stride = tuple([self.shape[d] for d in order]), tuple([self.stride[d] for d in order])
        self = Meta(shape, stride, self.dtype, self.device)
        padded = [padded[d] for d in order]
    return self, padded


def indexed(self: Meta, indices: Indices) -> Meta:
    source, padded = _index_operands(self, indices)
    used = [dim for dim, index in enumerate(padded) if index is not None]
    if not used:
        return fresh(self)
    before, after = used[0], source.ndim - used[-1] - 1
    shape = padded[used[0]].shape
    if 0 in [source.shape[dim] for dim in used] and 0 not in shape:
        raise DimensionError("index is out of bounds for dimension with size 0")
    result = (*source.shape[:before], *shape, *source.shape[source.ndim - after :])
    stride = (*source.stride[:before], *(0,) * len(shape), *source.stride[source.ndim - after :])
    operands = [(result, stride)]
    for dim in used:
        index = padded[dim]
        steps = index.stride
        if index.dtype is torch.int32:
            steps = preserve_stride(index.shape, steps)
        full = (1,) * before + index.shape + (1,) * after
        operands.append((full, view_stride(index.shape, steps, full)))
    return Meta(result, elementwise_stride(result, operands), self.dtype, self.device)


def _values_fit(self: Meta, indices: Indices, values: Meta) -> bool:
    """Masks are left to their kernel: data decides how much they select."""
    if any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in indices):
        return True
    return broadcasts_to(values.shape, indexed(self, indices).shape)


_VALUES_FIT = Constraint(
    "C1", "values broadcast to what is indexed", _values_fit,
    Refused("index_put", (f32(5, 3), [i64(2)], f32(3, 3))),
)  # fmt: skip


def _index_select(self: Meta, dim: int, index: Meta) -> Meta:
    dim = wrap_dim(dim, self.ndim)
    if index.ndim > 1:
        raise DimensionError("index_select(): Index is supposed to be a vector")
    return fresh(self, resized(self, dim, numel(index.shape)) if self.shape else ())


def _written(self: Meta, dim: int) -> Meta:
    return dim_checked(fresh(self), dim)


def _masked_scatter(self: Meta, mask: Meta) -> Meta:
    return fresh(self, broadcast(self.shape, mask.shape))


def _embedding(weight: Meta, indices: Meta) -> Meta:
    if weight.ndim != 2:
        raise TypeRuleError("'weight' must be 2-D")
    return fresh(weight, (*indices.shape, weight.shape[1]))


def _repeat_interleave(repeats: Meta, output_size: int | None) -> Meta:
    if output_size is None:
        raise DataDependentError("the number of repeated elements depends on data")
    if repeats.ndim != 1:
        raise DimensionError("repeat_interleave only accept 1D vector as repeat")
    return fresh(repeats, (output_size,))


def _jagged(dense: Meta, total_L: int | None) -> Meta:
    if total_L is None:
        raise DataDependentError("the number of rows of a jagged tensor depends on data")
    return fresh(dense, (total_L, *dense.shape[2:]))


_BAG_SUM, _BAG_MEAN, _BAG_MAX = 0, 1, 2


def _embedding_bag(
    weight: Meta, indices: Meta, offsets: Meta, mode: int, per_sample_weights: Meta | None, include_last_offset: bool,
    padding_idx: int,
) -> tuple[Meta, ...]:  # fmt: skip
    bags = offsets.shape[0] - (1 if include_last_offset else 0)
    output = fresh(weight, (bags, weight.shape[1]))
    dtype = offsets.dtype
    if weight.device.type == "cuda":  # its kernel allocates otherwise
        largest = fresh(weight, output.shape if mode == _BAG_MAX else (0,), dtype)
        return output, fresh(weight, indices.shape, dtype), fresh(weight, offsets.shape, dtype), largest
    bag_size = fresh(weight, (bags,), dtype)
    largest = fresh(output, dtype=dtype) if mode == _BAG_MAX else bag_size
    scale = per_sample_weights
    # The fast kernel of the CPU leaves offset2bag empty.
    fast = (
        weight.device.type == "cpu"
        and mode == _BAG_SUM
        and weight.dtype in (torch.float32, torch.float16, torch.bfloat16)
        and weight.stride[1] == 1
        and (scale is None or scale.stride[0] == 1)
        and padding_idx < 0
    )
    return output, fresh(weight, (0 if fast else indices.shape[0],), dtype), bag_size, largest


def _embedding_bag_forward_only(
    weight: Meta, indices: Meta, offsets: Meta, mode: int, per_sample_weights: Meta | None, include_last_offset: bool,
    padding_idx: int,
) -> tuple[Meta, ...]:  # fmt: skip
    rest = (per_sample_weights, include_last_offset, padding_idx)
    output, offset2bag, bag_size, largest = _embedding_bag(weight, indices, offsets, mode, *rest)
    if mode != _BAG_SUM or weight.device.type == "cuda":
        return output, offset2bag, bag_size, largest
    # Without a gradient the bag sizes of a sum are not needed, and keep the size they were allocated with.
    unused = fresh(weight, offsets.shape, offsets.dtype)
    return output, offset2bag, unused, unused


def _bag_gradient(grad: Meta, num_weights: int, sparse: bool = False) -> Meta:
    if sparse:
        raise UnsupportedTensor("the gradient of a sparse embedding bag is a sparse tensor")
    return fresh(grad, (num_weights, grad.shape[1]))


TABLE.rows({
    "index_put _unsafe_index_put": Rule(lambda self: empty_like(self), (_VALUES_FIT,)),
    "index_select": Rule(_index_select, (_INDEX_OF_SCALAR,)),
    "index_fill.int_Scalar index_fill.int_Tensor": lambda self, dim: dim_checked(empty_like(self), dim),
    "index_add index_reduce": Rule(_written, (_COUNTED, _SAME_SLICES)),
    "index_copy": Rule(_written, (_SAME_SLICES_COPIED, _COUNTED_INDEX)),
    "gather": Rule(lambda self, dim, index: fresh(dim_checked(self, dim), index.shape), (_NO_LARGER,)),
    "scatter.value scatter.value_reduce": Rule(_written, (_SELF_NO_SMALLER,)),
    "scatter.src scatter.reduce scatter_add scatter_reduce.two": Rule(
        _written, (_SELF_NO_SMALLER, _NO_LARGER_THAN_SOURCE)
    ),
    "masked_scatter": _masked_scatter,
    "take": lambda self, index: fresh(self, index.shape),
    "put": Rule(lambda self: empty_like(self), (_PUT_ALL,)),
    "embedding": _embedding,
    "embedding_renorm": lambda self: empty_like(self),
    "_unsafe_masked_index": lambda self, indices: fresh(self, indexed(self, indices).shape),
}, Question(fill=0, empties=True))  # fmt: skip
TABLE.rows({
    "index.Tensor _unsafe_index.Tensor": indexed,
    "embedding_dense_backward": lambda grad_output, num_weights: (
        fresh(grad_output, (num_weights, grad_output.shape[-1]))
    ),
    "nonzero masked_select": of_data("the number of selected elements depends on data"),
    # What torch's derivatives call; it is not tagged as one whose sizes data decides before torch 2.13.
    "_unique": of_data("the number of different elements depends on data"),
    "repeat_interleave.Tensor": _repeat_interleave,
    "nonzero_static": Rule(
        lambda self, size: fresh(self, (size, self.ndim), torch.int64), (),
        Question(of=lambda self, size: {"self": ones(self), "size": min(size, 1)}),
    ),
    "_jagged_to_padded_dense_forward": lambda values, offsets, max_lengths: (
        fresh(values, (offsets[0].shape[0] - 1, *max_lengths, *values.shape[1:]))
    ),
    "_padded_dense_to_jagged_forward": _jagged,
    "_embedding_bag": _embedding_bag,
    "_embedding_bag_forward_only": _embedding_bag_forward_only,
    "_embedding_bag_dense_backward _embedding_bag_backward": _bag_gradient,
    "_embedding_bag_per_sample_weights_backward": lambda grad, indices: fresh(grad, indices.shape),
    "_unsafe_masked_index_put_accumulate": lambda self: empty_like(self),
})  # fmt: skip
