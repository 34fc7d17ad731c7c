"""Modes and options: what is accepted, what is refused and with which hint."""

from __future__ import annotations

from pathlib import Path

import pytest

from stagefold.errors import BadOption
from stagefold.options import default_cache_dir, parse_options


def test_defaults_and_stage_options() -> None:
    options = parse_options(None, {"codegen.target": "cpp", "codegen.threads": 3, "verify": True})
    assert options.verify
    assert options.for_stage("codegen") == {"target": "cpp", "threads": 3}
    assert options.for_stage("loopir") == {}


def test_directories_become_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert parse_options(None, {"cache_dir": str(tmp_path)}).cache_directory == tmp_path
    monkeypatch.setenv("STAGEFOLD_CACHE_DIR", str(tmp_path / "x"))
    assert default_cache_dir() == tmp_path / "x"
    monkeypatch.setenv("STAGEFOLD_TRACE", str(tmp_path / "t"))
    assert parse_options(None, None).trace_dir == tmp_path / "t"


@pytest.mark.parametrize(
    ("mode", "options", "message"),
    [
        (None, {"cach": True}, "Did you mean 'cache'"),
        (None, {"nothing.like": 1}, "Known options"),
        (None, {"recompile_limit": True}, "must be int"),
        (None, {"cache": "yes"}, "must be bool, not str"),
        ("fast", None, "unknown mode 'fast'"),
        ("default", {"cache": True}, "both given"),
    ],
)
def test_refusals(mode: str | None, options: dict[str, object] | None, message: str) -> None:
    with pytest.raises(BadOption, match=message):
        parse_options(mode, options)
