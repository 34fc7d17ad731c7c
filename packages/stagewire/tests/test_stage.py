"""The protocol of stages and their discovery."""

from __future__ import annotations

import dataclasses
from importlib.metadata import EntryPoint, EntryPoints
from typing import Any

import pytest

from stagewire import stage
from stagewire.codec import Document
from stagewire.errors import NameClash, StageError
from stagewire.stage import GROUP, Stage, discover


@dataclasses.dataclass(frozen=True)
class Identity:
    name: str = "identity"
    version: str = "1"
    consumes: str = "prim"
    produces: str = "prim"

    def run(self, document: Document, options: Any = None) -> Document:
        return document


def test_a_dataclass_with_the_fields_is_a_stage() -> None:
    assert isinstance(Identity(), Stage)
    assert not isinstance(object(), Stage)


def found(monkeypatch: pytest.MonkeyPatch, *rows: tuple[str, str]) -> None:
    points = EntryPoints(EntryPoint(name, value, GROUP) for name, value in rows)
    monkeypatch.setattr(stage, "entry_points", lambda group: points)


def test_discovery_does_not_load(monkeypatch: pytest.MonkeyPatch) -> None:
    found(monkeypatch, ("loopir", "nowhere.at:all"), ("other", "nowhere:b"))
    assert {name: point.value for name, point in discover().items()} == {
        "loopir": "nowhere.at:all",
        "other": "nowhere:b",
    }


def test_two_owners_of_a_name_are_both_named(monkeypatch: pytest.MonkeyPatch) -> None:
    found(monkeypatch, ("loopir", "one:Stage"), ("loopir", "two:Stage"))
    with pytest.raises(NameClash, match=r"'loopir'.*one:Stage.*two:Stage"):
        discover()


def test_errors_have_a_code_a_place_and_a_fix() -> None:
    error = NameClash("two", where="here.py:3", fix="Choose.")
    assert str(error) == "SW006: two\n  at here.py:3\n  fix: Choose."
    assert isinstance(error, StageError)


def test_codes_are_unique() -> None:
    codes = [kind.code for kind in StageError.__subclasses__() if kind.__module__ == "stagewire.errors"]
    assert len(codes) == len(set(codes)) >= 6
