"""Any model class of transformers, small: its default configuration with sizes replaced by name, and inputs to match.

>>> model = build("MixtralForCausalLM")                # doctest: +SKIP
>>> sorted(inputs_of(model))                           # doctest: +SKIP
['attention_mask', 'input_ids', 'labels']
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

VOCABULARY = 128
BATCH, LENGTH = 2, 12

_SIZES: tuple[tuple[str, Any], ...] = (
    (r".*vocab_size|.*_vocab|num_embeddings", VOCABULARY),
    (
        r"(\w+_)?(hidden|embedding|attention_hidden|projection|out_hidden|classifier_proj)_(size|dim|channels)"
        r"|d_model|n_embd|(\w+_)?embed_dim|dim|emb_dim|proj_dim|output_dim|d_embed|lru_width|attention_width",
        32,
    ),
    (r"(\w+_)*(intermediate|ffn_hidden)_size|(\w+_)?ffn_dim|d_ff|d_inner|n_inner|dim_feedforward|mlp_dim", 64),
    (r"(\w+_)?num_hidden_layers|(num|n|encoder|decoder|text)_layers?|num_(encoder|decoder)_layers|depth", 2),
    (r"(\w+_)?(num_)?attention_heads|n_heads?|num_heads", 4),
    (r"(\w+_)?num_key_value_heads|n_head_kv|num_kv_heads|num_experts_per_tok(en)?|moe_topk|moe_k|moe_top_k", 2),
    (r"(\w+_)?head_dim|d_kv|attention_head_size|kv_channels|d_head|mamba_d_head|qk_rope_head_dim", 8),
    (r"(q|kv)_lora_rank", 16),
    (r"num_(local_)?experts|n_routed_experts|moe_num_experts", 4),
    (r"n_group|topk_group|first_k_dense_replace", 1),
    (r"max_position_embeddings|n_positions|max_(source|target)_positions|n_ctx|max_seq\w*|seq_length", 64),
    (r"image_size", 32),
    (r"patch_size|sliding_window|window_size|attention_window", 8),
    (r"num_mel_bins|n_mels", 16),
    (r"num_queries", 6),
    (r"num_frames|num_codebooks|num_feat_extract_layers", 2),
    (r"codebook_size", 32),
    (r"conv_dim", [16, 16]),
    (r"conv_kernel", [10, 3]),
    (r"conv_stride", [5, 2]),
    (r"num_conv_pos_embeddings|mamba_(n|num)_heads|ssm_num_heads|mamba_d_state|ssm_state_size|state_size", 8),
    (r"(mamba_)?chunk_size", 8),
    (r"num_conv_pos_embedding_groups", 4),
    (r"apply_spec_augment|use_timm_backbone|use_pretrained_backbone", False),
    (r"layerdrop", 0.0),
)
_RULES = tuple((re.compile(pattern), size) for pattern, size in _SIZES)
_PER_LAYER = frozenset({"layer_types", "mlp_layer_types", "layers_block_type", "no_rope_layers"})
"""Lists with an item for each layer of the large model: made again from the number of layers."""
_NOT_SETTINGS = _PER_LAYER | {"transformers_version", "dtype", "architectures", "model_type", "id2label", "label2id"}
_TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1, "sep_token_id": 2,
           "cls_token_id": 1}  # fmt: skip


def build(class_name: str, **settings: Any) -> nn.Module:
    """A freshly initialised small model. transformers must be importable."""
    import transformers

    transformers.logging.set_verbosity_error()
    model_class = getattr(transformers, class_name)
    config_class = model_class.config_class
    shrunken = _shrink(config_class().to_dict(), [10])
    model: nn.Module = model_class(config_class(**{**shrunken, **settings}))
    return model


def inputs_of(model: nn.Module) -> dict[str, Any]:
    """Inputs by the names of forward's parameters, with labels where it takes them."""
    parameters = inspect.signature(model.forward).parameters
    made = {name: make(model) for name, make in _INPUTS.items() if name in parameters}
    if "input_ids" not in made:
        made.pop("attention_mask", None)
    if "labels" in parameters:
        made["labels"] = _labels(model)
    elif "decoder_input_ids" in parameters:
        made["decoder_input_ids"] = _tokens(model)
    return made


def _shrink(settings: Mapping[str, Any], next_token: list[int]) -> dict[str, Any]:
    """`next_token` counts the special tokens of the configuration and its parts."""
    small: dict[str, Any] = {}
    for name, value in settings.items():
        if name in _NOT_SETTINGS or name.startswith("_"):
            continue
        if isinstance(value, dict) and (name.endswith("config") or "model_type" in value):
            kind = {"model_type": value["model_type"]} if "model_type" in value else {}
            small[name] = _shrink(value, next_token) | kind
        elif name.endswith(("token_id", "token_index")):
            small[name] = _token(name, value, next_token)
        else:
            small[name] = _size(name, value)
    return small


def _token(name: str, value: Any, next_token: list[int]) -> Any:
    if name in _TOKENS:
        return _TOKENS[name] if value is not None or name == "decoder_start_token_id" else None
    if value is None or isinstance(value, list | tuple):
        return value and 2
    next_token[0] += 1
    return next_token[0]


def _size(name: str, value: Any) -> Any:
    for pattern, size in _RULES:
        if value is not None and pattern.fullmatch(name):
            many = isinstance(value, list | tuple) and not isinstance(size, list)
            return [size] * (4 if len(value) == 4 else min(len(value), 2)) if many else size
    return value


def _tokens(model: nn.Module) -> torch.Tensor:
    return torch.randint(20, VOCABULARY, (BATCH, LENGTH))


def _image_size(config: Any) -> tuple[int, int]:
    for part in (config, getattr(config, "vision_config", None)):
        size = getattr(part, "image_size", None)
        if size:
            return (size, size) if isinstance(size, int) else tuple(size)
    return 32, 32


def _images(model: nn.Module) -> torch.Tensor:
    config = model.config
    channels = getattr(config, "num_channels", None) or getattr(
        getattr(config, "vision_config", None), "num_channels", 3
    )
    frames = (config.num_frames,) if "Video" in type(model).__name__ else ()
    return torch.randn(BATCH, *frames, channels, *_image_size(config))


def _sound(model: nn.Module) -> torch.Tensor:
    config = model.config
    spectrogram = hasattr(config, "num_mel_bins") and hasattr(config, "max_length")
    return torch.randn(BATCH, config.max_length, config.num_mel_bins) if spectrogram else torch.randn(BATCH, 800)


def _spectrogram(model: nn.Module) -> torch.Tensor:
    config = model.config
    bins = getattr(config, "num_mel_bins", 16)
    if hasattr(config, "max_source_positions"):
        return torch.randn(BATCH, bins, 2 * config.max_source_positions)
    return torch.randn(BATCH, 32, getattr(config, "feature_projection_input_dim", bins))


def _labels(model: nn.Module) -> Any:
    name, size = type(model).__name__, _image_size(model.config)
    if "Classification" in name:
        return torch.randint(0, 2, (BATCH,))
    if "Segmentation" in name:
        return torch.randint(0, 2, (BATCH, *size))
    if "Detection" in name:
        return [dict(class_labels=torch.tensor([0, 1]), boxes=torch.rand(2, 4) * 0.4 + 0.3) for _ in range(BATCH)]
    return _tokens(model)


_INPUTS = {
    "input_ids": _tokens,
    "attention_mask": lambda model: torch.ones(BATCH, LENGTH, dtype=torch.long),
    "pixel_values": _images,
    "input_values": _sound,
    "input_features": _spectrogram,
    "return_loss": lambda model: True,
}
