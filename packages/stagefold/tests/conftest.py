"""A cache of their own for the tests."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    directory: Path = tmp_path_factory.getbasetemp() / "stagefold-cache"
    monkeypatch.setenv("STAGEFOLD_CACHE_DIR", str(directory))
