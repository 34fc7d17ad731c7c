"""The modes of torch that a graph changes on its way: gradients, autocast."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from msgspec.structs import replace

from stagefold.torch_capabilities import TORCH
from stagewire.capture import GlobalState
from stagewire.graph import DTypeArg, Node

_GRADIENTS = "torch._C._set_grad_enabled"
_AUTOCAST = "torch.set_autocast_enabled"
_DTYPE = "torch.set_autocast_dtype"


def changes_modes(nodes: Iterable[Node]) -> bool:
    """Whether some node changes a mode."""
    return any(node.target in (_GRADIENTS, _AUTOCAST, _DTYPE) for node in nodes)


def turns_gradients_on(node: Node) -> bool:
    """Whether gradients are recorded behind the node, and perhaps were not before."""
    return node.target == _GRADIENTS and node.args == (True,)


def state_behind(state: GlobalState, nodes: Iterable[Node]) -> GlobalState:
    """The state after `nodes` have run in `state`."""
    gradients, autocast = state.grad_enabled, dict(state.autocast)
    for node in nodes:
        values: list[Any] = [*node.args, *node.kwargs.values()]
        match node.target, values:
            case (target, [bool() as enabled]) if target == _GRADIENTS:
                gradients = enabled
            case (target, [str() as device, True]) if target == _AUTOCAST:
                autocast.setdefault(device, str(torch.get_autocast_dtype(device)).removeprefix("torch."))
            case (target, [str() as device, False]) if target == _AUTOCAST:
                autocast.pop(device, None)
            case (target, [str() as device, DTypeArg(name)]) if target == _DTYPE and device in autocast:
                autocast[device] = name
    return replace(state, grad_enabled=gradients, autocast=tuple(sorted(autocast.items())))


def enter(state: GlobalState) -> None:
    """Set torch's modes to those of `state`."""
    TORCH.set_grad_enabled(state.grad_enabled)
    wanted = dict(state.autocast)
    for device in ("cpu", "cuda"):
        torch.set_autocast_enabled(device, device in wanted)
        if device in wanted:
            torch.set_autocast_dtype(device, getattr(torch, wanted[device]))
