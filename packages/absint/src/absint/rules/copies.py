"""Rules of the `*_copy` twins of views and of other ops that copy pieces of their operand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from absint.errors import DimensionError, TypeRuleError
from absint.kernels import Question, shaped
from absint.meta import Meta, contiguous
from absint.promote import result_type
from absint.rules import factory, reduce, view
from absint.rules.constraint import Constraint, Refused, f32
from absint.rules.movement import like
from absint.rules.sizes import wrap_dim
from absint.rules.table import Rule, RuleTable
from absint.strides import stride_of_format, suggest_format

__all__ = ["TABLE"]

TABLE = RuleTable()


def _copied(view_rule: Rule) -> Rule:
    """The rule of `x_copy`: the view, cloned row-major."""

    def rule(self: Meta, *args: Any, **kwargs: Any) -> Any:
        seen = view_rule(self, *args, **kwargs)
        if isinstance(seen, list):
            return [contiguous(part.shape, part.dtype, part.device) for part in seen]
        return contiguous(seen.shape, seen.dtype, seen.device)

    return rule


for _name, _twin in (
    ("alias_copy", "alias.default"),
    ("as_strided_copy", "as_strided.default"),
    ("detach_copy", "detach.default"),
    ("diagonal_copy", "diagonal.default"),
    ("expand_copy", "expand.default"),
    ("permute_copy", "permute.default"),
    ("select_copy.int", "select.int"),
    ("slice_copy.Tensor", "slice.Tensor"),
    ("split_copy.Tensor", "split.Tensor"),
    ("split_with_sizes_copy", "split_with_sizes.default"),
    ("squeeze_copy", "squeeze.default"),
    ("squeeze_copy.dim", "squeeze.dim"),
    ("squeeze_copy.dims", "squeeze.dims"),
    ("t_copy", "t.default"),
    ("transpose_copy.int", "transpose.int"),
    ("unbind_copy.int", "unbind.int"),
    ("unfold_copy", "unfold.default"),
    ("unsqueeze_copy", "unsqueeze.default"),
    ("view_copy", "view.default"),
    ("view_copy.dtype", "view.dtype"),
):
    TABLE.add(_name, _copied(view.TABLE[f"aten.{_twin}"]))


# These return views in all but the schema.
TABLE.add("unsafe_split.Tensor", view.TABLE["aten.split.Tensor"])
TABLE.add("unsafe_split_with_sizes", view.TABLE["aten.split_with_sizes.default"])


@TABLE.rule("diag_embed")
def _diag_embed(self: Meta, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Meta:
    rank = self.ndim + 1
    first, second = wrap_dim(dim1, rank), wrap_dim(dim2, rank)
    if first == second:
        raise TypeRuleError(f"diagonal dimensions cannot be identical {dim1}, {dim2}")
    size = self.shape[-1] + abs(offset)
    shape = list(self.shape[:-1])
    for dim in sorted((first, second)):
        shape.insert(dim, size)
    return contiguous(shape, self.dtype, self.device)


@TABLE.rule("rot90")
def _rot90(self: Meta, k: int = 1, dims: Sequence[int] = (0, 1)) -> Meta:
    first, second = (wrap_dim(dim, self.ndim) for dim in dims)
    flipped = like(self, None)
    if k % 4 == 2:
        return flipped
    if k % 4 == 0:
        return contiguous(self.shape, self.dtype, self.device)
    return view.TABLE["aten.transpose.int"](flipped, first, second)


_GROUPS = Constraint(
    "C1", "the groups divide the channels",
    lambda self, groups: groups < 1 or self.ndim < 3 or self.shape[1] % groups == 0,
    Refused("channel_shuffle", (f32(1, 4, 2, 2), 3)),
)  # fmt: skip


@TABLE.rule("channel_shuffle", requires=(_GROUPS,))
def _channel_shuffle(self: Meta, groups: int) -> Meta:
    if 0 in self.shape:
        return self
    if self.device.type != "cpu":  # composed of reshapes there
        return contiguous(self.shape, self.dtype, self.device)
    return Meta(self.shape, stride_of_format(self.shape, suggest_format(self)), self.dtype, self.device)


@TABLE.rule("block_diag")
def _block_diag(tensors: Sequence[Meta]) -> Meta:
    blocks = [(1,) * (2 - t.ndim) + t.shape for t in tensors]
    shape = (sum(rows for rows, _ in blocks), sum(columns for _, columns in blocks))
    return contiguous(shape, result_type(tensors), tensors[0].device)


@TABLE.rule("masked_scatter_backward")
def _masked_scatter_backward(grad_output: Meta, mask: Meta, sizes: Sequence[int]) -> Meta:
    return contiguous(sizes, grad_output.dtype, grad_output.device)


@TABLE.rule("trace")
def _trace(self: Meta) -> Meta:
    summed = reduce.TABLE["aten.sum.default"](self)
    return contiguous((), summed.dtype, self.device)


@TABLE.rule("_efficientzerotensor")
def _efficient_zero(size: Sequence[int], **options: Any) -> Meta:
    return factory.TABLE["aten.zeros.default"](size, **options)


def _starts_within(self: Meta, dim: int, start: int, length: int) -> bool:
    size = self.shape[wrap_dim(dim, self.ndim)]
    return -size <= start <= size


def _ends_within(self: Meta, dim: int, start: int, length: int) -> bool:
    size = self.shape[wrap_dim(dim, self.ndim)]
    return length >= 0 and (start + size if start < 0 else start) + length <= size


_START = Constraint(
    "C1", "start is in the dimension", _starts_within, Refused("narrow_copy", (f32(3), 0, 4, 0)), DimensionError
)
_LENGTH = Constraint(
    "C2", "length is not negative, and ends in the dimension", _ends_within, Refused("narrow_copy", (f32(3), 0, 0, 11))
)


@TABLE.rule("narrow_copy", requires=(_START, _LENGTH))
def _narrow_copy(self: Meta, dim: int, start: int, length: int) -> Meta:
    dim = wrap_dim(dim, self.ndim)
    shape = (*self.shape[:dim], length, *self.shape[dim + 1 :])
    return contiguous(shape, self.dtype, self.device)


TABLE.ask("rot90 trace")
TABLE.ask("channel_shuffle", question=Question(of=lambda self, groups: (
    shaped(self, [max(groups, 1) if dim == 1 else 1 for dim in range(self.ndim)]), groups
)))  # fmt: skip
