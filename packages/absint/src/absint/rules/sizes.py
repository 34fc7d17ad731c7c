"""Dimension arithmetic shared by the rules: wrapping, canonical dimension lists, sizes of a view."""

from __future__ import annotations

from collections.abc import Sequence

from absint.errors import DimensionError, TypeRuleError
from absint.meta import Meta, numel
from absint.symbolic.size import is_unbacked


def wrap_dim(dim: int, rank: int) -> int:
    """`dim` counted from the front; rank 0 counts as 1.

    >>> wrap_dim(-1, 3)
    2
    """
    limit = rank if rank > 0 else 1
    if not -limit <= dim < limit:
        raise DimensionError(f"dimension {dim} is out of range: {-limit} to {limit - 1}")
    return dim + limit if dim < 0 else dim


def wrap_dims(dims: int | Sequence[int] | None, rank: int) -> tuple[int, ...]:
    """Canonical dimensions of a reduction; None and the empty list mean all of them."""
    if isinstance(dims, int):
        return (wrap_dim(dims, rank),)
    if dims is None or len(dims) == 0:
        return tuple(range(rank))
    wrapped = tuple([wrap_dim(dim, rank) for dim in dims])
    if len(set(wrapped)) != len(wrapped):
        raise TypeRuleError(f"dim appears multiple times in the list of dims {list(dims)}")
    return wrapped


def reduced_shape(shape: tuple[int, ...], dims: Sequence[int], keepdim: bool) -> tuple[int, ...]:
    """The shape after reducing over `dims`."""
    if keepdim:
        return tuple([1 if dim in dims else size for dim, size in enumerate(shape)])
    return tuple([size for dim, size in enumerate(shape) if dim not in dims])


def infer_size(sizes: Sequence[int], count: int) -> tuple[int, ...]:
    """`sizes` with its one -1 replaced so that `count` elements fit.

    >>> infer_size((2, -1), 6)
    (2, 3)
    """
    sizes = tuple(sizes)
    holes = [position for position, size in enumerate(sizes) if isinstance(size, int) and size == -1]
    if len(holes) > 1:
        raise TypeRuleError("only one dimension can be inferred")
    if any(isinstance(size, int) and size < -1 for size in sizes):
        raise TypeRuleError(f"invalid shape dimension in {list(sizes)}")
    if not holes:
        if numel(sizes) != count and is_unbacked(count) == is_unbacked(numel(sizes)):
            raise TypeRuleError(f"shape '{list(sizes)}' is invalid for input of size {count}")
        return sizes
    known = numel([size for position, size in enumerate(sizes) if position != holes[0]])
    if known == 0:
        raise TypeRuleError(f"the size -1 in {list(sizes)} may be any for a tensor without elements")
    if not is_unbacked(count) and count % known != 0:
        raise TypeRuleError(f"shape '{list(sizes)}' is invalid for input of size {count}")
    return (*sizes[: holes[0]], count // known, *sizes[holes[0] + 1 :])


def expand_stride(self: Meta, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of `self` expanded to `shape` (already without -1).

    A new leading dimension gets stride 0, or the stride a contiguous one would have where its size is 1;
    all strides of an expanded 0-dim tensor are 0.
    """
    lead = len(shape) - self.ndim
    strides = [0] * len(shape)
    if not self.shape:
        return tuple(strides)
    for dim in range(len(shape) - 1, -1, -1):
        own = dim - lead
        if own >= 0:
            size, step = self.shape[own], self.stride[own]
        else:
            size = 1
            step = shape[dim + 1] * strides[dim + 1] if dim + 1 < len(shape) else 1
        if size != shape[dim]:
            if size == 1:
                step = 0
            elif is_unbacked(size) == is_unbacked(shape[dim]):  # of one unbacked: they are equal, or eager refuses
                raise TypeRuleError(f"{list(self.shape)} does not expand to {list(shape)}: sizes must match")
        strides[dim] = step
    return tuple(strides)


def broadcasts_to(shape: Sequence[int], target: Sequence[int]) -> bool:
    """Whether a tensor of `shape` expands to `target` (leading dimensions of size one beyond its rank are dropped)."""
    extra = len(shape) - len(target)
    if extra > 0 and any(size != 1 for size in shape[:extra]):
        return False
    own = shape[max(extra, 0) :]
    pairs = zip(reversed(own), reversed(target), strict=False)
    return all(size == wanted or size == 1 for size, wanted in pairs)
