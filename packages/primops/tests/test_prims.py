"""The prims as data: each constraint refuses its example, each op takes its own, and the page is current."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from primops.builder import encode_argument
from primops.interpret import interpret
from primops.meanings import DTYPES, MEANINGS
from primops.prims import FAMILIES, OPS, OPSET, VOCABULARY
from stagewire.errors import VerifyError
from stagewire.grad import Binding
from stagewire.graph import Arg, DTypeArg, Graph, List, Node, Ref, Value
from stagewire.prim import Prim
from stagewire.testing.ops import calls, example, one_operand_otherwise
from stagewire.types import TensorType, contiguous
from stagewire.verify import verify, verify_graph
from stagewire.vocabulary import Op, vocabulary
from stagewire.vocabulary_pages import as_json, page

SPEC = Path(__file__).parents[1] / "SPEC.md"


def test_the_vocabulary_is_found() -> None:
    assert vocabulary("prims") is VOCABULARY


def test_the_page_is_current() -> None:
    assert SPEC.read_text() == page(VOCABULARY), "write it again: python -m stagewire ops prims > SPEC.md"


def test_the_prims_as_json() -> None:
    assert [op["name"] for op in msgspec.json.decode(as_json(VOCABULARY))["ops"]] == list(OPS)


def test_names_are_unique_across_families() -> None:
    assert sum(len(family.OPS) for family in FAMILIES) == len(OPS)


@pytest.mark.parametrize("op", OPS.values(), ids=lambda op: op.name)
def test_each_prim_has_a_meaning_and_takes_its_own_example(op: Op) -> None:
    assert op.name in MEANINGS
    assert op.doc.endswith(".")
    assert len({c.label for c in op.constraints}) == len(op.constraints)
    verify_graph(example(f"prims.{op.name}"))


VIEWS = [f"prims.{name}" for name, op in OPS.items() if op.is_view and name != "flip"]  # no view of torch has it
COMPUTED = [f"prims.{name}" for name, op in OPS.items() if op.family != "random"]


def interpreted(graph: Graph) -> list[torch.Tensor]:
    """The operands of a call that is interpreted: of the first element, where they are positions."""
    number = 0 if OPS[graph.nodes[0].target.removeprefix("prims.")].family in ("indexing", "windows") else 1
    given = [torch.full(v.type.shape, number, dtype=DTYPES[v.type.dtype]) for v in graph.inputs]  # type: ignore[union-attr, arg-type]
    interpret(graph, given)
    return given


@pytest.mark.parametrize("target", COMPUTED)
@settings(deadline=None, max_examples=3)
@given(data=st.data())
def test_what_the_constraints_let_pass_has_a_meaning(target: str, data: st.DataObject) -> None:
    for graph in one_operand_otherwise(data.draw(calls(target))):
        interpreted(graph)


@given(st.sampled_from(COMPUTED).flatmap(calls))
def test_drawn_calls_hold_the_constraints_and_mean_what_their_rule_says(graph: Graph) -> None:
    verify_graph(graph)
    given = interpreted(graph)
    (node,) = graph.nodes
    if node.target in VIEWS:
        rest = [tuple(arg.items) if isinstance(arg, List) else arg for arg in node.args[1:]]
        (seen,), (result,) = [MEANINGS[node.target.removeprefix("prims.")](*given, *rest)], node.results
        assert isinstance(result.type, TensorType)
        strides = zip(result.type.shape, result.type.stride, seen.stride(), strict=True)
        assert seen.numel() == 0 or all(n == 1 or stated == found for n, stated, found in strides)


@pytest.mark.parametrize("label", sorted(VOCABULARY.constraints))
def test_a_constraint_refuses(label: str) -> None:
    name, arguments = VOCABULARY.constraints[label].refused
    with pytest.raises(VerifyError) as caught:
        verify_graph(_graph_of(name, arguments))
    assert caught.value.label == f"prims.{label}"


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

    op = OPS[name]
    args = tuple(encode(a, p.kind) for a, p in zip(arguments, op.parameters, strict=True))
    results = tuple(Value(f"y{i}", contiguous("float32", (2, 3))) for i, _ in enumerate(op.results))
    return Graph(tuple(inputs), (Node(f"prims.{name}", args, {}, results, effect=op.effect),), (Ref("y0"),))


def test_a_newer_opset_is_refused() -> None:
    empty = Graph((), (), ())
    document = Prim(binding=Binding(inputs=(), outputs=()), forward=empty, opset=OPSET)
    verify(document)
    with pytest.raises(VerifyError, match="P1"):
        verify(msgspec.structs.replace(document, opset=OPSET + 1))
