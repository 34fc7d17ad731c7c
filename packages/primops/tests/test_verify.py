"""Every labelled constraint has a verifier branch, and a graph that it refuses."""

from __future__ import annotations

import msgspec
import pytest

from primops.builder import encode_argument
from primops.effects import effect_of
from primops.errors import OpsetMismatch, PrimFault, UnknownPrim
from primops.prims import CONSTRAINTS, OPSET, RECORDS
from primops.verify import GRAPH_CONSTRAINTS, verify, verify_graph
from stagewire.grad import Binding
from stagewire.graph import Arg, DTypeArg, Graph, List, Node, Ref, Value
from stagewire.parser import parse_graph
from stagewire.prim import Prim
from stagewire.types import TensorType, contiguous

REFUSED_GRAPHS = {
    "G1": """
        input %x: f32[2]
        %y: f32[2] = prims.add(%x)
        return %y
    """,
    "G2": """
        input %x: f32[2]
        %y: f32[] = prims.sum(%x, 0)
        return %y
    """,
    "G3": """
        input %x: f32[2]
        %y: f32[3] = prims.exp(%x)
        return %y
    """,
    "G4": """
        input %x: f32[2]
        %y: f32[2] = prims.exp(%z)
        return %y
    """,
    "G6": """
        %seed: i64[], %offset: i64[] = prims.philox_state(4, "cuda:0")
        return %seed
    """,
}


def test_every_graph_constraint_is_shown() -> None:
    assert set(REFUSED_GRAPHS) | {"G5"} == set(GRAPH_CONSTRAINTS)


@pytest.mark.parametrize("label", sorted(REFUSED_GRAPHS))
def test_graph_constraint_refuses(label: str) -> None:
    with pytest.raises(PrimFault) as caught:
        verify_graph(parse_graph(REFUSED_GRAPHS[label]))
    assert caught.value.label == label


def test_g5_refuses_a_stride_of_another_rank() -> None:
    node = Node("prims.exp", (Ref("x"),), {}, (Value("y", TensorType("float32", (2, 3), (1,))),))
    graph = Graph((Value("x", contiguous("float32", (2, 3))),), (node,), (Ref("y"),))
    with pytest.raises(PrimFault) as caught:
        verify_graph(graph)
    assert caught.value.label == "G5"


@pytest.mark.parametrize("label", sorted(CONSTRAINTS))
def test_prim_constraint_refuses(label: str) -> None:
    name, arguments = CONSTRAINTS[label].refused
    with pytest.raises(PrimFault) as caught:
        verify_graph(_graph_of(name, arguments))
    assert caught.value.label == label


def _graph_of(name: str, arguments: tuple[object, ...]) -> Graph:
    """One node with inputs of the argument types."""
    inputs: list[Value] = []

    def encode(argument: object, kind: str) -> Arg:
        if isinstance(argument, TensorType):
            inputs.append(Value(f"x{len(inputs)}", argument))
            return Ref(inputs[-1].name)
        if isinstance(argument, tuple):
            return List(tuple(encode(item, "") for item in argument))
        return DTypeArg(str(argument)) if kind == "dtype" else encode_argument(argument)

    record = RECORDS[name]
    args = tuple(encode(a, p.kind) for a, p in zip(arguments, record.parameters, strict=True))
    results = tuple(Value(f"y{i}", contiguous("float32", (2, 3))) for i, _ in enumerate(record.results))
    return Graph(
        tuple(inputs), (Node(f"prims.{name}", args, {}, results, effect=effect_of(f"prims.{name}")),), (Ref("y0"),)
    )


def test_unknown_prim() -> None:
    with pytest.raises(UnknownPrim, match="frobnicate"):
        verify_graph(parse_graph("input %x: f32[2]\n%y: f32[2] = prims.frobnicate(%x)\nreturn %y"))


def test_another_opset() -> None:
    empty = Graph((), (), ())
    document = Prim(binding=Binding(inputs=(), outputs=()), forward=empty, opset=OPSET)
    verify(document)
    with pytest.raises(OpsetMismatch):
        verify(msgspec.structs.replace(document, opset=OPSET + 1))


def test_a_fault_in_the_backward_is_seen() -> None:
    empty = Graph((), (), ())
    bad = parse_graph(REFUSED_GRAPHS["G3"])
    with pytest.raises(PrimFault):
        verify(Prim(binding=Binding(inputs=(), outputs=()), forward=empty, backward=bad, opset=OPSET))
