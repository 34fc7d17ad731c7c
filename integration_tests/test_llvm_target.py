"""A target of another distribution (examples/backends/llvm) that makes machine code without a C++ compiler."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import stagefold
from codegen.errors import NoCompiler, SlowExecutor
from integration_tests.plugins import ROOT, installed
from stagefold.testing.conformance import conform

pytest.importorskip("llvmlite", reason="pip install llvmlite")


@pytest.fixture(scope="module", autouse=True)
def llvm_target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with installed(ROOT / "examples" / "backends" / "llvm", tmp_path_factory.mktemp("installed")):
        yield


def test_it_trains_at_every_size() -> None:
    layers = nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Dropout(0.5), nn.Linear(16, 4), nn.Softmax(-1)
    model = nn.Sequential(*layers)
    other = copy.deepcopy(model)
    compiled = stagefold.compile(other, fullgraph=True, options={"codegen.target": "llvm"})
    for rows in (6, 9, 12, 1):
        x = torch.randn(rows, 8)
        results = []
        for call in (model, compiled):
            torch.manual_seed(1)
            results.append(call(x))
            results[-1].square().sum().backward()
        torch.testing.assert_close(*results)
    for want, have in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(have.grad, want.grad)


def test_it_keeps_the_meaning() -> None:
    """Every program of the kit, and drawn ones."""
    assert [m[:2] for m in conform("codegen", "codegen", drawn=5, options={"codegen.target": "llvm"})] == []


def test_an_index_out_of_range_is_told() -> None:
    compiled = stagefold.compile(lambda x, i: x[i] * 2, fullgraph=True, options={"codegen.target": "llvm"})
    x = torch.randn(5)
    torch.testing.assert_close(compiled(x, torch.tensor([1, -5])), x[[1, 0]] * 2)
    with pytest.raises(IndexError):
        compiled(x, torch.tensor([1, 7]))


def test_no_compiler_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("codegen.cpp.machine_code.find_compiler", _missing)
    empty = tmp_path / "temporary"  # this process may have compiled the executor without a cache
    empty.mkdir()
    monkeypatch.setattr("codegen.cpp.machine_code.temporary_directory", lambda: empty)
    options = {"codegen.target": "llvm", "cache_dir": str(tmp_path)}
    compiled = stagefold.compile(lambda x: torch.softmax(x * 2, -1), fullgraph=True, options=options)
    x = torch.randn(4, 7)
    with pytest.warns(SlowExecutor, match="the native executor cannot be made"):
        found = compiled(x)
    torch.testing.assert_close(found, torch.softmax(x * 2, -1))


def _missing(*arguments: object) -> None:
    raise NoCompiler("there is none")
