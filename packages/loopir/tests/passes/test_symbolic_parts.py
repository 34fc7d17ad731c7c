"""Long reductions and scans of symbolic sizes on a GPU: when they are cut; they mean the same at every size."""

from __future__ import annotations

import numpy as np
import pytest

from loopir.interpret import interpret
from loopir.passes.split_reductions import SplitReductions
from loopir.pipeline import PASSES, SchedulePass
from loopir.stage import LoopIR, Options
from loopir.testing.graphs import document, kernels
from stagewire.expr import Expr
from stagewire.loop import LoopGraph, Scan
from stagewire.verify import verify

SPLIT = SplitReductions(points=16, columns=64, long_row=0, parts=2, shortest=2, shortest_column=2)
EAGER = tuple(SPLIT if p.name == SPLIT.name else p for p in PASSES)
"""Cuts what is short enough for an interpreter."""


def lowered(text: str, passes: tuple[SchedulePass, ...] = PASSES, *, hints: dict[str, int]) -> LoopGraph:
    loop = LoopIR().run(document(text, hints), Options(passes=passes))
    verify(loop)
    return loop.forward


FUNCTIONS = {"sum": np.sum, "prod": np.prod, "amax": np.max, "amin": np.min, "any": np.any, "all": np.all}


def reduction(prim: str, dtype: str, dims: list[int]) -> str:
    kept = ", ".join(name for d, name in enumerate(("n", "m")) if d not in dims)
    return f"input %x: {dtype}[n, m]@cuda:0\n%y: {dtype}[{kept}]@cuda:0 = prims.{prim}(%x, {dims})\nreturn %y\n"


@pytest.mark.parametrize("hints", [{"n": 64, "m": 4}, {"n": 4, "m": 64}, {"n": 64, "m": 64}], ids=str)
@pytest.mark.parametrize("dims", [[0], [1], [0, 1]], ids=str)
@pytest.mark.parametrize(
    ("prim", "dtype"),
    [
        ("sum", "f64"), ("prod", "f64"), ("amax", "f32"), ("amin", "f16"), ("amax", "i64"), ("amin", "i8"),
        ("amax", "u8"), ("any", "b8"), ("all", "b8"), ("sum", "i64"),
    ],
)  # fmt: skip
def test_parts_make_the_whole_at_every_size(prim: str, dtype: str, dims: list[int], hints: dict[str, int]) -> None:
    graph = lowered(reduction(prim, dtype, dims), EAGER, hints=hints)
    kinds = {"f64": "f8", "f32": "f4", "f16": "f2", "i64": "i8", "i8": "i1", "u8": "u1", "b8": "?"}
    for number, shape in enumerate([(64, 64), (2, 3), (3, 100), (101, 2), (37, 41)]):
        x = np.random.default_rng(number).integers(1 if prim in ("amin", "prod") else -9, 2, shape)
        x = np.where(x < 0, x, 1) if prim == "prod" else x
        x = (x > -9 if prim == "all" else x > 0).astype("?") if dtype == "b8" else x.astype(kinds[dtype])
        (found,) = interpret(graph, [x])
        np.testing.assert_array_equal(found, FUNCTIONS[prim](x, axis=tuple(dims)))


def test_the_hint_says_whether_it_pays() -> None:
    text = reduction("sum", "f32", [0])
    first, second = kernels(lowered(text, hints={"n": 60000, "m": 1000}))
    assert [axis.size for axis in first.axes] == [32, Expr("m")]
    assert [axis.size for section in second.sections for axis in section.axes] == [32]
    assert len(kernels(lowered(text, hints={"n": 60, "m": 1000}))) == 1
    assert len(kernels(lowered(text.replace("@cuda:0", ""), hints={"n": 60000, "m": 1000}))) == 1


def test_statistics_of_channels_are_made_of_images() -> None:
    """Deviations of parts combine where these have one size: each image is one."""
    text = """\
input %x: f32[n, 6, h, h]@cuda:0
%v: f32[6]@cuda:0, %m: f32[6]@cuda:0 = prims.var_mean(%x, [0, 2, 3], 1)
return %v, %m
"""
    graph = lowered(text, hints={"n": 32, "h": 64})
    first, _ = kernels(graph)
    assert [axis.size for axis in first.axes] == [Expr("6*h")]
    for n, h in ((32, 12), (2, 3), (7, 20)):
        x = np.random.default_rng(1).normal(3, 2, (n, 6, h, h)).astype(np.float32)
        variance, mean = interpret(graph, [x])
        np.testing.assert_allclose(mean, x.mean((0, 2, 3), dtype=np.float64), rtol=1e-5)
        np.testing.assert_allclose(variance, x.var((0, 2, 3), dtype=np.float64, ddof=1), rtol=1e-4)


def test_a_masked_value_is_neutral_behind_what_is_computed_of_it() -> None:
    """exp(0) is 1: what is not read must not count."""
    text = (
        "input %x: f64[n]@cuda:0\n%e: f64[n]@cuda:0 = prims.exp(%x)\n%y: f64[]@cuda:0 = prims.sum(%e, [0])\nreturn %y\n"
    )
    graph = lowered(text, EAGER, hints={"n": 64})
    assert len(kernels(graph)) == 2
    for n in (2, 17, 300):
        x = np.random.default_rng(n).normal(size=n)
        np.testing.assert_allclose(interpret(graph, [x])[0], np.exp(x).sum(), rtol=1e-12)


def scans(graph: LoopGraph) -> list[int]:
    return [sum(isinstance(s, Scan) for section in k.sections for s in section.statements) for k in kernels(graph)]


@pytest.mark.parametrize("shape", ["[n]", "[3, n]", "[n, 7]"])
def test_running_sums_of_parts(shape: str) -> None:
    sizes = shape[1:-1].split(", ")
    dim = sizes.index("n")
    text = (
        f"input %x: i64{shape}@cuda:0\n%a: i64{shape}@cuda:0 = prims.mul(%x, 3)\n"
        f"%y: i64{shape}@cuda:0 = prims.cumsum(%a, {dim})\n%z: i64{shape}@cuda:0 = prims.add(%y, %x)\nreturn %z\n"
    )
    graph = lowered(text, hints={"n": 1 << 17})
    assert scans(graph) == ([0, 1, 1, 0] if dim == 0 and len(sizes) > 1 else [1])  # rows are shared by programs
    assert scans(lowered(text, hints={"n": 1 << 8})) == [1]
    for n in (2, 1000, 40961):
        x = np.random.default_rng(0).integers(-9, 9, [n if size == "n" else int(size) for size in sizes])
        np.testing.assert_array_equal(interpret(graph, [x])[0], np.cumsum(x * 3, dim) + x)
