"""Scans on a GPU are loops: what they mean, what is fused into them, what stays a call of ATen."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loopir.builder import Recorder, record
from loopir.interpret import interpret
from loopir.passes.split_reductions import SplitReductions
from loopir.pipeline import PASSES, UNFUSED
from loopir.schedule import Schedule
from loopir.stage import LoopIR, Options
from loopir.testing.externs import EXTERNS
from loopir.testing.graphs import document
from loopir.testing.prim_meaning import prim_meaning
from stagewire.graph import Ref
from stagewire.loop import Buffer, Extern, Index, Kernel, LoopGraph, Scan
from stagewire.parser import parse_graph
from stagewire.types import contiguous
from stagewire.verify import verify

HEADER = "input %x: f32[5, 7, 3]@cuda:0\n"
ONE = "%y: f32[5, 7, 3]@cuda:0 = prims.{}(%x, {})\n"
TWO = "%y: f32[5, 7, 3]@cuda:0, %p: i64[5, 7, 3]@cuda:0 = prims.{}(%x, {})\n"


def lowered(text: str, passes: tuple = PASSES) -> LoopGraph:
    loop = LoopIR().run(document(parse_graph(text)), Options(passes=passes))
    verify(loop)
    return loop.forward


def check(text: str, *inputs: np.ndarray, rtol: float = 1e-5) -> LoopGraph:
    """Fused or not, the loops mean what the prims do; the fused graph."""
    want = prim_meaning(parse_graph(text), inputs, EXTERNS)
    for passes in (UNFUSED, PASSES):
        graph = lowered(text, passes)
        for have, wanted in zip(interpret(graph, inputs), want, strict=True):
            np.testing.assert_allclose(have, wanted, rtol=rtol, atol=1e-6)  # type: ignore[call-overload]
    return graph


def kernels(graph: LoopGraph) -> list[Kernel]:
    assert not any(isinstance(step, Extern) for step in graph.steps)
    return [step for step in graph.steps if isinstance(step, Kernel)]


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).uniform(-2, 2, shape).astype(np.float32)


@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.parametrize("prim", ["cumsum", "cumprod", "logcumsumexp"])
def test_along_each_dimension(prim: str, dim: int) -> None:
    (kernel,) = kernels(check(HEADER + ONE.format(prim, dim) + "return %y\n", numbers(5, 7, 3)))
    (section,) = kernel.sections
    assert len(section.axes) == 1
    assert sum(isinstance(s, Scan) for s in section.statements) == 1


@pytest.mark.parametrize("prim", ["cummax", "cummin"])
def test_extremes_and_the_last_place_where_they_were(prim: str) -> None:
    x = np.round(numbers(5, 7, 3))  # with equal ones
    x[1, 2, 0] = np.nan
    x[1, 5, 0] = np.nan
    x[2, 0, 1] = np.inf if prim == "cummin" else -np.inf
    (kernel,) = kernels(check(HEADER + TWO.format(prim, 1) + "return %y, %p\n", x))
    assert [s.dtype for section in kernel.sections for s in section.statements if isinstance(s, Scan)] == [
        "float32", "int32"
    ]  # fmt: skip


def test_half_precision_adds_up_in_float32() -> None:
    text = "input %x: bf16[4, 300]@cuda:0\n%y: bf16[4, 300]@cuda:0 = prims.cumsum(%x, 1)\nreturn %y\n"
    ones = np.ones((4, 300), np.float32)
    (y,) = interpret(lowered(text), [ones])
    assert y[0, -1] == 300  # type: ignore[index]  # bfloat16 alone would stay at 256


def test_integers_wrap() -> None:
    text = "input %x: i32[2, 3]@cuda:0\n%y: i32[2, 3]@cuda:0 = prims.cumsum(%x, 1)\nreturn %y\n"
    check(text, np.full((2, 3), 2**30, np.int32))


PRODUCER = "%a: f32[5, 7, 3]@cuda:0 = prims.mul(%x, 2.0)\n%y: f32[5, 7, 3]@cuda:0 = prims.cumsum(%a, 1)\n"


def test_pointwise_neighbours_are_fused_into_it() -> None:
    text = HEADER + PRODUCER + "%z: f32[5, 7, 3]@cuda:0 = prims.exp(%y)\n%w: f32[5, 7, 3]@cuda:0 = prims.add(%z, %x)\n"
    (kernel,) = kernels(check(text + "return %w\n", numbers(5, 7, 3)))
    assert len(kernel.sections) == 1


def test_a_reduction_of_it_is_fused() -> None:
    text = HEADER + PRODUCER + "%s: f32[5, 3]@cuda:0 = prims.sum(%y, [1])\nreturn %s\n"
    (kernel,) = kernels(check(text, numbers(5, 7, 3)))
    assert len(kernel.sections) == 2


def test_a_reduction_of_a_scan_is_not_split() -> None:
    """Parts of the loop would begin their sums anew."""
    types = {"x": contiguous("float32", (2, 9000), "cuda:0"), "y": contiguous("float32", (2,), "cuda:0")}

    def body(ops: Recorder, i: Index) -> None:
        with ops.over(9000) as (j,):
            top = ops.reduce("max", ops.scan("sum", ops.load("x", i, j)))
        ops.store("y", (i,), top)

    buffers = {name: Buffer(name, type_, "input" if name == "x" else "kernel") for name, type_ in types.items()}
    schedule = Schedule(buffers=buffers, inputs=("x",), outputs=(Ref("y"),), items=(record("k", types, (2,), body),))
    assert SplitReductions().run(schedule).items == schedule.items


def test_what_is_normalised_by_its_own_end_is_not_scanned_twice() -> None:
    """A later section reads what the scan stored: computing it again would take every point before."""
    text = (
        HEADER
        + PRODUCER
        + (
            "%s: f32[5, 3]@cuda:0 = prims.amax(%y, [1])\n"
            "%b: f32[5, 7, 3]@cuda:0 = prims.broadcast_in_dim(%s, [5, 7, 3], [0, 2])\n"
            "%z: f32[5, 7, 3]@cuda:0 = prims.div(%y, %b)\nreturn %z\n"
        )
    )
    (kernel,) = kernels(check(text, numbers(5, 7, 3)))
    assert sum(isinstance(s, Scan) for section in kernel.sections for s in section.statements) == 1


def test_a_split_axis_keeps_its_order() -> None:
    """A consumer that sees the scanned dimension as two, in turned order, leaves the scan in row-major order."""
    text = (
        "input %x: f32[4, 6]@cuda:0\n%y: f32[4, 6]@cuda:0 = prims.cumsum(%x, 1)\n"
        "%v: f32[4, 2, 3]@cuda:0 = prims.reshape(%y, [4, 2, 3])\n"
        "%t: f32[4, 3, 2]@cuda:0 = prims.permute(%v, [0, 2, 1])\n%z: f32[4, 3, 2]@cuda:0 = prims.exp(%t)\nreturn %z\n"
    )
    check(text, numbers(4, 6))


def test_two_scans_one_after_the_other() -> None:
    text = HEADER + PRODUCER + "%z: f32[5, 7, 3]@cuda:0 = prims.cumsum(%y, 1)\nreturn %z\n"
    (kernel,) = kernels(check(text, numbers(5, 7, 3)))
    assert len(kernel.sections) == 1
    across = HEADER + PRODUCER + "%z: f32[5, 7, 3]@cuda:0 = prims.cumsum(%y, 2)\nreturn %z\n"
    assert len(kernels(check(across, numbers(5, 7, 3)))) == 2


def test_sizes_of_one_and_none() -> None:
    check("input %x: f32[5, 1]@cuda:0\n%y: f32[5, 1]@cuda:0 = prims.cumsum(%x, 1)\nreturn %y\n", numbers(5, 1))
    check("input %x: f32[1, 5]@cuda:0\n%y: f32[1, 5]@cuda:0 = prims.cumsum(%x, 1)\nreturn %y\n", numbers(1, 5))
    check("input %x: f32[5, 0]@cuda:0\n%y: f32[5, 0]@cuda:0 = prims.cumsum(%x, 1)\nreturn %y\n", numbers(5, 0))


@pytest.mark.parametrize(
    "text",
    [
        "input %x: f32[4, 6]\n%y: f32[4, 6] = prims.cumsum(%x, 1)\nreturn %y\n",
        "input %x: f32[]@cuda:0\n%y: f32[]@cuda:0 = prims.logcumsumexp(%x, 0)\nreturn %y\n",
        "input %x: b8[4, 6]@cuda:0\n%y: b8[4, 6]@cuda:0, %p: i64[4, 6]@cuda:0 = prims.cummax(%x, 1)\nreturn %y, %p\n",
    ],
    ids=["of a CPU", "of a scalar", "of truth values"],
)
def test_calls_of_aten(text: str) -> None:
    (call,) = [step for step in lowered(text).steps if isinstance(step, Extern)]
    assert call.target.startswith("aten.cum") or call.target == "aten.logcumsumexp.default"


DTYPES = {"f32": "float32", "f64": "float64", "i64": "int64", "i32": "int32", "b8": "bool"}
SCANS = {"cumsum": "f32 f64 i64 i32", "cumprod": "f32 f64 i64 i32", "logcumsumexp": "f32 f64"}
EXTREMES = {"cummax": " ".join(DTYPES), "cummin": " ".join(DTYPES)}


@settings(deadline=None, max_examples=15)
@given(shape=st.lists(st.integers(1, 5), max_size=3), seed=st.integers(0, 9), data=st.data())
def test_which_scans_are_kernels(shape: list[int], seed: int, data: st.DataObject) -> None:
    """Those on a GPU, but for truth values and what takes seconds to compile; they mean the same in either way."""
    dim = data.draw(st.integers(0, max(len(shape) - 1, 0)))
    for (prim, dtypes), device in product((SCANS | EXTREMES).items(), ("", "@cuda:0")):
        for dtype in dtypes.split():
            kind, places = f"{shape}{device}", ""
            if prim in EXTREMES:
                places = f", %p: i64{kind}"
            text = f"input %x: {dtype}{kind}\n%y: {dtype}{kind}{places} = prims.{prim}(%x, {dim})\nreturn %y\n"
            x = np.random.default_rng(seed).integers(-2, 3, shape).astype(DTYPES[dtype])
            graph, (want,) = lowered(text), prim_meaning(parse_graph(text), [x], EXTERNS)
            np.testing.assert_allclose(interpret(graph, [x], EXTERNS)[0], want, rtol=1e-5)  # type: ignore[call-overload]
            is_kernel = bool(device and shape) and dtype != "b8" and (prim, dtype) != ("logcumsumexp", "f64")
            assert any(isinstance(step, Kernel) for step in graph.steps) == is_kernel
