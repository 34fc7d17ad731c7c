"""sum_few_rows: additions that would meet are sums, and the same numbers."""

from __future__ import annotations

import numpy as np
import pytest

from loopir.interpret import interpret
from loopir.passes.sum_few_rows import SumFewRows
from loopir.pipeline import PASSES
from loopir.stage import LoopIR, Options
from loopir.testing.graphs import document, kernels
from stagewire.loop import LoopGraph
from stagewire.verify import verify

BIAS = """\
input %x: f32[5, 4]@cuda:0
input %i: i64[6, 6]@cuda:0
input %g: f32[3, 4, 6, 6]@cuda:0
%s: f32[4, 6, 6]@cuda:0 = prims.sum(%g, [0])
%t: f32[6, 6, 4]@cuda:0 = prims.permute(%s, [1, 2, 0])
%y: f32[5, 4]@cuda:0 = prims.index_put(%x, [%i], %t, True, True)
return %y
"""


def lowered(text: str, **limits: int) -> LoopGraph:
    limits = {"points": 100} | limits
    passes = tuple(SumFewRows(**limits) if p.name == "sum_few_rows" else p for p in PASSES)
    loop = LoopIR().run(document(text), Options(passes=passes))
    verify(loop)
    return loop.forward


def meets(graph: LoopGraph) -> bool:
    """Whether some points of a kernel may add to one element: its index is loaded."""
    stores = [s for k in kernels(graph) for section in k.sections for s in section.statements if hasattr(s, "mode")]
    return any(s.mode == "atomic_add" and "ValueAtom" in repr(s.index) for s in stores)


def test_a_bias_gets_sums() -> None:
    graph = lowered(BIAS)
    assert not meets(graph)
    assert any("5 rows at which many points would meet" in d.reason for d in graph.decisions)


@pytest.mark.parametrize(
    "graph",
    [
        lowered(BIAS.replace("@cuda:0", "")),
        lowered(BIAS, rows=4),
        lowered(BIAS, columns=4),
        lowered(BIAS, points=36 * 4 + 1),
    ],
    ids=["on the CPU", "many rows", "many columns", "few points"],
)
def test_what_meets_seldom_stays(graph: LoopGraph) -> None:
    assert meets(graph)


@pytest.mark.parametrize("dtype", ["f32", "i64"])
def test_the_numbers_stay(dtype: str) -> None:
    random = np.random.default_rng(0)
    kind = np.float32 if dtype == "f32" else np.int64
    x, g = (random.integers(-8, 8, shape).astype(kind) for shape in ((5, 4), (3, 4, 6, 6)))
    i = random.integers(-5, 5, (6, 6))
    text = BIAS.replace("f32", dtype)
    (found,), (wanted,) = (interpret(graph, [x, i, g]) for graph in (lowered(text), lowered(text, points=10**6)))
    assert np.array_equal(found, wanted)
    want = x.copy()
    np.add.at(want, i, g.sum(0).transpose(1, 2, 0))
    assert np.array_equal(found, want)


def test_a_count_needs_no_terms_but_ones() -> None:
    text = "input %x: i64[5]@cuda:0\ninput %i: i64[128]@cuda:0\n"
    text += "%y: i64[5]@cuda:0 = prims.index_put(%x, [%i], 1, True, True)\nreturn %y\n"
    places = np.random.default_rng(1).integers(0, 5, 128)
    graph = lowered(text)
    assert not meets(graph)
    (found,) = interpret(graph, [np.zeros(5, np.int64), places])
    assert np.array_equal(found, np.bincount(places, minlength=5))
