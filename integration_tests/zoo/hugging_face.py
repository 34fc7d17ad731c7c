"""Small models of the transformers package (random weights), with makers of their inputs.

Dropout is on in training wherever the default configuration has it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

VOCABULARY = 128
BATCH, LENGTH = 2, 12
TEXT: dict[str, Any] = dict(
    vocab_size=VOCABULARY,
    hidden_size=32,
    num_hidden_layers=1,
    num_attention_heads=4,
    intermediate_size=64,
    max_position_embeddings=32,
)
VISION: dict[str, Any] = dict(
    hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=64, image_size=32, patch_size=8
)
DECODER: dict[str, Any] = dict(TEXT, num_key_value_heads=2)
PAIR: dict[str, Any] = dict(
    vocab_size=VOCABULARY, d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=4,
    decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    decoder_start_token_id=1,
)  # fmt: skip

Inputs = Callable[[], dict[str, Any]]


def tokens() -> torch.Tensor:
    return torch.randint(3, VOCABULARY, (BATCH, LENGTH))


def text() -> dict[str, Any]:
    """Tokens of two sequences, the second one shorter."""
    mask = torch.ones(BATCH, LENGTH, dtype=torch.long)
    mask[1, 9:] = 0
    return dict(input_ids=tokens(), attention_mask=mask)


def labelled() -> dict[str, Any]:
    return dict(text(), labels=tokens())


def unmasked() -> dict[str, Any]:
    return dict(input_ids=tokens(), labels=tokens())


def images() -> dict[str, Any]:
    return dict(pixel_values=torch.randn(BATCH, 3, 32, 32))


def classes() -> dict[str, Any]:
    return dict(images(), labels=torch.randint(0, 2, (BATCH,)))


def image_and_text() -> dict[str, Any]:
    return dict(images(), input_ids=tokens(), return_loss=True)


def speech() -> dict[str, Any]:
    return dict(input_features=torch.randn(BATCH, 16, 32), labels=tokens())


def sound() -> dict[str, Any]:
    return dict(input_values=torch.randn(BATCH, 400))


SETTINGS: dict[str, tuple[str, dict[str, Any], Inputs]] = {
    "albert": ("AlbertModel", dict(TEXT, embedding_size=16), text),
    "bart": ("BartForConditionalGeneration", dict(PAIR, max_position_embeddings=32), unmasked),
    "bert": ("BertForMaskedLM", TEXT, labelled),
    "clip": (
        "CLIPModel",
        dict(
            text_config=dict(TEXT, projection_dim=16, eos_token_id=2),
            vision_config=dict(VISION, projection_dim=16),
            projection_dim=16,
        ),
        image_and_text,
    ),
    "convnext": (
        "ConvNextForImageClassification",
        dict(num_stages=2, hidden_sizes=[16, 32], depths=[1, 1], image_size=32),
        classes,
    ),
    "deberta-v2": (
        "DebertaV2ForMaskedLM",
        dict(TEXT, relative_attention=True, position_buckets=8, pos_att_type=["p2c", "c2p"], type_vocab_size=0),
        labelled,
    ),
    "deit": ("DeiTForImageClassification", VISION, classes),
    "distilbert": (
        "DistilBertForMaskedLM",
        dict(vocab_size=VOCABULARY, dim=32, n_layers=1, n_heads=4, hidden_dim=64),
        labelled,
    ),
    "electra": ("ElectraForPreTraining", dict(TEXT, embedding_size=16), text),
    "falcon": (
        "FalconForCausalLM",
        dict(vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=1, num_attention_heads=4),
        unmasked,
    ),
    "gemma": ("GemmaForCausalLM", dict(DECODER, head_dim=8), unmasked),
    "gpt2": (
        "GPT2LMHeadModel",
        dict(vocab_size=VOCABULARY, n_embd=32, n_layer=1, n_head=4, n_positions=32),
        unmasked,
    ),
    "gpt-neo": (
        "GPTNeoForCausalLM",
        dict(
            vocab_size=VOCABULARY, hidden_size=32, num_layers=2, attention_types=[[["global", "local"], 1]],
            num_heads=4, intermediate_size=64, max_position_embeddings=32, window_size=4,
        ),
        unmasked,
    ),
    "gpt-neox": ("GPTNeoXForCausalLM", dict(TEXT, hidden_dropout=0.1), unmasked),
    "llama": ("LlamaForCausalLM", DECODER, labelled),
    "mistral": ("MistralForCausalLM", dict(DECODER, sliding_window=6), unmasked),
    "opt": (
        "OPTForCausalLM",
        dict(
            vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=1, ffn_dim=64, num_attention_heads=4,
            max_position_embeddings=32, word_embed_proj_dim=32,
        ),
        labelled,
    ),
    "phi": ("PhiForCausalLM", dict(TEXT, resid_pdrop=0.1), unmasked),
    "qwen2": ("Qwen2ForCausalLM", DECODER, unmasked),
    "resnet": (
        "ResNetForImageClassification",
        dict(embedding_size=16, hidden_sizes=[16, 32], depths=[1, 1], layer_type="basic"),
        classes,
    ),
    "roberta": ("RobertaForMaskedLM", TEXT, unmasked),
    "swin": (
        "SwinForImageClassification",
        dict(image_size=32, patch_size=4, embed_dim=16, depths=[2], num_heads=[2], window_size=4),
        classes,
    ),
    "t5": (
        "T5ForConditionalGeneration",
        dict(
            vocab_size=VOCABULARY, decoder_start_token_id=0, pad_token_id=0, d_model=32, d_kv=8, d_ff=64,
            num_layers=1, num_heads=4,
        ),
        unmasked,
    ),
    "vit": ("ViTForImageClassification", VISION, classes),
    "wav2vec2": (
        "Wav2Vec2Model",
        dict(
            {key: value for key, value in TEXT.items() if key != "max_position_embeddings"}, conv_dim=(16, 16),
            conv_stride=(5, 2), conv_kernel=(10, 3), num_feat_extract_layers=2, num_conv_pos_embeddings=8,
            num_conv_pos_embedding_groups=4, apply_spec_augment=False, layerdrop=0.0,
        ),
        sound,
    ),
    "whisper": (
        "WhisperForConditionalGeneration",
        dict(PAIR, num_mel_bins=16, max_source_positions=16, max_target_positions=32, apply_spec_augment=False),
        speech,
    ),
    "xlnet": (
        "XLNetModel",
        dict(vocab_size=VOCABULARY, d_model=32, n_layer=1, n_head=4, d_inner=64),
        lambda: dict(input_ids=tokens()),
    ),
}  # fmt: skip


def build(name: str) -> nn.Module:
    """The model called `name`, freshly initialised. transformers must be importable."""
    import transformers

    transformers.logging.set_verbosity_error()
    class_name, settings, _ = SETTINGS[name]
    model_class = getattr(transformers, class_name)
    model: nn.Module = model_class(model_class.config_class(**settings))
    return model
