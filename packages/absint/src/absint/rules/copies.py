"""Rules of the `*_copy` twins of views and of other ops that copy pieces of their operand."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from absint.errors import DimensionError, TypeRuleError
from absint.kernels import Question, shaped
from absint.meta import Meta, contiguous
from absint.promote import result_type
from absint.rules import reduce, view
from absint.rules.constraint import Constraint, Refused, f32
from absint.rules.results import empty_like, fresh, resized, suggested
from absint.rules.sizes import wrap_dim
from absint.rules.table import Rule, RuleTable, TypeOf
from absint.signatures import full_name

__all__ = ["TABLE"]

TABLE = RuleTable()


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
    return fresh(self) if k % 4 == 0 else view.transposed(flipped, first, second)


def _channel_shuffle(self: Meta) -> Meta:
    if 0 in self.shape:
        return self
    return suggested(self) if self.device.type == "cpu" else fresh(self)  # composed of reshapes elsewhere


def _block_diag(tensors: Sequence[Meta]) -> Meta:
    blocks = [(1,) * (2 - t.ndim) + t.shape for t in tensors]
    shape = (sum(rows for rows, _ in blocks), sum(columns for _, columns in blocks))
    return contiguous(shape, result_type(tensors), tensors[0].device)


def _starts_within(self: Meta, dim: int, start: int) -> bool:
    size = self.shape[wrap_dim(dim, self.ndim)]
    return -size <= start <= size


def _ends_within(self: Meta, dim: int, start: int, length: int) -> bool:
    size = self.shape[wrap_dim(dim, self.ndim)]
    return length >= 0 and (start + size if start < 0 else start) + length <= size


_GROUPS = Constraint(
    "C1", "the groups divide the channels",
    lambda self, groups: groups < 1 or self.ndim < 3 or self.shape[1] % groups == 0,
    Refused("channel_shuffle", (f32(1, 4, 2, 2), 3)),
)  # fmt: skip
_START = Constraint(
    "C1", "start is in the dimension", _starts_within, Refused("narrow_copy", (f32(3), 0, 4, 0)), DimensionError
)
_LENGTH = Constraint(
    "C2", "length is not negative, and ends in the dimension", _ends_within, Refused("narrow_copy", (f32(3), 0, 0, 11))
)
_OF_VIEWS = """
    alias as_strided detach diagonal expand permute select.int slice.Tensor split.Tensor split_with_sizes squeeze
    squeeze.dim squeeze.dims t transpose.int unbind.int unfold unsqueeze view view.dtype
"""
for _name in _OF_VIEWS.split():
    _packet, *_overload = _name.split(".")
    TABLE.rows({".".join([f"{_packet}_copy", *_overload]): _copied(view.TABLE[full_name(_name)].type_of)})
TABLE.rows({
    # These return views in all but the schema.
    "unsafe_split.Tensor": view.TABLE[full_name("split.Tensor")],
    "unsafe_split_with_sizes": view.TABLE[full_name("split_with_sizes")],
    "diag_embed": _diag_embed,
    "rot90": _rot90,
    "channel_shuffle": Rule(_channel_shuffle, (_GROUPS,)),
    "block_diag": _block_diag,
    "masked_scatter_backward": lambda grad_output, sizes: fresh(grad_output, sizes),
    "trace": lambda self: fresh(self, (), reduce.sum_dtype(self)),
    "narrow_copy": Rule(lambda self, dim, length: fresh(self, resized(self, dim, length)), (_START, _LENGTH)),
})  # fmt: skip
TABLE.ask("rot90 trace")
TABLE.ask("channel_shuffle", Question(of=lambda self, groups: {
    "self": shaped(self, [max(groups, 1) if dim == 1 else 1 for dim in range(self.ndim)])
}))  # fmt: skip
