"""Rules of whole layers: fused attention, and oneDNN's recurrent ones, which the CPU takes for LSTMs in float32.

Query, key and value are [batch, heads, length, width]; those of packed sequences, which jagged tensors take, are
[batch, length, heads, width], or [all lengths, heads, width] beside offsets. Elsewhere than on a CPU a recurrent layer
consists of ordinary ops. The fourth result of one is a work space that only its backward reads. Its size is the
library's secret: in grad mode a layer of these sizes runs once, on zeros; without grad mode there is none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from absint.cpu_kernels import WORK_SPACE, with_workspace
from absint.errors import TypeRuleError
from absint.meta import CPU, Meta, contiguous
from absint.promote import ACC_DTYPE
from absint.rules.shapes import empty_like, fresh
from absint.rules.table import RuleTable
from absint.strides import contiguous_stride

TABLE = RuleTable()


def by_head(like: Meta, shape: tuple[int, ...]) -> Meta:
    """Shape [batch, heads, length, width], laid out as [batch, length, heads, width]."""
    batch, heads, length, width = shape
    stride = contiguous_stride((batch, length, heads, width))
    return Meta(shape, (stride[0], stride[2], stride[1], stride[3]), like.dtype, like.device)


def _flash_cpu(query: Meta, value: Meta) -> tuple[Meta, Meta]:
    batch, heads, length, query_width = query.shape
    stride = contiguous_stride((batch, length, heads))
    statistics_dtype = ACC_DTYPE.get(query.dtype, query.dtype)
    logsumexp = Meta((batch, heads, length), (stride[0], stride[2], stride[1]), statistics_dtype, query.device)
    width = value.shape[-1]  # on other devices than the CPU it may be another one than the query's
    return empty_like(query) if width == query_width else by_head(query, (batch, heads, length, width)), logsumexp


def _efficient(query: Meta, value: Meta, compute_log_sumexp: bool) -> tuple[Meta, ...]:
    batch, heads, length, _ = query.shape
    kept = _kept(query, batch, heads, length, compute_log_sumexp)
    return by_head(query, (batch, heads, length, value.shape[-1])), *kept


def _kept(query: Meta, batch: int, heads: int, length: int, compute_log_sumexp: bool) -> tuple[Meta, Meta, Meta]:
    """What the memory-efficient kernel keeps for a backward; a block of rows has statistics in multiples of 32."""
    seed = contiguous((), torch.int64, CPU)
    padded = (length + 31) // 32 * 32 if compute_log_sumexp else 0
    return fresh(query, (batch, heads, padded), torch.float32), seed, seed


def _flash_packed(query: Meta, cum_seq_q: Meta | None, return_debug_mask: bool) -> tuple[Meta, ...]:
    *batch, length, heads, _ = query.shape
    if return_debug_mask:
        raise TypeRuleError("_flash_attention_forward: its mask for debugging has no rule")
    statistics = (heads, length) if cum_seq_q is not None else (*batch, heads, length)
    state = (fresh(query, (2,), torch.uint64), fresh(query, (), torch.uint64))
    return empty_like(query), fresh(query, statistics, torch.float32), *state, fresh(query, (0,))


def _efficient_packed(
    query: Meta, key: Meta, value: Meta, cu_seqlens_q: Meta | None, max_seqlen_q: int | None, max_seqlen_k: int | None,
    compute_log_sumexp: bool,
) -> tuple[Any, ...]:  # fmt: skip
    batch, length, heads, _ = query.shape
    longest = length if cu_seqlens_q is None or max_seqlen_q is None else max_seqlen_q
    sequences = batch if cu_seqlens_q is None else cu_seqlens_q.shape[0] - 1
    out = fresh(query, (batch, length, heads, value.shape[-1]))
    kept = _kept(query, sequences, heads, longest, compute_log_sumexp)
    return out, *kept, longest, key.shape[1] if max_seqlen_k is None else max_seqlen_k


def _efficient_packed_backward(
    query: Meta, key: Meta, value: Meta, bias: Meta | None, shared_storage_dqdkdv: bool
) -> tuple[Meta | None, ...]:
    if shared_storage_dqdkdv:
        raise TypeRuleError("_efficient_attention_backward: gradients in one storage have no rule")
    of_bias = None
    if bias is not None:  # rows begin at multiples of 16 elements
        *rows, length = bias.shape
        stride = contiguous_stride((*rows, (length + 15) // 16 * 16))
        of_bias = Meta(bias.shape, stride, bias.dtype, bias.device)
    return empty_like(query), empty_like(key), empty_like(value), of_bias


def _multi_head(
    query: Meta, embed_dim: int, num_head: int, need_weights: bool, average_attn_weights: bool
) -> tuple[Meta, Meta | None]:
    batch, length, _ = query.shape
    heads = () if average_attn_weights else (num_head,)
    weights = fresh(query, (batch, *heads, length, length)) if need_weights else None
    return fresh(query, (batch, length, embed_dim)), weights


TABLE.rows({
    "_scaled_dot_product_flash_attention_for_cpu": _flash_cpu,
    "_scaled_dot_product_flash_attention_for_cpu_backward _scaled_dot_product_flash_attention_backward":
        lambda query, key, value: tuple([by_head(one, one.shape) for one in (query, key, value)]),
    "_scaled_dot_product_efficient_attention": _efficient,
    "_flash_attention_forward": _flash_packed,
    "_flash_attention_backward": lambda query, key, value: tuple(map(empty_like, (query, key, value))),
    "_efficient_attention_forward": _efficient_packed,
    "_efficient_attention_backward": _efficient_packed_backward,
    "_transformer_encoder_layer_fwd": lambda src: fresh(src),
    "_native_multi_head_attention": _multi_head,
})  # fmt: skip


def _recurrent(
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


TABLE.rows({
    "mkldnn_rnn_layer": _recurrent,
    # Gradients of the input, the two weights, the two biases, the state and the cell: float32 for bfloat16 too.
    "mkldnn_rnn_layer_backward": lambda input, weight1, weight2, weight3, hx_, cx_tmp: tuple([
        fresh(input, one.shape, torch.float32)
        for one in (input, weight1, weight2, weight3, weight3, hx_, cx_tmp)
    ]),
})  # fmt: skip
