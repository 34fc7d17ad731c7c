"""The proof that a change keeps behaviour: records of documents differ where these do, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import bytecap
from tools.same_programs import KINDS, Recorder, compare, read


def recorded(directory: Path, function: Callable[[torch.Tensor], torch.Tensor]) -> Path:
    directory.mkdir()
    recorder = Recorder(directory, ["cpu", "cuda"])
    recorder.begin("case")
    bytecap.optimize(function, recorder)(torch.ones(3, 4, requires_grad=True))
    return directory


def first(x: torch.Tensor) -> torch.Tensor:
    y = x.exp()
    return y.sum(0) * y


def of_other_names(x: torch.Tensor) -> torch.Tensor:
    exponential = x.exp()
    return exponential.sum(0) * exponential


def other(x: torch.Tensor) -> torch.Tensor:
    y = x.exp()
    return y.sum(1, keepdim=True) * y


def test_a_record_holds_every_document(tmp_path: Path) -> None:
    paths = sorted(recorded(tmp_path / "record", first).iterdir())
    assert [path.name for path in paths] == ["case.0.cpu.gz", "case.0.cuda.gz"]
    on_cpu, on_cuda = map(read, paths)
    assert tuple(on_cpu) == tuple(on_cuda) == KINDS
    assert "#pragma omp" in on_cpu["program"]
    assert "tl.load" in on_cuda["program"]


def test_names_and_places_do_not_count(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, after = recorded(tmp_path / "before", first), recorded(tmp_path / "after", of_other_names)
    assert compare(before, after, [kind for kind in KINDS if kind != "capture"], 1) == 0
    assert capsys.readouterr().out.endswith("in one record alone: 0\n")


def test_another_sum_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, after = recorded(tmp_path / "before", first), recorded(tmp_path / "after", other)
    assert compare(before, after, list(KINDS), 1) == 1
    assert "differing: capture 2, grad 2, prim 2, cut 2, loop 2, program 2" in capsys.readouterr().out
