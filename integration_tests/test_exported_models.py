"""Exported models in a process that has neither transformers nor a compiler, against eager in this one."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import stagefold

LOADER = """
import sys
sys.modules.update(bytecap=None, loopir=None, primops=None, transformers=None)
import torch, stagefold
artifact = stagefold.load(sys.argv[1], trust=True)
steps = torch.load(sys.argv[2])
found = []
for args, kwargs in steps:
    result = artifact(*args, **kwargs)
    if artifact.header.gradients:
        result["loss"].backward()
        with torch.no_grad():
            for one in artifact.parameters():
                one -= 0.1 * one.grad
                one.grad = None
    found.append({key: value.detach() for key, value in dict(result).items()})
torch.save((found, {name: value.detach() for name, value in artifact.state.items()}), sys.argv[3])
"""


def run_elsewhere(artifact: stagefold.Artifact, steps: list[Any], folder: Path) -> tuple[list[Any], dict[str, Any]]:
    """What the artifact gives for these calls (each a step of training, where it has gradients), and its tensors."""
    artifact.save(folder / "model.artifact")
    torch.save(steps, folder / "steps")
    bare = {**os.environ, "PATH": "", "CXX": ""}
    names = [folder / name for name in ("model.artifact", "steps", "found")]
    done = subprocess.run([sys.executable, "-c", LOADER, *names], env=bare, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return torch.load(folder / "found")  # type: ignore[no-any-return]


def language_models() -> list[Any]:
    transformers = pytest.importorskip("transformers", reason="transformers is an optional extra")
    small = {"vocab_size": 64, "use_cache": False}
    wide = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64, **small}
    return [
        transformers.GPT2LMHeadModel(transformers.GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=64, **small)),
        transformers.LlamaForCausalLM(transformers.LlamaConfig(num_key_value_heads=2, **wide)),
        transformers.BertForMaskedLM(transformers.BertConfig(**wide)),
    ]


@pytest.mark.parametrize("number", range(3), ids=["GPT-2", "Llama", "BERT"])
def test_language_models_of_open_sizes(number: int, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = language_models()[number].eval()
    tokens = torch.randint(0, 64, (3, 10))
    artifact = stagefold.export(
        model, (), {"input_ids": tokens}, dynamic_shapes={"input_ids": {0: "batch", 1: range(2, 33)}}
    )
    steps = [((), {"input_ids": torch.randint(0, 64, size)}) for size in ((3, 10), (2, 17), (5, 4))]
    found, _ = run_elsewhere(artifact, steps, tmp_path)
    with torch.no_grad():
        for (_, kwargs), have in zip(steps, found, strict=True):
            want = dict(model(**kwargs))
            assert list(have) == list(want)
            torch.testing.assert_close(have["logits"], want["logits"], rtol=1e-4, atol=1e-4)


DECODING = """
import copy, sys
import torch, stagefold, transformers
from transformers.integrations.executorch import register_dynamic_cache_export_support
register_dynamic_cache_export_support()
torch.manual_seed(0)
wide = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64, "vocab_size": 64}
model = transformers.LlamaForCausalLM(transformers.LlamaConfig(num_key_value_heads=2, **wide))
model.eval().requires_grad_(False)
token, cache = torch.tensor([[5]]), model(torch.randint(0, 64, (1, 7))).past_key_values
given = {"input_ids": token, "past_key_values": copy.deepcopy(cache)}
lengths = [[{2: "length"}] * 2] * 2
shapes = {"input_ids": None, "past_key_values": lengths}
stagefold.export(model, (), given, dynamic_shapes=shapes).save(sys.argv[1])
step, mine = stagefold.load(sys.argv[1], trust=True), copy.deepcopy(cache)
for length in range(8, 14):
    found, expected = step(input_ids=token, past_key_values=mine), model(token, past_key_values=cache)
    mine, cache = found["past_key_values"], expected.past_key_values
    assert mine.get_seq_length() == length, mine.get_seq_length()
    torch.testing.assert_close(found["logits"], expected.logits, rtol=1e-4, atol=1e-4)
    token = expected.logits.argmax(-1)
"""


def test_a_step_of_decoding_with_a_cache_of_open_length(tmp_path: Path) -> None:
    """In a process of its own, for what torch is told of a class it keeps."""
    pytest.importorskip("transformers", reason="transformers is an optional extra")
    command = [sys.executable, "-c", DECODING, tmp_path / "step.artifact"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


class Classifier(nn.Module):
    """Convolutions with batch norms and a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, stride=2)
        )
        self.norm, self.head = nn.BatchNorm2d(16), nn.Linear(16, 5)

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        features = torch.relu(self.norm(self.body(images))).mean((2, 3))
        logits = self.head(features)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def test_a_convolutional_network_trains_elsewhere(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Classifier()
    images, labels = torch.randn(4, 3, 16, 16), torch.randint(0, 5, (4,))
    shapes = {"images": {0: "batch"}, "labels": {0: "batch"}}
    artifact = stagefold.export(copy.deepcopy(model), (images, labels), dynamic_shapes=shapes, gradients=True)
    steps = [((torch.randn(n, 3, 16, 16), torch.randint(0, 5, (n,))), {}) for n in (4, 6, 3)]
    found, state = run_elsewhere(artifact, steps, tmp_path)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for (args, _), have in zip(steps, found, strict=True):
        optimizer.zero_grad()
        want = model(*args)
        want["loss"].backward()
        optimizer.step()
        torch.testing.assert_close(have["loss"], want["loss"].detach(), rtol=1e-4, atol=1e-4)
    for name, value in model.state_dict().items():
        torch.testing.assert_close(state[name], value, rtol=1e-3, atol=1e-4)
