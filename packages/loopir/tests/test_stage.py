"""The stage itself: its protocol, both directions, its options, and that it needs no torch."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass

import msgspec
import numpy as np
import pytest

import loopir
from loopir.errors import UnsupportedPrim
from loopir.interpret import interpret
from loopir.pipeline import KERNEL_PASSES, PASSES, UNFUSED
from loopir.schedule import freeze_kernel
from loopir.stage import LoopIR, Options, private_results
from loopir.testing.graphs import GELU, SAMPLES, SOFTMAX, document, kernels, lowered
from stagewire import index as ix
from stagewire.errors import VerifyError
from stagewire.grad import Binding, BoundInput, Fresh, Mutation, SavedInput, SavedResult, Tangent
from stagewire.graph import Graph, Node, Ref, Value
from stagewire.loop import Axis, Buffer, Kernel, Load, LoopGraph, Section, Store
from stagewire.parser import parse_graph
from stagewire.prim import Prim
from stagewire.stage import Stage, discover
from stagewire.types import ScalarType, contiguous
from stagewire.verify import verify, verify_loop_graph

FORWARD = """\
input %x: f32[6, 4]
%y: f32[6, 4] = prims.tanh(%x)
return %y
"""
BACKWARD = """\
input %y: f32[6, 4]
input %t: f32[6, 4]
%square: f32[6, 4] = prims.mul(%y, %y)
%slope: f32[6, 4] = prims.sub(1.0, %square)
%g: f32[6, 4] = prims.mul(%t, %slope)
return %g
"""


def training() -> Prim:
    type = contiguous("float32", (6, 4))
    binding = Binding(
        inputs=(BoundInput("x", type),),
        outputs=(Fresh(0, requires_grad=True),),
        saved=(SavedResult(0),),
        tangents=(Tangent(0, type),),
        input_gradients=(0,),
    )
    return Prim(binding=binding, forward=parse_graph(FORWARD), backward=parse_graph(BACKWARD))


def test_it_is_a_stage() -> None:
    stage = LoopIR()
    assert isinstance(stage, Stage)
    assert (stage.name, stage.consumes, stage.produces) == ("loopir", "prim", "loop")
    assert stage.Options is Options
    assert loopir.LoopIR is LoopIR


def test_the_entry_point_names_the_stage() -> None:
    found = discover().get("loopir")
    if found is None:
        pytest.skip("loopir is importable here but not installed")
    assert found.value == "loopir.stage:LoopIR"


def test_both_directions_and_the_binding() -> None:
    prim = training()
    loop = LoopIR().run(prim)
    verify(loop)
    assert loop.binding == prim.binding
    x = np.linspace(-2, 2, 24, dtype=np.float32).reshape(6, 4)
    (y,) = interpret(loop.forward, [x])
    assert loop.backward is not None
    (g,) = interpret(loop.backward, [np.asarray(y), np.ones_like(x)])
    np.testing.assert_allclose(g, 1 - np.tanh(x) ** 2, atol=1e-6)


def test_the_same_document_gives_the_same_loops() -> None:
    assert LoopIR().run(training()) == LoopIR().run(training())


def test_a_value_that_nothing_defines_gets_the_name_of_no_other() -> None:
    """A pass that reads one is refused: values are named anew, and v0 is then the name of what was v5."""
    point = (ix.axis("a"),)
    body = (Load("v5", "x", point, "float32"), Store("y", point, Ref("v0")))
    buffers = {name: Buffer(name, contiguous("float32", (4,)), "kernel") for name in "xy"}
    kernel = freeze_kernel(Kernel("k", (Axis("a", 4),), (Section((), body),)), buffers, "k")
    graph = LoopGraph(buffers=tuple(buffers.values()), inputs=(), outputs=(Ref("y"),), steps=(kernel,))
    with pytest.raises(VerifyError, match=r"\[K3\] the value %undefined_v0 is not defined here"):
        verify_loop_graph(graph)


def test_a_fuser_that_fuses_nothing_is_one_option() -> None:
    graph = lowered(SOFTMAX, passes=UNFUSED)
    assert len(kernels(graph)) == 5  # amax, sub, exp, sum, div; the broadcasts are index arithmetic
    assert all(decision.action != "fused" for decision in graph.decisions)
    assert len(kernels(lowered(SOFTMAX))) == 1


@dataclass(frozen=True)
class CountKernels:
    """A user's own pass is an object with a name and a method."""

    seen: list[int]
    name: str = "count_kernels"

    def run(self, graph):  # type: ignore[no-untyped-def]
        self.seen.append(sum(isinstance(step, Kernel) for step in graph.steps))
        return graph


