"""Kernels cut where a condition on an axis changes mean what they meant; a concatenation has no condition left."""

import operator

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from codegen import Options, load
from codegen.index_splitting import COMPARED, Lines, change, holds, split_pieces
from codegen.stage import emit
from codegen.testing.compare import assert_same
from codegen.testing.reference import run_graph, span
from codegen.testing.strategies import sample_inputs
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
    Store,
    Term,
    ValueAtom,
)
from stagewire.types import contiguous

QUICK = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)


def of(axis: str, step: int = 1, start: int = 0) -> Index:
    return Index(start, (Term(step, AxisAtom(axis)),))


def graph_of(kernel: Kernel, rows: int, columns: int) -> LoopGraph:
    type = contiguous("float32", (rows, columns))
    buffers = (Buffer("a", type, "input"), Buffer("b", type, "input"), Buffer("y", type, "kernel"))
    return LoopGraph(buffers=buffers, inputs=("a", "b"), outputs=(Ref("y"),), steps=(kernel,))


@st.composite
def conditional_kernels(draw: st.DrawFn) -> tuple[Kernel, int, int]:
    """y = a where some conditions on the axes hold together, else b or a number; x may be read across."""
    rows, columns = draw(st.integers(1, 40)), draw(st.integers(1, 90))
    statements, last = [], None
    for number in range(draw(st.integers(1, 3))):
        axis, size = draw(st.sampled_from((("i", rows), ("j", columns))))
        step = draw(st.sampled_from((1, 1, 2, -1, -3)))
        sides = (Ref(f"at{number}"), draw(st.integers(-size, size)))
        statements += [
            IndexValue(f"at{number}", of(axis, step, draw(st.integers(-5, 5)))),
            Compute(f"c{number}", draw(st.sampled_from(sorted(COMPARED))), draw(st.permutations(sides)), "bool"),
        ]
        new = Ref(f"c{number}")
        if draw(st.booleans()):
            statements.append(Compute(f"n{number}", "logical_not", (new,), "bool"))
            new = Ref(f"n{number}")
        if last is not None:
            statements.append(Compute(f"d{number}", draw(st.sampled_from(("logical_and", "logical_or"))),
                                      (last, new), "bool"))  # fmt: skip
            new = Ref(f"d{number}")
        last = new
    place = Index(0, (Term(columns, AxisAtom("i")), Term(1, AxisAtom("j"))))
    across = Index(0, (Term(1, AxisAtom("i")), Term(rows, AxisAtom("j"))))
    statements += [
        Load("u", "a", draw(st.sampled_from((place, across))), "float32", last, 7.0),
        Load("v", "b", place, "float32"),
        Compute("w", "where", (last, Ref("u"), draw(st.sampled_from((Ref("v"), 3)))), "float32"),
        Compute("s", "add", (Ref("w"), Ref("v")), "float32"),
    ]
    if draw(st.booleans()):
        statements += [Store("y", place, Ref("v")), Store("y", place, Ref("s"), "set", last)]
    else:
        statements.append(Store("y", place, Ref("s")))
    axes = (Axis("i", rows), Axis("j", columns))
    return Kernel("kernel", axes, (Section((), tuple(statements)),)), rows, columns


@QUICK
@given(conditional_kernels(), st.sampled_from((1, 1 << 40)))
def test_pieces_mean_what_the_whole_means(directory, drawn, threshold):
    graph = graph_of(*drawn)
    inputs = sample_inputs(graph, 0)
    (found,) = load(emit(graph, Options(parallel_threshold=threshold)), directory)(
        *(inputs[name].as_strided(drawn[1:], (drawn[2], 1)) for name in "ab")
    )
    flat = found.as_strided((span(graph.buffers[2].type),), (1,))
    assert_same(flat, run_graph(graph, inputs)["y"])


@given(st.sampled_from(sorted(COMPARED)), st.integers(-4, 4).filter(bool), st.integers(-9, 9), st.integers(-20, 20))
def test_where_a_condition_changes(op, step, start, bound):
    """It holds where Python says so, and is another at once before the point at which it changes."""
    compared = Compute("c", op, (Ref("at"), bound), "bool")
    line = Lines((IndexValue("at", of("i", step, start)), compared)).conditions["c"]
    for point in range(-40, 40):
        assert holds(line, point) == getattr(operator, op)(step * point + start, bound)
    assert holds(line, change(line) - 1) != holds(line, change(line))


def joined(axis: str, first: int, rows: int, columns: int) -> Kernel:
    """y = a up to `first` along an axis, then b from its start."""
    steps = (Term(columns, AxisAtom("i")), Term(1, AxisAtom("j")))
    body = (
        IndexValue("at", of(axis)),
        Compute("in", "lt", (Ref("at"), first), "bool"),
        Load("u", "a", Index(0, steps), "float32", Ref("in")),
        Compute("out", "ge", (Ref("at"), first), "bool"),
        Load("v", "b", Index(-first * (1 if axis == "j" else columns), steps), "float32", Ref("out")),
        Compute("w", "where", (Ref("out"), Ref("v"), Ref("u")), "float32"),
        Store("y", Index(0, steps), Ref("w")),
    )
    return Kernel("kernel", (Axis("i", rows), Axis("j", columns)), (Section((), body),))


@pytest.mark.parametrize(("axis", "first"), [("j", 48), ("i", 3)])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_concatenation_has_no_condition(axis, first, threads, directory):
    rows, columns = 37, 100
    graph = graph_of(joined(axis, first, rows, columns), rows, columns)
    unit = emit(graph, Options(parallel_threshold=1))
    assert "?" not in unit.source, unit.source
    a, b = torch.randn(rows, columns), torch.randn(rows, columns)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        (found,) = load(unit, directory)(a, b)
    finally:
        torch.set_num_threads(before)
    dim = "ij".index(axis)
    rest = (rows, columns)[dim] - first
    assert torch.equal(found, torch.cat((a.narrow(dim, 0, first), b.narrow(dim, 0, rest)), dim))


def test_short_parts_keep_their_conditions():
    """A column of padding is no loop of its own."""
    assert split_pieces(joined("j", 1, 8, 64)) == (joined("j", 1, 8, 64),)
    assert len(split_pieces(joined("i", 1, 8, 64))) == 2


def test_what_another_value_decides_is_no_line():
    at = IndexValue("at", Index(0, (Term(1, ValueAtom("v")),)))
    assert not Lines((at, Compute("c", "lt", (Ref("at"), 3), "bool"))).conditions
