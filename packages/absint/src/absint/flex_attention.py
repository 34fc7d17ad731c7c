"""The operators of FlexAttention (`stagewire.flex_attention`), and what they mean in operators of ATen.

All scores are computed, and stand in memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from absint.forms.attention import attention, for_each_head
from absint.forms.products import matmul
from stagewire.flex_attention import read_function

LN2 = math.log(2.0)
Scores = Callable[[Tensor], Tensor]
"""From all scores to what stands in their place."""


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: Scores | None,
    mask_mod: Scores | None,
    scale: float,
    plain: Callable[..., Tensor] = scaled_dot_product_attention,
) -> tuple[Tensor, Tensor, Tensor]:
    """The forward. Without a `score_mod` it is attention as torch has it, and the scores are for the statistics."""
    key, value = (for_each_head(each, query) for each in (key, value))
    scores = _scores(query, key, scale)
    kept = None if mask_mod is None else mask_mod(scores)
    changed = scores if score_mod is None else score_mod(scores)
    if kept is not None:
        changed = changed.masked_fill(~kept, -math.inf)
    if score_mod is None:
        result = plain(query, key, value, kept, scale=scale)
    else:
        result = matmul(torch.ops.aten._safe_softmax(changed, -1).to(query.dtype), value.to(query.dtype))
    return _laid_out_as(result, query), changed.logsumexp(-1) / LN2, changed.amax(-1) / LN2


def _laid_out_as(result: Tensor, query: Tensor) -> Tensor:
    """In memory of the same order of dimensions."""
    steps = query.stride()
    if not all(isinstance(step, int) for step in steps):
        return result
    order = sorted(range(4), key=lambda dim: -steps[dim])
    return result.permute(order).contiguous().permute([order.index(dim) for dim in range(4)])


def precise(dtype: torch.dtype) -> torch.dtype:
    """The dtype of the scores."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def _scores(query: Tensor, key: Tensor, scale: float) -> Tensor:
    dtype = precise(query.dtype)
    return matmul(query.to(dtype), key.to(dtype).transpose(-2, -1)) * scale


def _forward(
    query: Tensor, key: Tensor, value: Tensor, blocks: list[Tensor], captured: list[Tensor], functions: list[str],
    scale: float, block_size: list[int], forms: list[str],
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    score_mod, mask_mod = (_called(text, captured) for text in functions)
    with torch.autocast(query.device.type, enabled=False):
        return attend(query, key, value, score_mod, mask_mod, scale, attention)


def _backward(
    query: Tensor, key: Tensor, value: Tensor, blocks: list[Tensor], captured: list[Tensor], functions: list[str],
    scale: float, block_size: list[int], forms: list[str], grad: Tensor, logsumexp: Tensor, delta: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    score_mod, mask_mod, gradient = (_called(text, captured) for text in functions)
    dtype = precise(query.dtype)
    keys, values = (for_each_head(each, query).to(dtype) for each in (key, value))
    grad, scores = grad.to(dtype), _scores(query, keys, scale)
    changed = scores if score_mod is None else score_mod(scores)
    rows = logsumexp.masked_fill(logsumexp == -math.inf, 0.0).unsqueeze(-1)
    weights = torch.exp2(changed / LN2 - rows)
    if mask_mod is not None:
        weights = weights.masked_fill(~mask_mod(scores), 0.0)
    found = weights * (matmul(grad, values.transpose(-2, -1)) - delta.unsqueeze(-1))
    found = (found if gradient is None else gradient(scores, found)) * scale
    of_key, of_value = (
        each.unflatten(1, (key.shape[1], -1)).sum(2)
        for each in (matmul(found.transpose(-2, -1), query.to(dtype)), matmul(weights.transpose(-2, -1), grad))
    )
    return matmul(found, keys).to(query.dtype), of_key.to(key.dtype), of_value.to(value.dtype)


def _called(text: str, captured: Sequence[Tensor]) -> Any:
    """The function that a text stands for; None for none."""
    if not text:
        return None

    def call(scores: Tensor, *more: Tensor) -> Tensor:
        from absint.functions import custom_functions, read_sizes, run_graph  # which resolve names, this module's too

        graph, functions = read_function(text)
        inputs = (scores, *captured, *more)
        size_of = read_sizes(graph, inputs, {})
        return run_graph(graph, inputs, custom_functions(functions, size_of), size_of)[0]  # type: ignore[no-any-return]

    return call


_CALL = (
    "Tensor query, Tensor key, Tensor value, Tensor[] blocks, Tensor[] captured, str[] functions, float scale, "
    "int[] block_size, str[] forms"
)
LIBRARY = torch.library.Library("stagefold", "FRAGMENT")
for _name, _more, _meaning in (
    ("flex_attention", "", _forward),
    ("flex_attention_backward", ", Tensor grad, Tensor logsumexp, Tensor delta", _backward),
):
    LIBRARY.define(f"{_name}({_CALL}{_more}) -> (Tensor, Tensor, Tensor)")
    LIBRARY.impl(_name, _meaning, "CompositeImplicitAutograd")
