"""Sums along columns: blocks of float32 rows, folded in float64."""

import pytest
import torch

from codegen import Options, load
from codegen.cpp.reductions import partial_block
from codegen.cpp.tuning import TUNED
from codegen.stage import emit
from stagewire.graph import Ref
from stagewire.loop import Axis, AxisAtom, Buffer, Index, Kernel, Load, LoopGraph, Reduce, Section, Store, Term
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
