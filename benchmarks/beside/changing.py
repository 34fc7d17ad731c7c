"""Models whose inputs change size from call to call, small enough for a page of measurements."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from beside.networks import Basic, ResNet

Call = Callable[..., Any]
TEXTS = ((2, 3), (4, 16), (8, 64), (64, 8), (16, 128), (2, 512), (3, 35), (5, 200))
"""Batch and sequence."""
IMAGES = ((2, 64), (2, 96), (4, 128), (3, 80), (5, 64))
"""Batch and edge."""
PROMPTS = ((2, 7), (3, 9), (2, 12), (5, 4))
TOKENS = 200
_SIZES = dict(vocab_size=128, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128,
              max_position_embeddings=1024)  # fmt: skip


def gpt2() -> nn.Module:
    import transformers

    config = transformers.GPT2Config(vocab_size=128, n_embd=64, n_layer=2, n_head=4, n_positions=1024, resid_pdrop=0.0,
                                     embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=1)  # fmt: skip
    return _seeded(lambda: transformers.GPT2LMHeadModel(config))


def bert() -> nn.Module:
    import transformers

    config = transformers.BertConfig(**_SIZES, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    return _seeded(lambda: transformers.BertForMaskedLM(config))


def llama() -> nn.Module:
    import transformers

    config = transformers.LlamaConfig(**_SIZES, num_key_value_heads=2)
    return _seeded(lambda: transformers.LlamaForCausalLM(config))


def t5() -> nn.Module:
    import transformers

    config = transformers.T5Config(vocab_size=128, d_model=32, d_kv=8, d_ff=64, num_layers=1, num_heads=4,
                                   dropout_rate=0.0, decoder_start_token_id=0)  # fmt: skip
    return _seeded(lambda: transformers.T5ForConditionalGeneration(config))


def resnet() -> nn.Module:
    return _seeded(lambda: ResNet(Basic, (1, 1, 1, 1)))


def _seeded(build: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return build().eval()


def texts(call: Call, cached: bool) -> Iterator[torch.Tensor]:
    """Logits for each size; `cached`: the model has a cache, which is not to be used."""
    for shape in TEXTS:
        yield call(input_ids=_ids(shape), **({"use_cache": False} if cached else {})).logits


def images(call: Call) -> Iterator[torch.Tensor]:
    for batch, edge in IMAGES:
        yield call(torch.randn(batch, 3, edge, edge, generator=torch.Generator().manual_seed(edge)))


def decoded(call: Call) -> Iterator[torch.Tensor]:
    """Token by token, with a cache that grows."""
    from transformers import DynamicCache

    ids, cache = _ids((2, 5)), DynamicCache()
    for _ in range(TOKENS):
        logits = call(input_ids=ids, past_key_values=cache, use_cache=True).logits[:, -1:]
        ids = logits.argmax(-1)
        yield logits


def generated(model: nn.Module, call: Call) -> Iterator[torch.Tensor]:
    """What `generate` makes of prompts of several sizes."""
    model.forward = call  # type: ignore[method-assign]
    for shape in PROMPTS:
        yield model.generate(_ids(shape) + 1, max_new_tokens=12, do_sample=False)


def _ids(shape: tuple[int, int]) -> torch.Tensor:
    return torch.randint(0, 100, shape, generator=torch.Generator().manual_seed(sum(shape)))
