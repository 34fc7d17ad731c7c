"""Rules of oneDNN's whole recurrent layers, which the CPU takes for LSTMs in float32.

Elsewhere a recurrent layer consists of ordinary ops. The fourth result is a work space that only the backward
of the same layer reads; its size is the library's secret, and is told as zero.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from absint.meta import Meta, contiguous
from absint.rules.table import RuleTable

__all__ = ["TABLE", "WORK_SPACE"]

TABLE = RuleTable()
WORK_SPACE = 3
"""Position of the work space among the results of `mkldnn_rnn_layer`."""


@TABLE.rule("mkldnn_rnn_layer")
def _rnn_layer(
    input: Meta,
    weight0: Meta,
    weight1: Meta,
    weight2: Meta,
    weight3: Meta,
    hx_: Meta,
    cx_: Meta,
    reverse: bool,
    batch_sizes: Sequence[int],
    mode: int,
    hidden_size: int,
    num_layers: int,
    has_biases: bool,
    bidirectional: bool,
    batch_first: bool,
    train: bool,
) -> tuple[Meta, ...]:
    output = contiguous((*input.shape[:2], hidden_size), input.dtype, input.device)
    state = contiguous(hx_.shape, input.dtype, input.device)
    cell = contiguous(cx_.shape, input.dtype, input.device)
    return output, state, cell, contiguous((0,), torch.uint8, input.device)


@TABLE.rule("mkldnn_rnn_layer_backward")
def _rnn_layer_backward(
    input: Meta,
    weight1: Meta,
    weight2: Meta,
    weight3: Meta,
    weight4: Meta,
    hx_: Meta,
    cx_tmp: Meta,
    *_: object,
) -> tuple[Meta, ...]:
    """Gradients of the input, the two weights, the two biases, the state and the cell."""
    bias = contiguous(weight3.shape, weight3.dtype, input.device)
    weights = [contiguous(w.shape, w.dtype, input.device) for w in (weight1, weight2)]
    states = [contiguous(s.shape, s.dtype, input.device) for s in (hx_, cx_tmp)]
    return (contiguous(input.shape, input.dtype, input.device), *weights, bias, bias, *states)
