"""Sums along columns: blocks of float32 rows, folded in float64."""

import pytest
import torch
from msgspec.structs import replace

from codegen import Options, load
from codegen.cpp.plan import make_plan, shares
from codegen.cpp.reductions import partial_block
from codegen.cpp.tuning import TUNED
from codegen.stage import emit
from stagewire.graph import Ref
from stagewire.loop import (
    Axis,
    AxisAtom,
    Buffer,
    Compute,
    Index,
    Kernel,
    Load,
    LoopGraph,
    Reduce,
    Section,
    Store,
    Term,
)  # fmt: skip
from stagewire.testing.symbolic import factorised
from stagewire.types import contiguous


def column_sums(first: int, second: int, columns: int, dtype: str) -> LoopGraph:
    """y[j] = sum of x[a, b, j] over a and b"""
    terms = (Term(second * columns, AxisAtom("a")), Term(columns, AxisAtom("b")), Term(1, AxisAtom("j")))
    lane = Index(0, (Term(1, AxisAtom("j")),))
    summed = Section((Axis("a", first), Axis("b", second)), (
        Load("v", "x", Index(0, terms), dtype), Reduce(("s",), "sum", Ref("v"), dtype)))  # fmt: skip
    kernel = Kernel("kernel", (Axis("j", columns),), (summed, Section((), (Store("y", lane, Ref("s")),))))
    buffers = (Buffer("x", contiguous(dtype, (first, second, columns)), "input"),
               Buffer("y", contiguous(dtype, (columns,)), "kernel"))  # fmt: skip
    return LoopGraph(buffers=buffers, inputs=("x",), outputs=(Ref("y"),), steps=(kernel,))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64", "int64", "bool"])
@pytest.mark.parametrize("threshold", [1, 1 << 30])
@pytest.mark.parametrize("sizes", [(0, 3), (1, 1), (9, 1), (3, 9), (70, 1), (5, 13), (2, 67), (300, 9), (130, 64)])
def test_any_number_of_rows(sizes, threshold, dtype, directory):
    torch.manual_seed(0)
    x = torch.randint(0, 2, (*sizes, 33)).to(getattr(torch, dtype))
    unit = emit(column_sums(*sizes, 33, dtype), Options(parallel_threshold=threshold))
    (found,) = load(unit, directory)(x)
    expected = x.any(0).any(0) if dtype == "bool" else x.double().sum((0, 1)).to(found.dtype)
    assert torch.equal(found, expected)


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize("columns", [129, 300, 1000, 1024, 5000])
@pytest.mark.parametrize("batch", [1, 3, 20])
def test_tiles_are_as_wide_as_the_threads_leave_them(columns, batch, threads, directory):
    """And each sum is the same, bit for bit: how wide a tile is decides which column is in which."""
    torch.manual_seed(0)
    x = torch.randn(batch, 70, columns)
    graph = batched_sums(batch, 70, columns)
    run = load(emit(graph, Options(parallel_threshold=1)), directory)
    results = []
    for count in (1, 2, 3, 7, 40):
        threads(count)
        results += run(x)
    assert all(torch.equal(one, results[0]) for one in results)
    torch.testing.assert_close(results[0], x.sum(1), rtol=1e-4, atol=1e-4)
    plan = make_plan(graph.steps[0], 1)
    assert plan.tile >= min(columns, 1024)
    assert shares(graph.steps[0], plan) >= min(TUNED.enough_columns, batch * -(-columns // 32))


@pytest.mark.parametrize("batch", [0, 1, 9])
def test_a_batch_of_any_size(batch, threads, directory):
    threads(2)
    x = torch.randn(batch, 70, 1000)
    graph = factorised(batched_sums(97, 70, 1000), {97: "n"})
    assert make_plan(graph.steps[0], 1).narrowest
    (found,) = load(emit(graph, Options(parallel_threshold=1)), directory)(x)
    torch.testing.assert_close(found, x.sum(1), rtol=1e-4, atol=1e-4)


def test_columns_that_are_read_again_lie_in_narrow_tiles():
    twice = batched_sums(1, 512, 1024).steps[0]
    shifted = Section(twice.sections[0].axes, (
        Load("w", "x", twice.sections[0].statements[0].index, "float32"),
        Compute("d", "sub", (Ref("w"), Ref("s")), "float32"),
        Store("y", twice.sections[0].statements[0].index, Ref("d"))))  # fmt: skip
    plan = make_plan(replace(twice, sections=(twice.sections[0], shifted)), 1)
    assert (plan.tile, plan.narrowest) == (128, 0)
    assert make_plan(twice, 1).narrowest == 128


def batched_sums(batch: int, rows: int, columns: int) -> LoopGraph:
    """y[i, j] = sum of x[i, a, j] over a"""
    places = tuple(Term(step, AxisAtom(axis)) for step, axis in ((rows * columns, "i"), (columns, "a"), (1, "j")))
    target = Index(0, (Term(columns, AxisAtom("i")), Term(1, AxisAtom("j"))))
    summed = Section((Axis("a", rows),), (
        Load("v", "x", Index(0, places), "float32"), Reduce(("s",), "sum", Ref("v"), "float32")))  # fmt: skip
    kernel = Kernel(
        "kernel", (Axis("i", batch), Axis("j", columns)), (summed, Section((), (Store("y", target, Ref("s")),)))
    )
    buffers = (Buffer("x", contiguous("float32", (batch, rows, columns)), "input"),
               Buffer("y", contiguous("float32", (batch, columns)), "kernel"))  # fmt: skip
    return LoopGraph(buffers=buffers, inputs=("x",), outputs=(Ref("y"),), steps=(kernel,))


def test_long_sums_are_as_good_as_short_ones(directory):
    """In float32 alone the sum of 200,000 tenths and a large first element would be off by 2e-3. A lane of the first
    block of 1,024 points is: it has a quarter of them in vectors of 128 bits."""
    x = torch.full((200_000, 1, 3), 0.1)
    x[0] = 1e7
    (found,) = load(emit(column_sums(200_000, 1, 3, "float32"), Options()), directory)(x)
    torch.testing.assert_close(found, x.double().sum((0, 1)).float(), rtol=3e-6, atol=0.0)


def test_a_block_is_neither_long_nor_short():
    for axes in ((Axis("a", 1000),), (Axis("a", 50), Axis("b", 3)), (Axis("a", 9), Axis("b", 60)),
                 (Axis("a", 2), Axis("b", 2), Axis("c", 1000)), (Axis("a", 64),)):  # fmt: skip
        position, length = partial_block(axes)
        points = length
        for axis in axes[position + 1 :]:
            points *= axis.size
        assert TUNED.partial_rows // 4 <= points <= TUNED.partial_rows
