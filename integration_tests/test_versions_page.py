"""What `nox -s torches` makes of pip's answers and of the page of versions."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import torches  # noqa: E402

ROW = torches.Row("2.14.1+cu130", "3.13.0", "1049 passed, 5 skipped", "212 passed", "nothing", "2026-01-02, abcdef0")


def test_the_page_is_one_that_the_command_writes() -> None:
    text = torches.PAGE.read_text()
    assert torches.page_of(torches.rows_of(text)) == text
    prose = text.partition("\n| ")[0]
    assert max(map(len, prose.splitlines())) <= torches.WIDTH


def test_a_new_row_takes_the_place_of_the_pairs_older_one() -> None:
    newer = dataclasses.replace(ROW, torch="2.14.2", run_at="2026-03-04, abcdef1")
    other = dataclasses.replace(ROW, python="3.9.1")
    page = torches.page_of([ROW, other, newer])
    assert torches.rows_of(page) == [other, newer]


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (
            "torch (2.14.1)\nAvailable versions: 2.14.1, 2.14.0, 2.11.0+cpu, 2.10.0",
            {"2.11": "2.11.0", "2.14": "2.14.1"},
        ),
        ("ERROR: No matching distribution found for torch", {}),
    ],
)
def test_the_newest_release_of_each_minor_version(said: str, expected: dict[str, str]) -> None:
    assert torches.newest_of_each(said) == expected


@pytest.mark.parametrize(
    ("ends_with", "code", "expected"),
    [
        ("==== 3 passed, 1 deselected, 2 warnings in 3.2s ====", 0, ("3 passed", True)),
        ("1 failed, 1049 passed in 1003.21s (0:16:43)", 1, ("**1 failed, 1049 passed**", False)),
        ("Segmentation fault", 139, ("**the tests end without a summary**", False)),
    ],
)
def test_what_pytest_says(ends_with: str, code: int, expected: tuple[str, bool], tmp_path: Path) -> None:
    command = tmp_path / "python"
    command.write_text(f"#!/bin/sh\necho '{ends_with}'\nexit {code}\n")
    command.chmod(0o755)
    assert torches.tested(str(command), [], tmp_path / "log") == expected
