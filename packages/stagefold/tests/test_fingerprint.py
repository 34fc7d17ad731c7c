"""The code of a package has a fingerprint that changes when a source does."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from stagefold.cache import fingerprint


def test_it_follows_the_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "stage_of_mine"
    package.mkdir()
    (package / "__init__.py").write_text("one = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    fingerprint.cache_clear()
    first = fingerprint("stage_of_mine")
    (package / "__init__.py").write_text("one = 111\n")
    fingerprint.cache_clear()
    assert len(first) == 16
    assert fingerprint("stage_of_mine") != first
    sys.modules.pop("stage_of_mine", None)


def test_it_is_stable_and_differs_by_package() -> None:
    first = fingerprint("stagewire")
    fingerprint.cache_clear()
    assert fingerprint("stagewire") == first
    assert fingerprint("stagefold") != first


def test_what_has_no_files_has_none() -> None:
    assert fingerprint("__main__") == ""
    assert fingerprint("no_such_package_at_all") == ""
