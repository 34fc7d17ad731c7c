"""split_reductions: a GPU gets enough to do at once, and the numbers stay the same."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loopir.interpret import interpret
from loopir.passes.split_reductions import SplitReductions
from loopir.pipeline import PASSES
from loopir.stage import LoopIR, Options
from loopir.testing.graphs import document, kernels, lowered
from stagewire.verify import verify

TOTAL = "input %x: f32[64, 1000]@cuda:0\n%y: f32[]@cuda:0 = prims.sum(%x, [0, 1])\nreturn %y\n"
STATISTICS = """\
input %x: f32[32, 6, 40, 50]@cuda:0
%v: f32[6]@cuda:0, %m: f32[6]@cuda:0 = prims.var_mean(%x, [0, 2, 3], 1)
%s: f32[6]@cuda:0 = prims.add(%v, 1.0)
return %s, %m
"""


def test_a_total_is_made_of_parts() -> None:
    first, second = kernels(lowered(TOTAL))
    assert [axis.size for axis in first.axes] == [50]
    assert [axis.size for section in second.sections for axis in section.axes] == [50]


def test_the_gradient_of_a_bias_is_split_sooner() -> None:
    """768 columns are many points but few tiles."""
    text = "input %g: f32[16384, 768]@cuda:0\n%b: f32[768]@cuda:0 = prims.sum(%g, [0])\nreturn %b\n"
    first, _ = kernels(lowered(text))
    assert [axis.size for axis in first.axes] == [64, 768]
    rows = text.replace("[16384, 768]", "[1024, 16384]").replace("f32[768]", "f32[1024]").replace("[0]", "[1]")
    assert len(kernels(lowered(rows))) == 1


def test_two_sums_over_the_same_data_are_one_kernel() -> None:
    """As in the backward of a batch norm: each part of an axis is one index of it."""
    text = """\
input %x: bf16[64, 256, 28, 28]@cuda:0
input %g: bf16[64, 256, 28, 28]@cuda:0
%p: bf16[64, 256, 28, 28]@cuda:0 = prims.mul(%x, %g)
%a: bf16[256]@cuda:0 = prims.sum(%g, [0, 2, 3])
%b: bf16[256]@cuda:0 = prims.sum(%p, [0, 2, 3])
return %a, %b
"""
    sums = [kernel for kernel in kernels(lowered(text)) if any(section.axes for section in kernel.sections)]
    assert len(sums[0].origins) == 2
    small = text.replace("64, 256", "1024, 4").replace("[256]", "[4]")
    assert len(kernels(lowered(small))[0].origins) == 2


def test_where_one_axis_is_too_short_several_are_split() -> None:
    """Channels last: 64 channels, which are read side by side, over 32 images of 56 x 56 points."""
    text = """\
