"""Indices with symbolic numbers: `x[n - 1, :]` is `x.select(0, n - 1)[:]`."""

from __future__ import annotations

from typing import Any

import torch

from absint.symbolic import is_symbolic


def get_item(x: Any, index: Any) -> Any:
    """`x[index]`."""
    base, rest = _selected(x, index)
    return torch.Tensor.__getitem__(base, rest) if base is x or rest else base


def set_item(x: Any, index: Any, value: Any) -> None:
    """`x[index] = value`."""
    base, rest = _selected(x, index)
    torch.Tensor.__setitem__(base, rest if base is x or rest else ..., value)


def _selected(x: Any, index: Any) -> tuple[Any, Any]:
    """What symbolic numbers in the index select, and the rest of the index."""
    items = index if type(index) is tuple else (index,)
    places = [at for at, item in enumerate(items) if is_symbolic(item)]
    if not places or any(isinstance(item, (bool, list)) or _is_mask(item) for item in items):
        return x, index
    rank = x.dim()
    for at in reversed(places):
        x = x.select(dimension_of(rank, items, at), items[at])
    return x, tuple([item for at, item in enumerate(items) if at not in places])


def _is_mask(item: Any) -> bool:
    return isinstance(item, torch.Tensor) and item.dtype in (torch.bool, torch.uint8)


def dimension_of(rank: int, index: tuple[Any, ...], at: int) -> int:
    """The dimension, of so many, that item `at` of an index selects from."""
    if any(item is Ellipsis for item in index[:at]):
        return rank - sum(map(_width, index[at:]))
    return sum(map(_width, index[:at]))


def _width(item: Any) -> int:
    """How many dimensions an item of an index takes."""
    if item is None or item is Ellipsis or isinstance(item, bool):
        return 0
    return item.dim() if _is_mask(item) else 1


def embedding_dense_backward(
    grad_output: Any, indices: Any, num_weights: Any, padding_idx: Any, scale_grad_by_freq: bool
) -> Any:
    """ATen's, called by the program itself: it skips an index that there is no weight of, and its gradient does not.
    The autograd engine's call needs no form, for the forward has refused such an index."""
    if not scale_grad_by_freq and not (torch.is_grad_enabled() and grad_output.requires_grad):
        has_weight = (indices >= 0) & (indices < num_weights)
        indices = torch.where(has_weight, indices, 0)
        grad_output = torch.where(has_weight.unsqueeze(-1), grad_output, 0)
    return torch.ops.aten.embedding_dense_backward.default(
        grad_output, indices, num_weights, padding_idx, scale_grad_by_freq
    )


INDEXING_FORMS = {
    "torch.Tensor.__getitem__": get_item,
    "torch.Tensor.__setitem__": set_item,
    "torch.ops.aten.embedding_dense_backward": embedding_dense_backward,
    "aten.embedding_dense_backward.default": embedding_dense_backward,
}
