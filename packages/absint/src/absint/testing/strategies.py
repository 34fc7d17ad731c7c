"""Hypothesis strategies: real tensors of awkward layouts (permuted, sliced, expanded, 0-dim, empty)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from hypothesis import strategies as st

DTYPES = (
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
)


def shapes(max_rank: int = 4) -> st.SearchStrategy[tuple[int, ...]]:
    """Small shapes with zeros and ones among the sizes."""
    sizes = st.sampled_from((0, 1, 1, 2, 2, 3, 4, 5))
    return st.lists(sizes, max_size=max_rank).map(tuple)


@st.composite
def laid_out(draw: st.DrawFn, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """A tensor of ones of `shape` in a drawn layout."""
    rank = len(shape)
    order = draw(st.permutations(range(rank)))
    gaps = draw(st.lists(st.sampled_from((1, 1, 1, 2)), min_size=rank, max_size=rank))
    base = torch.ones([shape[dim] * gaps[dim] for dim in order], dtype=dtype)
    inverse = [order.index(dim) for dim in range(rank)]
    tensor = base.permute(inverse)
    for dim in range(rank):
        if gaps[dim] != 1:
            step = draw(st.booleans())
            tensor = (
                tensor[(slice(None),) * dim + (slice(None, None, 2),)]
                if step
                else tensor.narrow(dim, shape[dim], shape[dim])
            )
    expanded = draw(st.lists(st.sampled_from((False, False, False, True)), min_size=rank, max_size=rank))
    for dim in range(rank):
        if expanded[dim] and shape[dim] > 0:
            tensor = tensor.narrow(dim, 0, 1).expand(*(shape[dim] if d == dim else -1 for d in range(rank)))
    return tensor


@st.composite
def tensors(draw: st.DrawFn, dtypes: Sequence[torch.dtype] = DTYPES, max_rank: int = 4) -> torch.Tensor:
    """A tensor of drawn shape, dtype and layout."""
    return draw(laid_out(draw(shapes(max_rank)), draw(st.sampled_from(dtypes))))


@st.composite
def broadcastable(
    draw: st.DrawFn,
    count: int,
    dtypes: Sequence[torch.dtype] = DTYPES,
    max_rank: int = 4,
    same_dtype: bool = False,
) -> list[torch.Tensor]:
    """`count` tensors whose shapes broadcast together."""
    shape = draw(shapes(max_rank))
    dtype = draw(st.sampled_from(dtypes))
    drawn = []
    for _ in range(count):
        own = shape[draw(st.sampled_from((0, 0, 0, 1, len(shape)))) :]
        ones = draw(st.lists(st.sampled_from((False, False, True)), min_size=len(own), max_size=len(own)))
        own = tuple([1 if one else size for size, one in zip(own, ones, strict=True)])
        chosen = dtype if same_dtype else draw(st.sampled_from((dtype, *dtypes)))
        drawn.append(draw(laid_out(own, chosen)))
    return drawn
