"""The printed form of what the stage makes of a few graphs; `UPDATE_GOLDENS=1 pytest` writes the files anew."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from loopir.pipeline import UNFUSED
from loopir.testing.graphs import SAMPLES, kernels, lowered, steps_text

GOLDENS = Path(__file__).parent / "goldens"


def check_golden(name: str, text: str) -> None:
    path = GOLDENS / f"{name}.txt"
    if os.environ.get("UPDATE_GOLDENS"):
        path.write_text(text)
    assert path.read_text() == text


@pytest.mark.parametrize("name", SAMPLES)
def test_fused(name: str) -> None:
    check_golden(name, steps_text(lowered(SAMPLES[name])))


@pytest.mark.parametrize("name", ["softmax", "attention"])
def test_unfused(name: str) -> None:
    check_golden(f"{name}_unfused", steps_text(lowered(SAMPLES[name], UNFUSED)))


@pytest.mark.parametrize("name", SAMPLES)
def test_each_of_these_is_one_kernel(name: str) -> None:
    assert len(kernels(lowered(SAMPLES[name]))) == 1
