"""Limits of the cache: age first, then size, what is used least recently first; leftovers of killed processes."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from stagefold.cache import Cache
from stagefold.cli import main
from stagefold.eviction import Limits, entries_of, is_due, prune
from stagewire.grad import Binding
from stagewire.private_files import read_entry, write_entry
from stagewire.program import Program, Unit

DAY = 86400


def entry(directory: Path, name: str, days: float, size: int = 100) -> None:
    """Two files of one entry, used so many days ago."""
    directory.mkdir(parents=True, exist_ok=True)
    for suffix in (".so", ".json"):
        path = directory / f"{name}{suffix}"
        path.write_bytes(b"\0" * (size // 2))
        os.utime(path, (time.time() - days * DAY,) * 2)


def names(directory: Path) -> list[str]:
    return sorted({path.stem for path in directory.rglob("*") if path.is_file()})


def test_what_was_not_used_for_long_goes(tmp_path: Path) -> None:
    for days in (1, 50, 100):
        entry(tmp_path / "code", f"of{days}", days)
    assert prune(tmp_path, Limits(10**9, 60)) == (1, 100)
    assert names(tmp_path) == ["of1", "of50"]


def test_of_a_full_cache_the_least_recently_used_goes(tmp_path: Path) -> None:
    for days in (3, 1, 4, 2):
        entry(tmp_path / ("code" if days % 2 else "programs"), f"of{days}", days)
    assert prune(tmp_path, Limits(250, 60)) == (2, 200)
    assert names(tmp_path) == ["of1", "of2"]
    assert prune(tmp_path, Limits(250, 60)) == (0, 0)


def test_leftovers_of_killed_processes_go(tmp_path: Path) -> None:
    code = tmp_path / "code"
    (code / "build-old").mkdir(parents=True)
    (code / "build-new").mkdir()
    for name in ("old.lock", "old.part", "build-old/unit.cpp"):
        (code / name).write_text("")
    for path in (code / "old.lock", code / "old.part", code / "build-old" / "unit.cpp", code / "build-old"):
        os.utime(path, (time.time() - 2 * 3600,) * 2)
    (code / "new.lock").write_text("")
    prune(tmp_path, Limits(0, 0))
    assert sorted(path.name for path in code.iterdir()) == ["build-new", "new.lock"]


def test_other_files_stay(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("of the user, who put the cache here")
    entry(tmp_path / "results", "of100", 100)
    entry(tmp_path / "code", "of100", 100)
    prune(tmp_path, Limits(0, 0))
    assert names(tmp_path) == ["of100", "thesis"]
    assert not names(tmp_path / "code")


def test_a_use_is_noted(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_entry(tmp_path / "programs" / name, name, b"data")
        os.utime(tmp_path / "programs" / name, (1, 1))
    read_entry(tmp_path / "programs" / "a", "a")
    assert [one.paths[0].name for one in entries_of(tmp_path)] == ["b", "a"]


def test_it_is_looked_at_once_an_hour(tmp_path: Path) -> None:
    assert [is_due(tmp_path), is_due(tmp_path)] == [True, False]
    os.utime(tmp_path / "pruned", (time.time() - 4000,) * 2)
    assert is_due(tmp_path)


def test_writing_a_program_keeps_the_limits(tmp_path: Path) -> None:
    unit = Unit(target="cpp", source="", kernels=(), inputs=(), input_types=(), outputs=(), instructions=())
    entry(tmp_path / "code", "of100", 100)
    Cache(tmp_path, Limits(10**9, 60)).write("ab", Program(binding=Binding(inputs=(), outputs=()), forward=unit))
    assert names(tmp_path) == ["ab", "pruned"]


def test_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("STAGEFOLD_CACHE_DIR", str(tmp_path))
    entry(tmp_path / "code", "of1", 1, 2_000_000)
    entry(tmp_path / "code", "of100", 100, 1_000_000)
    entry(tmp_path / "programs", "of2", 2, 500_000)
    assert main(["cache"]) == 0
    said = capsys.readouterr().out
    assert f"{tmp_path}: 3 entries, 3.5 MB" in said
    assert "code: 2 entries, 3.0 MB" in said
    assert "limits: 8192.0 MB, 90 days" in said
    assert main(["cache", "--prune"]) == 0
    assert "removed 1 entries, 1.0 MB" in capsys.readouterr().out
    assert main(["cache", "--clear"]) == 0
    assert not tmp_path.exists()
