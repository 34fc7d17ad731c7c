"""The reference meaning of `Capture`: run the graph's torch calls by name, eagerly.

>>> outputs = interpret(document, inputs)         # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from absint.functions import custom_functions, read_sizes, run_graph
from bytecap.errors import InterpretError
from bytecap.torch_capabilities import TORCH
from stagewire.capture import Capture


def interpret(capture: Capture, inputs: Sequence[torch.Tensor]) -> tuple[Any, ...]:
    """The graph's outputs for these inputs, in order; the grad mode is as the caller's, and is put back.

    Raises `InterpretError` when the number of inputs is wrong, `absint.errors.UnknownTarget` for a target that does not
    exist.
    """
    if len(inputs) != len(capture.inputs):
        raise InterpretError(f"the graph has {len(capture.inputs)} inputs, {len(inputs)} were given")
    values: dict[str, Any] = {}
    size_of = read_sizes(capture.graph, inputs, values)
    enabled = torch.is_grad_enabled()
    try:
        return run_graph(capture.graph, inputs, custom_functions(capture.functions, size_of), size_of, values=values)
    finally:
        TORCH.set_grad_enabled(enabled)
