"""Unroll and jam: several neighbours at once mean what each by itself means; what stays as it is."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from codegen import load
from codegen.cpp.tuning import TUNED
from codegen.cpp.unroll_and_jam import unroll_and_jam
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
    Section,
    Store,
    Term,
)
from stagewire.statements import points_of, select
from stagewire.types import contiguous

QUICK = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)


def at(start: int = 0, **steps: int) -> Index:
    return Index(start, tuple(Term(step, AxisAtom(axis)) for axis, step in steps.items()))


def normalised(rows: int, width: int, channels: int, taps: int = 3, step: int = 1, masked: bool = False) -> LoopGraph:
    """y[h, w, c] = the sum over taps of x[h, step * w + tap, c] * a[c] ** -0.25; masked: x is -1 at w = 0."""
    across = step * (width - 1) + taps
    body: list = [Load("a", "a", at(c=1), "float32"), Compute("q", "sqrt", (Ref("a"),), "float32")]
    body.append(Compute("r", "rsqrt", (Ref("q"),), "float32"))
    body += [IndexValue("w", at(w=1)), Compute("in", "gt", (Ref("w"), 0), "bool")]
    mask = (Ref("in"), -1.0) if masked else ()
    for tap in range(taps):
        place = at(tap * channels, h=across * channels, w=step * channels, c=1)
        body.append(Load(f"x{tap}", "x", place, "float32", *mask))
        body.append(Compute(f"p{tap}", "mul", (Ref(f"x{tap}"), Ref("r")), "float32"))
        if tap:
            before = Ref(f"s{tap - 1}" if tap > 1 else "p0")
            body.append(Compute(f"s{tap}", "add", (before, Ref(f"p{tap}")), "float32"))
    place = at(h=width * channels, w=channels, c=1)
    body.append(Store("y", place, Ref(f"s{taps - 1}" if taps > 1 else "p0")))
    axes = (Axis("h", rows), Axis("w", width), Axis("c", channels))
    shapes = {"x": (rows, across, channels), "a": (channels,), "y": (rows, width, channels)}
    buffers = tuple(Buffer(n, contiguous("float32", s), "kernel" if n == "y" else "input") for n, s in shapes.items())
    kernel = Kernel("kernel", axes, (Section((), tuple(body)),))
    return LoopGraph(buffers=buffers, inputs=("x", "a"), outputs=(Ref("y"),), steps=(kernel,))


def kernel_of(graph: LoopGraph) -> Kernel:
    (kernel,) = graph.steps
    assert isinstance(kernel, Kernel)
    return kernel


def test_what_is_the_same_is_computed_once() -> None:
    """Ten neighbours in two blocks of five; lanes in blocks, inside of which the neighbours are."""
    before = kernel_of(normalised(4, 10, 96))
    (after,) = unroll_and_jam(before)
    assert [axis.size for axis in after.axes] == [4, 3, 2, 32]
    assert points_of(after.axes) * 5 == points_of(before.axes)
    assert [one.op for one in select(after.sections, Compute)].count("rsqrt") == 1
    assert len(select(after.sections, Store)) == 5
    assert sum(load.buffer == "x" for load in select(after.sections, Load)) == 15


def test_what_is_left_over_is_a_kernel_of_its_own() -> None:
    main, rest = unroll_and_jam(kernel_of(normalised(4, 23, 32)))
    counts = [len(select(one.sections, Store)) for one in (main, rest)]
    assert counts == [7, 2]
    assert points_of(main.axes) * counts[0] + points_of(rest.axes) * counts[1] == 4 * 23 * 32


def refused() -> dict[str, Kernel]:
    plain = kernel_of(normalised(4, 10, 96))
    (section,) = plain.sections
    cheap = tuple(Compute("r", "neg", s.operands, s.dtype) if getattr(s, "op", "") == "rsqrt" else s
                  for s in section.statements)  # fmt: skip
    *before, store = section.statements
    add = (*before, Store("y", store.index, store.value, "atomic_add"))
    return {
        "nothing to gain": Kernel("kernel", plain.axes, (Section((), cheap),)),
        "stores that meet": Kernel("kernel", plain.axes, (Section((), add),)),
        "few lanes": kernel_of(normalised(4, 10, TUNED.jammed_lanes - 1)),
        "one neighbour": kernel_of(normalised(1, 1, 96)),
    }


@pytest.mark.parametrize("name", refused())
def test_what_stays_as_it_is(name: str) -> None:
    kernel = refused()[name]
    assert unroll_and_jam(kernel) == (kernel,)


@QUICK
@given(
    st.integers(1, 3), st.integers(1, 19), st.sampled_from((8, 20, 32, 96, 144)), st.integers(1, 5), st.integers(1, 2),
    st.booleans(), st.sampled_from((1, 1 << 40)),
)  # fmt: skip
def test_it_means_the_same(directory, rows, width, channels, taps, step, masked, threshold) -> None:
    graph = normalised(rows, width, channels, taps, step, masked)
    torch.manual_seed(0)
    x, a = (torch.rand(buffer.type.shape) + 0.5 for buffer in graph.buffers[:2])
    unit = emit(graph, Options(parallel_threshold=threshold))
    (found,) = load(unit, directory)(x, a)
    expected = run_graph(graph, {"x": x.flatten(), "a": a})["y"]
    torch.testing.assert_close(found.flatten(), expected, rtol=1e-6, atol=1e-6)
