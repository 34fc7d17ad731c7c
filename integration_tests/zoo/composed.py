"""Models whose sizes depend on each other, or that are made of several: small configurations and inputs by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from integration_tests.zoo import shrunken

_WORDS, _BATCH, _LENGTH = 64, 2, 12


def longcat() -> nn.Module:
    from transformers import LongcatFlashConfig, LongcatFlashForCausalLM

    config = LongcatFlashConfig(
        vocab_size=_WORDS, hidden_size=32, num_layers=2, num_attention_heads=4, num_key_value_heads=4,
        ffn_hidden_size=64, q_lora_rank=16, kv_lora_rank=16, qk_nope_head_dim=8, qk_rope_head_dim=8, head_dim=8,
        v_head_dim=8, qk_head_dim=16, moe_topk=2, n_routed_experts=4, zero_expert_num=2, expert_ffn_hidden_size=32,
        max_position_embeddings=64,
    )  # fmt: skip
    return LongcatFlashForCausalLM(config)  # type: ignore[no-any-return]


def switch() -> nn.Module:
    return shrunken.build("SwitchTransformersForConditionalGeneration", decoder_start_token_id=0)


def xmod() -> nn.Module:
    return shrunken.build("XmodForMaskedLM", default_language="en_XX", languages=["en_XX"])


def autoformer() -> nn.Module:
    from transformers import AutoformerConfig, AutoformerForPrediction

    config = AutoformerConfig(
        prediction_length=6, context_length=12, lags_sequence=[1, 2, 3], num_time_features=2, d_model=32,
        encoder_layers=2, decoder_layers=2, encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=32,
        decoder_ffn_dim=32, moving_average=5,
    )  # fmt: skip
    return AutoformerForPrediction(config)  # type: ignore[no-any-return]


def xcodec() -> nn.Module:
    from transformers import DacConfig, HubertConfig, XcodecConfig, XcodecModel

    semantic = HubertConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, conv_dim=(32,) * 7
    )
    acoustic = DacConfig(
        encoder_hidden_size=8, hidden_size=32, decoder_hidden_size=64, downsampling_ratios=[8, 5, 4, 2],
        upsampling_ratios=[8, 5, 4, 2], n_codebooks=2, codebook_size=16, codebook_dim=8,
    )  # fmt: skip
    config = XcodecConfig(semantic_model_config=semantic, acoustic_model_config=acoustic, codebook_size=16)
    return XcodecModel(config)  # type: ignore[no-any-return]


def musicgen() -> nn.Module:
    from transformers import (
        EncodecConfig,
        MusicgenConfig,
        MusicgenDecoderConfig,
        MusicgenForConditionalGeneration,
        T5Config,
    )

    text = T5Config(vocab_size=_WORDS, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4)
    audio = EncodecConfig(hidden_size=16, num_filters=4, codebook_size=16, codebook_dim=16, num_lstm_layers=1,
                          upsampling_ratios=[4, 2])  # fmt: skip
    decoder = MusicgenDecoderConfig(
        vocab_size=16, max_position_embeddings=64, num_hidden_layers=2, ffn_dim=64, num_attention_heads=4,
        hidden_size=32, num_codebooks=2, pad_token_id=None, bos_token_id=None,
    )  # fmt: skip
    parts = {"text_encoder": text, "audio_encoder": audio, "decoder": decoder}
    config = MusicgenConfig(**{name: part.to_dict() for name, part in parts.items()})
    return MusicgenForConditionalGeneration(config)  # type: ignore[no-any-return]


def qwen_vl() -> nn.Module:
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    text = dict(
        vocab_size=128, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, rope_scaling={"type": "mrope", "mrope_section": [1, 1, 2]}, bos_token_id=1,
        eos_token_id=2,
    )  # fmt: skip
    vision = dict(depth=2, hidden_size=32, intermediate_size=64, num_heads=4, out_hidden_size=32, window_size=56,
                  fullatt_block_indexes=[1])  # fmt: skip
    config = Qwen2_5_VLConfig(
        text_config=text, vision_config=vision, image_token_id=100, video_token_id=101, vision_start_token_id=102,
        vision_end_token_id=103,
    )  # fmt: skip
    return Qwen2_5_VLForConditionalGeneration(config)  # type: ignore[no-any-return]


def _words(model: nn.Module) -> dict[str, Any]:
    words = torch.randint(0, _WORDS, (_BATCH, _LENGTH))
    return {"input_ids": words, "labels": words.clone()}


def _series(model: nn.Module) -> dict[str, Any]:
    config: Any = model.config
    past = config.context_length + max(config.lags_sequence)
    return {
        "past_values": torch.randn(_BATCH, past),
        "past_time_features": torch.randn(_BATCH, past, config.num_time_features),
        "past_observed_mask": torch.ones(_BATCH, past),
        "future_values": torch.randn(_BATCH, config.prediction_length),
        "future_time_features": torch.randn(_BATCH, config.prediction_length, config.num_time_features),
    }


def _sound(model: nn.Module) -> dict[str, Any]:
    return {"input_values": torch.randn(1, 1, 6400)}


def _music(model: nn.Module) -> dict[str, Any]:
    return {"input_ids": torch.randint(0, _WORDS, (_BATCH, 8)), "decoder_input_ids": torch.randint(0, 16, (4, 6))}


def _image_in_text(model: nn.Module) -> dict[str, Any]:
    """An image of four by four patches, merged by four, in a sentence."""
    words = torch.randint(3, 90, (1, 24))
    words[0, 4], words[0, 5:9] = 102, 100
    return {"input_ids": words, "pixel_values": torch.randn(16, 3 * 2 * 14 * 14),
            "image_grid_thw": torch.tensor([[1, 4, 4]])}  # fmt: skip


CASES: dict[str, tuple[str, Callable[[], nn.Module], Callable[[nn.Module], dict[str, Any]]]] = {
    "XmodForMaskedLM": ("encoder", xmod, shrunken.inputs_of),
    "LongcatFlashForCausalLM": ("mixture of experts", longcat, _words),
    "SwitchTransformersForConditionalGeneration": ("mixture of experts", switch, shrunken.inputs_of),
    "AutoformerForPrediction": ("encoder-decoder", autoformer, _series),
    "XcodecModel": ("audio and speech", xcodec, _sound),
    "MusicgenForConditionalGeneration": ("audio and speech", musicgen, _music),
    "Qwen2_5_VLForConditionalGeneration": ("multimodal", qwen_vl, _image_in_text),
}
"""By class name: family, model, inputs."""
