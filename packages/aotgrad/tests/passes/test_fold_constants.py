"""What literals decide on the CPU and a GPU reads: a constant there, computed once; other values stay."""

from __future__ import annotations

import pytest
import torch

from aotgrad import Joint
from aotgrad.bind import read_constant, write_constant
from aotgrad.passes import FoldConstants
from stagewire.grad import Binding, BoundInput
from stagewire.graph import List, Ref
from stagewire.parser import parse_graph
from stagewire.printer import print_graph

LITERAL = torch.tensor([2, 0, 1])


def folded(text: str, *, inputs: int = 1) -> Joint:
    """The joint graph after the pass. Its inputs behind the first `inputs` are constants: LITERAL."""
    graph = parse_graph(text.strip())
    given = tuple(BoundInput(value.name, value.type, "tensor") for value in graph.inputs[:inputs])
    constants = tuple(write_constant(value.name, LITERAL) for value in graph.inputs[inputs:])
    return FoldConstants()(Joint(graph, Binding(inputs=given, outputs=(), constants=constants)))


BUCKETS = """
input %x: f32[1, 4]@cuda:0
%n: i64[4] = aten.arange.default(4)
%f: f32[4] = aten._to_copy.default(%n, dtype=dtype(float32))
%l: f32[4] = aten.log1p.default(%f)
%k: f32[4, 1] = aten.unsqueeze.default(%l, 1)
%m: f32[4, 4] = aten.mul.Tensor(%k, %l)
%g: i64[4, 4]@cuda:0 = aten._to_copy.default(%m, dtype=dtype(int64), device=device(cuda:0))
%y: f32[4, 4]@cuda:0 = aten.add.Tensor(%x, %g)
return %y
"""


def test_what_literals_decide_is_a_constant_of_the_gpu() -> None:
    found = folded(BUCKETS)
    assert [node.target for node in found.graph.nodes] == ["aten.add.Tensor"]
    (bound,), name = found.binding.constants, found.graph.inputs[1].name
    assert found.primals == 2
    assert found.graph.nodes[0].args == (Ref("x"), Ref(name))
    assert (bound.name, bound.device) == (name, "cuda:0")
    n = torch.arange(4).float().log1p()
    assert bound.value == write_constant(name, (n[:, None] * n).long()).value


@pytest.mark.parametrize(
    "change",
    [
        ("return %y", "return %y, %g"),  # the caller may write into it
        ("return %y", "%v: i64[16]@cuda:0 = aten.view.default(%g, [16])\nreturn %y, %v"),
        ("aten.arange.default(4)", 'aten.randint.default(9, [4]) with effect="draws"'),
        ("aten.arange.default(4)", "aten.empty.memory_format([4], dtype=dtype(int64))"),
        ("@cuda:0", ""),
    ],
)
def test_what_stays(change: tuple[str, str]) -> None:
    text = BUCKETS.replace(*change)
    assert print_graph(folded(text).graph) == print_graph(parse_graph(text.strip()))


def test_large_values_stay() -> None:
    graph = parse_graph(BUCKETS.strip())
    given = (BoundInput("x", graph.inputs[0].type, "tensor"),)
    found = FoldConstants(largest=63)(Joint(graph, Binding(inputs=given, outputs=())))
    assert "aten._to_copy.default" in [node.target for node in found.graph.nodes]


def test_a_tensor_without_dimensions_is_a_number_on_each_device() -> None:
    found = folded(
        """
        input %x: f32[4]@cuda:0
        input %z: f32[4]@cuda:1
        %n: f32[] = aten.full.default([], 16.0)
        %s: f32[] = aten.sqrt.default(%n)
        %a: f32[4]@cuda:0 = aten.div.Tensor(%x, %s)
        %b: f32[4]@cuda:0 = aten.mul.Tensor(%a, %s)
        %c: f32[4]@cuda:1 = aten.div.Tensor(%z, %s)
        return %b, %c
        """,
        inputs=2,
    )
    assert [node.target for node in found.graph.nodes] == [
        "aten.full.default", "aten.div.Tensor", "aten.mul.Tensor", "aten.full.default", "aten.div.Tensor",
    ]  # fmt: skip
    assert [node.args[1] for node in found.graph.nodes if "full" in node.target] == [4.0, 4.0]
    assert not found.binding.constants


def test_literals_are_read_on_the_gpu() -> None:
    found = folded(
        """
        input %x: f32[4]@cuda:0
        input %c: i64[3]
        input %d: i64[3]
        %g: i64[3]@cuda:0 = aten._to_copy.default(%c, device=device(cuda:0))
        %a: f32[3]@cuda:0 = aten.index.Tensor(%x, [%g])
        %b: f32[3]@cuda:0 = aten.index.Tensor(%x, [%d])
        %s: f32[3]@cuda:0 = aten.add.Tensor(%a, %b)
        %e: i64[3] = aten.neg.default(%d)
        return %s, %e
        """,
    )
    assert [value.name for value in found.graph.inputs] == ["x", "d", "c_on_cuda_0", "d_on_cuda_0"]
    assert [constant.device for constant in found.binding.constants] == ["cpu", "cuda:0", "cuda:0"]
    assert torch.equal(read_constant(found.binding.constants[0]), LITERAL)
    assert [node.args for node in found.graph.nodes[:2]] == [
        (Ref("x"), List((Ref(f"{name}_on_cuda_0"),))) for name in ("c", "d")
    ]
