"""Rules of oneDNN's whole recurrent layers, which the CPU takes for LSTMs in float32.

Elsewhere a recurrent layer consists of ordinary ops. The fourth result is a work space that only the backward
of the same layer reads. Its size is the library's secret: in grad mode a layer of these sizes runs once, on zeros;
without grad mode there is none.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from absint.meta import Meta, contiguous
from absint.rules.table import RuleTable
from absint.workspaces import WORK_SPACE, with_workspace

__all__ = ["TABLE"]

TABLE = RuleTable()


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
    space = 0
    if torch.is_grad_enabled():
        how = (reverse, batch_sizes, mode, hidden_size, num_layers, has_biases, bidirectional, batch_first, train)
        space = _work_space((input, weight0, weight1, weight2, weight3, hx_, cx_), how)
    return output, state, cell, contiguous((space,), torch.uint8, input.device)


def _work_space(operands: tuple[Meta, ...], how: tuple[object, ...]) -> int:
    """Bytes of the work space."""
    zeros = [torch.zeros(meta.shape, dtype=meta.dtype) for meta in operands]
    return with_workspace(torch.ops.aten.mkldnn_rnn_layer.default)(*zeros, *how)[WORK_SPACE].numel()


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
    """Gradients of the input, the two weights, the two biases, the state and the cell: float32 for bfloat16 too."""
    operands = (input, weight1, weight2, weight3, weight3, hx_, cx_tmp)
    return tuple(contiguous(one.shape, torch.float32, input.device) for one in operands)
