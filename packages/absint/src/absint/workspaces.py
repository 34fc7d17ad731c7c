"""Calls that hand on a workspace to their backward in grad mode alone: oneDNN's LSTM layer.

A graph says by the type of that result whether it is wanted. Its executors run where autograd is off, and so call such
an operator below autograd with grad mode on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from absint.torch_capabilities import TORCH
from stagewire.graph import Node
from stagewire.types import TensorType, numel

__all__ = ["LSTM_LAYER", "WORK_SPACE", "with_workspace", "workspace_call"]

LSTM_LAYER = "aten.mkldnn_rnn_layer.default"
WORK_SPACE = 3
"""The number of the result."""


def workspace_call(node: Node, function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, the operator of a node, so that it gives the workspace that the node states."""
    if node.target != LSTM_LAYER:
        return function
    type = node.results[WORK_SPACE].type
    return with_workspace(function) if isinstance(type, TensorType) and numel(type.shape) != 0 else function


def with_workspace(function: Callable[..., Any]) -> Callable[..., Any]:
    """The operator as it runs where gradients will be wanted; autograd records nothing."""

    def run(*args: Any, **kwargs: Any) -> Any:
        with TORCH.below_autograd(), torch.enable_grad():
            return function(*args, **kwargs)

    return run
