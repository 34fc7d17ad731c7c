"""torch's own back end behind our capture: `compile(model, backend="inductor")`.

The only place in the packages that may name torch's compiler; the import contracts list it as the exception.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.fx


def compile_graph_module(module: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
    """A function compiled by torch's AOT autograd and code generator."""
    compiled = torch.compile(module, backend="inductor", fullgraph=True)
    return lambda *inputs: compiled(*inputs)
