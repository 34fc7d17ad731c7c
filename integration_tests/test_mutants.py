"""The tool that plants mutants: what a probe counts as evaluated."""

from __future__ import annotations

import builtins
import copy
from pathlib import Path
from typing import Any

import pytest

from tools.mutants import edits

SOURCE = """
def f(x):
    if x > 2:
        return x + 1
    return 5 if x < 0 else 7


def g(x):
    if x.pop() > 2:
        return 1
    return 2
"""


def test_a_probe_tells_which_edits_a_call_evaluates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A branch that an edit never takes counts where it is taken, or where its condition calls something."""
    monkeypatch.setattr(edits, "ROOT", tmp_path)
    monkeypatch.setattr(edits, "PACKAGES", tmp_path)
    monkeypatch.setattr(edits, "AREAS", {"passes": ("a/src/*.py",)})
    (tmp_path / "a" / "src").mkdir(parents=True)
    (tmp_path / "a" / "src" / "m.py").write_text(SOURCE)
    chosen = edits.mutants("passes")
    hits: set[str] = set()
    function = "f"
    monkeypatch.setattr(
        builtins, edits.PROBE, lambda name: hits.add(name.removeprefix(f"m:{function}:")), raising=False
    )

    def reached(x: Any) -> set[str]:
        names: dict[str, Any] = {}
        exec(edits.probed(chosen[0].file, chosen), names)
        plain: dict[str, Any] = {}
        exec(SOURCE, plain)
        hits.clear()
        assert names[function](copy.copy(x)) == plain[function](copy.copy(x))
        return set(hits)

    always = {"compare:0", "constant:0"}
    assert reached(3) == always | {"never:0", "operator:0", "constant:1"}
    assert reached(1) == always | {"compare:1", "constant:2", "constant:4"}
    assert reached(-1) == always | {"branch:0", "compare:1", "constant:2", "constant:3"}

    function = "g"
    assert reached([1]) == {"compare:0", "constant:0", "never:0", "constant:2"}
