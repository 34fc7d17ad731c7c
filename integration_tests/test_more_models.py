"""Many small models in one graph each, evaluation and training (with dropout), against eager and float64."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import stagefold
from integration_tests.zoo.hugging_face import SETTINGS, build
from integration_tests.zoo.plain import MODELS
from integration_tests.zoo.reference import double, double_inputs, step, wrong_answers

pytestmark = pytest.mark.models

NO_INPUT_GRADIENTS = ("wav2vec2",)
"""Models that refuse inputs with gradients (they call requires_grad_ on them)."""


@pytest.mark.parametrize("train", [False, True], ids=["evaluation", "training"])
@pytest.mark.parametrize("name", MODELS)
def test_plain_model(name: str, train: bool) -> None:
    make, inputs = MODELS[name]
    check(make, inputs, train)


@pytest.mark.parametrize("train", [False, True], ids=["evaluation", "training"])
@pytest.mark.parametrize("name", SETTINGS)
def test_transformers_model(name: str, train: bool) -> None:
    pytest.importorskip("transformers", reason="transformers is an optional extra")
    check(lambda: build(name), SETTINGS[name][2], train, leaves=name not in NO_INPUT_GRADIENTS)


def check(
    make: Callable[[], nn.Module], inputs: Callable[[], dict[str, Any]], train: bool, *, leaves: bool = True
) -> None:
    """Two steps on two batches: one graph, no wrong answer, the same random numbers drawn."""
    torch.manual_seed(0)
    eager = make().train(train)
    exact, ours = double(eager), copy.deepcopy(eager)
    compiled = stagefold.compile(ours, fullgraph=True)
    for seed in (7, 8):
        batch = inputs()
        expected = step(eager, eager, batch, train, seed, leaves=leaves)
        reference = step(exact, exact, double_inputs(batch), train, seed, leaves=leaves)
        assert wrong_answers(expected, reference, step(ours, compiled, batch, train, seed, leaves=leaves)) == []
    assert len(compiled._backend.reports) == 1


def test_a_wrong_answer_is_seen() -> None:
    """The judge itself: a slightly wrong gradient, integers, a missing tensor, a nan."""
    right = {"output": torch.tensor([1.0, 2.0]), "grad.w": torch.tensor([0.5, 100.0]), "grad.n": torch.tensor([3])}
    exact = {name: value.double() if value.is_floating_point() else value for name, value in right.items()}
    assert wrong_answers(right, exact, dict(right)) == []
    for name, value in (
        ("grad.w", torch.tensor([0.501, 100.0])),
        ("grad.n", torch.tensor([4])),
        ("output", torch.tensor([1.0, float("nan")])),
        ("output", torch.tensor([1.0])),
        ("more", torch.ones(1)),
    ):
        assert len(wrong_answers(right, exact, {**right, name: value})) == 1
