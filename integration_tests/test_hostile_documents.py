"""Documents that call what computes no tensors, or that name an argument by code, run nothing."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

import stagefold
import stagewire
from integration_tests.zoo.traces import unpacked
from stagefold.cli import main
from stagewire.graph import Node


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with every document of one compilation, with a sort, which ATen computes."""
    directory = tmp_path_factory.mktemp("hostile")
    compiled = stagefold.compile(lambda x: torch.sort(x + 1, dim=-1)[0] * 2, options={"trace_dir": str(directory)})
    compiled(torch.randn(3, 3))
    documents = unpacked(directory)
    return documents


def run(document: stagewire.Document, directory: Path) -> int:
    stagewire.save(document, directory / "document.json")
    torch.save([torch.randn(3, 3)], directory / "in.pt")
    return main(["run", str(directory / "document.json"), str(directory / "in.pt"), str(directory / "out.pt")])


@pytest.mark.parametrize(
    ("target", "code"),
    [
        ("torch.os.system", "touch {}"),
        ("torch._sources.inspect.os.system", "touch {}"),
        ("torch.builtins.exec", "open({!r}, 'w')"),
        ("torch.save", "{}"),
    ],
)
def test_only_the_vocabulary_is_called(
    documents: Path, target: str, code: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = tmp_path / "made"
    capture = stagewire.load(documents / "capture.json", expect="capture")
    assert isinstance(capture, stagewire.Capture)
    arguments = (1, str(made)) if target == "torch.save" else (code.format(str(made)),)
    graph = msgspec.structs.replace(capture.graph, nodes=(Node(target, arguments, {}, ()), *capture.graph.nodes))
    assert run(msgspec.structs.replace(capture, graph=graph), tmp_path) == 1
    assert "AI008" in capsys.readouterr().err
    assert not made.exists()


def with_keyword(value: Any, name: str) -> Any:
    """The document with the keyword of each call of a sort replaced by `name`."""
    if isinstance(value, dict):
        if "sort" in str(value.get("target", "")) and "kwargs" in value:
            value = {**value, "kwargs": {name: True}}
        return {key: with_keyword(item, name) for key, item in value.items()}
    return [with_keyword(item, name) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("kind", ["capture", "grad", "loop", "program"])
def test_names_of_arguments_are_not_run(
    documents: Path, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[Any] = []
    monkeypatch.setattr(os, "system", ran.append)
    code = "stable=True) if __import__('os').system('touch pwned') else operator(t0, stable"
    plain = msgspec.json.decode((documents / f"{kind}.json").read_bytes())
    changed = with_keyword(plain, code)
    assert changed != plain
    assert run(stagewire.decode(msgspec.json.encode(changed)), tmp_path) == 1
    assert "is no name of an argument" in capsys.readouterr().err
    assert not ran


def test_what_is_harmless_runs(documents: Path, tmp_path: Path) -> None:
    for kind in ("capture", "grad", "prim", "cut", "loop", "program"):
        assert run(stagewire.load(documents / f"{kind}.json"), tmp_path) == 0
    assert torch.load(tmp_path / "out.pt")[0].shape == (3, 3)


def test_a_launch_of_nothing_is_a_coded_error(
    documents: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = stagewire.load(documents / "program.json", expect="program")
    assert isinstance(program, stagewire.Program)
    kernel = program.forward.kernels[0].name
    source = program.forward.source.replace(kernel, f"{kernel}_of_another_name")
    forward = msgspec.structs.replace(program.forward, source=source)
    assert run(msgspec.structs.replace(program, forward=forward), tmp_path) == 1
    assert "CG019" in capsys.readouterr().err


def test_a_call_that_torch_refuses_is_a_coded_error(
    documents: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = msgspec.json.decode((documents / "program.json").read_bytes())
    changed = with_keyword(plain, "no_such_argument")
    assert run(stagewire.decode(msgspec.json.encode(changed)), tmp_path) == 1
    assert "SF006: the program raised" in capsys.readouterr().err
