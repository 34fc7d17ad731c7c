"""The stage on documents that aotgrad wrote (tests/data), forward and backward."""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec
import pytest
import torch

from primops.errors import DecompositionFault
from primops.interpret import interpret
from primops.stage import Options, Primops, lower_graph
from primops.testing.conformance import check_graphs, check_lowering, random_inputs
from stagewire.codec import decode, encode, load
from stagewire.errors import UnknownOp
from stagewire.grad import Binding, Grad, SavedInput
from stagewire.graph import Graph
from stagewire.parser import parse_graph
from stagewire.prim import Prim
from stagewire.stage import Stage

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


def test_is_a_stage() -> None:
    stage = Primops()
    assert isinstance(stage, Stage)
    assert (stage.name, stage.consumes, stage.produces) == ("primops", "grad", "prim")
    assert Primops.Options is Options


class Strict(Primops):
    """The stage with faults of decompositions as errors."""

    def run(self, document: Grad, options: Options | None = None) -> Prim:
        return super().run(document, options or Options(strict=True))


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: p.stem)
def test_means_the_same(path: Path) -> None:
    grad = read(path)
    prim = check_lowering(Strict(), grad)
    assert decode(encode(prim)) == prim


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: p.stem)
def test_leaves_only_these_to_aten(path: Path) -> None:
    prim = Primops().run(read(path))
    targets = {node.target for node in prim.joint.nodes}
    assert {t for t in targets if not t.startswith("prims.")} <= EXTERNS[path.stem]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: p.stem)
def test_documents_of_version_1_that_were_cut_mean_what_they_meant(path: Path) -> None:
    """The parts as they were stored, run one after the other, beside the joint graph that is read now."""
    wire = msgspec.json.decode(path.read_bytes())
    assert wire["version"] < 3
    body, joint = wire["body"], read(path).joint
    forward = msgspec.convert(body["forward"], Graph)
    inputs = random_inputs(joint)
    torch.manual_seed(0)
    results = interpret(forward, inputs[: len(forward.inputs)])
    expected = results
    if body.get("backward") is not None:
        binding = msgspec.convert(body["binding"], Binding)
        saved = [inputs[s.input] if isinstance(s, SavedInput) else results[s.result] for s in binding.saved]
        found = interpret(msgspec.convert(body["backward"], Graph), [*saved, *inputs[len(forward.inputs) :]])
        expected = results[: len(joint.outputs) - len(binding.inputs)]
        expected += tuple(None if place is None else found[place] for place in binding.input_gradients)
    torch.manual_seed(0)
    torch.testing.assert_close(interpret(joint, inputs), expected)


class TurnedAround(Primops):
    """A stage with a fault."""

    def run(self, document: Grad, options: Options | None = None) -> Prim:
        prim = super().run(document, options)
        nodes = list(prim.joint.nodes)
        place = next(i for i, node in enumerate(nodes) if node.target == "prims.maximum")
        nodes[place] = msgspec.structs.replace(nodes[place], target="prims.minimum")
        return msgspec.structs.replace(prim, joint=msgspec.structs.replace(prim.joint, nodes=tuple(nodes)))


def test_the_conformance_check_sees_a_wrong_lowering() -> None:
    with pytest.raises(AssertionError, match="output 0"):
        check_lowering(TurnedAround(), read(Path(__file__).parent / "data" / "images_inference.json"))


def test_lines_and_phases_stay() -> None:
    prim = Primops().run(read(DOCUMENTS[0]))
    forward = [node for node in prim.joint.nodes if node.phase == "forward"]
    assert 0 < len(forward) < len(prim.joint.nodes)
    assert all(node.line is not None for node in forward if node.target.startswith("aten."))


def test_keep_leaves_an_op_whole() -> None:
    prim = Primops().run(read(Path(__file__).parent / "data" / "language.json"), Options(keep=("aten.gelu.default",)))
    assert "aten.gelu.default" in [node.target for node in prim.joint.nodes]


