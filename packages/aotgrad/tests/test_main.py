"""`python -m aotgrad`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import torch

from aotgrad import AotGrad, Options, PartitionStage, cut
from aotgrad.__main__ import main
from aotgrad.testing import capture_by_torch_function
from stagewire.capture import Capture
from stagewire.codec import load, save
from stagewire.parser import parse_document
from stagewire.prim import Prim


@pytest.fixture
def capture(tmp_path: Path) -> tuple[Capture, Path]:
    x = torch.randn(3, 4, requires_grad=True)
    document, _ = capture_by_torch_function(lambda x: x.exp().tanh().sum(), [x])
    save(document, tmp_path / "capture.json")
    return document, tmp_path


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["aotgrad", *map(str, arguments)])
    return main()


@pytest.mark.parametrize("form", ["grad.json", "grad.msgpack"])
def test_writes_the_document(capture, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    document, folder = capture
    assert run(monkeypatch, folder / "capture.json", "-o", folder / form) == 0
    assert load(folder / form, "grad") == AotGrad().run(document)


def test_prints_without_output(capture, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    document, folder = capture
    options = Options(gradient_order=1)
    assert run(monkeypatch, folder / "capture.json", "--gradient-order", 1) == 0
    assert parse_document(capsys.readouterr().out) == AotGrad().run(document, options)


def test_refuses_with_a_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broken.json").write_text("{}")
    assert run(monkeypatch, tmp_path / "broken.json") == 1
    assert "SW0" in capsys.readouterr().err
    assert run(monkeypatch, tmp_path / "absent.json") == 1
    assert "absent.json" in capsys.readouterr().err


def test_runs_as_a_module(capture) -> None:
    _, folder = capture
    command = [sys.executable, "-m", "aotgrad", str(folder / "capture.json"), "-o", str(folder / "grad.json")]
    assert subprocess.run(command, check=False, timeout=100).returncode == 0
    assert load(folder / "grad.json", "grad").binding.tangents


def test_the_second_stage_cuts_a_prim_in_two(capture) -> None:
    _, folder = capture
    document, _ = capture_by_torch_function(lambda x: x.exp().tanh(), [torch.randn(3, requires_grad=True)])
    grad = AotGrad().run(document)
    save(Prim(binding=grad.binding, joint=grad.joint, opset=3), folder / "prim.json")
    command = [sys.executable, "-m", "aotgrad", str(folder / "prim.json"), "-o", str(folder / "cut.json")]
    more = ["--partitioner", "save_everything"]
    assert subprocess.run([*command, *more], check=False, timeout=100).returncode == 0
    parts = cut(grad, PartitionStage.Options("save_everything"))
    assert load(folder / "cut.json", "prim") == msgspec.structs.replace(parts, opset=3)
    command[3] = str(folder / "cut.json")
    again = subprocess.run(command, check=False, timeout=100, capture_output=True, text=True)
    assert again.returncode == 1
    assert "SW011: partition reads a prim document; this is a cut" in again.stderr
