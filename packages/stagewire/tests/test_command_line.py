"""`python -m stagewire`."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from stagewire.__main__ import main
from stagewire.digest import digest
from stagewire.parser import parse_document

DOCUMENTS = Path(__file__).parent / "data" / "documents"
PRIM = DOCUMENTS / "prim.txt"


def test_show_prints_the_document(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(PRIM)]) == 0
    assert capsys.readouterr().out == PRIM.read_text()


def test_digest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["digest", str(PRIM)]) == 0
    assert capsys.readouterr().out.strip() == digest(parse_document(PRIM.read_text()))


def test_schema(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema", "prim", "loop"]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert [wire["properties"]["document"]["const"] for wire in schema["oneOf"]] == ["prim", "loop"]
    assert main(["schema", "graph"]) == 1
    assert "SW002" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["capture", "grad", "prim", "loop", "program"])
def test_convert_through_every_format_and_back(kind: str, tmp_path: Path) -> None:
    source = DOCUMENTS / f"{kind}.txt"
    chain = [source, tmp_path / "a.json", tmp_path / "a.msgpack", tmp_path / "a.txt"]
    for one, two in itertools.pairwise(chain):
        assert main(["convert", str(one), str(two)]) == 0
    assert chain[-1].read_text() == source.read_text()


def test_verify_lists_every_fault(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(PRIM)]) == 0
    path = tmp_path / "broken.txt"
    path.write_text(PRIM.read_text().replace("opset = 2", "opset = 0").replace("%x, %b)", "%x, %y)"))
    assert main(["verify", str(path)]) == 1
    out = capsys.readouterr().out
    assert "[G2] %y is used before it is defined" in out
    assert "[P1] there is no opset 0" in out
    assert "2 broken constraints" in out


@pytest.mark.parametrize(
    ("name", "data", "says"),
    [
        ("a.json", b"{}", "SW001"),
        ("a.txt", b"prim 3 {\n  binding = 3\n}", "a.txt:2:13"),
        ("a.txt", b"\xff", "SW001"),
        ("a.msgpack", b"", "SW001"),
    ],
)
def test_bad_files_are_coded_errors(
    name: str, data: bytes, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    assert main(["show", str(path)]) == 1
    assert says in capsys.readouterr().err


def test_a_missing_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(tmp_path / "none.json")]) == 1
    assert "none.json: No such file" in capsys.readouterr().err


def test_a_wrong_command_line_is_refused() -> None:
    with pytest.raises(SystemExit) as error:
        main(["shew", "x"])
    assert error.value.code == 2
