"""An op that another distribution declares (examples/new_op), in all documents, targets and tools."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import stagefold
from codegen import Codegen, Options
from codegen.errors import UnsupportedKernel
from integration_tests.plugins import ROOT, installed
from integration_tests.zoo.traces import traced
from loopir import LoopIR
from loopir.errors import UnsupportedPrim
from stagefold.testing.conformance import conform
from stagewire import stage
from stagewire.errors import NameClash, VerifyError
from stagewire.loop import Compute, Extern, Kernel
from stagewire.parser import parse_document
from stagewire.printer import print_document
from stagewire.statements import select
from stagewire.verify import verify


@pytest.fixture(scope="module")
def squareplus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with installed(ROOT / "examples" / "new_op", tmp_path_factory.mktemp("installed")):
        import squareplus as module

        yield module.squareplus
        module.squareplus._lib._destroy()


@pytest.fixture
def documents(squareplus: Any, tmp_path: Path) -> dict[str, Any]:
    """Those of a training step at open sizes, by kind."""

    def step(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.tanh(squareplus(x * w, 4.0)).sum(-1)

    options = {"cache": False, "trace_dir": str(tmp_path), "verify": True}
    compiled = stagefold.compile(step, fullgraph=True, options=options)
    w = torch.randn(4, requires_grad=True)
    for rows in (3, 5, 7):
        x = torch.randn(rows, 4, requires_grad=True)
        found = [torch.autograd.grad(f(x, w).square().sum(), (x, w)) for f in (step, compiled)]
        torch.testing.assert_close(*found)
        torch.testing.assert_close(compiled(x, w), step(x, w))
    found = {form: traced(tmp_path, form) for form in ("capture", "grad", "prim", "cut", "loop", "program")}
    assert len(found["capture"]) == 2, "three sizes are two programs"
    return {form: documents[-1] for form, documents in found.items()}


def test_it_is_one_kernel_with_its_neighbours(documents: dict[str, Any]) -> None:
    steps = documents["loop"].forward.steps
    assert not [one for one in steps if isinstance(one, Extern)]
    (kernel,) = (one for one in steps if isinstance(one, Kernel))
    called = [one.op for one in select(kernel.sections, Compute)]
    assert {"mul", "squareplus.squareplus", "tanh"} <= set(called)


def test_documents_print_parse_and_verify(documents: dict[str, Any]) -> None:
    for document in documents.values():
        assert parse_document(print_document(document)) == document
        verify(document)
    assert "squareplus.squareplus(%mul, 4.0)" in print_document(documents["prim"])


def test_all_documents_mean_the_same(documents: dict[str, Any]) -> None:
    x, w = torch.randn(6, 4), torch.randn(4)
    meant = {kind: stagefold.meaning(document)(x, w)[0] for kind, document in documents.items()}
    assert len(meant) == 6
    for one in meant.values():
        torch.testing.assert_close(one, meant["capture"])


@pytest.mark.parametrize("slot", ["primops", "partition", "loopir", "codegen"])
def test_conformance_tries_it(squareplus: Any, slot: str) -> None:
    assert [misfit[:2] for misfit in conform(slot, slot, only="squareplus")] == []


PRIM = """prim 3 {{
  binding {{ inputs {{ BoundInput(name="x", type=f32[2]) }} outputs {{ Fresh(result=0) }} }}
  forward {{ input %x: f32[2]  %y: f32[2] = squareplus.squareplus(%x, {})  return %y }}
}}"""
WRONG = [("-1.0", r"squareplus\.Q2|\[Q2\]"), ("%x", r"V3"), ("1.0, 2.0", "V2")]


@pytest.mark.parametrize(("b", "label"), WRONG)
def test_a_wrong_call_is_refused(squareplus: Any, b: str, label: str) -> None:
    with pytest.raises(VerifyError, match=label):
        verify(parse_document(PRIM.format(b)))


LOOP = """loop 2 {
  binding { inputs { BoundInput(name="x", type=f32[4]) } outputs { Fresh(result=0) } }
  forward {
    buffers { %x: f32[4] = input  %y: f32[4] = kernel }
    inputs = ("x",)
    outputs = (%y,)
    steps {
      kernel k for i in 4 {
        section { %a: f32 = load %x[i]  %b: f32 = squareplus.squareplus(%a, 4.0)  store %y[i] = %b }
      }
    }
  }
}"""


def test_a_wrong_computation_is_refused(squareplus: Any) -> None:
    verify(parse_document(LOOP))
    with pytest.raises(VerifyError, match=r"\[squareplus.Q2\]"):
        verify(parse_document(LOOP.replace("4.0", "-4.0")))
    with pytest.raises(VerifyError, match=r"\[K9\] .*squareplus.squareminus|squareplus .*has no op 'squareminus'"):
        verify(parse_document(LOOP.replace("squareplus.squareplus", "squareplus.squareminus")))


def test_each_target_writes_its_text(squareplus: Any) -> None:
    loop = parse_document(LOOP)
    assert "__builtin_sqrtf" in Codegen().run(loop).forward.source
    assert "square_root(" in Codegen().run(loop, Options(target="triton")).forward.source


INTERPRETED = """
import torch, stagefold
from squareplus import squareplus
from triton.runtime.interpreter import GridExecutor

