"""The inference ops of `nn.MultiheadAttention` and `nn.TransformerEncoderLayer`, written out.

Eager takes them under no_grad as one op each. Written out, they are products and fused attention like in training, and
what stands between those fuses. Written as the C++ of the ops does it (aten/src/ATen/native/transformers).
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from aotgrad.tracer.attention import attention_call


def multi_head_attention(
    query: Any, key: Any, value: Any, embed_dim: int, num_head: int, qkv_weight: Any, qkv_bias: Any, proj_weight: Any,
    proj_bias: Any, mask: Any = None, need_weights: bool = True, average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[Any, Any]:  # fmt: skip
    """`aten._native_multi_head_attention`: (N, T, C) of query, (N, S, C) of key and value; weights or None.

    mask: true where a key is left out; of (T, S) for mask_type 0, of (N, S) for 1, of (N, heads, T, S) for 2. A query
    without keys gives nan, as eager does.
    """
    parts = _projected(query, key, value, embed_dim, qkv_weight, qkv_bias)
    q, k, v = (part.unflatten(-1, (num_head, embed_dim // num_head)).transpose(1, 2) for part in parts)
    if mask is None and not need_weights:
        weights, attended = None, attention_call(q, k, v)
    else:
        scores = (q * (embed_dim // num_head) ** -0.5) @ k.transpose(-2, -1)
        if mask is not None:
            hidden = mask[:, None, None, :] if mask_type == 1 else mask
            scores = scores.masked_fill(hidden.to(torch.bool), float("-inf"))
        weights = scores.softmax(-1)
        attended = weights @ v
    output = F.linear(attended.transpose(1, 2).flatten(2), proj_weight, proj_bias)
    if not need_weights:
        return output, None
    return output, weights.mean(1) if average_attn_weights else weights


def _projected(query: Any, key: Any, value: Any, width: int, weight: Any, bias: Any) -> tuple[Any, ...]:
    """Query, key and value behind their projections, which are one product where one tensor is all three."""
    if query is key and key is value:
        return F.linear(query, weight, bias).chunk(3, -1)
    places = (slice(0, width), slice(width, 2 * width), slice(2 * width, 3 * width))
    return tuple(F.linear(x, weight[place], bias[place]) for x, place in zip((query, key, value), places, strict=True))


def encoder_layer(
    src: Any, embed_dim: int, num_heads: int, qkv_weight: Any, qkv_bias: Any, proj_weight: Any, proj_bias: Any,
    use_gelu: bool, norm_first: bool, eps: float, norm_weight_1: Any, norm_bias_1: Any, norm_weight_2: Any,
    norm_bias_2: Any, ffn_weight_1: Any, ffn_bias_1: Any, ffn_weight_2: Any, ffn_bias_2: Any, mask: Any = None,
    mask_type: int | None = None,
) -> Any:  # fmt: skip
    """`aten._transformer_encoder_layer_fwd` of (N, T, C). Its gelu is the one by tanh on CUDA, as eager's is there."""

    def first(x: Any) -> Any:
        return F.layer_norm(x, (embed_dim,), norm_weight_1, norm_bias_1, eps)

    def second(x: Any) -> Any:
        return F.layer_norm(x, (embed_dim,), norm_weight_2, norm_bias_2, eps)

    def attend(x: Any) -> Any:
        given = (qkv_weight, qkv_bias, proj_weight, proj_bias, mask, False, True, mask_type)
        return multi_head_attention(x, x, x, embed_dim, num_heads, *given)[0]

    def feed_forward(x: Any) -> Any:
        hidden = F.linear(x, ffn_weight_1, ffn_bias_1)
        gelu = "tanh" if src.is_cuda else "none"
        return F.linear(F.gelu(hidden, approximate=gelu) if use_gelu else F.relu(hidden), ffn_weight_2, ffn_bias_2)

    if norm_first:
        x = src + attend(first(src))
        return x + feed_forward(second(x))
    x = first(src + attend(src))
    return second(x + feed_forward(x))
