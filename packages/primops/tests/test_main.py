from __future__ import annotations

from pathlib import Path

import pytest

from primops.__main__ import main
from stagewire.codec import load
from stagewire.parser import parse_document
from stagewire.verify import verify

DOCUMENT = str(Path(__file__).parent / "data" / "images_inference.json")


def test_prints_a_document(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([DOCUMENT]) == 0
    verify(parse_document(capsys.readouterr().out))  # type: ignore[arg-type]


def test_writes_a_document(tmp_path: Path) -> None:
    out = tmp_path / "prim.json"
    assert main([DOCUMENT, "-o", str(out), "--keep", "aten.silu.default"]) == 0
    document = load(out, "prim")
    assert "aten.silu.default" in [node.target for node in document.joint.nodes]  # type: ignore[union-attr]


def test_refuses_another_kind_of_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "prim.json"
    main([DOCUMENT, "-o", str(out)])
    assert main([str(out)]) == 1
    assert "expected a grad document" in capsys.readouterr().err


def test_names_a_missing_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "none.json")]) == 1
    assert "none.json: No such file" in capsys.readouterr().err