def test_a_users_pass_in_the_list() -> None:
    seen: list[int] = []
    lowered(GELU, kernel_passes=(*KERNEL_PASSES, CountKernels(seen)))
    assert seen == [1]


@pytest.mark.parametrize("left_out", [p.name for p in (*PASSES, *KERNEL_PASSES)])
@pytest.mark.parametrize("sample", SAMPLES)
def test_every_pass_can_be_left_out(sample: str, left_out: str) -> None:
    passes = tuple(p for p in PASSES if p.name != left_out)
    kernel_passes = tuple(p for p in KERNEL_PASSES if p.name != left_out)
    verify(LoopIR().run(document(SAMPLES[sample]), Options(passes=passes, kernel_passes=kernel_passes)))


def test_results_that_only_the_backward_sees() -> None:
    binding = Binding(
        inputs=(BoundInput("x", contiguous("float32", (2,)), mutated=True),),
        outputs=(Fresh(0),),
        mutations=(Mutation(0, 1),),
        saved=(SavedResult(0), SavedResult(1), SavedResult(2), SavedInput(0)),
    )
    assert private_results(binding) == frozenset({2})


def test_an_unknown_prim_is_refused_with_the_known_ones() -> None:
    graph = parse_graph("input %x: f32[2]\n%y: f32[2] = prims.gamma(%x)  # model.py:7 in forward\nreturn %y\n")
    with pytest.raises(UnsupportedPrim, match=r"no lowering for prims.gamma; known: abs acos") as caught:
        LoopIR().run(document(graph))
    assert caught.value.where == "model.py:7 in forward"


def test_shapes_that_disagree_are_refused() -> None:
    graph = parse_graph("input %x: f32[2]\ninput %y: f32[3]\n%z: f32[2] = prims.add(%x, %y)\nreturn %z\n")
    with pytest.raises(UnsupportedPrim, match=r"prims.add of z: operand y has shape \(3,\), the result \(2,\)"):
        LoopIR().run(document(graph))


def test_a_number_as_graph_input_is_refused() -> None:
    graph = Graph((Value("n", ScalarType("float")),), (), ())
    with pytest.raises(UnsupportedPrim, match="graph input n is no tensor and no integer"):
        LoopIR().run(Prim(binding=Binding(inputs=(), outputs=()), forward=graph))


def test_random_calls_keep_their_order_and_stay() -> None:
    graph = parse_graph(
        "input %x: f32[4]\n"
        '%a: f32[4] = aten.bernoulli.p(%x, 0.5) with effect="draws"\n'
        '%b: f32[4] = aten.bernoulli.p(%x, 0.1) with effect="draws"\n'
        "%c: f32[4] = aten.mm.default(%x, %x)\n"
        "return %b\n"
    )
    steps = LoopIR().run(document(graph)).forward.steps
    assert [(s.target, s.args[1]) for s in steps if hasattr(s, "target")] == [
        ("aten.bernoulli.p", 0.5),
        ("aten.bernoulli.p", 0.1),
    ]


def test_provenance_is_carried() -> None:
    prim = document(GELU.replace("prims.erf(%scaled)", "prims.erf(%scaled)  # model.py:3 in forward"))
    (kernel,) = kernels(LoopIR().run(prim).forward)
    assert kernel.origins == ("y",)
    nodes = tuple(msgspec.structs.replace(n, line=None) for n in prim.forward.nodes)
    assert all(isinstance(node, Node) for node in nodes)


def test_torch_and_numpy_are_not_imported() -> None:
    script = (
        "import sys; sys.modules['torch'] = sys.modules['numpy'] = None\n"
        "from loopir.testing.graphs import SOFTMAX, document\n"
        "from loopir import LoopIR\n"
        "print(len(LoopIR().run(document(SOFTMAX)).forward.steps))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, "1"), done.stderr
