"""The stage on documents that aotgrad wrote (tests/data), forward and backward."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch

from primops.errors import DecompositionFault
from primops.interpret import interpret
from primops.meanings import DTYPES
from primops.stage import Options, Primops, lower_graph
from primops.verify import verify
from stagewire.codec import decode, encode, load
from stagewire.grad import Grad, SavedInput
from stagewire.graph import Graph
from stagewire.parser import parse_graph
from stagewire.stage import Stage
from stagewire.types import TensorType

DOCUMENTS = sorted((Path(__file__).parent / "data").glob("*.json"))
EXTERNS = {
    "language": {"aten.addmm.default", "aten.mm.default", "aten.bernoulli.p"},
    "images": {"aten.convolution.default", "aten.convolution_backward.default", "aten.addmm.default", "aten.mm.default",
               "aten.max_pool2d_with_indices.default", "aten.max_pool2d_with_indices_backward.default"},
    "images_inference": {"aten.convolution.default", "aten.addmm.default", "aten.max_pool2d_with_indices.default"},
    "attention": {"aten.addmm.default", "aten.mm.default", "aten.bmm.default", "aten.baddbmm.default"},
}  # fmt: skip


def read(path: Path) -> Grad:
    document = load(path, "grad")
    assert isinstance(document, Grad)
    return document


def inputs_for(graph: Graph) -> list[torch.Tensor]:
    """Random tensors of the types of a graph's inputs; integers are small, so that they can be indices."""
    generator = torch.Generator().manual_seed(0)
    tensors = []
    for value in graph.inputs:
        t = value.type
        assert isinstance(t, TensorType)
        shape = tuple(int(str(n)) for n in t.shape)
        if DTYPES[t.dtype].is_floating_point:
            tensor = torch.rand(shape, generator=generator).to(DTYPES[t.dtype]) + 0.1
        else:
            tensor = torch.randint(0, 2, shape, generator=generator).to(DTYPES[t.dtype])
        empty = torch.empty_strided(shape, tuple(int(str(s)) for s in t.stride), dtype=DTYPES[t.dtype])
        tensors.append(empty.copy_(tensor))
    return tensors


def assert_graphs_agree(before: Graph, after: Graph, inputs: list[torch.Tensor]) -> tuple[object, ...]:
    torch.manual_seed(0)
    expected = interpret(before, inputs)
    torch.manual_seed(0)
    made = interpret(after, inputs)
    for a, b in zip(made, expected, strict=True):
        if isinstance(b, torch.Tensor):
            assert b.dtype == torch.bool or b.isfinite().all()
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4, check_stride=True)
        else:
            assert a == b
    return expected


def backward_inputs(grad: Grad, inputs: list[torch.Tensor], results: tuple[object, ...]) -> list[torch.Tensor]:
    """What the binding hands to the backward: saved values, then tangents."""
    assert grad.backward is not None
    saved = [inputs[s.input] if isinstance(s, SavedInput) else results[s.result] for s in grad.binding.saved]
    return [*saved, *inputs_for(grad.backward)[len(saved) :]]  # type: ignore[list-item]


def test_is_a_stage() -> None:
    stage = Primops()
    assert isinstance(stage, Stage)
    assert (stage.name, stage.consumes, stage.produces) == ("primops", "grad", "prim")
    assert Primops.Options is Options


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: p.stem)
def test_means_the_same(path: Path) -> None:
    grad = read(path)
    prim = Primops().run(grad, Options(strict=True))
    verify(prim)
    assert decode(encode(prim)) == prim
    assert prim.binding == grad.binding
    inputs = inputs_for(grad.forward)
    results = assert_graphs_agree(grad.forward, prim.forward, inputs)
    if grad.backward is not None:
        assert prim.backward is not None
        assert_graphs_agree(grad.backward, prim.backward, backward_inputs(grad, inputs, results))


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: p.stem)
def test_leaves_only_these_to_aten(path: Path) -> None:
    prim = Primops().run(read(path))
    graphs = [graph for graph in (prim.forward, prim.backward) if graph is not None]
    targets = {node.target for graph in graphs for node in graph.nodes}
    assert {t for t in targets if not t.startswith("prims.")} <= EXTERNS[path.stem]


def test_lines_and_phases_stay() -> None:
    prim = Primops().run(read(DOCUMENTS[0]))
    assert all(node.line is not None for node in prim.forward.nodes if node.target.startswith("aten."))


def test_keep_leaves_an_op_whole() -> None:
    prim = Primops().run(read(Path(__file__).parent / "data" / "language.json"), Options(keep=("aten.gelu.default",)))
    assert "aten.gelu.default" in [node.target for node in prim.forward.nodes]


GRAPH = """
input %x: f32[2, 3]
%y: f32[2, 3] = aten.exp.default(%x)
return %y
"""


def test_another_decomposition_replaces_ours() -> None:
    def by_powers_of_two(p, x):
        return p.exp2(p.mul(x, 1.4426950408889634))

    table = {"aten.exp.default": by_powers_of_two}
    lowered = lower_graph(parse_graph(GRAPH), table)
    assert [node.target for node in lowered.nodes] == ["prims.mul", "prims.exp2"]
    assert_graphs_agree(parse_graph(GRAPH), lowered, [torch.randn(2, 3)])


def _raises(p, x):
    raise ZeroDivisionError("by zero")


def _wrong_shape(p, x):
    return p.sum(x, (0,))


@pytest.mark.parametrize("decomposition", [_raises, _wrong_shape])
def test_a_failing_decomposition_is_an_error_or_an_extern(decomposition, caplog: pytest.LogCaptureFixture) -> None:
    graph = parse_graph(GRAPH)
    with pytest.raises(DecompositionFault, match=r"aten\.exp"):
        lower_graph(graph, {"aten.exp.default": decomposition})
    with caplog.at_level(logging.WARNING, "primops"):
        lowered = lower_graph(graph, {"aten.exp.default": decomposition}, strict=False)
    assert [node.target for node in lowered.nodes] == ["aten.exp.default"]
    assert "aten.exp.default stays with ATen" in caplog.text


def test_dtypes_without_prims_stay_with_aten() -> None:
    graph = parse_graph("input %x: c64[2]\n%y: c64[2] = aten.exp.default(%x)\nreturn %y")
    assert lower_graph(graph) == graph


def test_empty_results_need_no_computation() -> None:
    graph = parse_graph("input %x: f32[0, 3]\n%y: f32[0, 3] = aten.exp.default(%x)\nreturn %y")
    assert [node.target for node in lower_graph(graph).nodes] == ["prims.full"]
