"""transformers models in use: greedy generation with both kinds of caches, a training loop, gradient checkpointing."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

import stagefold
from integration_tests.zoo.hugging_face import SETTINGS, build

pytest.importorskip("transformers", reason="transformers is an optional extra")
pytestmark = [pytest.mark.models, pytest.mark.filterwarnings("ignore")]

NEW_TOKENS = 20


class Counting:
    """A back end over GraphModules that counts them."""

    def __init__(self) -> None:
        self.graphs = 0

    def __call__(self, module: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
        self.graphs += 1
        return module.forward


def generate(model: Any, **settings: Any) -> torch.Tensor:
    tokens = torch.randint(3, 128, (2, 5), generator=torch.Generator().manual_seed(2))
    return model.generate(
        tokens, max_new_tokens=NEW_TOKENS, do_sample=False, pad_token_id=0, eos_token_id=None, **settings
    )


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_generation_with_a_static_cache(name: str) -> None:
    """Sizes stay, so that two captures serve all tokens: the prompt's and the next token's."""
    torch.manual_seed(0)
    model = build(name).eval()
    expected = generate(model)
    counting = Counting()
    model.forward = stagefold.compile(model.forward, backend=counting)  # type: ignore[method-assign]
    assert torch.equal(generate(model, cache_implementation="static", disable_compile=True), expected)
    assert counting.graphs == 2


@pytest.mark.parametrize("name", ["gpt2", "bart"])
def test_generation_with_a_growing_cache(name: str) -> None:
    torch.manual_seed(0)
    model = build(name).eval()
    expected = generate(model)
    model.forward = stagefold.compile(model.forward, backend="eager")  # type: ignore[method-assign]
    assert torch.equal(generate(model), expected)


def test_generate_of_a_compiled_model_and_compiled_generate() -> None:
    torch.manual_seed(0)
    model = build("gpt2").eval()
    expected = generate(model)
    compiled = stagefold.compile(model, backend="eager")
    assert torch.equal(generate(compiled), expected)
    model.generate = stagefold.compile(model.generate, backend="eager")  # type: ignore[assignment]
    assert torch.equal(generate(model), expected)


@pytest.mark.parametrize("backend", ["eager", "stagefold"])
@pytest.mark.parametrize("checkpointing", [False, True], ids=["", "checkpointing"])
def test_training_loop(backend: str, checkpointing: bool) -> None:
    """As a trainer does it: accumulated gradients, clipping, a schedule, evaluation in between."""
    torch.manual_seed(0)
    eager = build("gpt2")
    ours = copy.deepcopy(eager)
    losses = []
    for model, compiled in ((eager, eager), (ours, stagefold.compile(ours, backend=backend))):
        if checkpointing:
            model.gradient_checkpointing_enable()  # type: ignore[operator]
        losses.append(train(model, compiled))
    torch.testing.assert_close(*losses, rtol=2e-4, atol=2e-4)
    for (name, want), have in zip(eager.named_parameters(), ours.parameters(), strict=True):
        torch.testing.assert_close(have, want, rtol=1e-3, atol=1e-3, msg=lambda text, name=name: f"{name}: {text}")


def train(model: torch.nn.Module, compiled: Callable[..., Any]) -> list[float]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer)
    torch.manual_seed(1)
    losses = []
    for number in range(6):
        model.train()
        loss = compiled(**SETTINGS["gpt2"][2]()).loss / 2
        loss.backward()
        losses.append(loss.item())
        if number % 2:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            model.eval()
            with torch.no_grad():
                losses.append(compiled(**SETTINGS["gpt2"][2]()).loss.item())
    return losses
