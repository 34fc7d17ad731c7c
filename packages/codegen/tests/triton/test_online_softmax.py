"""Softmax of rows that are too long for a tile: the maximum and the sum of exponentials are one loop."""

import pytest
import torch
from msgspec.structs import replace

from codegen import Options, load
from codegen.stage import emit
from codegen.testing.interpreter import retuned
from codegen.triton.plan import plan
from codegen.triton.reductions import pairs_of
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
    Statement,
    Store,
    Term,
)
from stagewire.types import contiguous

ROWS, SIZE = 9, 23
ROW = Index(0, (Term(1, AxisAtom("i")),))


def at(axis: str) -> Index:
    return Index(0, (Term(SIZE, AxisAtom("i")), Term(1, AxisAtom(axis))))


def scaled(number: int, axis: str, dtype: str, factor: float = 0.5) -> tuple[Statement, ...]:
    """v = x * factor + x"""
    one, two, three = (f"{name}{number}" for name in "abv")
    return (
        Load(one, "x", at(axis), dtype),
        Compute(two, "mul", (Ref(one), factor), dtype),
        Compute(three, "add", (Ref(two), Ref(one)), dtype),
    )


def softmax(dtype: str = "float32", factor: float = 0.5, keeps_top: bool = False) -> LoopGraph:
    """softmax(1.5 x) by rows; with the maximum in memory if asked for."""
    moved = [
        (
            *scaled(n, axis, dtype, factor if n == 1 else 0.5),
            Compute(f"m{n}", "sub", (Ref(f"v{n}"), Ref("top")), dtype),
            Compute(f"e{n}", "exp", (Ref(f"m{n}"),), dtype),
        )
        for n, axis in ((1, "k"), (2, "l"))
    ]
    sections = (
        Section((Axis("j", SIZE),), (*scaled(0, "j", dtype), Reduce(("top",), "max", Ref("v0"), dtype))),
        *([Section((), (Store("m", ROW, Ref("top")),))] if keeps_top else []),
        Section((Axis("k", SIZE),), (*moved[0], Reduce(("total",), "sum", Ref("e1"), dtype))),
        Section(
            (Axis("l", SIZE),),
            (*moved[1], Compute("y", "div", (Ref("e2"), Ref("total")), dtype), Store("y", at("l"), Ref("y"))),
        ),
    )
    made = [Buffer("y", contiguous(dtype, (ROWS, SIZE)), "kernel")]
    made += [Buffer("m", contiguous(dtype, (ROWS,)), "kernel")] if keeps_top else []
    return LoopGraph(
        buffers=(Buffer("x", contiguous(dtype, (ROWS, SIZE)), "input"), *made),
        inputs=("x",),
        outputs=tuple(Ref(one.name) for one in made),
        steps=(Kernel("k", (Axis("i", ROWS),), sections),),
    )


def pairs(kernel: Kernel) -> dict[int, int]:
    return {one.total: one.maximum for one in pairs_of(kernel)}


@pytest.fixture
def short_tiles(monkeypatch):
    retuned(monkeypatch, persistent_row=1, register_row=1, loop_tile=8, reread_tiles=(8,), most_unrolled=0)


def run(graph: LoopGraph, directory, device: str, x: torch.Tensor) -> list[torch.Tensor]:
    buffers = tuple(replace(b, type=replace(b.type, device=device)) for b in graph.buffers)
    unit = emit(replace(graph, buffers=buffers), Options(target="triton"))
    return [found.cpu() for found in load(unit, directory)(x.to(device))]


def sample(dtype: torch.dtype) -> torch.Tensor:
    """Rows that rise, fall, overflow without their maximum, are masked in part or as a whole, are not finite."""
    x = torch.randn(ROWS, SIZE, dtype=dtype, generator=torch.Generator().manual_seed(3)) * 5
    x[0], x[1] = torch.arange(SIZE) * 40.0, -torch.arange(SIZE) * 40.0
    x[2] += 1e4
    x[3, : SIZE - 2] = -torch.inf
    x[4, 2:] = -torch.inf
    x[5] = -torch.inf
    x[6, 5] = torch.inf
    x[7, -1] = torch.nan
    x[8] = 0
    return x


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("keeps_top", [False, True])
def test_the_numbers_of_softmax(dtype, keeps_top, directory, device, short_tiles):
    graph = softmax(dtype, keeps_top=keeps_top)
    assert emit(graph, Options(target="triton")).source.count("for base") == 2
    x = sample(getattr(torch, dtype))
    found, *tops = run(graph, directory, device, x)
    torch.testing.assert_close(found, (1.5 * x).softmax(1), equal_nan=True, rtol=3e-6, atol=1e-12)
    for top in tops:
        torch.testing.assert_close(top, (1.5 * x).amax(1), equal_nan=True)


@pytest.mark.parametrize(("kept", "pairs"), [(0, 3), (1, 3), (3, 0)])
@pytest.mark.parametrize("keeps_top", [False, True])
def test_tiles_that_are_written_out(kept, pairs, keeps_top, directory, device, short_tiles, monkeypatch):
    """Rows of three tiles: exponentials of what is kept need no pairs."""
    limits = {"most_unrolled": 4, "unrolled_tile": 8, "cached_row": 96 if kept == 3 else 0, "cached_part": 32 * kept}
    retuned(monkeypatch, **limits)
    graph = softmax(keeps_top=keeps_top)
    assert plan(graph.steps[0]).cached == kept
    text = emit(graph, Options(target="triton")).source
    assert text.count("level = ") == pairs
    assert text.count("tl.load(p0") == (3 if kept == 3 else 3 + 3 - kept)
    x = sample(torch.float32)
    found, *tops = run(graph, directory, device, x)
    torch.testing.assert_close(found, (1.5 * x).softmax(1), equal_nan=True, rtol=3e-6, atol=1e-12)
    for top in tops:
        torch.testing.assert_close(top, (1.5 * x).amax(1), equal_nan=True)


def test_rows_in_one_tile_need_no_pairs():
    assert "level" not in emit(softmax(), Options(target="triton")).source


def test_other_values_are_sums_of_their_own(directory, device, short_tiles):
    """The sum is of exp(1.25 x - max(1.5 x))."""
    graph = softmax(factor=0.25)
    assert pairs(softmax().steps[0]) == {1: 0}
    assert pairs(graph.steps[0]) == {}
    x = torch.randn(ROWS, SIZE)
    (found,) = run(graph, directory, device, x)
    top = (1.5 * x).amax(1, keepdim=True)
    want = (1.5 * x - top).exp() / (1.25 * x - top).exp().sum(1, keepdim=True)
    torch.testing.assert_close(found, want, rtol=1e-4, atol=1e-9)


def test_what_is_stored_between_is_read_again():
    """The values of the second loop may be others."""
    kernel = softmax(keeps_top=True).steps[0]
    first, middle, second, last = kernel.sections
    changed = Section((), (Store("x", ROW, Ref("top")),))
    assert pairs(kernel) == {2: 0}
    assert pairs(replace(kernel, sections=(first, changed, second, last))) == {}
    assert pairs(replace(kernel, sections=(first, middle, last, second))) == {}
