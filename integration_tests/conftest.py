"""Shared by the integration tests: a cache of their own for every test, and the examples on the path."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported, as in packages/codegen/tests/conftest.py

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))


@pytest.fixture(scope="session")
def code_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Machine code shared by all tests of the run (it is keyed by content)."""
    return tmp_path_factory.mktemp("stagefold-cache")


@pytest.fixture(autouse=True)
def own_cache(code_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAGEFOLD_CACHE_DIR", str(code_cache))
    torch.manual_seed(0)


@pytest.fixture
def recordings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every unit is recorded as a CUDA graph, by a stand-in where there is no GPU."""
    from integration_tests.stand_in import record_even_one_launch

    record_even_one_launch(monkeypatch)


@pytest.fixture
def recorded(recordings: None, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, int]]:
    """The sizes of each recording that is made."""
    from codegen.runtime.cuda_graphs import Replayed

    made: list[dict[str, int]] = []
    captured = Replayed._captured

    def counted(unit: Replayed, *given: Any) -> Any:
        made.append(dict(unit._symbols))
        return captured(unit, *given)

    monkeypatch.setattr(Replayed, "_captured", counted)
    return made
