"""Small kernels that are launched together."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from codegen import Options, load
from codegen.stage import emit
from codegen.testing.interpreter import retuned
from codegen.triton.horizontal_fusion import Touched, groups_of
from codegen.triton.tuning import SM_90
from stagewire.grad import Binding, BoundInput, Fresh
from stagewire.graph import Ref
from stagewire.loop import (
    Axis,
    AxisAtom,
    Buffer,
    Compute,
    Extern,
    Free,
    Index,
    IndexValue,
    Kernel,
    Load,
    Loop,
    LoopGraph,
    Reduce,
    Section,
    Store,
    Term,
)
from stagewire.program import Launch
from stagewire.types import TensorType

POINT = Index(0, (Term(1, AxisAtom("i")),))


def buffer(name: str, size: int, role: str = "input", dtype: str = "float32", reuse: str | None = None) -> Buffer:
    shape = () if size == 0 else (size,)
    return Buffer(name, TensorType(dtype, shape, (1,) * len(shape)), role, reuse=reuse)


def scaled_sum(name: str, size: int, x: str, y: str, result: str, rate: str | None = None) -> Kernel:
    """result[i] = (x[i] + y[i]) * rate, or * 0.5."""
    loads = [Load("a", x, POINT, "float32"), Load("b", y, POINT, "float32")]
    loads += [Load("r", rate, Index(0), "float32")] if rate else []
    factor = Ref("r") if rate else 0.5
    computed = (
        Compute("c", "add", (Ref("a"), Ref("b")), "float32"),
        Compute("d", "mul", (Ref("c"), factor), "float32"),
    )
    return Kernel(name, (Axis("i", size),), (Section((), (*loads, *computed, Store(result, POINT, Ref("d")))),))


def step_of(sizes: tuple[int, ...], rate: str | None = "rate") -> LoopGraph:
    """Every x + y, scaled: a kernel each."""
    count = range(len(sizes))
    inputs = [buffer(f"{way}{k}", sizes[k]) for way in "xy" for k in count]
    inputs += [buffer(rate, 0)] if rate else []
    outputs = [buffer(f"z{k}", sizes[k], "kernel") for k in count]
    kernels = tuple(scaled_sum(f"kernel{k}", sizes[k], f"x{k}", f"y{k}", f"z{k}", rate) for k in count)
    names = tuple(one.name for one in inputs)
    return LoopGraph(
        buffers=(*inputs, *outputs), inputs=names, outputs=tuple(Ref(one.name) for one in outputs), steps=kernels
    )


def launched(graph: LoopGraph) -> list[Launch]:
    return [one for one in emit(graph, Options(target="triton")).instructions if isinstance(one, Launch)]


def names_of(graph: LoopGraph, device: str = "cpu") -> list[list[str]]:
    types = {one.name: one.type for one in graph.buffers}
    return [[kernel.name for kernel in group.kernels] for group in groups_of(graph, types, device)]


@pytest.mark.parametrize("sizes", [(64, 2048, 8, 1024), (3, 1000, 1, 4097, 17), (1024, 1024), (16, 5, 24, 7)], ids=str)
@pytest.mark.parametrize("rate", ["rate", None])
def test_results_of_kernels_in_one_launch(sizes, rate, directory, device):
    graph = step_of(sizes, rate)
    buffers = tuple(replace(one, type=replace(one.type, device=device)) for one in graph.buffers)
    in_vectors = {size % 8 == 0 for size in sizes}
    assert len(launched(replace(graph, buffers=buffers))) == len(in_vectors)
    unit = emit(replace(graph, buffers=buffers), Options(target="triton"))
    xs, ys = ([torch.randn(size) for size in sizes] for _ in "xy")
    given_ = [*xs, *ys, *([torch.tensor(0.25)] if rate else [])]
    found = load(unit, directory)(*[x.to(device) for x in given_])
    for x, y, z in zip(xs, ys, found, strict=True):
        torch.testing.assert_close(z.cpu(), (x + y) * (0.25 if rate else 0.5))


def test_kernels_are_alike_but_for_buffers_and_sizes():
    assert names_of(step_of((8, 16, 24))) == [["kernel0", "kernel1", "kernel2"]]
    assert names_of(step_of((8, 9, 16, 10))) == [["kernel0", "kernel2"], ["kernel1", "kernel3"]]
    assert names_of(step_of((SM_90.fused_points * 2, 8))) == []
    assert names_of(step_of((8,))) == []


def test_what_is_shared_is_given_once():
    (launch,) = launched(step_of((8, 16)))
    assert launch.buffers.count("rate") == 1
    assert len(launch.buffers) == 7


def test_no_more_buffers_than_a_launch_takes(monkeypatch):
    retuned(monkeypatch, fused_buffers=8)
    assert names_of(step_of((8, 8, 8, 8, 8))) == [["kernel0", "kernel1"], ["kernel2", "kernel3"]]


def test_no_more_memory_than_kernels_one_by_one_would_take(monkeypatch):
    retuned(monkeypatch, fused_bytes=40)
    assert names_of(step_of((8, 8, 8))) == [["kernel0", "kernel1"]]


def test_a_call_ends_a_launch():
    graph = step_of((8, 8, 8))
    one, two, three = graph.steps
    call = Extern("aten.relu.default", (Ref("z0"),), {}, ("w",))
    graph = replace(graph, buffers=(*graph.buffers, buffer("w", 8, "extern")), steps=(one, call, two, three))
    assert names_of(graph) == [["kernel1", "kernel2"]]


def test_a_result_in_the_memory_of_what_another_reads():
    """x0 is let go of, and z1 takes its memory over: the two are not computed at once."""
    graph = step_of((8, 8, 8))
    buffers = tuple(replace(one, reuse="x0") if one.name == "z1" else one for one in graph.buffers)
    one, two, three = graph.steps
    graph = replace(graph, buffers=buffers, steps=(one, Free("x0"), two, three))
    assert names_of(graph) == [["kernel1", "kernel2"]]


def test_a_result_in_the_memory_of_an_own_operand(directory, device):
    graph = step_of((8, 32, 1000))
    buffers = tuple(
        replace(one, type=replace(one.type, device=device), reuse=f"x{one.name[1:]}" if one.name[0] == "z" else None)
        for one in graph.buffers
    )
    updates = tuple((k, f"x{k}") for k in range(3))
    unit = emit(replace(graph, buffers=buffers, updates=updates), Options(target="triton"))
    xs, ys = ([torch.randn(size, device=device) for size in (8, 32, 1000)] for _ in "xy")
    wanted = [(x + y) * 0.25 for x, y in zip(xs, ys, strict=True)]
    load(unit, directory)(*xs, *ys, torch.tensor(0.25, device=device))
    assert sum(isinstance(one, Launch) for one in unit.instructions) == 1
    torch.testing.assert_close(xs, wanted)


def with_own_rates(sizes: tuple[int, ...], dtype: str, device: str) -> LoopGraph:
    """Every x + y on a device, scaled by a number of its own, which lies on the CPU."""
    graph = step_of(sizes, None)
    buffers = [replace(one, type=replace(one.type, device=device)) for one in graph.buffers]
    rates = [buffer(f"r{k}", 0, dtype=dtype) for k in range(len(sizes))]
    steps = []
    for k, size in enumerate(sizes):
        kernel = scaled_sum(f"kernel{k}", size, f"x{k}", f"y{k}", f"z{k}", f"r{k}")
        *loads, load_rate, c, d, store = kernel.sections[0].statements
        given_ = (replace(load_rate, result="g", dtype=dtype), Compute("r", "convert", (Ref("g"),), "float32"))
        steps.append(replace(kernel, sections=(Section((), (*loads, *given_, c, d, store)),)))
    names = (*graph.inputs, *(one.name for one in rates))
    return replace(graph, buffers=(*buffers, *rates), inputs=names, steps=tuple(steps))


@pytest.mark.parametrize("dtype", ["int64", "float32", "float64"])
def test_numbers_of_the_cpu_are_those_of_each_kernel(dtype, directory, device):
    sizes = (64, 2048, 8, 1024)
    unit = emit(with_own_rates(sizes, dtype, device), Options(target="triton"))
    assert sum(isinstance(one, Launch) for one in unit.instructions) == 1
    run = load(unit, directory)
    for rates in ((3, 1, -2, 16), (7, 2**40, 0, -1)):
        xs, ys = ([torch.randn(size) for size in sizes] for _ in "xy")
        numbers = [torch.tensor(rate, dtype=getattr(torch, dtype)) for rate in rates]
        found = run(*[x.to(device) for x in (*xs, *ys)], *numbers)
        for x, y, z, rate in zip(xs, ys, found, rates, strict=True):
            torch.testing.assert_close(z.cpu(), (x + y) * rate)


@pytest.mark.parametrize("dtype", ["int64", "float32", "float64"])
def test_numbers_of_the_cpu_are_taken_by_value_and_compile_for_sm_90(dtype, compiled_for_sm_90):
    graph = with_own_rates((64, 2048, 8, 1024), dtype, "cuda:0")
    inputs = tuple(BoundInput(one.name, one.type) for one in graph.buffers if one.role == "input")
    binding = Binding(inputs=inputs, outputs=tuple(Fresh(k) for k in range(4)))
    parameters, values, _, magic = compiled_for_sm_90(Loop(binding=binding, forward=graph))
    assert (parameters, values, magic) == (16, [2, 6, 10, 14], "7f454c46")


def norms_of(sizes: tuple[tuple[int, int], ...], kind: str = "sum", device: str = "cpu") -> LoopGraph:
    """Of every x the sums of squares of its rows, or, where there is one, its root as an element of one result."""
    inputs = [buffer(f"x{k}", rows * points) for k, (rows, points) in enumerate(sizes)]
    several = [(k, rows) for k, (rows, _) in enumerate(sizes) if rows > 1]
    outputs = [buffer("norms", len(sizes), "kernel"), *(buffer(f"z{k}", rows, "kernel") for k, rows in several)]
    steps = []
    for k, (rows, points) in enumerate(sizes):
        along, row = Term(1, AxisAtom("r")), Term(points, AxisAtom("i"))
        here = Index(0, (along, row)) if rows > 1 else Index(0, (along,))
        square = (Load("a", f"x{k}", here, "float32"), Compute("b", "mul", (Ref("a"), Ref("a")), "float32"))
        total = Section((Axis("r", points),), (*square, Reduce(("s",), kind, Ref("b"), "float32")))
        if rows > 1:
            ending, axes = (Store(f"z{k}", POINT, Ref("s")),), (Axis("i", rows),)
        else:
            root = Compute("n", "sqrt", (Ref("s"),), "float32")
            ending, axes = (root, Store("norms", Index(k), Ref("n"))), ()
        steps.append(Kernel(f"kernel{k}", axes, (total, Section((), ending))))
    buffers = [replace(one, type=replace(one.type, device=device)) for one in (*inputs, *outputs)]
    names = tuple(one.name for one in inputs)
    return LoopGraph(
        buffers=tuple(buffers), inputs=names, outputs=tuple(Ref(one.name) for one in outputs), steps=tuple(steps)
    )


@pytest.mark.parametrize("kind", ["sum", "max"])
def test_reductions_in_one_launch(kind, directory, device):
    sizes = ((1, 64), (1, 2048), (1, 8), (1, 5000), (3, 1024), (1, 7), (1, 1001), (2, 4096))
    graph = norms_of(sizes, kind, device)
    groups = [["kernel0", "kernel1", "kernel2", "kernel3"], ["kernel4", "kernel7"], ["kernel5", "kernel6"]]
    assert names_of(graph, device) == groups
    unit = emit(graph, Options(target="triton"))
    assert sum(isinstance(one, Launch) for one in unit.instructions) == 3
    xs = [torch.randn(rows * points) for rows, points in sizes]
    norms, *rows = load(unit, directory)(*[x.to(device) for x in xs])
    of_rows = [x.reshape(*size).square() for x, size in zip(xs, sizes, strict=True)]
    totals = [x.sum(1) if kind == "sum" else x.amax(1) for x in of_rows]
    for k, (total, (count, _)) in enumerate(zip(totals, sizes, strict=True)):
        if count > 1:
            torch.testing.assert_close(rows.pop(0).cpu(), total)
        else:
            torch.testing.assert_close(norms[k].cpu(), total[0].sqrt())


def test_many_short_rows_are_reduced_alone():
    assert names_of(norms_of(((1000, 64), (2000, 64)))) == []
    assert names_of(norms_of(((200, 2048), (100, 4096)))) == [["kernel0", "kernel1"]]


TOUCHED = st.builds(
    Touched,
    read=st.sets(st.sampled_from("ab")),
    written=st.sets(st.sampled_from("ab")),
    elements=st.sets(st.tuples(st.sampled_from("ab"), st.integers(0, 2))),
)


@given(TOUCHED, TOUCHED)
def test_kernels_are_free_of_each_other_if_neither_writes_what_the_other_touches(one, other):
    def places(roots):
        return {(root, n) for root in roots for n in range(4)}

    def conflict(a, b):
        written = places(a.written) | a.elements
        return bool(written & (places(b.read | b.written) | b.elements))

    assert one.is_free_of(other) == (not conflict(one, other) and not conflict(other, one))


def test_kernels_that_ask_where_they_are_run_alone():
    graph = step_of((8, 8), None)
    moved = []
    for kernel in graph.steps:
        *others, store = kernel.sections[0].statements
        numbered = (*others, IndexValue("n", POINT), replace(store, value=Ref("n")))
        moved.append(replace(kernel, sections=(Section((), numbered),)))
    assert names_of(replace(graph, steps=tuple(moved))) == []


@given(st.lists(st.tuples(*[st.integers(0, 4)] * 3), min_size=2, max_size=8))
def test_no_kernel_is_moved_across_what_it_depends_on(drawn):
    """Kernels that read and write any of a few buffers: those of a launch at the place of the first one, at once."""
    kernels = [scaled_sum(f"kernel{n}", 8, f"b{x}", f"b{y}", f"b{z}") for n, (x, y, z) in enumerate(drawn)]
    declared = tuple(buffer(f"b{n}", 8, "kernel") for n in range(5))
    graph = LoopGraph(buffers=declared, inputs=(), outputs=(), steps=tuple(kernels))
    groups = names_of(graph)
    places = {f"kernel{n}": one for n, one in enumerate(drawn)}

    def run(launches: list[list[str]]) -> dict[int, object]:
        memory: dict[int, object] = {n: n for n in range(5)}
        for launch in launches:
            before = dict(memory)
            memory |= {places[name][2]: (before[places[name][0]], before[places[name][1]]) for name in launch}
        return memory

    together_with = {group[0]: group for group in groups}
    later = {name for group in groups for name in group[1:]}
    launches = [together_with.get(kernel.name, [kernel.name]) for kernel in kernels if kernel.name not in later]
    assert run(launches) == run([[kernel.name] for kernel in kernels])