input %x: f32[32, 64, 56, 56]{200704, 1, 3584, 64}@cuda:0
%y: f32[64]@cuda:0 = prims.sum(%x, [0, 2, 3])
return %y
"""
    first, second = kernels(lowered(text))
    assert math.prod(axis.size for axis in first.axes) == 64 * 56 * 8
    assert [axis.size for section in second.sections for axis in section.axes] == [56 * 8]


CROSSING = """\
input %x: f32[32, 196, 768]@cuda:0
input %y: f32[32, 768, 196]@cuda:0
%t: f32[32, 196, 768]@cuda:0 = prims.permute(%y, [0, 2, 1])
%p: f32[32, 196, 768]@cuda:0 = prims.mul(%x, %t)
%s: f32[768]@cuda:0 = prims.sum(%p, [0, 1])
return %s
"""


def test_what_runs_along_both_is_cut_across_memory_first() -> None:
    """All 32 images, and then each in two, so that much of it lies side by side; the parts lie one behind the other."""
    first, second = kernels(lowered(CROSSING))
    assert [axis.size for axis in first.axes] == [32, 2, 768]
    assert [axis.size for section in first.sections for axis in section.axes] == [98]
    assert [axis.size for section in second.sections for axis in section.axes] == [64]


@pytest.mark.parametrize(("channels_last", "count"), [(False, 1), (True, 2)])
def test_rows_in_one_piece_are_not_cut(channels_last: bool, count: int) -> None:
    """Sums over the channels and places of a group: one piece of memory, or pieces of 20 elements."""
    shape = "bf16[8, 32, 1024, 20]" + ("{655360, 20, 640, 1}" if channels_last else "")
    text = f"input %x: {shape}@cuda:0\n%s: f32[8, 32]@cuda:0 = prims.sum(%w, [2, 3])\nreturn %s\n"
    wide = shape.replace("bf16", "f32").partition("{")[0]
    text = text.replace("%s:", f"%w: {wide}@cuda:0 = prims.convert_element_type(%x, f32)\n%s:", 1)
    assert len(kernels(lowered(text))) == count


def test_short_rows_stay_with_what_follows_them() -> None:
    rows = CROSSING.replace("f32[768]", "f32[32, 196]").replace("[0, 1]", "[2]")
    assert len(kernels(lowered(rows))) == 1


@settings(deadline=None, max_examples=20)
@given(shape=st.tuples(*[st.integers(1, 9)] * 3), shortest=st.integers(1, 4))
def test_what_runs_along_both_is_the_same(shape: tuple[int, int, int], shortest: int) -> None:
    n, s, c = shape
    text = CROSSING.replace("32", str(n)).replace(f"f{n}", "f32").replace("196", str(s)).replace("768", str(c))
    split = SplitReductions(points=8, columns=64, row=0, long_row=0, parts=2, shortest_column=shortest)
    loop = LoopIR().run(document(text), Options(passes=tuple(split if p.name == split.name else p for p in PASSES)))
    verify(loop)
    x, y = (np.arange(n * s * c, dtype=np.float32).reshape(shape) % 7 for shape in ((n, s, c), (n, c, s)))
    (found,) = interpret(loop.forward, [x, y])
    np.testing.assert_array_equal(found, (x * y.transpose(0, 2, 1)).sum((0, 1)))


def test_a_cpu_splits_loops_itself() -> None:
    assert len(kernels(lowered(TOTAL.replace("@cuda:0", "")))) == 1


@pytest.mark.parametrize("shape", ["[4, 100]", "[2048, 4096]", "[700, 50000]"])
def test_what_is_short_or_wide_enough_stays(shape: str) -> None:
    rows = shape[1:].split(",")[0]
    text = f"input %x: f32{shape}@cuda:0\n%y: f32[{rows}]@cuda:0 = prims.sum(%x, [1])\nreturn %y\n"
    assert len(kernels(lowered(text))) == 1


def test_parts_of_a_prime_number_hang_over_its_end() -> None:
    text = "input %x: f32[3, 1000003]@cuda:0\n%y: f32[3]@cuda:0 = prims.amax(%x, [1])\nreturn %y\n"
    graph = lowered(text)
    first, second = kernels(graph)
    assert [axis.size for axis in first.axes] == [3, 341]
    assert [axis.size for section in first.sections for axis in section.axes] == [2944]
    assert [axis.size for section in second.sections for axis in section.axes] == [341]
    x = -np.random.default_rng(0).uniform(1, 2, (3, 1000003)).astype(np.float32)
    np.testing.assert_array_equal(interpret(graph, [x])[0], x.max(1))


def test_channel_statistics_agree_with_numpy() -> None:
    loop = LoopIR().run(document(STATISTICS))
    verify(loop)
    assert [math.prod(axis.size for axis in kernel.axes) for kernel in kernels(loop.forward)] == [300, 6]
    x = np.random.default_rng(1).normal(3, 2, (32, 6, 40, 50)).astype(np.float32)
    shifted, mean = interpret(loop.forward, [x])
    np.testing.assert_allclose(mean, x.mean((0, 2, 3), dtype=np.float64), rtol=1e-5)
    np.testing.assert_allclose(shifted, x.var((0, 2, 3), dtype=np.float64, ddof=1) + 1, rtol=1e-5)


@settings(deadline=None, max_examples=40)
@given(
    st.sampled_from(("sum", "amax", "amin", "prod")),
    st.lists(st.sampled_from((1, 2, 3, 4, 6, 8)), min_size=2, max_size=4),
    st.data(),
)
def test_parts_make_the_whole(prim: str, shape: list[int], data: st.DataObject) -> None:
    dims = sorted(data.draw(st.sets(st.integers(0, len(shape) - 1), min_size=1)))
    kept = [n for d, n in enumerate(shape) if d not in dims]
    text = f"input %x: f64{shape}@cuda:0\n%y: f64{kept}@cuda:0 = prims.{prim}(%x, {dims})\nreturn %y\n"
    split = SplitReductions(points=16, long_row=0, parts=2, shortest=2)
    passes = tuple(split if p.name == split.name else p for p in PASSES)
    loop = LoopIR().run(document(text), Options(passes=passes))
    verify(loop)
    x = np.random.default_rng(data.draw(st.integers(0, 99))).integers(-2, 3, shape).astype(np.float64)
    function = {"sum": np.sum, "amax": np.max, "amin": np.min, "prod": np.prod}[prim]
    np.testing.assert_array_equal(interpret(loop.forward, [x])[0], function(x, axis=tuple(dims)))  # type: ignore[call-overload]


@settings(deadline=None, max_examples=40)
@given(
    rows=st.lists(st.integers(1, 9), min_size=1, max_size=3),
    columns=st.integers(2, 9),
    limits=st.tuples(*[st.integers(1, 3)] * 2),
    seed=st.integers(0, 9),
)
def test_parts_that_nests_are_fused_with(rows: list[int], columns: int, limits: tuple[int, int], seed: int) -> None:
    """Whatever is left to a part: a part of one point is a loop as well, and its sum is no value at a point."""
    shape, outer = f"{[*rows, columns]}", list(range(len(rows)))
    text = f"""\
