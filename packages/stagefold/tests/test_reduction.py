"""The smallest document of which a condition still holds."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import stagefold
from stagefold import Capsule
from stagefold.cli import main
from stagefold.errors import CommandFault
from stagefold.reduction import command, reduce, step_count
from stagewire.codec import load
from stagewire.printer import print_document
from stagewire.verify import verify


@pytest.fixture(scope="module")
def capsule(tmp_path_factory: pytest.TempPathFactory) -> Capsule:
    def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = torch.nn.functional.gelu(x @ w)
        return (torch.softmax(y, -1) * y.sin()).cumsum(0) + torch.erf(y)

    w = torch.randn(4, 4, requires_grad=True)
    path = tmp_path_factory.mktemp("reduction") / "a.capsule"
    return stagefold.record(program, torch.randn(3, 4), w, to=path)


def calls(word: str) -> Callable[[object], bool]:
    return lambda document: word in print_document(document)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("form", "word", "count"),
    [("capture", ".sin(", 1), ("grad", "aten.cumsum", 1), ("prim", "prims.erf", 1), ("cut", "prims.erf", 1),
     ("loop", "reduce max", 1)],
)  # fmt: skip
def test_one_step_is_left(capsule: Capsule, form: str, word: str, count: int) -> None:
    document = capsule.document(capsule.runs[0], form)
    found = reduce(document, calls(word))
    verify(found)
    assert word in print_document(found)
    assert step_count(found) == count < step_count(document)


def test_two_that_belong_together_stay(capsule: Capsule) -> None:
    document = capsule.document(capsule.runs[0], "prim")
    found = reduce(document, lambda one: calls("prims.exp")(one) and calls("prims.amax")(one))
    assert step_count(found) == 2


def test_symbolic_sizes_are_fixed_where_that_shows_it_too(tmp_path: Path) -> None:
    path = tmp_path / "a.capsule"
    capsule = stagefold.record(lambda x: torch.softmax(x, -1).exp(), torch.randn(3, 4), to=path, dynamic=True)
    document = capsule.document(capsule.runs[0], "loop")
    found = reduce(document, calls("exp"))
    assert not found.binding.symbols  # type: ignore[union-attr]
    verify(found)


def test_a_condition_that_never_held_is_refused(capsule: Capsule) -> None:
    with pytest.raises(CommandFault, match="does not hold of the document as it is"):
        reduce(capsule.document(capsule.runs[0], "prim"), lambda document: False)


def test_commands(capsule: Capsule, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keep, out = "grep -q prims.erf", tmp_path / "small.json"
    assert main(["reduce", str(capsule.path), "--only", "prim", "--keep", keep, "-o", str(out)]) == 0
    assert step_count(load(out)) == 1
    assert "1 of them left" in capsys.readouterr().out
    assert main(["reduce", str(out), "--keep", "grep -q erf {}"]) == 0
    assert "prims.erf" in capsys.readouterr().out
    assert main(["reduce", str(out), "--keep", "false"]) == 1
    assert "SF006" in capsys.readouterr().err
    slow = command(f"{sys.executable} -c 'import time; time.sleep(20)'", timeout=0.2)
    assert not slow(load(out))


def test_a_command_that_is_none_is_told(capsule: Capsule) -> None:
    with pytest.raises(CommandFault, match=r"no_such_file\.sh' cannot be run: .*no_such_file"):
        reduce(capsule.document(capsule.runs[0], "prim"), command("./no_such_file.sh"))
