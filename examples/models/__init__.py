"""The models of the demo, by name: each builds a module and its inputs, seeded."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from examples.models.gpt2 import GPT, GPTConfig
from examples.models.resnet import ResNet18

Batch = tuple[tuple[torch.Tensor, ...], dict[str, torch.Tensor]]


@dataclass(frozen=True)
class Case:
    """A model, its inputs for an inference call and for a training call, and the loss of a result."""

    name: str
    build: Callable[[], nn.Module]
    inference: Callable[[], Batch]
    training: Callable[[], Batch]
    loss: Callable[[object], torch.Tensor]
    needs_transformers: bool = False


def _images() -> Batch:
    return (torch.randn(4, 3, 64, 64),), {}


def _ids(vocabulary: int, batch: int = 2, length: int = 64) -> torch.Tensor:
    return torch.randint(0, vocabulary, (batch, length))


def _resnet_loss(result: object) -> torch.Tensor:
    assert isinstance(result, torch.Tensor)
    return nn.functional.cross_entropy(result, torch.arange(result.size(0)))


def _gpt_loss(result: object) -> torch.Tensor:
    assert isinstance(result, tuple)
    return result[1]


def _transformers_loss(result: object) -> torch.Tensor:
    return result.loss  # type: ignore[attr-defined]


def _gpt2_lm() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=4096, n_positions=128, n_embd=256, n_layer=4, n_head=4, use_cache=False,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    return GPT2LMHeadModel(config)


def _bert() -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=4096, hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024,
        max_position_embeddings=128, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return BertForSequenceClassification(config)


def _llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=4096, hidden_size=256, intermediate_size=688, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128, use_cache=False,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def _language_training(vocabulary: int) -> Batch:
    ids = _ids(vocabulary)
    return (), {"input_ids": ids, "labels": ids.clone()}


CASES: dict[str, Case] = {
    case.name: case
    for case in (
        Case("ResNet-18", lambda: ResNet18(classes=100), _images, _images, _resnet_loss),
        Case(
            "GPT (ours)",
            lambda: GPT(GPTConfig()),
            lambda: ((_ids(8192),), {}),
            lambda: ((_ids(8192), _ids(8192)), {}),
            _gpt_loss,
        ),
        Case(
            "GPT2LMHeadModel",
            _gpt2_lm,
            lambda: ((), {"input_ids": _ids(4096)}),
            lambda: _language_training(4096),
            _transformers_loss,
            needs_transformers=True,
        ),
        Case(
            "BertForSequenceClassification",
            _bert,
            lambda: ((), {"input_ids": _ids(4096)}),
            lambda: ((), {"input_ids": _ids(4096), "labels": torch.tensor([0, 1])}),
            _transformers_loss,
            needs_transformers=True,
        ),
        Case(
            "LlamaForCausalLM",
            _llama,
            lambda: ((), {"input_ids": _ids(4096)}),
            lambda: _language_training(4096),
            _transformers_loss,
            needs_transformers=True,
        ),
    )
}


def available() -> list[Case]:
    """The cases that can run here: without transformers, the first two."""
    have = importlib.util.find_spec("transformers") is not None
    return [case for case in CASES.values() if have or not case.needs_transformers]