input %x: f32{shape}@cuda:0
input %y: f32{shape}@cuda:0
%p: f32{shape}@cuda:0 = prims.mul(%x, %y)
%s: f32[{columns}]@cuda:0 = prims.sum(%p, {outer})
%t: f32{rows}@cuda:0 = prims.sum(%p, [{len(rows)}])
%u: f32[{columns}]@cuda:0 = prims.sum(%y, {outer})
return %p, %s, %t, %u
"""
    split = SplitReductions(points=8, columns=64, long_row=0, parts=2, shortest=limits[0], shortest_column=limits[1])
    loop = LoopIR().run(document(text), Options(passes=tuple(split if p.name == split.name else p for p in PASSES)))
    verify(loop)
    x, y = np.random.default_rng(seed).integers(-3, 4, (2, *rows, columns)).astype(np.float32)
    found = interpret(loop.forward, [x, y])
    wanted = (x * y, (x * y).sum(tuple(outer)), (x * y).sum(-1), y.sum(tuple(outer)))
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("kind", ["argmax", "argmin"])
@pytest.mark.parametrize(
    ("shape", "dim", "kernels_"), [((3, 50021), 1, 2), ((16384, 24), 0, 2), ((2, 5003, 4), 1, 2), ((64, 50), 1, 1)]
)
def test_positions_are_the_first_of_the_best(kind: str, shape: tuple[int, ...], dim: int, kernels_: int) -> None:
    """Also where nothing is better than what has_tail over the end of the last part, and where there is a nan."""
    kept = [n for d, n in enumerate(shape) if d != dim]
    text = f"input %x: f32{list(shape)}@cuda:0\n%y: i64{kept}@cuda:0 = prims.{kind}(%x, {dim})\nreturn %y\n"
    loop = LoopIR().run(document(text))
    verify(loop)
    assert len(kernels(loop.forward)) == kernels_
    random = np.random.default_rng(0)
    x = random.integers(-9, 9, shape).astype(np.float32)
    worst = np.full(shape, -np.inf if kind == "argmax" else np.inf, np.float32)
    unordered = np.where(random.integers(0, shape[dim], shape) == 0, np.nan, x)
    for drawn in (x, worst, unordered):
        np.testing.assert_array_equal(interpret(loop.forward, [drawn])[0], getattr(np, kind)(drawn, axis=dim))
