"""What indexing, gathering and scattering demand of the sizes of their operands.

An index says where in one dimension; in the others it counts through the operand, which has to be that large.
"""

from __future__ import annotations

from collections.abc import Sequence

from absint.errors import DimensionError
from absint.meta import Meta, numel
from absint.rules.constraint import Constraint, Refused, f32, i64
from absint.rules.sizes import wrap_dim

__all__ = [
    "COUNTED", "COUNTED_INDEX", "INDEX_OF_SCALAR", "NO_LARGER", "NO_LARGER_THAN_SOURCE", "PUT_ALL", "SAME_SLICES",
    "SAME_SLICES_COPIED", "SELF_NO_SMALLER", "broadcasts_to",
]  # fmt: skip


def _sizes(meta: Meta) -> tuple[int, ...]:
    """The shape; a number counts as one element of one dimension."""
    return meta.shape or (1,)


def _fits_beside(inner: Meta, outer: Meta, dim: int | None) -> bool:
    """Whether no dimension of `inner` but `dim` is larger than that of `outer`; nothing fits everywhere."""
    pairs = enumerate(zip(_sizes(inner), _sizes(outer), strict=False))
    return all(small <= large for axis, (small, large) in pairs if axis != dim) or 0 in inner.shape


def _index_within_self(self: Meta, dim: int, index: Meta) -> bool:
    return _fits_beside(index, self, wrap_dim(dim, self.ndim))


NO_LARGER = Constraint(
    "C1", "no dimension of index is larger than that of self, apart from dim", _index_within_self,
    Refused("gather", (f32(3, 2), 0, i64(3, 5))),
)  # fmt: skip
SELF_NO_SMALLER = Constraint(
    "C1", "no dimension of index is larger than that of self, apart from dim", _index_within_self,
    Refused("scatter.value", (f32(3, 2), 0, i64(3, 5), 1.0)),
)  # fmt: skip
NO_LARGER_THAN_SOURCE = Constraint(
    "C2", "no dimension of index is larger than that of src",
    lambda self, dim, index, src, /: _fits_beside(index, src, None),
    Refused("scatter.src", (f32(3, 5), 0, i64(3, 5), f32(1, 5))),
)  # fmt: skip


def _counted(self: Meta, dim: int, index: Meta, source: Meta) -> bool:
    rows = source.shape[wrap_dim(dim, source.ndim)] if source.shape else 1
    return numel(index.shape) == rows


def _counted_unless_scalar(self: Meta, dim: int, index: Meta, source: Meta) -> bool:
    return not source.shape or _counted(self, dim, index, source)


def _same_slices(self: Meta, dim: int, source: Meta) -> bool:
    dim = wrap_dim(dim, self.ndim)
    return self.shape[:dim] + self.shape[dim + 1 :] == source.shape[:dim] + source.shape[dim + 1 :]


COUNTED = Constraint(
    "C1", "there are as many indices as rows of source", _counted,
    Refused("index_add", (f32(3, 2), 0, i64(4), f32(2, 2))),
)  # fmt: skip
COUNTED_INDEX = Constraint(
    "C1", "there are as many indices as rows of source", _counted_unless_scalar,
    Refused("index_copy", (f32(3, 2), 0, i64(4), f32(2, 2))), DimensionError,
)  # fmt: skip
SAME_SLICES = Constraint(
    "C2", "self and source have the same sizes, apart from dim", _same_slices,
    Refused("index_add", (f32(3, 2), 0, i64(2), f32(2, 3))),
)  # fmt: skip
SAME_SLICES_COPIED = Constraint(
    "C2", "self and source have the same sizes, apart from dim", _same_slices,
    Refused("index_copy", (f32(3, 2), 0, i64(2), f32(2, 3))),
)  # fmt: skip
INDEX_OF_SCALAR = Constraint(
    "C1", "a tensor without dimensions is selected from once",
    lambda self, index: bool(self.shape) or numel(index.shape) == 1, Refused("index_select", (f32(), 0, i64(2))),
)  # fmt: skip
PUT_ALL = Constraint(
    "C1", "there are as many indices as elements of source",
    lambda index, source: numel(index.shape) == numel(source.shape), Refused("put", (f32(3), i64(5), f32(2))),
    DimensionError,
)  # fmt: skip


def broadcasts_to(shape: Sequence[int], target: Sequence[int]) -> bool:
    """Whether a tensor of `shape` expands to `target` (leading dimensions of size one beyond its rank are dropped)."""
    extra = len(shape) - len(target)
    if extra > 0 and any(size != 1 for size in shape[:extra]):
        return False
    own = shape[max(extra, 0) :]
    pairs = zip(reversed(own), reversed(target), strict=False)
    return all(size == wanted or size == 1 for size, wanted in pairs)
