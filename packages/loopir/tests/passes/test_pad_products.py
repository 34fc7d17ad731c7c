"""pad_results, pad_operands: sizes of multiples of 16 bytes for products in half precision on a GPU."""

from __future__ import annotations

import re

import numpy as np
import pytest

from loopir.interpret import interpret
from loopir.passes.pad_products import Gain, PadOperands, PadResults
from loopir.pipeline import PASSES
from loopir.stage import LoopIR, Options
from loopir.testing.externs import EXTERNS
from loopir.testing.graphs import document, externs, kernels, lowered
from loopir.testing.prim_meaning import prim_meaning
from stagewire.expr import Expr
from stagewire.graph import Ref
from stagewire.loop import Free, LoopGraph
from stagewire.parser import parse_graph
from stagewire.verify import verify

HEAD = """\
input %x: bf16[4096, 768]@cuda:0
input %w: bf16[50257, 768]@cuda:0
%t: bf16[768, 50257]{1, 768}@cuda:0 = prims.permute(%w, [1, 0])
%y: bf16[4096, 50257]@cuda:0 = aten.mm.default(%x, %t)
"""


def products(graph: LoopGraph) -> list[list[tuple[object, ...]]]:
    """Shapes of the operands and of the result of every product."""
    types = {buffer.name: buffer.type for buffer in graph.buffers}
    calls = [step for step in externs(graph) if step.target in ("aten.mm.default", "aten.addmm.default")]
    return [[types[n].shape for n in (*(a.name for a in p.args if isinstance(a, Ref)), *p.results)] for p in calls]


def returned(graph: LoopGraph) -> list[tuple[object, ...]]:
    types = {buffer.name: buffer.type for buffer in graph.buffers}
    return [(types[o.name].shape, types[o.name].stride) for o in graph.outputs if isinstance(o, Ref)]


def in_two(rows: object) -> list[list[tuple[object, ...]]]:
    return [[(rows, 768), (768, 50256), (rows, 50256)], [(rows, 768), (768, 1), (rows, 1)]]


ROWS = HEAD.replace("%w: bf16[50257, 768]", "%t: bf16[768, 50257]").replace(HEAD.splitlines(keepends=True)[2], "")
"""The columns of this weight do not lie one after the other: a part of them is no good factor."""


def test_a_result_that_nests_read_is_not_copied() -> None:
    graph = lowered(ROWS + "%z: bf16[4096, 50257]@cuda:0 = prims.neg(%y)\nreturn %z\n")
    assert products(graph) == [[(4096, 768), (768, 50264), (4096, 50264)]]
    assert len(kernels(graph)) == 3  # zeros and columns of the weight, the result
    graph = lowered(HEAD + "%z: bf16[4096, 50257]@cuda:0 = prims.neg(%y)\nreturn %z\n")
    assert products(graph) == in_two(4096)
    assert len(kernels(graph)) == 1


def test_a_result_that_is_returned_is_copied_where_that_pays() -> None:
    graph = lowered(HEAD + "return %y\n")
    assert products(graph) == in_two(4096)
    assert returned(graph) == [((4096, 50257), (50257, 1))]
    assert {buffer.base for buffer in graph.buffers if buffer.role == "view"} == {"w"}
    small = "input %x: bf16[8, 64]@cuda:0\ninput %w: bf16[64, 11]@cuda:0\n"
    graph = lowered(small + "%y: bf16[8, 11]@cuda:0 = aten.mm.default(%x, %w)\nreturn %y\n")
    assert products(graph) == [[(8, 64), (64, 11), (8, 11)]]


def test_a_large_weight_is_not_copied_for_few_rows() -> None:
    graph = lowered((ROWS + "%z: bf16[4096, 50257]@cuda:0 = prims.neg(%y)\nreturn %z\n").replace("4096", "64"))
    assert products(graph) == [[(64, 768), (768, 50257), (64, 50257)]]


def test_two_products_are_not_made_for_few_rows() -> None:
    text = HEAD + "return %y\n"
    assert products(lowered(text.replace("4096", "1024"))) == in_two(1024)
    assert products(lowered(text.replace("4096", "64"))) == [[(64, 768), (768, 50257), (64, 50257)]]


