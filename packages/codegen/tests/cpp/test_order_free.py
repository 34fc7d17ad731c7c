"""Positions and variances of float64 as reductions in any order."""

import pytest
import torch

from codegen import Options, load
from codegen.cpp.reductions import order_free
from codegen.stage import emit
from stagewire.graph import Ref
from stagewire.loop import Axis, AxisAtom, Buffer, Index, Kernel, Load, LoopGraph, Reduce, Section, Store, Term
from stagewire.statements import select
from stagewire.types import contiguous

ROWS, SIZE = 3, 70
POINT = Index(0, (Term(SIZE, AxisAtom("i")), Term(1, AxisAtom("j"))))
ROW = Index(0, (Term(1, AxisAtom("i")),))


def graph(loop: Section, results: dict[str, str]) -> LoopGraph:
    """A loop over the rows of x, which may also be written (its new name is z), and what it comes to: by dtype."""
    ends = tuple(Store(f"y_{name}", ROW, Ref(name)) for name in results)
    kernel = Kernel("kernel", (Axis("i", ROWS),), (loop, Section((), ends)))
    made = [Buffer(f"y_{name}", contiguous(dtype, (ROWS,)), "kernel") for name, dtype in results.items()]
    made += [Buffer(s.buffer, contiguous("float64", (ROWS, SIZE)), "kernel") for s in select((loop,), Store)]
    buffers = (Buffer("x", contiguous("float64", (ROWS, SIZE)), "input"), *made)
    return LoopGraph(buffers=buffers, inputs=("x",), outputs=tuple(Ref(b.name) for b in made), steps=(kernel,))


def rows() -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randint(-4, 5, (ROWS, SIZE)).double()


@pytest.mark.parametrize("threshold", [1, 1 << 30])
def test_no_order_is_left(threshold, directory):
    load_x = Load("v", "x", POINT, "float64")
    moments = Reduce(("mean", "squares", "count"), "welford", Ref("v"), "float64")
    body = (load_x, Reduce(("k",), "argmin", Ref("v"), "int64"), moments, Reduce(("t",), "sum", Ref("v"), "float64"))
    loops = graph(Section((Axis("j", SIZE),), body), {"k": "int64", "mean": "float64", "squares": "float64"})
    kinds = {one.reduction for one in select(order_free(loops.steps[0]).sections, Reduce)}
    assert kinds == {"min", "sum"}
    x = rows()
    x[1, 5] = float("nan")
    place, mean, squares = load(emit(loops, Options(parallel_threshold=threshold)), directory)(x)
    assert torch.equal(place, x.argmin(1))
    torch.testing.assert_close(mean, x.mean(1), equal_nan=True)
    torch.testing.assert_close(squares, x.var(1, correction=0) * SIZE, equal_nan=True)


def test_a_loop_that_writes_what_it_reads_is_computed_before(directory):
    """z = 0 where v was read: a second look at the same memory would find zeros."""
    body = (Load("v", "z", POINT, "float64"), Reduce(("k",), "argmax", Ref("v"), "int64"), Store("z", POINT, 0.0))
    first = Kernel("copy", (Axis("i", ROWS), Axis("j", SIZE)),
                   (Section((), (Load("v", "x", POINT, "float64"), Store("z", POINT, Ref("v")))),))  # fmt: skip
    loops = graph(Section((Axis("j", SIZE),), body), {"k": "int64"})
    loops = LoopGraph(buffers=loops.buffers, inputs=("x",), outputs=loops.outputs, steps=(first, *loops.steps))
    x = rows()
    place, cleared = load(emit(loops, Options()), directory)(x)
    assert torch.equal(place, x.argmax(1))
    assert not cleared.any()


def test_equal_points_are_found_at_the_first(directory):
    body = (Reduce(("k",), "argmax", 3.0, "int64"),)
    (place,) = load(emit(graph(Section((Axis("j", SIZE),), body), {"k": "int64"}), Options()), directory)(rows())
    assert place.tolist() == [0] * ROWS
