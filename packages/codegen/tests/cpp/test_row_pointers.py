"""Loops of many accesses address their elements from pointers to rows: gcc takes cubic time for unrelated addresses."""

from __future__ import annotations

import re

import pytest
import torch

from codegen import load
from codegen.cpp.tuning import TUNED
from codegen.stage import Options, emit
from codegen.testing.reference import run_graph
from stagewire.graph import Ref
from stagewire.loop import (
    Axis,
    AxisAtom,
    Buffer,
    Compute,
    Index,
    IndexValue,
    Kernel,
    Load,
    LoopGraph,
    Reduce,
    Section,
    Statement,
    Store,
    Term,
    ValueAtom,
)
from stagewire.types import contiguous

LANES = 40


def at(start: int = 0, **steps: int) -> Index:
    return Index(start, tuple(Term(step, AxisAtom(axis)) for axis, step in steps.items()))


def graph(taps: int, *, rows: int = 1, reduced: bool = False) -> LoopGraph:
    """y[r, c] = 0.5 + the sum over taps of x[r, tap, c] * z[r, i[tap % 2], c], with 1 for x where c >= 30.

    reduced: y[r] = the sum of that over c.
    """
    body: list[Statement] = [IndexValue("c", at(c=1)), Compute("in", "lt", (Ref("c"), 30), "bool")]
    total = 0.5
    for tap in range(taps):
        body.append(Load(f"x{tap}", "x", at(tap * LANES, r=taps * LANES, c=1), "float32", Ref("in"), 1.0))
        body.append(Load(f"i{tap}", "i", at(tap % 2), "int64"))
        read = Index(0, (*at(r=2 * LANES).terms, Term(LANES, ValueAtom(f"i{tap}")), *at(c=1).terms))
        body.append(Load(f"z{tap}", "z", read, "float32"))
        body.append(Compute(f"p{tap}", "mul", (Ref(f"x{tap}"), Ref(f"z{tap}")), "float32"))
        body.append(Compute(f"s{tap}", "add", (total, Ref(f"p{tap}")), "float32"))
        total = Ref(f"s{tap}")
    if reduced:
        body.append(Reduce(("t",), "sum", total, "float32"))
        sections = Section((Axis("c", LANES),), tuple(body)), Section((), (Store("y", at(r=1), Ref("t")),))
    else:
        sections = (Section((), (*body, Store("y", at(r=LANES, c=1), total))),)
    axes = (Axis("r", rows),) if reduced else (Axis("r", rows), Axis("c", LANES))
    shapes = {"x": (rows, taps, LANES), "z": (rows, 2, LANES), "y": (rows,) if reduced else (rows, LANES)}
    types = {name: contiguous("float32", shape) for name, shape in shapes.items()} | {"i": contiguous("int64", (2,))}
    buffers = tuple(Buffer(n, types[n], "kernel" if n == "y" else "input") for n in ("x", "z", "i", "y"))
    return LoopGraph(
        buffers=buffers, inputs=("x", "z", "i"), outputs=(Ref("y"),), steps=(Kernel("kernel", axes, sections),)
    )


@pytest.mark.parametrize("reduced", [False, True])
def test_many_accesses_share_few_addresses(reduced: bool) -> None:
    """All of x in one row, and what is stored in another; an index that is read has none."""
    text = emit(graph(TUNED.row_pointers, reduced=reduced), Options()).source
    pointer, *others = re.findall(r"auto \*(\w+) = p\d+ \+ \(\d+ \* i0\);", text)
    assert len(others) == (0 if reduced else 1)
    assert len(re.findall(rf"\b{pointer}\[i1( \+ \d+)?\]", text)) == TUNED.row_pointers


def test_few_accesses_have_addresses_of_their_own() -> None:
    assert "auto *" not in emit(graph(TUNED.row_pointers // 4), Options()).source


@pytest.mark.parametrize("threshold", [1, 1 << 40])
@pytest.mark.parametrize("reduced", [False, True])
def test_it_means_the_same(directory, reduced: bool, threshold: int) -> None:
    drawn = graph(TUNED.row_pointers, rows=3, reduced=reduced)
    torch.manual_seed(0)
    x, z = (torch.rand(buffer.type.shape) for buffer in drawn.buffers[:2])
    i = torch.tensor([1, 0])
    (found,) = load(emit(drawn, Options(parallel_threshold=threshold)), directory)(x, z, i)
    expected = run_graph(drawn, {"x": x.flatten(), "z": z.flatten(), "i": i})["y"]
    torch.testing.assert_close(found.flatten(), expected, rtol=1e-5, atol=1e-5)
