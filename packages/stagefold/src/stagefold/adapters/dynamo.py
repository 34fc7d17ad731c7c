"""Our stages two to five behind torch's own capture: `torch.compile(model, backend="stagefold")`.

Registered under the entry-point group `torch_dynamo_backends`, so that no import of stagefold is needed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.fx

from stagefold.adapters.from_fx import from_fx
from stagefold.backend import StagefoldBackend
from stagefold.options import parse_options


def compile_fx(module: torch.fx.GraphModule, example_inputs: list[Any], **options: Any) -> Callable[..., Any]:
    """The backend function that torch calls with a GraphModule and example inputs."""
    capture, constants = from_fx(module, example_inputs)
    function = StagefoldBackend(parse_options(None, options.get("options") or {}))(capture, tuple(example_inputs))

    def call(*inputs: Any) -> tuple[Any, ...]:
        return function(*inputs, *constants)

    return call
