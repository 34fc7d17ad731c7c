"""Save every document of a run, load each in another process, finish from there: the same bytes of output."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from torch import nn

import stagefold
from integration_tests.fresh_processes import run_module
from integration_tests.zoo.traces import unpacked
from stagefold.backend import StagefoldBackend
from stagefold.options import Options
from stagewire.codec import form_of

BOUNDARIES = ("capture", "grad", "prim", "cut", "loop", "program")


class Model(nn.Module):
    """A little of everything: convolution, batch norm, softmax, layer norm, a matmul, a view."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.layer_norm = nn.LayerNorm(16)
        self.head = nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.relu(self.norm(self.conv(x))).flatten(2)
        z = torch.softmax(self.head(self.layer_norm(y)), dim=-1)
        return z, y.transpose(1, 2)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The documents of one compilation in evaluation mode, its graph inputs and its outputs."""
    directory = tmp_path_factory.mktemp("documents")
    torch.manual_seed(1)
    model = Model().eval()
    x = torch.randn(3, 2, 4, 4)
    seen: list[tuple[torch.Tensor, ...]] = []
    options = {"trace_dir": str(directory), "cache_dir": str(directory / "cache")}
    compiled = stagefold.compile(model, fullgraph=True, options=options)
    backend = compiled._backend
    original = backend.load
    backend.load = lambda *given, **more: _recording(original(*given, **more), seen)
    with torch.no_grad():
        outputs = compiled(x)
    torch.testing.assert_close(outputs, model(x))
    documents = unpacked(directory)
    torch.save([tensor.detach() for tensor in seen[0]], documents / "inputs.pt")
    torch.save(list(outputs), documents / "outputs.pt")
    return documents


def _recording(function, seen):  # type: ignore[no-untyped-def]
    def call(*inputs):  # type: ignore[no-untyped-def]
        seen.append(inputs)
        return function(*inputs)

    return call


@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_finishing_in_another_process_gives_the_same_bytes(saved: Path, boundary: str, tmp_path: Path) -> None:
    out = tmp_path / "out.pt"
    arguments = ("run", f"{saved / boundary}.json", f"{saved}/inputs.pt", str(out))
    done = run_module("stagefold", os.environ, *arguments)
    assert done.returncode == 0, done.stderr
    expected, got = torch.load(saved / "outputs.pt"), torch.load(out)
    assert len(got) == len(expected)
    for want, have in zip(expected, got, strict=True):
        assert have.dtype == want.dtype
        assert have.stride() == want.stride()
        assert have.contiguous().numpy().tobytes() == want.contiguous().numpy().tobytes()


@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_documents_survive_both_codecs_and_the_printed_form(saved: Path, boundary: str, tmp_path: Path) -> None:
    import stagewire
    from stagewire.parser import parse_document
    from stagewire.printer import print_document
    from stagewire.verify import verify

    document = stagewire.load(saved / f"{boundary}.json")
    assert form_of(document) == boundary
    verify(document)
    stagewire.save(document, tmp_path / "copy.msgpack")
    assert stagewire.load(tmp_path / "copy.msgpack") == document
    if boundary != "program":
        assert parse_document(print_document(document)) == document


def test_training_documents_finish_from_every_boundary(tmp_path: Path) -> None:
    """The same for a training graph, in this process: outputs and gradients from each saved document."""
    import stagewire

    torch.manual_seed(2)
    model, x = Model().train(), torch.randn(3, 2, 4, 4)
    seen: list[tuple[torch.Tensor, ...]] = []
    compiled = stagefold.compile(model, fullgraph=True, options={"trace_dir": str(tmp_path)})
    backend = compiled._backend
    original = backend.load
    backend.load = lambda *given, **more: _recording(original(*given, **more), seen)
    compiled(x)
    documents = unpacked(tmp_path)
    fresh = StagefoldBackend(Options())
    results = []
    for boundary in BOUNDARIES:
        inputs = [tensor.detach().clone().requires_grad_(tensor.requires_grad) for tensor in seen[0]]
        program = fresh.pipeline.run(stagewire.load(documents / f"{boundary}.json"))
        outputs = [t for t in fresh.load(program)(*inputs) if isinstance(t, torch.Tensor) and t.requires_grad]
        torch.autograd.backward(outputs, [torch.ones_like(t) for t in outputs])
        results.append([t.detach() for t in outputs] + [t.grad for t in inputs if t.grad is not None])
    assert len(results[0]) > 4
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))
