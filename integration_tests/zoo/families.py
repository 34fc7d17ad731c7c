"""The model classes of the table, by family: those described in `hugging_face` and `composed`, and shrunken ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from integration_tests.zoo import composed, hugging_face, shrunken


@dataclass(frozen=True)
class Case:
    """A model class of a family, how to make it and inputs for it."""

    family: str
    class_name: str
    build: Callable[[], nn.Module]
    inputs: Callable[[nn.Module], dict[str, Any]]


_DESCRIBED = {
    "encoder": ("albert", "bert", "deberta-v2", "distilbert", "electra", "roberta", "xlnet"),
    "decoder": ("falcon", "gemma", "gpt2", "gpt-neo", "gpt-neox", "llama", "mistral", "opt", "phi", "qwen2"),
    "encoder-decoder": ("bart", "t5"),
    "vision": ("convnext", "deit", "resnet", "swin", "vit"),
    "audio and speech": ("wav2vec2", "whisper"),
    "multimodal": ("clip",),
}
_SHRUNKEN = {
    "encoder": ("ConvBertForMaskedLM", "FNetForMaskedLM", "FunnelForMaskedLM", "ModernBertForMaskedLM",
                "NystromformerForMaskedLM", "RoFormerForCausalLM", "TapasForMaskedLM", "BigBirdForMaskedLM"),
    "decoder": ("BloomForCausalLM", "CTRLLMHeadModel", "Gemma3ForCausalLM", "Lfm2ForCausalLM", "MptForCausalLM",
                "Qwen3ForCausalLM", "RwkvForCausalLM", "StableLmForCausalLM"),
    "mixture of experts": ("DeepseekV4ForCausalLM", "GptOssForCausalLM", "JetMoeForCausalLM", "MixtralForCausalLM",
                           "OlmoeForCausalLM", "Qwen3MoeForCausalLM"),
    "encoder-decoder": ("M2M100ForConditionalGeneration", "MarianMTModel", "PegasusForConditionalGeneration",
                        "ProphetNetForConditionalGeneration"),
    "vision": ("CvtModel", "DPTModel", "FocalNetForImageClassification",
               "PvtV2ForImageClassification", "SegformerForImageClassification", "VideoMAEForVideoClassification",
               "ViTMAEForPreTraining"),
    "audio and speech": ("ASTForAudioClassification", "HubertForCTC", "SEWForCTC", "SpeechT5ForSpeechToText"),
    "multimodal": ("BlipForConditionalGeneration", "GitForCausalLM", "Owlv2Model", "ViltForMaskedLM"),
}  # fmt: skip


def cases() -> list[Case]:
    """Every class of the table, family by family."""
    families = dict.fromkeys((*_SHRUNKEN, *_DESCRIBED))
    return [case for family in families for case in (*_described(family), *_shrunk(family), *_composed(family))]


def _described(family: str) -> list[Case]:
    return [
        Case(
            family,
            hugging_face.SETTINGS[name][0],
            lambda name=name: hugging_face.build(name),  # type: ignore[misc]
            lambda model, make=hugging_face.SETTINGS[name][2]: make(),  # type: ignore[misc]
        )
        for name in _DESCRIBED.get(family, ())
    ]


def _shrunk(family: str) -> list[Case]:
    return [
        Case(family, name, lambda name=name: shrunken.build(name), shrunken.inputs_of)  # type: ignore[misc]
        for name in _SHRUNKEN.get(family, ())
    ]


def _composed(family: str) -> list[Case]:
    return [Case(family, name, build, inputs) for name, (of, build, inputs) in composed.CASES.items() if of == family]