@pytest.mark.parametrize("call", ["aten.mm.default(%x, %t)", "aten.addmm.default(%c, %x, %t)"])
@pytest.mark.parametrize("columns", [9, 11, 15])
def test_two_products_are_the_one(columns: int, call: str) -> None:
    text = f"""\
input %x: f16[n, 8]@cuda:0
input %w: f16[{columns}, 8]@cuda:0
input %c: f16[{columns}]@cuda:0
%t: f16[8, {columns}]{{1, 8}}@cuda:0 = prims.permute(%w, [1, 0])
%y: f16[n, {columns}]@cuda:0 = {call}
%z: f16[n, {columns}]@cuda:0 = prims.neg(%y)
return %y, %z
"""
    loop = LoopIR().run(document(text, {"n": 64}), Options(passes=EAGER))
    verify(loop)
    assert [factors[-2] for factors in products(loop.forward)] == [(8, 8), (8, columns - 8)]
    for n in (1, 5, 16):
        values = [
            np.random.default_rng(n).integers(-3, 4, shape).astype(np.float16)
            for shape in ((n, 8), (columns, 8), (columns,))
        ]
        at = parse_graph(re.sub(r"\bn\b", str(n), text))
        for want, have in zip(prim_meaning(at, values, EXTERNS), interpret(loop.forward, values, EXTERNS), strict=True):
            np.testing.assert_array_equal(have, want)  # type: ignore[arg-type]


def test_a_copy_is_made_just_before_its_product() -> None:
    first = "input %a: bf16[4096, 4096]@cuda:0\n%b: bf16[4096, 4096]@cuda:0 = aten.mm.default(%a, %a)\n"
    inputs, calls = ROWS[: ROWS.index("%y:")], ROWS[ROWS.index("%y:") :]
    end = "%z: bf16[4096, 50257]@cuda:0 = prims.neg(%y)\nreturn %b, %z\n"
    graph = lowered(inputs + first + calls + end, tuple(one for one in PASSES if one.name != "order_items"))
    kinds = [type(step).__name__ for step in graph.steps if not isinstance(step, Free)]
    assert kinds == ["Extern", "Kernel", "Kernel", "Extern", "Kernel"]


@pytest.mark.parametrize("change", [("@cuda:0", ""), ("bf16", "f32")])
def test_other_devices_and_types_are_left_alone(change: tuple[str, str]) -> None:
    graph = lowered((HEAD + "return %y\n").replace(*change))
    assert products(graph) == [[(4096, 768), (768, 50257), (4096, 50257)]]


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
PADDED = [
    [(4096, 50264), (50264, 768), (4096, 768)],
    [(50264, 4096), (4096, 768), (50264, 768)],
]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_operands_that_a_nest_writes_are_enlarged_where_they_are(order: tuple[int, int]) -> None:
    *head, first, second, end = GRADIENTS.splitlines(keepends=True)
    text = "".join((*head, *((first, second)[n] for n in order), end))
    graph = lowered(text.replace("START", "%s: bf16[8, 512, 50257]@cuda:0 = prims.exp(%g)\n"))
    assert sorted(products(graph)) == PADDED
    assert len(kernels(graph)) == 4  # zeros and values of the gradient, zeros and rows of the weight
    wide = [buffer for buffer in graph.buffers if buffer.type.shape[-1] == 50264 and buffer.role == "kernel"]
    assert [buffer.name for buffer in wide] == ["rows"]


def test_an_input_is_copied_once_for_all_products() -> None:
    graph = lowered(GRADIENTS.replace("START", "").replace("%s", "%g"))
    assert sorted(products(graph)) == PADDED
    assert len([buffer for buffer in graph.buffers if buffer.type.shape == (8, 512, 50264)]) == 1


