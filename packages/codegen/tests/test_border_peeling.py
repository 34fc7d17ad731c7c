"""Rows cut around what is not clamped mean what they meant; between the borders nothing is gathered."""

from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from codegen import Options, load
from codegen.index_splitting import interior, split_pieces
from codegen.stage import emit
from codegen.testing.compare import assert_same
from codegen.testing.reference import run_graph
from codegen.testing.strategies import sample_inputs
from stagewire.expr import Dim, evaluate, symbol
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
    Section,
    Statement,
    Store,
    Term,
    ValueAtom,
)
from stagewire.types import contiguous

QUICK = settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
Clamps = Callable[[Dim], list[Statement]]


def compute(result: str, op: str, *operands: object) -> Compute:
    return Compute(result, op, tuple(Ref(one) if isinstance(one, str) else one for one in operands), "int64")  # type: ignore[arg-type]


def number(result: str, value: Dim) -> IndexValue:
    return IndexValue(result, Index(value), "int64")


def replicated(columns: Dim) -> list[Statement]:
    low, place = compute("low", "maximum", "at", 0), compute("place", "minimum", "end", "low")
    return [number("end", columns - 1), low, place]


def reflected(columns: Dim) -> list[Statement]:
    far, rest = compute("far", "abs", "at"), compute("rest", "sub", "end", "far")
    return [
        number("end", columns - 1), far, rest, compute("back", "abs", "rest"), compute("place", "sub", "end", "back"),
    ]  # fmt: skip


def indexed(check: str, columns: Dim) -> list[Statement]:
    """A clamped position as an index."""
    near, same = compute("near", "minimum", "low", "end"), compute("same", "add", "near", 0)
    return [
        *replicated(columns)[:2],
        near,
        same,
        number("size", columns),
        compute("place", check, "same", "size"),
    ]


CLAMPS: dict[str, Clamps] = {
    "replicated": replicated,
    "reflected": reflected,
    "wrapped": partial(indexed, "wrap_index"),
    "checked": partial(indexed, "check_index"),
}


def clamped(clamps: Clamps, rows: Dim, columns: Dim, low: int, high: int, *, weighted: bool = False) -> Kernel:
    """y[i, j] = a[i, place of j - low], for a row of columns + low + high; weighted: plus max(j - low, 7)."""
    width = columns + low + high
    statements: list[Statement] = [
        IndexValue("at", Index(-low, (Term(1, AxisAtom("j")),)), "int64"),
        *clamps(columns),
        Load("v", "a", Index(0, (Term(columns, AxisAtom("i")), Term(1, ValueAtom("place")))), "float32"),
        compute("weight", "maximum", "at", 7),
        Compute("sum", "add", (Ref("v"), Ref("weight")), "float32"),
        Store("y", Index(0, (Term(width, AxisAtom("i")), Term(1, AxisAtom("j")))), Ref("sum" if weighted else "v")),
    ]
    return Kernel("kernel", (Axis("i", rows), Axis("j", width)), (Section((), tuple(statements)),))


@QUICK
@given(
    st.sampled_from(sorted(CLAMPS)), st.integers(1, 5), st.integers(4, 70), st.integers(0, 3), st.integers(0, 3),
    st.sampled_from((1, 1 << 40)), st.booleans(),
)  # fmt: skip
def test_parts_mean_what_the_whole_means(directory, name, rows, columns, low, high, threshold, weighted):
    kernel = clamped(CLAMPS[name], rows, columns, low, high, weighted=weighted)
    types = contiguous("float32", (rows, columns)), contiguous("float32", (rows, columns + low + high))
    buffers = (Buffer("a", types[0], "input"), Buffer("y", types[1], "kernel"))
    graph = LoopGraph(buffers=buffers, inputs=("a",), outputs=(Ref("y"),), steps=(kernel,))
    inputs = sample_inputs(graph, 0)
    unit = load(emit(graph, Options(parallel_threshold=threshold)), directory)
    (found,) = unit(inputs["a"].as_strided((rows, columns), (columns, 1)))
    assert_same(found.flatten(), run_graph(graph, inputs)["y"])


@pytest.mark.parametrize("name", CLAMPS)
def test_between_the_borders_a_row_is_read_as_it_lies(name: str) -> None:
    (kernel,) = split_pieces(clamped(CLAMPS[name], 8, 64, 2, 1))
    assert [section.axes[0].size for section in kernel.sections] == [2, 64, 1]
    (load,) = (s for s in kernel.sections[1].statements if isinstance(s, Load))
    assert load.index == Index(0, (Term(64, AxisAtom("i")), Term(1, AxisAtom("j.1"))))
    assert len(kernel.sections[1].statements) == 2


@pytest.mark.parametrize("name", CLAMPS)
def test_symbolic_rows(name: str) -> None:
    """Whatever the size is, the parts make up the row, and nothing in the middle leaves it."""
    columns = symbol("n")
    kernel = clamped(CLAMPS[name], 8, columns, 2, 1)
    found = interior(kernel, kernel.axes[1])
    assert found is not None
    for n in range(1, 40):
        first, last = (evaluate(end, {"n": n}) for end in found[:2])
        assert 0 <= first <= last <= n + 3
        assert (first, last) == (min(2, n + 3), n + 2)


def test_short_rows_and_reads_in_steps_are_left() -> None:
    short = clamped(replicated, 8, 9, 1, 1)
    assert split_pieces(short) == (short,)
    kernel = clamped(replicated, 8, 64, 1, 1)
    section = kernel.sections[0]
    wide = Load("u", "a", Index(0, (Term(2, AxisAtom("j")),)), "float32")
    assert interior(Kernel("kernel", kernel.axes, (Section((), (wide, *section.statements)),)), kernel.axes[1]) is None
