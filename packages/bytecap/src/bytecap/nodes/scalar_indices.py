"""Indices with 0-dim integer tensors in them.

`x[i]` is a view of `x` at a place that only the run knows; its type does not depend on the place. The call is evaluated
with 0 for such an index, and recorded with the tensor.
"""

from __future__ import annotations

from typing import Any

import torch

from absint import AbstractTensor

_INDEXING = frozenset({"__getitem__", "__setitem__"})
_INTEGERS = frozenset({torch.int8, torch.int16, torch.int32, torch.int64})


def with_known_index(function: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments of a torch call as they are evaluated."""
    if getattr(function, "__name__", "") not in _INDEXING or len(args) < 2:
        return args
    index = args[1]
    known = tuple(_known(item) for item in index) if type(index) is tuple else _known(index)
    return (args[0], known, *args[2:])


def _known(item: Any) -> Any:
    if not isinstance(item, AbstractTensor) or item.dim() or item.dtype not in _INTEGERS:
        return item
    return item if item.storage_record.constant is not None else 0
