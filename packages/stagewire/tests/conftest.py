"""The vocabularies that happen to be installed beside stagewire are not part of its own tests; `loop` is its own."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import EntryPoint

import pytest

from stagewire import stage, vocabulary
from stagewire.loop_ops import VOCABULARY as LOOP
from stagewire.vocabulary import namespaces


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[EntryPoint]]:
    """The entry points of vocabularies; tests add their own."""
    points: list[EntryPoint] = []
    monkeypatch.setattr(stage, "entry_points", lambda group: points)
    monkeypatch.setattr(vocabulary, "_REGISTERED", {"loop": LOOP})
    namespaces.cache_clear()
    yield points
    namespaces.cache_clear()
