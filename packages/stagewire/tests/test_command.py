"""Exit codes that all command lines share, and carrying a file through a stage."""

from __future__ import annotations

from pathlib import Path

import pytest

from stagewire.codec import load
from stagewire.command import carry, guarded
from stagewire.errors import DecodeError, StageError, VerifyError
from stagewire.files import read, read_verified
from stagewire.prim import Prim

PRIM = Path(__file__).parent / "data" / "documents" / "prim.txt"


def dangling(tmp_path: Path) -> Path:
    path = tmp_path / "dangling.txt"
    path.write_text(PRIM.read_text().replace("%x, %b)", "%x, %nobody)"))
    return path


def never(document: Prim) -> Prim:
    raise AssertionError("the stage ran on a document that does not verify")


def test_a_document_is_carried_and_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert carry(PRIM, "prim", lambda prim: prim) == read(PRIM)
    assert capsys.readouterr().out == PRIM.read_text()
    carry(PRIM, "prim", lambda prim: prim, output=tmp_path / "a.msgpack")
    assert capsys.readouterr().out == ""
    assert load(tmp_path / "a.msgpack") == read(PRIM)
    carry(PRIM, "prim", lambda prim: prim, output=tmp_path / "b.txt", show=True)
    assert capsys.readouterr().out == (tmp_path / "b.txt").read_text() == PRIM.read_text()


def test_a_broken_document_is_refused_before_the_stage_runs(tmp_path: Path) -> None:
    path = dangling(tmp_path)
    assert read(path) is not None
    with pytest.raises(VerifyError, match="%nobody is used before it is defined") as error:
        carry(path, "prim", never)
    assert error.value.label == "G2"
    assert error.value.where is not None
    assert error.value.where.startswith(str(path))


def test_another_kind_is_refused_in_every_format(tmp_path: Path) -> None:
    carry(PRIM, "prim", lambda prim: prim, output=tmp_path / "a.json")
    for path in (PRIM, tmp_path / "a.json"):
        with pytest.raises(DecodeError, match="expected a grad document, got a prim document"):
            read_verified(path, "grad")


def test_exit_codes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert guarded(lambda: 7) == 7

    def refuse() -> int:
        raise StageError("no")

    assert guarded(refuse) == 1
    assert capsys.readouterr().err == "SW000: no\n"
    assert guarded(lambda: len((tmp_path / "none").read_bytes())) == 1
    assert capsys.readouterr().err == f"{tmp_path / 'none'}: No such file or directory\n"
