"""A long scan of few columns, in parts: what it means, when it is done, what is fused into it."""

from __future__ import annotations

import numpy as np
import pytest

from loopir.interpret import interpret
from loopir.passes.split_scans import parts_of
from loopir.stage import LoopIR
from loopir.testing.graphs import document
from stagewire.loop import AxisAtom, Extern, Kernel, Load, LoopGraph, Scan
from stagewire.parser import parse_graph
from stagewire.verify import verify


def lowered(text: str) -> LoopGraph:
    loop = LoopIR().run(document(parse_graph(text)))
    verify(loop)
    assert not any(isinstance(step, Extern) for step in loop.forward.steps)
    return loop.forward


def kernels(graph: LoopGraph) -> list[Kernel]:
    return [step for step in graph.steps if isinstance(step, Kernel)]


def chain(shape: tuple[int, ...], dim: int) -> str:
    """What is done to each element, a running sum, and what is done behind it."""
    size = str(list(shape))
    return (
        f"input %x: i64{size}@cuda:0\n%a: i64{size}@cuda:0 = prims.mul(%x, 3)\n"
        f"%y: i64{size}@cuda:0 = prims.cumsum(%a, {dim})\n%z: i64{size}@cuda:0 = prims.add(%y, %x)\nreturn %z\n"
    )


def scans(kernel: Kernel) -> int:
    return sum(isinstance(s, Scan) for section in kernel.sections for s in section.statements)


def test_neighbours_are_fused_into_it() -> None:
    assert [scans(kernel) for kernel in kernels(lowered(chain((1 << 20, 16), 0)))] == [0, 1, 1]


@pytest.mark.parametrize(("shape", "dim"), [((2, 20000, 3), 1), ((8192, 7), 0)])
def test_columns_in_parts_mean_what_whole_ones_do(shape: tuple[int, ...], dim: int) -> None:
    graph = lowered(chain(shape, dim))
    assert sum(scans(kernel) for kernel in kernels(graph)) == 2
    x = np.random.default_rng(0).integers(-9, 9, shape)
    (found,) = interpret(graph, [x])
    np.testing.assert_array_equal(found, np.cumsum(x * 3, dim) + x)  # type: ignore[call-overload]


def test_columns_in_parts_are_read_side_by_side() -> None:
    """By neighbouring points of the outer loop, in the kernel of the totals and in that of the parts."""
    for kernel in kernels(lowered(chain((65536, 512), 0))):
        reads = [s for section in kernel.sections if section.axes for s in section.statements if isinstance(s, Load)]
        for read in reads:
            assert {term.atom: term.coefficient for term in read.index.terms}[AxisAtom(kernel.axes[-1].name)] == 1


def test_products_go_on_from_one() -> None:
    text = "input %x: f32[32768, 2]@cuda:0\n%y: f32[32768, 2]@cuda:0 = prims.cumprod(%x, 0)\nreturn %y\n"
    assert len(kernels(lowered(text))) == 3
    x = np.random.default_rng(0).uniform(0.9995, 1.0005, (32768, 2)).astype(np.float32)
    (found,) = interpret(lowered(text), [x])
    np.testing.assert_allclose(found, np.cumprod(x.astype(np.float64), 0), rtol=1e-3)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("size", "outer", "parts"),
    [(16384, 4096, 1), (16384, 512, 64), (1000003, 16, 3906), (512, 16, 1)],
)
def test_when(size: int, outer: int, parts: int) -> None:
    assert parts_of(size, outer) == parts


def test_rows_stay_whole() -> None:
    for shape, dim in (((65536,), 0), ((3, 40960), 1)):
        assert len(kernels(lowered(chain(shape, dim)))) == 1


def test_what_goes_through_rows_in_another_order_is_no_part_of_their_scan() -> None:
    """It would be a second loop, for which few programs are there."""
    text = (
        "input %x: f32[2, 60000]@cuda:0\n%y: f32[2, 60000]@cuda:0 = prims.cumsum(%x, 1)\n"
        "%v: f32[2, 300, 200]@cuda:0 = prims.reshape(%y, [2, 300, 200])\n"
        "%t: f32[2, 200, 300]@cuda:0 = prims.permute(%v, [0, 2, 1])\n"
        "%z: f32[2, 200, 300]@cuda:0 = prims.exp(%t)\nreturn %z\n"
    )
    for kernel in kernels(lowered(text)):
        assert scans(kernel) == 0 or sum(bool(section.axes) for section in kernel.sections) == 1


@pytest.mark.parametrize("prim", ["logcumsumexp", "cummax"])
def test_what_combines_by_more_than_one_op_stays_whole(prim: str) -> None:
    more = ", %p: i64[40960, 2]@cuda:0" if prim == "cummax" else ""
    text = f"input %x: f32[40960, 2]@cuda:0\n%y: f32[40960, 2]@cuda:0{more} = prims.{prim}(%x, 0)\nreturn %y\n"
    assert len(kernels(lowered(text))) == 1
