"""Attention as programs write it: functions of query, key and value (batch, heads, length, width) and a mask."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

Attention = Callable[..., torch.Tensor]
BATCH, HEADS, LENGTH, WIDTH = 2, 4, 16, 8
LOW = torch.finfo(torch.float32).min


def qkv(length: int = LENGTH, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(BATCH, HEADS, length, WIDTH, dtype=dtype, requires_grad=True) for _ in range(3)]


def plain(q: Any, k: Any, v: Any) -> torch.Tensor:
    return torch.softmax(q @ k.transpose(-2, -1), -1) @ v


def scaled_query(q: Any, k: Any, v: Any) -> torch.Tensor:
    return torch.matmul(F.softmax(torch.matmul(q * WIDTH**-0.5, k.mT), dim=-1), v)


def divided(q: Any, k: Any, v: Any) -> torch.Tensor:
    weights = torch.matmul(q, k.permute(0, 1, 3, 2)) / math.sqrt(WIDTH)
    return torch.matmul(torch.nn.Softmax(dim=-1)(weights), v)


def temperature(q: Any, k: Any, v: Any) -> torch.Tensor:
    """As in Swin v2: cosines with a scale for each head."""
    scale = torch.linspace(1, 2, HEADS, dtype=q.dtype).view(HEADS, 1, 1)
    return ((F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT) * scale).softmax(3) @ v


def einsums(q: Any, k: Any, v: Any) -> torch.Tensor:
    """As in x-transformers."""
    scores = torch.einsum("b h i d, b h j d -> b h i j", q, k) * 0.125
    return torch.einsum("bhij,bhjd->bihd", scores.softmax(dim=-1, dtype=torch.float32).to(q.dtype), v)


def channels_first(q: Any, k: Any, v: Any) -> torch.Tensor:
    """As in guided diffusion: one head, channels before positions."""
    q, k, v = (x.reshape(BATCH * HEADS, LENGTH, WIDTH).mT.contiguous() for x in (q, k, v))
    weights = torch.softmax(torch.einsum("bct,bcs->bts", q * 0.5, k * 0.5).float(), dim=-1).type(q.dtype)
    return torch.einsum("bts,bcs->bct", weights, v)


def flat(q: Any, k: Any, v: Any) -> torch.Tensor:
    """As in fairseq: batch and heads are one dimension."""
    q, k, v = (x.reshape(BATCH * HEADS, LENGTH, WIDTH) for x in (q, k, v))
    return torch.bmm(F.dropout(F.softmax(torch.bmm(q, k.transpose(1, 2)), -1), 0.1, False), v).view(2, 4, 16, 8)


def matrices(q: Any, k: Any, v: Any) -> torch.Tensor:
    return torch.softmax(q[0, 0] @ k[0, 0].T / 3, dim=1) @ v[0, 0]


def upcast_products(q: Any, k: Any, v: Any) -> torch.Tensor:
    """As in GPT-J."""
    weights = torch.matmul(q.to(torch.float32), k.to(torch.float32).transpose(-1, -2)) / 3.0
    return torch.matmul(F.softmax(weights, dim=-1).to(v.dtype), v)


def tril(q: Any, k: Any, v: Any) -> torch.Tensor:
    scores = q @ k.mT * 0.3
    keep = torch.tril(torch.ones(LENGTH, LENGTH)).view(1, 1, LENGTH, LENGTH)
    return F.softmax(scores.masked_fill(keep == 0, float("-inf")), dim=-1) @ v


def positions(q: Any, k: Any, v: Any) -> torch.Tensor:
    scores, place = q @ k.mT, torch.arange(LENGTH)
    return torch.where(place[None, :] <= place[:, None], scores, torch.full_like(scores, -1e9)).softmax(-1) @ v


def triangle_added(q: Any, k: Any, v: Any) -> torch.Tensor:
    return ((q @ k.mT) + torch.triu(torch.full((LENGTH, LENGTH), float("-inf"), dtype=q.dtype), 1)).softmax(-1) @ v


def assigned(q: Any, k: Any, v: Any) -> torch.Tensor:
    scores = torch.baddbmm(
        torch.empty(8, 16, 16, dtype=q.dtype), *(x.flatten(0, 1) for x in (q, k.mT)), beta=0, alpha=0.25
    )
    scores[:, ~torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()] = torch.finfo(q.dtype).min
    return torch.bmm(scores.softmax(-1), v.flatten(0, 1)).unflatten(0, (BATCH, HEADS))


PLAIN: tuple[Attention, ...] = (
    plain, scaled_query, divided, temperature, einsums, channels_first, flat, matrices, upcast_products,
)  # fmt: skip
CAUSAL: tuple[Attention, ...] = (tril, positions, triangle_added, assigned)


def nano_gpt(q: Any, k: Any, v: Any, mask: Any) -> torch.Tensor:
    weights = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
    return F.dropout(F.softmax(weights.masked_fill(mask[:, :, :16, :16] == 0, float("-inf")), dim=-1), 0.0) @ v


def t5(q: Any, k: Any, v: Any, mask: Any) -> torch.Tensor:
    scores = torch.matmul(q, k.transpose(3, 2))
    scores += mask
    return torch.matmul(F.softmax(scores.float(), dim=-1).type_as(scores), v)


def bart(q: Any, k: Any, v: Any, mask: Any) -> torch.Tensor:
    q, k, v = (x.reshape(BATCH * HEADS, -1, WIDTH) for x in (q, k, v))
    weights = torch.bmm(q, k.transpose(1, 2)).view(BATCH, HEADS, LENGTH, LENGTH) + mask
    weights = F.softmax(weights.view(BATCH * HEADS, LENGTH, LENGTH), dim=-1)
    return torch.bmm(weights, v).view(BATCH, HEADS, LENGTH, WIDTH).transpose(1, 2).reshape(BATCH, LENGTH, -1)


def gpt2(q: Any, k: Any, v: Any, mask: Any) -> torch.Tensor:
    weights = torch.matmul(q, k.transpose(-1, -2))
    weights = weights / torch.full([], v.size(-1) ** 0.5, dtype=weights.dtype)
    low = torch.full([], torch.finfo(weights.dtype).min, dtype=weights.dtype)
    return torch.matmul(torch.where(mask.to(torch.bool), weights, low).softmax(dim=-1).type(v.dtype), v)


def bloom(q: Any, k: Any, v: Any, mask: Any) -> torch.Tensor:
    alibi = torch.linspace(-1, 0, 8 * LENGTH, dtype=q.dtype).view(8, 1, LENGTH)
    q, k, v = (x.reshape(BATCH * HEADS, -1, WIDTH) for x in (q, k, v))
    scores = alibi.baddbmm(batch1=q, batch2=k.mT, beta=1.0, alpha=0.2).view(BATCH, HEADS, LENGTH, LENGTH)
    return torch.bmm(F.softmax(scores + mask, -1).view(8, LENGTH, LENGTH), v).view(BATCH, HEADS, LENGTH, WIDTH)


def in_place(q: Any, k: Any, v: Any, mask: Any) -> torch.Tensor:
    scores = torch.einsum("bhid,bhjd->bhij", q, k).mul_(0.125)
    scores.masked_fill_((mask == 0).expand_as(scores), -1e9)
    scores += 1
    return torch.einsum("bhij,bhjd->bhid", scores.softmax(-1), v)


ADDED: tuple[Attention, ...] = (t5, bart, bloom)
"""With a mask that is added to the scores."""
FILLED: tuple[Attention, ...] = (nano_gpt, gpt2, in_place)
"""With a mask that is zero where a key is masked."""
