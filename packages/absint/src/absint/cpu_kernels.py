"""What the CPU kernels of ATen can do on this processor, as ATen says: asked here and nowhere else.

oneDNN computes in half precision where the processor has instructions for it, and ONEDNN_MAX_CPU_ISA allows them. Where
it does not, ATen takes other kernels by itself; what goes past that choice has to ask.

Its LSTM layer hands a workspace on to its backward, in grad mode alone. A graph says by the type of that result whether
it is wanted. Its executors run where autograd is off, and so call the operator below autograd with grad mode on.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from absint.torch_capabilities import TORCH
from stagewire.graph import Node
from stagewire.types import TensorType, numel

_HALVES = {torch.bfloat16: "onednn_has_bfloat16", torch.float16: "onednn_has_float16"}


@cache
def onednn_computes(dtype: torch.dtype) -> bool:
    """Whether oneDNN has kernels for a dtype on this processor, be they switched on or not."""
    if not torch.backends.mkldnn.is_available():
        return False
    if dtype in _HALVES:
        return TORCH.has(_HALVES[dtype]) and getattr(TORCH, _HALVES[dtype])()
    return dtype is torch.float32


@cache
def has_matrix_tiles() -> bool:
    """Whether the processor multiplies tiles of bfloat16 (AMX), into whose order oneDNN brings weights."""
    return TORCH.has("has_matrix_tiles") and onednn_computes(torch.bfloat16) and TORCH.has_matrix_tiles()


def onednn_takes_lstm(dtype: torch.dtype) -> bool:
    """Whether ATen gives whole LSTM layers of a dtype to oneDNN (`use_mkldnn` in ATen/native/RNN.cpp), empty ones
    aside."""
    if not torch.backends.mkldnn.enabled or (dtype is torch.float16 and torch.is_grad_enabled()):
        return False
    return onednn_computes(dtype)


@cache
def cpu_kernels() -> str:
    """All that is asked, in one line: programs are made by it, and so it is part of their keys."""
    dtypes = [str(dtype).removeprefix("torch.") for dtype in (torch.float32, *_HALVES) if onednn_computes(dtype)]
    tiles = ";tiles" if has_matrix_tiles() else ""
    return f"{torch.backends.cpu.get_cpu_capability()};oneDNN={','.join(dtypes)}{tiles}"


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