launched, launch = [], GridExecutor.__call__
GridExecutor.__call__ = lambda self, *args, **kwargs: launched.append(self.fn.__name__) or launch(self, *args, **kwargs)

def program(x):
    return torch.sigmoid(squareplus(x * 2, 4.0))

compiled = stagefold.compile(program, options={"codegen.target": "triton", "cache": False})
for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
    x = torch.linspace(-30, 30, 35).to(dtype).reshape(5, 7).requires_grad_()
    results = [f(x) for f in (program, compiled)]
    torch.testing.assert_close(*results)
    gradients = [torch.autograd.grad(one.sum(), x)[0] for one in results]
    near = {"rtol": 0, "atol": 1e-2} if dtype.itemsize == 2 else {}
    torch.testing.assert_close(*gradients, **near)
print(len(launched))
"""


def test_its_text_runs_in_tritons_interpreter(tmp_path: Path) -> None:
    """In a process of its own: Triton reads the switch when it is imported."""
    pytest.importorskip("triton", reason="pip install triton")
    project = ROOT / "examples" / "new_op"
    with installed(project, tmp_path / "installed"):
        paths = os.pathsep.join(filter(None, sys.path))
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": paths, "STAGEFOLD_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", INTERPRETED]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 8, "forward and backward, for each dtype"


@pytest.mark.parametrize(("target", "is_call"), [("cpp", False), ("numpy", False), ("llvm", True)])
def test_targets_without_a_form_leave_it_to_torch(squareplus: Any, target: str, is_call: bool, tmp_path: Path) -> None:
    if target == "llvm":
        pytest.importorskip("llvmlite", reason="pip install llvmlite")
    with contextlib.ExitStack() as stack:
        if target != "cpp":
            stack.enter_context(installed(ROOT / "examples" / "backends" / target, tmp_path / "installed"))
        options = {"cache": False, "codegen.target": target, "trace_dir": str(tmp_path / "trace")}
        x = torch.randn(5)
        program = lambda x: squareplus(x * 2, 4.0) + 1  # noqa: E731
        torch.testing.assert_close(stagefold.compile(program, fullgraph=True, options=options)(x), program(x))
    (loop,) = traced(tmp_path / "trace", "loop")
    steps = loop.forward.steps
    assert any(isinstance(one, Extern) and one.target == "squareplus.squareplus.default" for one in steps) is is_call


def test_what_is_not_registered_is_told(squareplus: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    own = sys.modules["squareplus_op"]
    for name in ("CPP", "LOWERINGS"):
        monkeypatch.setattr(own, name, {})
    stage.registered.cache_clear()
    with pytest.raises(UnsupportedKernel, match=r"the target 'cpp' has no code for squareplus\.squareplus in k"):
        Codegen().run(parse_document(LOOP))
    with pytest.raises(UnsupportedPrim, match=r"no lowering for squareplus\.squareplus"):
        LoopIR().run(parse_document(PRIM.format("4.0")))
    stage.registered.cache_clear()


def test_a_row_that_stands_already_is_refused(squareplus: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    own = sys.modules["squareplus"]
    monkeypatch.setattr(own, "DECOMPOSITIONS", {"aten.tanh.default": own.decompose})
    stage.registered.cache_clear()
    with pytest.raises(NameClash, match=r"'aten.tanh.default' is registered in stagefold.decompositions"):
        stagefold.compile(torch.tanh, fullgraph=True, options={"cache": False})(torch.ones(2))
    stage.registered.cache_clear()
