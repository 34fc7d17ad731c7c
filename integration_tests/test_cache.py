"""The on-disk cache: a second process compiles nothing; damage is ignored with a warning; no compiler is one error."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from integration_tests.fresh_processes import run_script

SCRIPT = """
import sys, warnings, torch, stagefold
warnings.simplefilter("always")
torch.manual_seed(0)
f = stagefold.compile(lambda x: torch.softmax(x * 2, -1) + 1, fullgraph=True)
x = torch.randn(4, 9)
torch.testing.assert_close(f(x), torch.softmax(x * 2, -1) + 1)
torch.set_grad_enabled(False)
"""


def run(cache: Path, *, compiler: bool = True, script: str = SCRIPT) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "STAGEFOLD_CACHE_DIR": str(cache)}
    if not compiler:
        environment["PATH"] = str(cache)  # nothing is there
        environment.pop("CXX", None)
        environment.pop("CC", None)
        script = f"import sys; sys.modules['ziglang'] = None\n{script}"  # nor is that found, where it is installed
    return run_script(script, environment)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The cache that a first process leaves."""
    directory = tmp_path_factory.mktemp("kept")
    first = run(directory)
    assert first.returncode == 0, first.stderr
    return directory


@pytest.fixture
def filled(kept: Path, tmp_path: Path) -> Path:
    """A copy of it, for one test."""
    return Path(shutil.copytree(kept, tmp_path / "filled"))


def entries(cache: Path, pattern: str) -> list[Path]:
    return sorted(path for path in cache.rglob(pattern) if path.is_file())


def test_a_second_process_needs_no_compiler(filled: Path) -> None:
    assert entries(filled, "*.program")
    second = run(filled, compiler=False)
    assert second.returncode == 0, second.stderr


def test_what_only_guards_refer_to_is_no_part_of_the_key(tmp_path: Path) -> None:
    """Code that reads an environment variable, as transformers does in attention, is cached."""
    script = SCRIPT.replace(
        "torch.softmax(x * 2, -1) + 1, f", "torch.softmax(x * 2, -1) + len(os.getenv('NO') or '1'), f"
    )
    script = script.replace("import sys", "import os, sys")
    assert run(tmp_path, script=script).returncode == 0
    assert entries(tmp_path, "*.program")
    second = run(tmp_path, compiler=False, script=script)
    assert second.returncode == 0, second.stderr


def test_no_compiler_is_one_clear_error(tmp_path: Path) -> None:
    done = run(tmp_path, compiler=False)
    assert done.returncode != 0
    last = done.stderr.strip().splitlines()
    assert any("CG0" in line for line in last), done.stderr
    assert "install" in done.stderr.lower()


@pytest.mark.parametrize("pattern", ["*.program", "*.so"])
@pytest.mark.parametrize("damage", ["truncated", "corrupted", "empty"])
def test_a_damaged_entry_is_ignored_with_a_warning(filled: Path, pattern: str, damage: str) -> None:
    found = entries(filled, pattern)
    assert found
    for path in found:
        data = path.read_bytes()
        broken = {"truncated": data[: len(data) // 2], "corrupted": data[:-9] + b"XXXXXXXXX", "empty": b""}[damage]
        path.write_bytes(broken)
    done = run(filled)
    assert done.returncode == 0, done.stderr
    assert "ignored" in done.stderr, done.stderr
    assert run(filled, compiler=False).returncode == 0, "the entry was not made anew"


def test_an_unwritable_cache_is_a_warning(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a directory")
    done = run(blocked)
    assert done.returncode == 0, done.stderr
    assert "cache" in done.stderr


def test_a_user_without_a_home_directory_gets_a_temporary_cache(tmp_path: Path) -> None:
    script = """
import os, pwd
os.environ.pop("HOME"), os.environ.pop("STAGEFOLD_CACHE_DIR"), os.environ.pop("XDG_CACHE_HOME", None)
def nobody(user): raise KeyError(user)
pwd.getpwuid = nobody
"""
    done = run(tmp_path, script=script + SCRIPT)
    assert done.returncode == 0, done.stderr
    assert "STAGEFOLD_CACHE_DIR names another" in done.stderr


def test_any_name_of_a_directory_will_do(tmp_path: Path) -> None:
    """No part of it is an option of the compiler."""
    environment = {**os.environ, "STAGEFOLD_CACHE_DIR": "-o x"}
    done = run_script(SCRIPT, environment, directory=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr
    assert entries(tmp_path / "-o x", "*.so")


def test_documents_that_cannot_be_saved_are_a_warning(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    script = SCRIPT.replace("fullgraph=True", f"options={{'trace_dir': {str(tmp_path / 'file')!r}}}")
    done = run(tmp_path, script=script)
    assert done.returncode == 0, done.stderr
    assert "NotTraced" in done.stderr