@pytest.mark.parametrize("name", ["exp", "aten.exp", "aten.expp.default", "aten.exp.defualt"])
@pytest.mark.parametrize("option", ["keep", "decompositions"])
def test_a_name_of_no_operator_is_refused(option: str, name: str) -> None:
    """With the one that is meant; it would be an option that does nothing."""
    with pytest.raises(UnknownOp, match=r"Did you mean aten\.exp\.default"):
        Options(**{option: (name,) if option == "keep" else {name: None}})  # type: ignore[arg-type]


def test_operators_of_other_libraries_may_be_named_once_they_are_registered() -> None:
    with pytest.raises(UnknownOp, match="torch has no operator"):
        Options(keep=("mine_of_stage.halve.default",))
    with torch.library._scoped_library("mine_of_stage", "FRAGMENT") as library:
        library.define("halve(Tensor x) -> Tensor")
        assert Options(keep=("mine_of_stage.halve.default",)).keep


GRAPH = """
input %x: f32[2, 3]
%y: f32[2, 3] = aten.exp.default(%x)
return %y
"""


def test_sizes_may_be_lists() -> None:
    def by_reshaping(p, x):
        return p.reshape(p.exp(p.broadcast_in_dim(p.reshape(x, [3, 2]), [1, 3, 2], [1, 2])), [2, 3])

    lowered = lower_graph(parse_graph(GRAPH), {"aten.exp.default": by_reshaping})
    assert all(type(value.type.shape) is tuple for node in lowered.nodes for value in node.results)
    check_graphs(parse_graph(GRAPH), lowered, [torch.randn(2, 3)])


def test_another_decomposition_replaces_ours() -> None:
    def by_powers_of_two(p, x):
        return p.exp2(p.mul(x, 1.4426950408889634))

    table = {"aten.exp.default": by_powers_of_two}
    lowered = lower_graph(parse_graph(GRAPH), table)
    assert [node.target for node in lowered.nodes] == ["prims.mul", "prims.exp2"]
    check_graphs(parse_graph(GRAPH), lowered, [torch.randn(2, 3)])


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
        lowered = lower_graph(graph, {"aten.exp.default": decomposition}, strict=frozenset())
    assert [node.target for node in lowered.nodes] == ["aten.exp.default"]
    assert "aten.exp.default stays with ATen" in caplog.text


@pytest.mark.parametrize(
    ("decomposition", "message"),
    [
        (lambda p, x: p.add(x), r"1 arguments for add\(a: operand, b: operand\)"),
        (lambda p, x: p.convert(x, torch.float64), r"torch\.float64 is no dtype, which is a name such as 'float32'"),
    ],
)
def test_a_prim_called_in_a_wrong_way_says_so(decomposition, message: str) -> None:
    with pytest.raises(DecompositionFault, match=message):
        lower_graph(parse_graph(GRAPH), {"aten.exp.default": decomposition})


def test_dtypes_without_prims_stay_with_aten() -> None:
    graph = parse_graph("input %x: c64[2]\n%y: c64[2] = aten.exp.default(%x)\nreturn %y")
    assert lower_graph(graph) == graph


def test_empty_results_need_no_computation() -> None:
    graph = parse_graph("input %x: f32[0, 3]\n%y: f32[0, 3] = aten.exp.default(%x)\nreturn %y")
    assert [node.target for node in lower_graph(graph).nodes] == ["prims.full"]


LAZY = """
input %x: c64[3, 4]
%c: c64[4, 3]{1, 4} = aten.t.default(%x)
%y: c64[4, 3]{1, 4} = aten._conj.default(%c)
%z: f32[4, 3, 2]{2, 8, 1} = aten.view_as_real.default(%y)
return %z
"""


def test_conjugation_is_computed_not_marked() -> None:
    """view_as_real refuses a tensor that only carries the mark of a conjugation."""
    lowered = lower_graph(parse_graph(LAZY))
    assert "aten._conj_physical.default" in [node.target for node in lowered.nodes]
    x = torch.randn(3, 4, dtype=torch.complex64)
    (result,) = interpret(lowered, [x])
    torch.testing.assert_close(result, torch.view_as_real(x.t().conj().resolve_conj()))
