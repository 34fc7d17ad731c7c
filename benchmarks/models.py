"""Thirteen models in inference and training, float32 and bfloat16, small and larger batches: three engines in one run.

    python benchmarks/models.py [--quick] [--no-peer] [--page] [NAME ...]

The sizes suit a machine of two cores. Prints a line for each case (see docs/performance.md for what the figures mean);
`--page` writes that page's section.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from beside.case import Case, Program, network
from beside.networks import DLRM, Basic, Bottleneck, Mixer, Recurrent, ResNet, UNet, convnext, mobilenet
from beside.run import main
from torch import nn

Inputs = Callable[[int], tuple[Any, ...]]
TEXT: dict[str, Any] = dict(vocab_size=2048, hidden_size=128, num_hidden_layers=4, num_attention_heads=4,
                            intermediate_size=512, max_position_embeddings=128)  # fmt: skip


class Logits(nn.Module):
    """A model of transformers that gives its first tensor alone."""

    def __init__(self, model: nn.Module, **given: Any) -> None:
        super().__init__()
        self.model, self.given = model, given

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.model(inputs, **self.given, return_dict=False)[0]


def transformer(family: str, model: str, **settings: Any) -> Callable[[], nn.Module]:
    """A class of transformers with its configuration; without dropout, so that engines can be compared."""

    def build() -> nn.Module:
        import transformers

        config = getattr(transformers, f"{family}Config")(**settings)
        for name in ("hidden_dropout_prob", "attention_probs_dropout_prob", "resid_pdrop", "embd_pdrop", "attn_pdrop"):
            if hasattr(config, name):
                setattr(config, name, 0.0)
        return Logits(getattr(transformers, model)(config), **({"use_cache": False} if hasattr(config, "use_cache") and
                                                               family in ("GPT2", "Llama") else {}))  # fmt: skip

    return build


class Pair(nn.Module):
    """T5: the same ids for the encoder and the decoder."""

    def __init__(self) -> None:
        super().__init__()
        from transformers import T5Config, T5ForConditionalGeneration

        config = T5Config(vocab_size=2048, d_model=128, d_kv=32, d_ff=512, num_layers=2, num_heads=4, dropout_rate=0.0)
        self.model = T5ForConditionalGeneration(config)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=ids, decoder_input_ids=ids, use_cache=False, return_dict=False)[0]


def images(size: int) -> Inputs:
    return lambda batch: (torch.randn(batch, 3, size, size),)


def ids(batch: int) -> tuple[torch.Tensor]:
    return (torch.randint(0, 1000, (batch, 64)),)


def clicks(batch: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(16 * batch, 13), torch.randint(0, 1000, (16 * batch, 8, 4))


MODELS: dict[str, tuple[Callable[[], nn.Module], Inputs]] = {
    "ResNet-18": (lambda: ResNet(Basic, (2, 2, 2, 2)), images(64)),
    "ResNet-50": (lambda: ResNet(Bottleneck, (3, 4, 6, 3)), images(64)),
    "MobileNet-like": (mobilenet, images(64)),
    "ConvNeXt-like": (convnext, images(64)),
    "UNet": (UNet, images(32)),
    "ViT": (transformer("ViT", "ViTModel", image_size=64, patch_size=8, **{k: v for k, v in TEXT.items() if k not in
                        ("vocab_size", "max_position_embeddings")}), images(64)),
    "GPT-2": (transformer("GPT2", "GPT2LMHeadModel", vocab_size=2048, n_embd=128, n_layer=4, n_head=4, n_positions=128),
              ids),
    "BERT": (transformer("Bert", "BertForMaskedLM", **TEXT), ids),
    "Llama-like": (transformer("Llama", "LlamaForCausalLM", **(TEXT | {"num_key_value_heads": 2})), ids),
    "T5": (Pair, ids),
    "LSTM": (Recurrent, ids),
    "DLRM-like": (DLRM, clicks),
    "MLP-mixer": (Mixer, images(64)),
}  # fmt: skip


def case(name: str, training: bool, batch: int, autocast: bool) -> Case:
    """A model in one mode."""
    build, inputs = MODELS[name]
    mode, dtype = "training" if training else "inference", "bf16" if autocast else "f32"

    def program() -> Program:
        return network(build(), *inputs(batch), backward=training, autocast=autocast)

    return Case(f"{name}, {mode}, {dtype}, batch {batch}", program)


CASES = tuple(
    case(name, training, batch, autocast)
    for autocast, batch in ((False, 1), (False, 8), (True, 8))
    for name in MODELS
    for training in (False, True)
)
QUICK = frozenset(f"{name}, {mode}, f32, batch 8" for name in ("ResNet-18", "GPT-2", "MLP-mixer")
                  for mode in ("inference", "training"))  # fmt: skip

if __name__ == "__main__":
    main("Models", CASES, QUICK, __doc__)
