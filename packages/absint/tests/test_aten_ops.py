"""ATen as a vocabulary: what its calls may be is read off the schemas."""

from __future__ import annotations

import pytest
import torch

from absint import from_tensor, to_wire
from absint.aten_ops import VOCABULARY
from absint.executor import executor
from absint.functions import function_of, tensor_leaves
from stagewire.errors import UnknownOp, VerifyError
from stagewire.parser import parse_graph
from stagewire.testing.ops import example, operator_targets
from stagewire.testing.strategies import examples, grads
from stagewire.verify import verify_graph
from stagewire.vocabulary import find, vocabulary

TAKEN = """
    input %x: f32[2, 3]
    %a: f32[2, 3] = aten.add.Tensor(%x, 1)
    %b: f32[2, 3] = aten.add.Tensor(%x, other=%x, alpha=2)
    %c: f32[2] = aten.sum.dim_IntList(%x, [1])
    %d: f32[2, 3] = aten.bernoulli.default(%x) with effect="draws"
    %e: f32[2, 3] = mine.op.default(%x, whatever=3)
    return %a
"""
REFUSED = {
    "aten.ad.Tensor(%x, %x)": "V1",
    "aten.add.Tensr(%x, %x)": "V1",
    "aten.from_file.default(%x)": "G7",
    "aten.add.Tensor(%x)": "V2",
    "aten.add.Tensor(%x, %x, 2)": "V2",
    "aten.add.Tensor(%x, %x, beta=2)": "V2",
    "aten.add.Tensor(%x, %x, self=%x)": "V2",
    "aten.relu.default(dtype(float32))": "V3",
    "aten.bernoulli.default(%x)": "V5",
}


def test_it_is_found() -> None:
    assert vocabulary("aten") is VOCABULARY
    assert find("mine.op.default") is None


def test_calls_that_python_takes_are_taken() -> None:
    verify_graph(parse_graph(TAKEN))


@pytest.mark.parametrize("call", REFUSED)
def test_a_call_is_refused(call: str) -> None:
    with pytest.raises(VerifyError) as caught:
        verify_graph(parse_graph(f"input %x: f32[2]\n%y: f32[2] = {call}\nreturn %y"))
    assert caught.value.label == REFUSED[call]


def test_the_nearest_names_are_told() -> None:
    with pytest.raises(UnknownOp, match=r"Did you mean aten\.add\.Tensor"):
        VOCABULARY.op("aten.ad.Tensor")


def test_effects_and_views_are_those_of_the_schema() -> None:
    assert VOCABULARY.ops["view.default"].effect == "aliases"
    assert VOCABULARY.ops["add_.Tensor"].effect == "acts"
    assert VOCABULARY.ops["mm.default"].effect is None
    assert len(VOCABULARY.ops) > 1000


@pytest.mark.parametrize("name", VOCABULARY.exampled)
def test_an_example_gives_the_types_that_it_states(name: str) -> None:
    graph = example(f"aten.{name}")
    verify_graph(graph)
    inputs = [torch.zeros(one.type.shape, dtype=getattr(torch, one.type.dtype)) for one in graph.inputs]
    inputs = [x.as_strided(one.type.shape, one.type.stride) for x, one in zip(inputs, graph.inputs, strict=True)]
    made = executor(graph, lambda node: function_of(node, {}), tensor_leaves)(*inputs)
    assert [str(to_wire(from_tensor(one))) for one in made] == [str(one.type) for one in graph.nodes[0].results]


def test_nearly_all_examples_are_drawn() -> None:
    """Of the strategy `grads()`: calls of backwards and convolutions among them."""
    called = {node.target for document in examples(grads(), 500) for node in document.joint.nodes}
    known = set(operator_targets())
    assert len(known & called) >= 0.9 * len(known)
    assert "aten.convolution.default" in called
    assert sum("backward" in target for target in known & called) >= 20
