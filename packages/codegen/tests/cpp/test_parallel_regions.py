"""Kernels in a row as one function: one region for the threads, a barrier where one kernel needs what another wrote."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from codegen import Options, load
from codegen.stage import emit
from codegen.testing.compare import assert_same
from codegen.testing.reference import run_graph
from codegen.testing.strategies import sample_inputs
from stagewire.graph import Ref
from stagewire.loop import (
    Axis,
    AxisAtom,
    Buffer,
    Compute,
    Extern,
    Free,
    Index,
    Kernel,
    Load,
    LoopGraph,
    Section,
    Step,
    Store,
    Term,
)
from stagewire.program import Launch
from stagewire.types import contiguous

SIZE = 3000
QUICK = settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)


def adding(number: int, left: str, right: str, result: str, *, turned: bool = False, size: int = SIZE) -> Kernel:
    """result = left + right; `turned` reads `left` from its end, which other threads wrote."""
    forward = Index(0, (Term(1, AxisAtom("i")),))
    first = Index(size - 1, (Term(-1, AxisAtom("i")),)) if turned else forward
    body = (Load("a", left, first, "float32"), Load("b", right, forward, "float32"),
            Compute("c", "add", (Ref("a"), Ref("b")), "float32"), Store(result, forward, Ref("c")))  # fmt: skip
    return Kernel(f"k{number}", (Axis("i", size),), (Section((), body),))


def graph_of(
    *steps: Step, results: tuple[str, ...], reuse: dict[str, str] | None = None, size: int = SIZE
) -> LoopGraph:
    type_ = contiguous("float32", (size,))
    made = {s.buffer for k in steps if isinstance(k, Kernel) for s in k.sections[0].statements if isinstance(s, Store)}
    called = [Buffer(name, type_, "extern") for one in steps if isinstance(one, Extern) for name in one.results]
    own = [Buffer(name, type_, "kernel", reuse=(reuse or {}).get(name)) for name in sorted(made)]
    inputs = [Buffer(name, type_, "input") for name in ("x", "y")]
    return LoopGraph(buffers=(*inputs, *called, *own), inputs=("x", "y"), outputs=tuple(map(Ref, results)), steps=steps)


def launches(graph: LoopGraph, threshold: int = 1000) -> int:
    return sum(isinstance(one, Launch) for one in emit(graph, Options(parallel_threshold=threshold)).instructions)


def check(graph: LoopGraph, directory, threshold: int = 1000) -> None:
    inputs = sample_inputs(graph, 0)
    expected = run_graph(graph, inputs)
    for executor in ("fast", "reference"):
        run = load(emit(graph, Options(parallel_threshold=threshold)), directory, executor=executor)
        for found, output in zip(run(inputs["x"], inputs["y"]), graph.outputs, strict=True):
            assert_same(found, expected[output.name])


@pytest.mark.parametrize(("size", "threshold"), [(600, 20_000), (SIZE, 20_000), (20_000, 80_000)])
def test_kernels_that_differ_in_their_buffers_alone_are_turns_of_one_loop(size, threshold, two_threads, directory):
    """One thread does one of a single tile, all share a larger one."""
    graph = graph_of(*(adding(n, "x", "y", f"r{n}", turned=n % 3 == 0, size=size) for n in range(40)),
                     results=tuple(f"r{n}" for n in range(40)), size=size)  # fmt: skip
    source = emit(graph, Options(parallel_threshold=threshold)).source
    assert source.count("turn++") == source.count("omp for") == 2
    assert source.count("omp for schedule(dynamic") == (0 if size == 20_000 else 2)
    check(graph, directory, threshold)


def test_independent_kernels_need_no_barrier(two_threads, directory):
    graph = graph_of(*(adding(n, "x", "y", f"r{n}", turned=n % 2 == 0) for n in range(5)),
                     results=tuple(f"r{n}" for n in range(5)))  # fmt: skip
    source = emit(graph, Options(parallel_threshold=50_000)).source
    assert source.count("omp parallel") == 1, "each alone would be below the threshold"
    assert "omp barrier" not in source
    assert launches(graph, 50_000) == 1
    check(graph, directory, 50_000)


def test_a_barrier_stands_before_what_is_needed(two_threads, directory):
    steps = [adding(0, "x", "y", "r0"), *(adding(n, f"r{n - 1}", "y", f"r{n}", turned=True) for n in range(1, 6))]
    graph = graph_of(*steps, results=("r5",))
    source = emit(graph, Options(parallel_threshold=1000)).source
    assert source.count("omp parallel") == 1
    assert source.count("omp barrier") == 5
    for _ in range(5):
        check(graph, directory)


def test_small_kernels_that_need_each_other_stay_alone():
    steps = adding(0, "x", "y", "r0"), adding(1, "r0", "y", "r1")
    assert launches(graph_of(*steps, results=("r1",)), 1 << 20) == 2


def test_a_call_ends_a_group(directory):
    call = Extern("aten.neg.default", (Ref("r0"),), {}, ("c",))
    graph = graph_of(adding(0, "x", "y", "r0"), call, adding(1, "c", "y", "r1"), results=("r1",))
    assert launches(graph) == 2


def test_memory_that_is_taken_over(two_threads, directory):
    """The second kernel writes where the first one still reads; what is made in a group is not taken over in it."""
    first, second = adding(0, "t", "y", "r0", turned=True), adding(1, "t", "y", "r1")
    graph = graph_of(adding(9, "x", "y", "t"), Extern("aten.neg.default", (Ref("t"),), {}, ("c",)), first, second,
                     results=("r0", "r1", "c"), reuse={"r1": "t"})  # fmt: skip
    assert "omp barrier" in emit(graph, Options(parallel_threshold=1000)).source
    check(graph, directory)
    inside = graph_of(adding(9, "x", "y", "t"), adding(0, "t", "x", "u"), Free("x"), adding(1, "u", "y", "r1"),
                      results=("r1",), reuse={"r1": "t"})  # fmt: skip
    check(inside, directory)


@st.composite
def programs(draw: st.DrawFn) -> LoopGraph:
    names, steps = ["x", "y"], []
    for number in range(draw(st.integers(2, 7))):
        left, right = (draw(st.sampled_from(names)) for _ in range(2))
        names.append(f"r{number}")
        steps.append(adding(number, left, right, names[-1], turned=draw(st.booleans())))
    return graph_of(*steps, results=tuple(names[2:]))


@QUICK
@given(programs(), st.sampled_from((1000, 13_000, 30_000)))
def test_programs_of_kernels(directory, graph, threshold):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        check(graph, directory, threshold)
    finally:
        torch.set_num_threads(before)
