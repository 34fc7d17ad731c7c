"""`python -m bytecap FILE`: a saved Capture as text, and run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from bytecap import executor, optimize
from bytecap.__main__ import main, random_tensor
from stagewire.capture import Capture
from stagewire.codec import save
from stagewire.types import TensorType


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.factor = 2

    def forward(self, x):
        return torch.relu(self.linear(x)) * self.factor


@pytest.fixture
def saved(tmp_path: Path) -> str:
    captures: list[Capture] = []

    def backend(capture, inputs):
        captures.append(capture)
        return executor(capture)

    optimize(Scaled(), backend)(torch.ones(4, 3))
    path = tmp_path / "scaled.capture.json"
    save(captures[0], str(path))
    return str(path)


def test_inputs_and_guards_are_shown_as_python(saved: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([saved]) == 0
    shown = capsys.readouterr().out
    assert "Scaled" in shown.splitlines()[0]
    assert "linear_weight = self.linear.weight  [parameter]" in shown
    assert f"type(self.factor) is int and self.factor == 2    # {__file__}:" in shown
    assert "torch.nn.functional.linear(" not in shown


def test_what_holds_of_every_module_is_one_line(saved: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([saved]) == 0
    shown = capsys.readouterr().out
    assert shown.count("hooks") == 1
    assert shown.count("names of modules and classes") == 1
    assert "on 2 modules)" in shown
    assert "__dict__" not in shown
    assert "_modules" not in shown


def test_graph_and_run(saved: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([saved, "--graph", "--run", "--seed", "3"]) == 0
    first = capsys.readouterr().out
    assert "torch.nn.functional.linear(" in first
    assert "output 0: torch.float32 (4, 2), norm " in first
    assert main([saved, "--graph", "--run", "--seed", "3"]) == 0
    assert capsys.readouterr().out == first
    assert main([saved, "--run", "--seed", "4"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] != first.splitlines()[-1]


def test_bad_files_are_coded_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    for path in (broken, tmp_path / "missing.json"):
        assert main([str(path)]) == 1
        assert capsys.readouterr().err


@pytest.mark.parametrize(
    "value",
    [
        torch.zeros(2, 3),
        torch.zeros(3, 2).t(),
        torch.zeros(1, 3).expand(4, 3),
        torch.zeros(()),
        torch.zeros(0, 3),
        torch.zeros(2, dtype=torch.int64),
        torch.zeros(2, dtype=torch.bool),
        torch.zeros(2, dtype=torch.bfloat16, requires_grad=True),
        torch.zeros(4, dtype=torch.complex64)[::2],
    ],
)
def test_random_tensors_have_the_recorded_type(value: torch.Tensor) -> None:
    kind = TensorType(
        str(value.dtype).removeprefix("torch."),
        tuple(value.shape),
        tuple(value.stride()),
        requires_grad=value.requires_grad,
    )
    made = random_tensor(kind, {}, torch.Generator())
    assert (made.dtype, made.shape, made.stride()) == (value.dtype, value.shape, value.stride())
    assert made.requires_grad == value.requires_grad
