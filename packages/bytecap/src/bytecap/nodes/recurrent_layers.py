"""Recurrent layers whose steps would all be in the graph: a few are worth it, and many make it slow to compile.

LSTMs that oneDNN takes as a whole have no steps. Where the number of steps changes, absint asks for the graph's end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from absint import AbstractTensor
from absint.cpu_kernels import onednn_takes_lstm
from bytecap.errors import UnsupportedCall

if TYPE_CHECKING:
    from bytecap.evaluator.tracer import Tracer

LONGEST = 40
"""Steps, times layers and directions. Each takes about 50 ms to compile, and a fifth of eager's time to run."""

_LAYERS = frozenset({torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu})
_FIX = "Leave it between the graphs, or capture it with fullgraph=True."


def refuse_long_recurrence(tracer: Tracer, function: Any, args: tuple[Any, ...]) -> None:
    """Raise `UnsupportedCall` where a recurrent layer is better called between two graphs."""
    if tracer.sizes.policy.whole or function not in _LAYERS or len(args) != 9:
        return
    input, _, _, _, layers, _, _, bidirectional, batch_first = args
    if not isinstance(input, AbstractTensor) or input.dim() != 3:
        return
    length = input.shape[1 if batch_first else 0]
    if not isinstance(length, int) or (function is torch.lstm and onednn_takes_lstm(input.dtype)):
        return
    steps = length * layers * (1 + bidirectional)
    if steps > LONGEST:
        raise UnsupportedCall(f"torch.{function.__name__} of {steps} steps, which would all be in the graph", fix=_FIX)
