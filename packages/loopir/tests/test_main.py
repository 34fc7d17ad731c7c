"""python -m loopir."""

from __future__ import annotations

from pathlib import Path

import pytest

from loopir.__main__ import main
from loopir.stage import LoopIR
from loopir.testing import samples
from loopir.testing.graphs import SOFTMAX, document
from stagewire.codec import load, save
from stagewire.loop import Kernel, Loop
from stagewire.parser import parse_document


@pytest.fixture
def prim(tmp_path: Path) -> Path:
    path = tmp_path / "prim.json"
    save(document(SOFTMAX), path)
    return path


def test_a_file_in_a_file_out(prim: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(prim), "-o", str(tmp_path / "loop.json")]) == 0
    assert load(tmp_path / "loop.json", expect="loop") == LoopIR().run(document(SOFTMAX))
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == "forward: 1 kernels, 0 calls of ATen, 3 fusions\n"


def test_what_is_shown_parses_back(prim: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(prim), "--unfused"]) == 0
    shown = parse_document(capsys.readouterr().out)
    assert isinstance(shown, Loop)
    assert sum(isinstance(step, Kernel) for step in shown.forward.steps) == 5


def test_refusals(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    # Where primops is installed, the verifier refuses the op.
    monkeypatch.setattr("stagewire.vocabulary.vocabulary", lambda namespace: None)
    bad = tmp_path / "bad.json"
    save(document("input %x: f32[2]\n%y: f32[2] = prims.gamma(%x)\nreturn %y\n"), bad)
    assert main([str(bad)]) == 1
    assert "LI002" in capsys.readouterr().err
    assert main([str(tmp_path / "none.json")]) == 1
    assert "none.json" in capsys.readouterr().err


def test_samples_are_written(tmp_path: Path) -> None:
    samples.main(str(tmp_path))
    assert {path.stem for path in tmp_path.iterdir()} == set(samples.SAMPLES)
    assert isinstance(load(tmp_path / "softmax.json", expect="loop"), Loop)
