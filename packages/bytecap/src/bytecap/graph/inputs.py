"""Inputs of the graph: readable names and roles, from where they are read, and the history of an outside tensor."""

from __future__ import annotations

from typing import Any

import torch

from absint import AbstractTensor
from stagewire.capture import Attribute, HandleSource, InputRole, Item, Source


def input_role(real: torch.Tensor, source: Source) -> InputRole:
    """What an input is to the module that holds it."""
    if isinstance(real, torch.nn.Parameter):
        return "parameter"
    match source:
        case Item(Attribute(_, "_buffers"), _):
            return "buffer"
    return "tensor"


def source_hint(source: Source) -> str:
    """A readable name for the input at `source`: `self.layers[0].weight` becomes `layers_0_weight`."""
    parts: list[str] = []
    at: Any = source
    while at is not None:
        match at:
            case Attribute(base, name):
                parts += [] if name in ("_parameters", "_buffers", "_modules", "__dict__") else [name]
                at = base
            case Item(base, key):
                parts.append(str(key))
                at = base
            case HandleSource():
                parts.append("constant")
                at = None
            case _:
                name = getattr(at, "name", "")
                parts += [] if name == "self" and parts else [name]
                at = getattr(at, "base", None)
    return "_".join(reversed(parts)) or "input"


class Outside(torch.autograd.Function):
    """The same tensor as something that was computed: neither a leaf nor a view of one, so that it may be written."""

    @staticmethod
    def forward(ctx: Any, leaf: AbstractTensor) -> AbstractTensor:
        return AbstractTensor(leaf.meta, leaf.storage_record)
