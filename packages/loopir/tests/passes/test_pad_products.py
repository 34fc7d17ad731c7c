"""pad_results, pad_operands: rows of multiples of 16 bytes for products in half precision on a GPU."""

from __future__ import annotations

import pytest

from loopir import LoopIR
from loopir.testing.graphs import document, externs, kernels, lowered
from stagewire.grad import Binding, BoundInput, Fresh, SavedResult
from stagewire.graph import Ref
from stagewire.loop import LoopGraph
from stagewire.parser import parse_graph
from stagewire.prim import Prim

HEAD = """\
input %x: bf16[4096, 768]@cuda:0
input %w: bf16[50257, 768]@cuda:0
%t: bf16[768, 50257]{1, 768}@cuda:0 = prims.permute(%w, [1, 0])
%y: bf16[4096, 50257]@cuda:0 = aten.mm.default(%x, %t)
"""


def strides(graph: LoopGraph) -> list[list[tuple[object, ...]]]:
    """Of the factors and the result of every product."""
    types = {buffer.name: buffer.type for buffer in graph.buffers}
    products = [step for step in externs(graph) if step.target == "aten.mm.default"]
    return [[types[n].stride for n in (*(a.name for a in p.args if isinstance(a, Ref)), *p.results)] for p in products]


def test_a_result_that_nests_read_is_padded_without_a_copy() -> None:
    graph = lowered(HEAD + "%z: bf16[4096, 50257]@cuda:0 = prims.neg(%y)\nreturn %z\n")
    assert strides(graph) == [[(768, 1), (1, 768), (50264, 1)]]
    assert len(kernels(graph)) == 1


def test_a_result_that_is_returned_is_copied_where_that_pays() -> None:
    graph = lowered(HEAD + "return %y\n")
    assert strides(graph) == [[(768, 1), (1, 768), (50264, 1)]]
    assert [buffer.type.stride for buffer in graph.buffers if Ref(buffer.name) in graph.outputs] == [(50257, 1)]
    small = "input %x: bf16[8, 64]@cuda:0\ninput %w: bf16[64, 11]@cuda:0\n"
    graph = lowered(small + "%y: bf16[8, 11]@cuda:0 = aten.mm.default(%x, %w)\nreturn %y\n")
    assert strides(graph) == [[(64, 1), (11, 1), (11, 1)]]


@pytest.mark.parametrize("change", [("@cuda:0", ""), ("bf16", "f32")])
def test_other_devices_and_types_are_left_alone(change: tuple[str, str]) -> None:
    graph = lowered((HEAD + "return %y\n").replace(*change))
    assert strides(graph) == [[(768, 1), (1, 768), (50257, 1)]]


GRADIENTS = """\
input %g: bf16[8, 512, 50257]@cuda:0
input %x: bf16[4096, 768]@cuda:0
input %w: bf16[50257, 768]@cuda:0
START%rows: bf16[4096, 50257]@cuda:0 = prims.reshape(%s, [4096, 50257])
%t: bf16[50257, 4096]{1, 50257}@cuda:0 = prims.permute(%rows, [1, 0])
%dw: bf16[50257, 768]@cuda:0 = aten.mm.default(%t, %x)
%dx: bf16[4096, 768]@cuda:0 = aten.mm.default(%rows, %w)
return %dw, %dx
"""


def test_operands_that_a_nest_writes_are_padded_where_they_are() -> None:
    graph = lowered(GRADIENTS.replace("START", "%s: bf16[8, 512, 50257]@cuda:0 = prims.exp(%g)\n"))
    assert strides(graph) == [[(1, 50264), (768, 1), (768, 1)], [(50264, 1), (768, 1), (768, 1)]]
    assert len(kernels(graph)) == 1


def test_an_input_is_copied_once_for_all_products() -> None:
    graph = lowered(GRADIENTS.replace("START", "").replace("%s", "%g"))
    assert strides(graph) == [[(1, 50264), (768, 1), (768, 1)], [(50264, 1), (768, 1), (768, 1)]]
    assert len(kernels(graph)) == 1


def test_the_backward_reads_what_is_saved_in_its_padded_rows() -> None:
    """Only a result that the user does not get may be laid out so."""
    text = """\
input %x: bf16[24576, 196]@cuda:0
input %w: bf16[196, 384]@cuda:0
%s: bf16[24576, 196]@cuda:0 = prims.exp(%x)
%y: bf16[24576, 384]@cuda:0 = aten.mm.default(%s, %w)
return %y, %s
"""
    forward = parse_graph(text)
    backward = parse_graph(
        "input %s: bf16[24576, 196]@cuda:0\n%d: bf16[24576, 196]@cuda:0 = prims.neg(%s)\nreturn %d\n"
    )
    inputs = tuple(BoundInput(v.name, v.type) for v in forward.inputs)
    binding = Binding(inputs=inputs, outputs=(Fresh(0),), saved=(SavedResult(1),), input_gradients=(0, None))
    loop = LoopIR().run(Prim(binding=binding, forward=forward, backward=backward))
    (saved,) = loop.forward.outputs[1:]
    types = {buffer.name: buffer.type for buffer in loop.forward.buffers}
    assert types[saved.name].stride == (200, 1)
    assert loop.backward is not None
    assert loop.backward.buffers[0].type.stride == (200, 1)
    seen = LoopIR().run(document(forward)).forward
    assert all(buffer.type.stride != (200, 1) or Ref(buffer.name) not in seen.outputs for buffer in seen.buffers)
