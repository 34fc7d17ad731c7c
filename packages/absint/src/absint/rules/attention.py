"""Rules of fused attention. Query, key and value are [batch, heads, length, width]."""

from __future__ import annotations

from typing import Any

import torch

from absint.meta import Meta, contiguous
from absint.promote import ACC_DTYPE
from absint.rules.movement import like
from absint.rules.table import RuleTable

__all__ = ["TABLE"]

TABLE = RuleTable()


def _by_head(like: Meta, shape: tuple[int, ...]) -> Meta:
    """Shape [batch, heads, length, width], laid out as [batch, length, heads, width]."""
    batch, heads, length, width = shape
    stride = contiguous((batch, length, heads, width), like.dtype).stride
    return Meta(shape, (stride[0], stride[2], stride[1], stride[3]), like.dtype, like.device)


@TABLE.rule("_scaled_dot_product_flash_attention_for_cpu")
def _flash_cpu(
    query: Meta, key: Meta, value: Meta, dropout_p: float = 0.0, is_causal: bool = False, **_: Any
) -> tuple[Meta, Meta]:
    batch, heads, length, query_width = query.shape
    statistics_dtype = ACC_DTYPE.get(query.dtype, query.dtype)
    stride = contiguous((batch, length, heads), statistics_dtype).stride
    logsumexp = Meta((batch, heads, length), (stride[0], stride[2], stride[1]), statistics_dtype, query.device)
    width = value.shape[-1]  # on other devices than the CPU it may be another one than the query's
    out = like(query, None) if width == query_width else _by_head(query, (batch, heads, length, width))
    return out, logsumexp


@TABLE.rule("_scaled_dot_product_flash_attention_for_cpu_backward")
def _flash_cpu_backward(
    grad_out: Meta, query: Meta, key: Meta, value: Meta, *_: Any, **__: Any
) -> tuple[Meta, Meta, Meta]:
    return (
        _by_head(query, query.shape),
        _by_head(key, key.shape),
        _by_head(value, value.shape),
    )


@TABLE.rule("_scaled_dot_product_flash_attention_backward")
def _flash_backward(grad_out: Meta, query: Meta, key: Meta, value: Meta, *_: Any, **__: Any) -> tuple[Meta, Meta, Meta]:
    return _flash_cpu_backward(grad_out, query, key, value)


@TABLE.rule("_scaled_dot_product_efficient_attention")
def _efficient(
    query: Meta,
    key: Meta,
    value: Meta,
    attn_bias: Meta | None,
    compute_log_sumexp: bool,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **_: Any,
) -> tuple[Meta, ...]:
    batch, heads, length, _width = query.shape
    # The kernel pads the statistics of a row block to a multiple of 32.
    padded = (length + 31) // 32 * 32 if compute_log_sumexp else 0
    shape = (batch, heads, length, value.shape[-1])
    seed = contiguous((), torch.int64, torch.device("cpu"))
    logsumexp = contiguous((batch, heads, padded), torch.float32, query.device)
    return _by_head(query, shape), logsumexp, seed, seed


@TABLE.rule("_transformer_encoder_layer_fwd")
def _encoder_layer(src: Meta, *_: Any, **__: Any) -> Meta:
    return contiguous(src.shape, src.dtype, src.device)


@TABLE.rule("_native_multi_head_attention")
def _multi_head(
    query: Meta,
    key: Meta,
    value: Meta,
    embed_dim: int,
    num_head: int,
    qkv_weight: Meta,
    qkv_bias: Meta,
    proj_weight: Meta,
    proj_bias: Meta,
    mask: Meta | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[Meta, Meta | None]:
    batch, length, _ = query.shape
    output = contiguous((batch, length, embed_dim), query.dtype, query.device)
    if not need_weights:
        return output, None
    heads = () if average_attn_weights else (num_head,)
    return output, contiguous((batch, *heads, length, length), query.dtype, query.device)
