"""Functions that a GraphModule calls where Python or fx has no way to write what the captured program calls.

They bear being traced again, as unpickling a GraphModule does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any

import torch
import torch.fx
from torch.fx.node import has_side_effect
from torch.overrides import handle_torch_function, has_torch_function

import absint.targets
from absint.functions import leaves
from stagefold.torch_capabilities import foreign
from stagewire.capabilities import find


def _of_graphs(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that is one node where the tensors in its arguments stand for others."""

    @wraps(function)
    def call(*args: Any) -> Any:
        stand_ins = tuple(leaf for leaf in leaves(args) if isinstance(leaf, torch.fx.Proxy))
        if has_torch_function(stand_ins):
            return handle_torch_function(call, stand_ins, *args)
        return function(*args)

    return call


@has_side_effect
@_of_graphs
def set_attribute(tensor: torch.Tensor, name: str, value: Any) -> None:
    """`tensor.name = value`."""
    setattr(tensor, name, value)


@has_side_effect
@_of_graphs
def call_by_name(target: str, args: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
    """What a document calls `target`; keywords may be any text.

    >>> call_by_name("torch.Tensor.random_", (torch.zeros(2),), {"from": 3, "to": 4})
    tensor([3., 3.])
    """
    return absint.targets.resolve(target)(*args, **keywords)


@_of_graphs
def flatten_tensors(value: Any) -> tuple[Any, ...]:
    """The tensors inside a returned value, in order: the meaning of a Capture node's results.

    >>> flatten_tensors((1, [2, (3,)]))
    ()
    """
    return tuple(leaf for leaf in leaves(value) if isinstance(leaf, torch.Tensor))


def is_printed(function: Callable[..., Any]) -> bool:
    """Whether fx prints a function as an expression that means it again.

    >>> is_printed(torch.relu), is_printed(torch.Tensor.data.__set__)
    (True, False)
    """
    try:
        name = foreign().qualified_name(function)
    except (AttributeError, RuntimeError):
        return False
    if not name.startswith("torch."):
        return all(map(str.isidentifier, name.split(".")))  # fx hands these to the code as objects
    return bool(find(torch, name) == function)
