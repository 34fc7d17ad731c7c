"""Greedy decoding step by step, with a cache that grows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers


def decode(step: Callable[..., Any], tokens: int) -> torch.Tensor:
    """The logits of each new token of two texts; `step` is a language model, or what was made of one."""
    ids, cache, seen = torch.arange(10).view(2, 5), transformers.DynamicCache(), []
    with torch.no_grad():
        for _ in range(tokens):
            logits = step(input_ids=ids, past_key_values=cache, use_cache=True).logits[:, -1:]
            ids = logits.argmax(-1)
            seen.append(logits)
    return torch.cat(seen, 1)
