"""Rules of fused attention. Query, key and value are [batch, heads, length, width]."""

from __future__ import annotations

import torch

from absint.meta import CPU, Meta, contiguous
from absint.promote import ACC_DTYPE
from absint.rules.results import empty_like, fresh
from absint.rules.table import RuleTable
from absint.strides import contiguous_stride

__all__ = ["TABLE"]

TABLE = RuleTable()


def _by_head(like: Meta, shape: tuple[int, ...]) -> Meta:
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
    return empty_like(query) if width == query_width else _by_head(query, (batch, heads, length, width)), logsumexp


def _efficient(query: Meta, value: Meta, compute_log_sumexp: bool) -> tuple[Meta, ...]:
    batch, heads, length, _ = query.shape
    # The kernel pads the statistics of a row block to a multiple of 32.
    padded = (length + 31) // 32 * 32 if compute_log_sumexp else 0
    seed = contiguous((), torch.int64, CPU)
    logsumexp = fresh(query, (batch, heads, padded), torch.float32)
    return _by_head(query, (batch, heads, length, value.shape[-1])), logsumexp, seed, seed


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
        lambda query, key, value: tuple([_by_head(one, one.shape) for one in (query, key, value)]),
    "_scaled_dot_product_efficient_attention": _efficient,
    "_transformer_encoder_layer_fwd": lambda src: fresh(src),
    "_native_multi_head_attention": _multi_head,
})  # fmt: skip
