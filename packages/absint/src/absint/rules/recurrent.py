"""Rules of oneDNN's whole recurrent layers, which the CPU takes for LSTMs in float32.

Elsewhere a recurrent layer consists of ordinary ops. The fourth result is a work space that only the backward
of the same layer reads. Its size is the library's secret: in grad mode a layer of these sizes runs once, on zeros;
without grad mode there is none.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from absint.meta import Meta
from absint.rules.results import fresh
from absint.rules.table import RuleTable
from absint.workspaces import WORK_SPACE, with_workspace

__all__ = ["TABLE"]

TABLE = RuleTable()


def _layer(
    input: Meta, weight0: Meta, weight1: Meta, weight2: Meta, weight3: Meta, hx_: Meta, cx_: Meta, reverse: bool,
    batch_sizes: Sequence[int], mode: int, hidden_size: int, num_layers: int, has_biases: bool, bidirectional: bool,
    batch_first: bool, train: bool,
) -> tuple[Meta, ...]:  # fmt: skip
    space = 0
    if torch.is_grad_enabled():
        operands = (input, weight0, weight1, weight2, weight3, hx_, cx_)
        how = (reverse, batch_sizes, mode, hidden_size, num_layers, has_biases, bidirectional, batch_first, train)
        zeros = [torch.zeros(meta.shape, dtype=meta.dtype) for meta in operands]
        space = with_workspace(torch.ops.aten.mkldnn_rnn_layer.default)(*zeros, *how)[WORK_SPACE].numel()
    shapes = ((*input.shape[:2], hidden_size), hx_.shape, cx_.shape)
    return *[fresh(input, shape) for shape in shapes], fresh(input, (space,), torch.uint8)


def _layer_backward(
    input: Meta, weight1: Meta, weight2: Meta, weight3: Meta, hx_: Meta, cx_tmp: Meta
) -> tuple[Meta, ...]:  # fmt: skip
    """Gradients of the input, the two weights, the two biases, the state and the cell: float32 for bfloat16 too."""
    operands = (input, weight1, weight2, weight3, weight3, hx_, cx_tmp)
    return tuple([fresh(input, one.shape, torch.float32) for one in operands])


TABLE.rows({"mkldnn_rnn_layer": _layer, "mkldnn_rnn_layer_backward": _layer_backward})
