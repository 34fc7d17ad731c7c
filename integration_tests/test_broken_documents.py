"""A document that names a value which nobody defines is refused with its place, wherever a command line reads it."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest
import torch

import stagefold
import stagewire
from integration_tests.fresh_processes import run_module
from integration_tests.zoo.traces import unpacked
from stagefold.cli import main
from stagewire.codec import form_of
from stagewire.graph import Ref

READERS = {"capture": "aotgrad", "grad": "primops", "prim": "aotgrad", "cut": "loopir", "loop": "codegen"}
LABELS = {"capture": "[G3]", "grad": "[G3]", "prim": "[G3]", "cut": "[G3]", "loop": "[L3]", "program": "[R5]"}
"""The constraint that an output breaks which is not defined."""


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with every document of one compilation, the first output of each dangling."""
    directory = tmp_path_factory.mktemp("broken")
    compiled = stagefold.compile(lambda x: torch.softmax(x, -1) @ x, options={"trace_dir": str(directory)})
    compiled(torch.randn(3, 3))
    documents = unpacked(directory)
    for kind in LABELS:
        path = documents / f"{kind}.json"
        stagewire.save(dangling(stagewire.load(path)), path)
    return documents


def dangling(document: stagewire.Document) -> stagewire.Document:
    """The document with its first output named "nobody"."""
    field = {"capture": "graph", "grad": "joint", "prim": "joint"}.get(form_of(document), "forward")
    graph = getattr(document, field)
    outputs = (Ref("nobody"), *graph.outputs[1:])
    return msgspec.structs.replace(document, **{field: msgspec.structs.replace(graph, outputs=outputs)})


def assert_names_the_place(text: str, kind: str) -> None:
    assert f"SW003: {LABELS[kind]}" in text
    assert ">" in next(line for line in text.splitlines()[1:] if "%nobody" in line), "the line itself is shown, marked"
    assert f"{kind}.json" in text
    assert "Traceback" not in text


@pytest.mark.parametrize("kind", READERS)
def test_a_stage_refuses_it(broken: Path, kind: str, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    done = run_module(READERS[kind], os.environ, str(broken / f"{kind}.json"), "-o", str(out))
    assert done.returncode == 1
    assert_names_the_place(done.stderr, kind)
    assert not out.exists()


@pytest.mark.parametrize("kind", READERS)
def test_run_stage_refuses_it(broken: Path, kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.json"
    slot = "partition" if kind == "prim" else READERS[kind]
    assert main(["run-stage", slot, str(broken / f"{kind}.json"), str(out)]) == 1
    assert_names_the_place(capsys.readouterr().err, kind)
    assert not out.exists()


@pytest.mark.parametrize("kind", LABELS)
def test_run_refuses_it(broken: Path, kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save([torch.randn(3, 3)], tmp_path / "in.pt")
    assert main(["run", str(broken / f"{kind}.json"), str(tmp_path / "in.pt"), str(tmp_path / "out.pt")]) == 1
    assert_names_the_place(capsys.readouterr().err, kind)
    assert not (tmp_path / "out.pt").exists()
