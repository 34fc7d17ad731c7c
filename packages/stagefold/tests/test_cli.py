"""The command line: each command, and its refusals."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import stagewire
from stagefold.cli import main
from stagefold.pipeline import BOUNDARIES
from stagewire.capture import Capture, Code, Input, Local
from stagewire.graph import Graph, Node, Ref, Value
from stagewire.types import contiguous


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STAGEFOLD_CACHE_DIR", str(tmp_path / "cache"))
    value = Value("x", contiguous("float32", (3,)))
    node = Node("torch.relu", (Ref("x"),), {}, (Value("y", value.type),))
    graph = Graph((value,), (node,), (Ref("y"),))
    path = tmp_path / "capture.json"
    stagewire.save(Capture(code=Code("f", "a.py", 1), inputs=(Input(value, Local("x")),), graph=graph), path)
    return path


def test_show_prints_the_graph(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(saved)]) == 0
    assert "torch.relu(%x)" in capsys.readouterr().out


def test_run_stage_by_stage_then_run(saved: Path, tmp_path: Path) -> None:
    path = saved
    for slot, (_, form) in BOUNDARIES.items():
        out = tmp_path / f"{form}.json"
        assert main(["run-stage", slot, str(path), str(out)]) == 0
        path = out
    torch.save([torch.tensor([-1.0, 0.0, 2.0])], tmp_path / "in.pt")
    assert main(["run", str(path), str(tmp_path / "in.pt"), str(tmp_path / "out.pt")]) == 0
    (result,) = torch.load(tmp_path / "out.pt")
    assert result.tolist() == [0.0, 0.0, 2.0]


def test_faults_are_printed_not_raised(saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run-stage", "loopir", str(saved), str(tmp_path / "x.json")]) == 1
    assert "SW011: loopir reads a cut document; this is a capture" in capsys.readouterr().err
    assert main(["show", str(tmp_path / "absent.json")]) == 1
    assert "there is no file" in capsys.readouterr().err
    assert main(["blame", str(tmp_path / "absent.capsule")]) == 1
    assert "there is no file" in capsys.readouterr().err
    assert main(["blame", str(saved)]) == 1
    assert "a document alone has no inputs" in capsys.readouterr().err
    (tmp_path / "bad.json").write_text("{")
    assert main(["show", str(tmp_path / "bad.json")]) == 1
    assert "SW001" in capsys.readouterr().err


def test_doctor_and_cache(saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    assert "C++ compiler" in capsys.readouterr().out
    assert main(["cache", "--clear"]) == 0
    assert str(tmp_path / "cache") in capsys.readouterr().out


def test_a_closed_pipe_is_no_error(tmp_path: Path) -> None:
    import subprocess
    import sys

    command = f"{sys.executable} -m stagefold doctor | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "0"
    assert "Traceback" not in done.stderr


def test_a_file_without_tensors_is_a_coded_error(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "inputs.pt").write_text("not tensors")
    assert main(["run", str(saved), str(tmp_path / "inputs.pt"), str(tmp_path / "out.pt")]) == 1
    assert "SF006" in capsys.readouterr().err
    assert not (tmp_path / "out.pt").exists()
