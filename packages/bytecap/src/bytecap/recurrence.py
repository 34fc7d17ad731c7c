"""Recurrent layers whose steps would all be in the graph: a few are worth it, and many make it slow to compile.

A layer that oneDNN takes as a whole (LSTMs in float32 on a CPU) has no steps. Where its gradient is wanted it has a
work space whose size only numbers tell.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from absint import AbstractTensor
from absint.symbolic import is_symbolic
from bytecap.errors import UnsupportedCall

if TYPE_CHECKING:
    from bytecap.tracer import Tracer

_LAYERS = frozenset({torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu})
_FIX = "Leave it between the graphs, or capture it with fullgraph=True."


def refuse_long_recurrence(tracer: Tracer, function: Any, args: tuple[Any, ...]) -> None:
    """Raise `UnsupportedCall` where a recurrent layer is better called between two graphs."""
    if tracer.longest_recurrence is None or function not in _LAYERS or len(args) != 9:
        return
    input, states, weights, _, layers, _, _, bidirectional, batch_first = args
    if not isinstance(input, AbstractTensor) or input.dim() != 3:
        return
    name, length = function.__name__, input.shape[1 if batch_first else 0]
    is_open = any(is_symbolic(size) for size in input.shape)
    if function is torch.lstm and _is_onednn(input.dtype) and (not is_open or input.dtype is torch.float32):
        given = (input, *states, *weights)
        if is_open and torch.is_grad_enabled() and any(one.requires_grad for one in given):
            raise UnsupportedCall(f"the gradient of torch.{name} with sizes that change", fix=_FIX)
    elif is_symbolic(length):
        raise UnsupportedCall(f"torch.{name} of a number of steps that changes", fix=_FIX)
    elif length * layers * (1 + bidirectional) > tracer.longest_recurrence:
        steps = length * layers * (1 + bidirectional)
        raise UnsupportedCall(f"torch.{name} of {steps} steps, which would all be in the graph", fix=_FIX)


def _is_onednn(dtype: torch.dtype) -> bool:
    """Whether oneDNN computes LSTMs of this dtype here (at::native::use_mkldnn)."""
    if not torch._C._get_mkldnn_enabled():
        return False
    if dtype is torch.bfloat16:
        return torch.ops.mkldnn._is_mkldnn_bf16_supported()
    if dtype is torch.float16:
        return torch.ops.mkldnn._is_mkldnn_fp16_supported()
    return dtype is torch.float32