EAGER = tuple(
    type(p)(gain=Gain(saved=1.0)) if isinstance(p, PadResults | PadOperands) else p  # whatever it costs
    for p in PASSES
)
SMALL = {
    "mm": "%y: f16[6, 11]@cuda:0 = aten.mm.default(%a, %b)\nreturn %y\n",
    "addmm": "%y: f16[6, 11]@cuda:0 = aten.addmm.default(%c, %a, %b)\n%z: f16[6, 11]@cuda:0 = prims.neg(%y)\n"
    "return %z\n",
    "computed": "%e: f16[6, 5]@cuda:0 = prims.abs(%a)\n%f: f16[5, 11]@cuda:0 = prims.neg(%b)\n"
    "%y: f16[6, 11]@cuda:0 = aten.mm.default(%e, %f)\nreturn %y, %e\n",
    "turned": "%t: f16[11, 5]{1, 11}@cuda:0 = prims.permute(%b, [1, 0])\n%u: f16[5, 6]{1, 5}@cuda:0 = "
    "prims.permute(%a, [1, 0])\n%y: f16[11, 6]@cuda:0 = aten.mm.default(%t, %u)\nreturn %y\n",
    "twice": "%e: f16[6, 5]@cuda:0 = prims.abs(%a)\n%y: f16[6, 11]@cuda:0 = aten.mm.default(%e, %b)\n"
    "%t: f16[5, 6]{1, 5}@cuda:0 = prims.permute(%e, [1, 0])\n%z: f16[5, 11]@cuda:0 = aten.mm.default(%t, %y)\n"
    "%r: f16[5, 5]@cuda:0 = aten.mm.default(%t, %e)\nreturn %z, %r\n",
    "batches": "%d: f16[2, 3, 5]@cuda:0 = prims.reshape(%a, [2, 3, 5])\n%s: f16[2, 3, 5]@cuda:0 = prims.neg(%d)\n"
    "%t: f16[2, 5, 3]{15, 1, 5}@cuda:0 = prims.permute(%s, [0, 2, 1])\n"
    "%y: f16[2, 3, 3]@cuda:0 = aten.bmm.default(%s, %t)\nreturn %y\n",
    "slice": "%s: f16[6, 3]{5, 1}@cuda:0 = prims.slice(%a, [0, 1], [6, 4], [1, 1])\n%v: f16[3, 11]@cuda:0 = "
    "prims.slice(%b, [1, 0], [4, 11], [1, 1])\n%y: f16[6, 11]@cuda:0 = aten.mm.default(%s, %v)\nreturn %y\n",
}


@pytest.mark.parametrize("name", SMALL)
def test_the_meaning_stays(name: str) -> None:
    inputs = "input %a: f16[6, 5]@cuda:0\ninput %b: f16[5, 11]@cuda:0\ninput %c: f16[11]@cuda:0\n"
    graph = parse_graph(inputs + SMALL[name])
    rng = np.random.default_rng(0)
    values = [rng.integers(-3, 4, shape).astype(np.float16) for shape in ((6, 5), (5, 11), (11,))]  # sums are exact
    found = lowered(inputs + SMALL[name], EAGER)
    verify(document(graph))
    assert products(found) != products(lowered(inputs + SMALL[name])) or name == "batches"
    for want, have in zip(prim_meaning(graph, values, EXTERNS), interpret(found, values, EXTERNS), strict=True):
        np.testing.assert_array_equal(have, want)  # type: ignore[arg-type]


def test_the_words_of_a_vocabulary_are_padded_for_any_number_of_rows() -> None:
    text = ROWS.replace("4096", "n") + "%z: bf16[n, 50257]@cuda:0 = prims.neg(%y)\nreturn %z\n"
    n = Expr("n")
    assert products(lowered(text, hints={"n": 4096})) == [[(n, 768), (768, 50264), (n, 50264)]]
    assert products(lowered(text, hints={"n": 64})) == [[(n, 768), (768, 50257), (n, 50257)]]
    text = HEAD.replace("4096", "n") + "return %y\n"
    assert products(lowered(text, hints={"n": 4096})) == in_two(n)
    assert products(lowered(text, hints={"n": 16})) == [[(n, 768), (768, 50257), (n, 50257)]]


@pytest.mark.parametrize("name", [name for name in SMALL if name != "batches"])
def test_the_meaning_stays_at_every_size(name: str) -> None:
    inputs = "input %a: f16[6, 5]@cuda:0\ninput %b: f16[5, 11]@cuda:0\ninput %c: f16[11]@cuda:0\n"
    text = re.sub(r"\b6\b", "n", inputs + SMALL[name])
    loop = LoopIR().run(document(text, {"n": 8}), Options(passes=EAGER))
    verify(loop)
    assert products(loop.forward) != products(lowered(text))
    for n in (2, 6, 13):
        rng = np.random.default_rng(n)
        values = [rng.integers(-3, 4, shape).astype(np.float16) for shape in ((n, 5), (5, 11), (11,))]
        at = parse_graph(re.sub(r"\bn\b", str(n), text))
        for want, have in zip(prim_meaning(at, values, EXTERNS), interpret(loop.forward, values, EXTERNS), strict=True):
            np.testing.assert_array_equal(have, want)  # type: ignore[arg-type]
