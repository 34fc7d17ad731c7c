"""Tiles: rows with a factor of their own, moments of rows that are at hand as a whole or in a loop of tiles."""

from math import prod

import pytest
import torch
from msgspec.structs import replace

from codegen import Options, load
from codegen.stage import emit
from codegen.testing.interpreter import retuned
from codegen.triton.plan import plan
from codegen.triton.tuning import SM_90
from stagewire.expr import Dim, evaluate, symbol
from stagewire.graph import Ref
from stagewire.loop import (
    Axis,
    AxisAtom,
    Buffer,
    Compute,
    FloorDivAtom,
    Index,
    Kernel,
    Load,
    LoopGraph,
    Reduce,
    Scan,
    Section,
    Store,
    Term,
)
from stagewire.types import contiguous


def at(*steps: tuple[str, int]) -> Index:
    return Index(0, tuple(Term(step, AxisAtom(name)) for name, step in steps))


def scaled(rows: int, size: int, dtype: str = "float32") -> LoopGraph:
    """y[i, j] = sqrt(w[i]) * x[i, j]"""
    whole = at(("i", size), ("j", 1))
    body = (
        Load("x", "x", whole, dtype),
        Load("w", "w", at(("i", 1)), dtype),
        Compute("s", "sqrt", (Ref("w"),), dtype),
        Compute("r", "mul", (Ref("x"), Ref("s")), dtype),
        Store("y", whole, Ref("r")),
    )
    kernel = Kernel("k", (Axis("i", rows), Axis("j", size)), (Section((), body),))
    buffers = (
        Buffer("x", contiguous(dtype, (rows, size)), "input"),
        Buffer("w", contiguous(dtype, (rows,)), "input"),
        Buffer("y", contiguous(dtype, (rows, size)), "kernel"),
    )
    return LoopGraph(buffers=buffers, inputs=("x", "w"), outputs=(Ref("y"),), steps=(kernel,))


def moments(rows: Dim, size: int, dtype: str = "float32") -> LoopGraph:
    """Mean, squared deviations and count of rows."""
    row = at(("i", 1))
    loop = (
        Load("x", "x", at(("i", size), ("j", 1)), dtype),
        Reduce(("mean", "squares", "count"), "welford", Ref("x"), dtype),
    )
    stores = tuple(Store(name, row, Ref(name)) for name in ("mean", "squares", "count"))
    kernel = Kernel("k", (Axis("i", rows),), (Section((Axis("j", size),), loop), Section((), stores)))
    results = tuple(Buffer(name, contiguous(dtype, (rows,)), "kernel") for name in ("mean", "squares", "count"))
    buffers = (Buffer("x", contiguous(dtype, (rows, size)), "input"), *results)
    return LoopGraph(buffers=buffers, inputs=("x",), outputs=tuple(Ref(b.name) for b in results), steps=(kernel,))


def gated(rows: int, size: int) -> LoopGraph:
    """h = w + w; then s = sqrt(h) in the memory of h, and sums of rows x * s."""
    row, dtype = at(("i", 1)), "float32"
    first = (Load("w", "w", row, dtype), Compute("h", "add", (Ref("w"), Ref("w")), dtype), Store("h", row, Ref("h")))
    gate = (Load("h", "h", row, dtype), Compute("s", "sqrt", (Ref("h"),), dtype), Store("s", row, Ref("s")))
    loop = (
        Load("x", "x", at(("i", size), ("j", 1)), dtype),
        Compute("p", "mul", (Ref("x"), Ref("s")), dtype),
        Reduce(("total",), "sum", Ref("p"), dtype),
    )
    end = Section((), (Store("y", row, Ref("total")),))
    rest = (Section((), gate), Section((Axis("j", size),), loop), end)
    kernels = (Kernel("k", (Axis("i", rows),), (Section((), first),)), Kernel("l", (Axis("i", rows),), rest))
    kind = contiguous(dtype, (rows,))
    buffers = (
        Buffer("w", kind, "input"),
        Buffer("x", contiguous(dtype, (rows, size)), "input"),
        Buffer("h", kind, "kernel"),
        Buffer("s", kind, "kernel", reuse="h"),
        Buffer("y", kind, "kernel"),
    )
    return LoopGraph(buffers=buffers, inputs=("w", "x"), outputs=(Ref("s"), Ref("y")), steps=kernels)


def summed(rows: Dim, part: Dim, size: Dim, dtype: str = "float32") -> LoopGraph:
    """y = x / (sum of |x| along its row), and the sums of x over the rows of each part."""
    whole, place = at(("i", size), ("j", 1)), at(("i", 1))
    load = Load("x", "x", whole, dtype)
    total = Index(0, (Term(size, FloorDivAtom(place, part)), Term(1, AxisAtom("j"))))
    sums = load, Compute("w", "convert", (Ref("x"),), "float32"), Store("s", total, Ref("w"), "sum")
    wide = "float32"
    again = (
        replace(load, result="a"),
        Compute("c", "convert", (Ref("a"),), wide),
        Compute("b", "abs", (Ref("c"),), wide),
        Reduce(("t",), "sum", Ref("b"), wide),
    )
    last = (
        replace(load, result="d"),
        Compute("e", "convert", (Ref("d"),), wide),
        Compute("f", "div", (Ref("e"), Ref("t")), wide),
        Compute("y", "convert", (Ref("f"),), dtype),
        Store("y", whole, Ref("y")),
    )
    bodies = (sums, again, last)
    kernel = Kernel("k", (Axis("i", rows),), tuple(Section((Axis("j", size),), body) for body in bodies))
    kind = contiguous(dtype, (rows, size))
    totals = contiguous("float32", ((rows + (part - 1)) // part, size))
    results = Buffer("y", kind, "kernel"), Buffer("s", totals, "kernel")
    outputs = (Ref("y"), Ref("s"))
    return LoopGraph(buffers=(Buffer("x", kind, "input"), *results), inputs=("x",), outputs=outputs, steps=(kernel,))


def kernel_text(graph: LoopGraph) -> str:
    return emit(graph, Options(target="triton")).source.partition("def k0(")[2]


def run(graph: LoopGraph, directory, device: str, *inputs: torch.Tensor) -> list[torch.Tensor]:
    buffers = tuple(replace(b, type=replace(b.type, device=device)) for b in graph.buffers)
    unit = emit(replace(graph, buffers=buffers), Options(target="triton"))
    return [found.cpu() for found in load(unit, directory)(*[x.to(device) for x in inputs])]


@pytest.mark.parametrize(("rows", "size"), [(3, 520), (1, 4096), (5, 3136), (2, 2048)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_rows_with_a_factor_of_their_own(rows, size, dtype, directory, device):
    graph = scaled(rows, size, dtype)
    assert plan(graph.steps[0]).kind == "tiled"
    x, w = (torch.randn(*shape, dtype=getattr(torch, dtype)).abs() for shape in ((rows, size), (rows,)))
    (found,) = run(graph, directory, device, x, w)
    torch.testing.assert_close(found, x * w.sqrt()[:, None])


def check_sums(graph: LoopGraph, rows: int, part: int, size: int, dtype: str, directory, device: str) -> None:
    x = torch.randn(rows, size).to(getattr(torch, dtype))
    y, sums = run(graph, directory, device, x)
    wanted = torch.stack([each.float().sum(0) for each in x.split(part)])
    torch.testing.assert_close(sums, wanted, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(y, (x.float() / x.float().abs().sum(-1, keepdim=True)).to(x.dtype), rtol=2e-2, atol=2e-3)


@pytest.mark.parametrize(
    ("rows", "part", "size"), [(12, 4, 100), (72, 24, 300), (70, 24, 300), (13, 5, 2000), (3, 1, 64), (7, 3, 4097)]
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_sums_over_the_rows_of_a_part(rows, part, size, dtype, directory, device):
    graph = summed(rows, part, size, dtype)
    tiles = plan(graph.steps[0])
    assert (tiles.grid, tiles.part) == ((-(-rows // part),), part)
    check_sums(graph, rows, part, size, dtype, directory, device)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_rows_beside_many_sums_stay_as_narrow_as_they_are(dtype, directory, device, monkeypatch):
    retuned(monkeypatch, summed_bytes=0)
    graph = summed(70, 24, 300, dtype)
    assert ("again(" in kernel_text(graph)) == (dtype != "float32")
    check_sums(graph, 70, 24, 300, dtype, directory, device)


@pytest.mark.usefixtures("counting_interpreter")
@pytest.mark.parametrize("size", [300, "m"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_sums_over_rows_of_which_there_are_any_number(size, dtype, directory, device):
    """Rows that are longer than a tile was made for are added to sums in memory."""
    rows, length = symbol("n"), symbol(size) if isinstance(size, str) else size
    part = (rows + 15) // 16 * 4
    graph = summed(rows, part, length, dtype)
    assert length == 300 or plan(graph.steps[0]).inner < 300
    for n in (2, 4, 37, 128):
        for m in (300,) if length == 300 else (2, 64, 65, 300):
            check_sums(graph, n, evaluate(part, {"n": n}), m, dtype, directory, device)


def test_any_number_of_rows_that_are_a_tile_each(directory, device):
    """No statement names a size then."""
    graph = moments(symbol("n"), 1024)
    for n in (2, 5):
        x = torch.randn(n, 1024)
        mean, squares, _ = run(graph, directory, device, x)
        torch.testing.assert_close((mean, squares / 1024), (x.mean(1), x.var(1, correction=0)))


@pytest.mark.parametrize("size", [511, 64, 521])
def test_short_and_odd_rows_are_flattened(size):
    assert plan(scaled(8, size).steps[0]).kind == "row"


def test_rows_of_a_narrow_dtype_have_fewer_warps():
    assert plan(moments(8, 4096, "bfloat16").steps[0]).num_warps == 8
    assert plan(moments(8, 4096, "float32").steps[0]).num_warps == 16


@pytest.mark.parametrize(
    ("points", "tile", "warps"), [(20, 32, 1), (2048, 128, 4), (128 * 264, 128, 4), (1 << 20, 1024, 4)]
)
def test_few_points_are_a_thread_each(points, tile, warps):
    tiles = plan(flat(points))
    assert (tiles.outer, tiles.num_warps) == (tile, warps)


def flat(points: int) -> Kernel:
    at_point = at(("i", 1))
    return Kernel(
        "k", (Axis("i", points),), (Section((), (Load("x", "x", at_point, "float32"), Store("y", at_point, Ref("x")))),)
    )


@pytest.mark.parametrize(
    ("size", "dtype", "tile"),
    [
        (8192, "bfloat16", 8192),
        (14336, "float16", 16384),
        (32768, "bfloat16", 2048),
        (9000, "bfloat16", 2048),
        (8192, "float32", 2048),
    ],
)
def test_rows_of_half_precision_are_summed_whole(size, dtype, tile):
    loop = (Load("x", "x", at(("i", size), ("j", 1)), dtype), Reduce(("s",), "sum", Ref("x"), "float32"))
    end = Section((), (Store("y", at(("i", 1)), Ref("s")),))
    assert plan(Kernel("k", (Axis("i", 64),), (Section((Axis("j", size),), loop), end))).inner == tile


def test_kernels_of_many_accesses_have_fewer_elements_a_thread():
    def warps(operands: int, size: int) -> int:
        reads = tuple(Load(f"x{n}", f"x{n}", at(("i", 1)), "float32") for n in range(operands))
        store = Store("y", at(("i", 1)), Ref("x0"))
        return plan(Kernel("k", (Axis("i", size),), (Section((), (*reads, store)),))).num_warps

    assert (warps(SM_90.many_accesses - 1, 1 << 20), warps(SM_90.many_accesses, 1 << 20)) == (4, 8)
    assert warps(SM_90.many_accesses, 32) == 1


def normalised(rows: int, size: int, operands: int = 1, dtype: str = "float32", exponential: bool = False) -> LoopGraph:
    """The sum of the operands, or the exponential of it, over the sum of that along the row."""
    names = tuple(f"x{n}" for n in range(operands))

    def sums(axis: str) -> tuple:
        loads = tuple(Load(f"{axis}{n}", name, at(("i", size), (axis, 1)), dtype) for n, name in enumerate(names))
        adds = tuple(
            Compute(f"{axis}s{n}", "add", (Ref(f"{axis}s{n - 1}" if n > 1 else f"{axis}0"), Ref(f"{axis}{n}")), dtype)
            for n in range(1, operands)
        )
        whole = Ref(f"{axis}s{operands - 1}" if operands > 1 else f"{axis}0")
        if exponential:
            return (*loads, *adds, Compute(f"{axis}e", "exp", (whole,), dtype)), Ref(f"{axis}e")
        return (*loads, *adds), whole

    (first, value), (second, again) = sums("j"), sums("k")
    total = Section((Axis("j", size),), (*first, Reduce(("t",), "sum", value, dtype)))
    store = Store("y", at(("i", size), ("k", 1)), Ref("q"))
    rest = Section((Axis("k", size),), (*second, Compute("q", "div", (again, Ref("t")), dtype), store))
    kind = contiguous(dtype, (rows, size))
    buffers = (*(Buffer(name, kind, "input") for name in names), Buffer("y", kind, "kernel"))
    kernel = Kernel("k", (Axis("i", rows),), (total, rest))
    return LoopGraph(buffers=buffers, inputs=names, outputs=(Ref("y"),), steps=(kernel,))


@pytest.mark.parametrize(
    ("size", "operands", "dtype", "tile", "warps"),
    [(8192, 1, "float32", 8192, 16), (5000, 1, "float32", 8192, 16), (16384, 1, "float32", 16384, 16),
     (16384, 2, "float32", 16384, 32), (20000, 1, "float32", 32768, 32), (16384, 1, "bfloat16", 16384, 16)],
)  # fmt: skip
def test_long_rows_that_are_read_again_stay_in_registers(size, operands, dtype, tile, warps):
    tiles = plan(normalised(8, size, operands, dtype).steps[0])
    assert (tiles.kind, tiles.outer, tiles.inner, tiles.num_warps) == ("row", 1, tile, warps)
    assert not tiles.rereads


def check_normalised(
    graph: LoopGraph, size: int, operands: int, dtype: str, directory, device, exponential: bool
) -> None:
    xs = [torch.rand(2, size).to(getattr(torch, dtype)) for _ in range(operands)]
    (found,) = run(graph, directory, device, *xs)
    wide = sum(x.double() for x in xs)
    wide = (wide.exp() if exponential else wide) / (wide.exp() if exponential else wide).sum(1, keepdim=True)
    assert (found.double() - wide).norm() / wide.norm() < (1e-6 if dtype == "float32" else 6e-3)


@pytest.mark.parametrize(
    ("size", "operands", "dtype", "tile", "tiles", "kept"),
    [(40000, 1, "float32", 4096, 10, 10), (65536, 1, "float32", 4096, 16, 8), (40960, 2, "float32", 4096, 10, 4),
     (5000, 1, "bfloat16", 1024, 5, 5), (20000, 1, "bfloat16", 4096, 5, 0), (65536, 1, "bfloat16", 4096, 16, 0)],
)  # fmt: skip
def test_longer_rows_are_written_out(size, operands, dtype, tile, tiles, kept, directory, device):
    """What is kept is loaded once; the rest is to stay in the cache, for which results leave room."""
    graph = normalised(2, size, operands, dtype, exponential=True)
    chosen = plan(graph.steps[0])
    assert (chosen.inner, chosen.cached, chosen.num_warps) == (tile, kept, tile // 256)
    text = kernel_text(graph)
    stored = tiles if kept < tiles else 0
    assert text.count("evict_last") == text.count("evict_first") - stored == operands * (tiles - kept)
    assert text.count("tl.load") == operands * (2 * tiles - kept)
    check_normalised(graph, size, operands, dtype, directory, device, exponential=True)


@pytest.mark.parametrize(
    ("size", "operands", "dtype", "tile", "warps"),
    [(40000, 1, "float32", 8192, 32), (65536, 1, "float32", 16384, 32), (33792, 1, "float32", 8192, 32),
     (32768, 1, "bfloat16", 16384, 32), (24576, 1, "bfloat16", 8192, 16), (40960, 2, "bfloat16", 8192, 32)],
)  # fmt: skip
def test_longer_rows_stay_in_the_cache(size, operands, dtype, tile, warps):
    graph = normalised(8, size, operands, dtype)
    tiles = plan(graph.steps[0])
    assert (tiles.cached, tiles.inner, tiles.num_warps, tiles.num_stages[0]) == (None, tile, warps, 1)
    text = kernel_text(graph)
    assert text.count("evict_last") == text.count("evict_first") - 1 == operands


@pytest.mark.parametrize(("size", "dtype", "exponential"), [(40000, "float32", False), (132000, "bfloat16", True)])
def test_rows_in_the_cache_are_what_they_are(size, dtype, exponential, directory, device):
    graph = normalised(2, size, 1, dtype, exponential)
    assert plan(graph.steps[0]).cached is None
    check_normalised(graph, size, 1, dtype, directory, device, exponential)


@pytest.mark.parametrize(("size", "operands"), [(5000, 1), (16384, 2)])
def test_rows_in_registers_are_what_they_are(size, operands, directory, device):
    xs = [torch.rand(3, size) for _ in range(operands)]
    graph = normalised(3, size, operands)
    assert "for base" not in emit(graph, Options(target="triton")).source
    (found,) = run(graph, directory, device, *xs)
    torch.testing.assert_close(found, sum(xs) / sum(xs).sum(1, keepdim=True))


def test_how_many_tiles_are_ahead_is_a_matter_of_what_is_done():
    """Means and deviations of narrow elements have one more on its way."""
    graphs = ((moments(8, 16384, "bfloat16"), 4), (moments(8, 16384), 3))
    for kernel, stages in ((graph.steps[0], stages) for graph, stages in graphs):
        assert plan(kernel).num_stages[0] == stages


@pytest.mark.parametrize(("scaled", "stages"), [(False, 3), (True, 1)])
def test_factors_of_parts_of_a_row_are_not_loaded_ahead(scaled, stages):
    loads = [Load("x", "x", at(("i", 20000), ("c", 5000), ("j", 1)), "float32")]
    loads += [Load("w", "w", at(("i", 4), ("c", 1)), "float32")] if scaled else []
    total = (
        Compute("p", "mul", (Ref("x"), Ref("w" if scaled else "x")), "float32"),
        Reduce(("t",), "sum", Ref("p"), "float32"),
    )
    section = Section((Axis("c", 4), Axis("j", 5000)), (*loads, *total))
    kernel = Kernel("k", (Axis("i", 8),), (section, Section((), (Store("y", at(("i", 1)), Ref("t")),))))
    assert plan(kernel).num_stages[0] == stages


def test_what_is_read_once_is_a_loop():
    tiles = plan(moments(8, 16384).steps[0])
    assert tiles.inner == 2048
    assert plan(moments(8, 50176).steps[0]).inner == 1024  # which it consists of: without masks


SIZES = [1, 2, 3, 500, 1024, SM_90.persistent_row + 77]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_moments(size, dtype, directory, device):
    graph = moments(4, size, dtype)
    torch.manual_seed(size)
    x = torch.randn(4, size, dtype=getattr(torch, dtype)) * torch.tensor([1, 1e-3, 1e3, 1])[:, None]
    x += torch.tensor([0, 1, 1e4, -3])[:, None]
    mean, squares, count = run(graph, directory, device, x)
    wide = x.double()
    exact = (wide - wide.mean(1, keepdim=True)).square().sum(1)
    tight = 1e-12 if dtype == "float64" else 1e-5
    torch.testing.assert_close(mean.double(), wide.mean(1), rtol=tight, atol=tight)
    torch.testing.assert_close(squares.double(), exact, rtol=1e-9 if dtype == "float64" else 2e-3, atol=tight)
    assert count.tolist() == [size] * 4


@pytest.mark.parametrize("size", SIZES)
def test_a_constant_row_has_no_variance(size, directory, device):
    x = torch.tensor([[0.1], [12345.678], [-1e-20], [3e15]]).expand(4, size).contiguous()
    mean, squares, _ = run(moments(4, size), directory, device, x)
    torch.testing.assert_close(mean, x[:, 0], rtol=2e-7, atol=0)
    assert (squares / size <= (x[:, 0] * 2e-7).square()).all()
    assert (squares >= 0).all()


@pytest.mark.parametrize("size", [3, 1024, SM_90.persistent_row + 77])
def test_moments_of_what_is_not_finite(size, directory, device):
    x = torch.randn(3, size)
    x[0, -1], x[1, 0], x[2, 1] = torch.inf, torch.nan, -torch.inf
    mean, squares, _ = run(moments(3, size), directory, device, x)
    assert not mean.isfinite().any()
    assert squares.isnan().all()
    if size <= SM_90.persistent_row:
        assert mean[0] == torch.inf
        assert mean[2] == -torch.inf


def column_sums(rows: int, columns: int, inputs: int, dtype: str) -> LoopGraph:
    """The sum over the rows of the sum of several inputs."""
    names = tuple(f"x{n}" for n in range(inputs))
    loads = tuple(Load(f"v{n}", name, at(("j", columns), ("i", 1)), dtype) for n, name in enumerate(names))
    adds = tuple(
        Compute(f"a{n}", "add", (Ref(f"a{n - 1}" if n > 1 else "v0"), Ref(f"v{n}")), dtype) for n in range(1, inputs)
    )
    total = Reduce(("s",), "sum", Ref(adds[-1].result if adds else "v0"), dtype)
    sections = (Section((Axis("j", rows),), (*loads, *adds, total)), Section((), (Store("y", at(("i", 1)), Ref("s")),)))
    buffers = tuple(Buffer(name, contiguous(dtype, (rows, columns)), "input") for name in names)
    kernel = Kernel("k", (Axis("i", columns),), sections)
    made = Buffer("y", contiguous(dtype, (columns,)), "kernel")
    return LoopGraph(buffers=(*buffers, made), inputs=names, outputs=(Ref("y"),), steps=(kernel,))


@pytest.mark.parametrize(
    ("rows", "inputs", "dtype", "stages"),
    [(300, 1, "float32", 3), (300, 1, "bfloat16", 3), (300, 3, "float32", 3), (300, 4, "float32", 1)],
)
def test_tiles_of_a_loop_are_on_their_way_while_one_is_computed(rows, inputs, dtype, stages, directory, device):
    """As many as leave room for other programs."""
    graph = column_sums(rows, 40, inputs, dtype)
    (kernel,) = graph.steps
    tiles = plan(kernel)
    assert (tiles.kind, tiles.num_stages[0]) == ("column", stages)
    assert ("num_stages=3" in emit(graph, Options(target="triton")).source) == (stages == 3)
    xs = [torch.randint(-3, 4, (rows, 40)).to(getattr(torch, dtype)) for _ in range(inputs)]
    (found,) = run(graph, directory, device, *xs)
    torch.testing.assert_close(found, sum(xs).float().sum(0).to(found.dtype))


def crossing(rows: int, size: int, before: tuple[Axis, ...] = (), loops: int = 1) -> LoopGraph:
    """Row sums of x[i, j] * y[j, i], and those beside it: z[i, j] = x[i, j] * y[j, i] * sum[i] if there is a second
    loop. before: more outer axes, behind the rows."""
    along, across = at(("i", size), ("j", 1)), at(("j", rows), ("i", 1))
    kind = "float32"
    body = (
        Load("a", "x", along, kind),
        Load("b", "y", across, kind),
        Compute("p", "mul", (Ref("a"), Ref("b")), kind),
    )
    again = tuple(
        replace(s, result=f"{s.result}2")
        if isinstance(s, Load)
        else replace(s, result="p2", operands=(Ref("a2"), Ref("b2")))
        for s in body
    )
    second = (*again, Compute("q", "mul", (Ref("p2"), Ref("s")), kind), Store("z", along, Ref("q")))
    sections = (
        Section((Axis("j", size),), (*body, Reduce(("s",), "sum", Ref("p"), kind))),
        Section((), (Store("t", at(("i", 1)), Ref("s")),)),
        *((Section((Axis("j", size),), second),) if loops > 1 else ()),
    )
    kernel = Kernel("k", (Axis("i", rows), *before), sections)
    inputs = Buffer("x", contiguous(kind, (rows, size)), "input"), Buffer("y", contiguous(kind, (size, rows)), "input")
    made = [Buffer("t", contiguous(kind, (rows,)), "kernel"), Buffer("z", contiguous(kind, (rows, size)), "kernel")]
    made = made[:loops]
    return LoopGraph(
        buffers=(*inputs, *made), inputs=("x", "y"), outputs=tuple(Ref(b.name) for b in made), steps=(kernel,)
    )


@pytest.mark.parametrize(
    ("rows", "size", "loops", "kind"),
    [(50, 40, 1, "row"), (50, 40, 2, "row"), (37, 4100, 1, "column"), (20, 4100, 2, "column"), (50, 3, 1, "row")],
)
def test_accesses_along_rows_and_across_them(rows, size, loops, kind, directory, device, monkeypatch):
    retuned(monkeypatch, programs=1)
    graph = crossing(rows, size, loops=loops)
    assert plan(graph.steps[0]).kind == kind
    x, y = torch.randint(-3, 4, (rows, size)).float(), torch.randint(-3, 4, (size, rows)).float()
    total, *rest = run(graph, directory, device, x, y)
    torch.testing.assert_close(total, (x * y.t()).sum(1))
    for one in rest:
        torch.testing.assert_close(one, x * y.t() * total[:, None])


def test_rows_that_are_crossed_are_several_at_a_time():
    """As many as fill a sector of memory, where programs are left."""
    tiles = {n: plan(crossing(n, 768, loops=2).steps[0]).outer for n in (6272, 1568, 100)}
    assert tiles == {6272: 16, 1568: 8, 100: 1}
    assert plan(crossing(100000, 96).steps[0]).outer == 16
    assert plan(crossing(100000, 2000).steps[0]).outer == 8
    (kernel,) = crossing(6272, 768, (Axis("k", 2),)).steps
    assert [axis.name for axis in plan(kernel).kernel.axes] == ["k", "i"]


def test_what_several_warps_load_is_not_overwritten_before(directory, device):
    graph = gated(1536, 64)
    lines = [line.strip() for line in emit(graph, Options(target="triton")).source.splitlines()]
    places = [number for number, line in enumerate(lines) if line.startswith("tl.store")]
    assert [lines[place - 1] == "tl.debug_barrier()" for place in places] == [False, True, True]
    w, x = torch.rand(1536), torch.randn(1536, 64)
    gate = (w + w).sqrt()
    for _ in range(10):
        found = run(graph, directory, device, w, x)
        torch.testing.assert_close(found, [gate, (x * gate[:, None]).sum(1)])


def scanned(rows: int, columns: int, dtype: str, kinds: tuple[str, ...] = ("sum",)) -> LoopGraph:
    """Scans along columns."""
    whole = at(("i", columns), ("j", 1))
    scans = [Scan(f"s{n}", kind, Ref("x"), dtype) for n, kind in enumerate(kinds)]
    stores = [Store(f"y{n}", whole, Ref(scan.result)) for n, scan in enumerate(scans)]
    kernel = Kernel(
        "k", (Axis("j", columns),), (Section((Axis("i", rows),), (Load("x", "x", whole, dtype), *scans, *stores)),)
    )
    shape = contiguous(dtype, (rows, columns))
    buffers = (Buffer("x", shape, "input"), *(Buffer(store.buffer, shape, "kernel") for store in stores))
    return LoopGraph(buffers=buffers, inputs=("x",), outputs=tuple(Ref(s.buffer) for s in stores), steps=(kernel,))


@pytest.mark.parametrize(
    ("rows", "columns", "dtype", "kinds", "tile", "warps"),
    [
        (16384, 4096, "bfloat16", ("sum",), (32, 64), 8),
        (16384, 4096, "float32", ("sum",), (32, 32), 4),
        (16384, 4096, "bfloat16", ("max", "min"), (32, 32), 8),
        (16384, 4096, "float32", ("logaddexp",), (32, 32), 16),
        (2048, 24576, "float32", ("sum",), (64, 32), 8),
        (64, 1 << 20, "bfloat16", ("sum",), (256, 8), 8),
        (4, 4096, "float32", ("sum",), (32, 1), 1),
    ],
)
def test_columns_in_steps(rows, columns, dtype, kinds, tile, warps):
    (kernel,) = scanned(rows, columns, dtype, kinds).steps
    tiles = plan(kernel)
    assert ((tiles.outer, tiles.inner), tiles.num_warps) == (tile, warps)
    assert tiles.steps == (16 if kinds == ("logaddexp",) else 8)


def test_few_columns_are_tiles():
    (kernel,) = scanned(4096, 1024, "float32").steps
    assert plan(kernel).steps == 1


@pytest.mark.parametrize("columns", [40, 64])
def test_steps_beyond_the_end(columns, device, directory, monkeypatch):
    """Columns and rows of which the last tiles hang over; infinities and nan stay in what comes behind them."""
    retuned(monkeypatch, busy_columns=1)
    x = torch.randn(37, columns)
    x[5, 1], x[30, 2], x[0, 3], x[9:20, 4] = torch.inf, -torch.inf, torch.nan, -torch.inf
    x[7, 4] = torch.inf
    graph = scanned(37, columns, "float32", ("sum", "max", "min", "prod", "logaddexp"))
    graph = replace(graph, buffers=tuple(replace(b, type=replace(b.type, device=device)) for b in graph.buffers))
    found = load(emit(graph, Options(target="triton")), directory)(x.to(device))
    exact = x.cumsum(0), x.cummax(0)[0], x.cummin(0)[0], x.cumprod(0), x.logcumsumexp(0)
    for have, want in zip(found, exact, strict=True):
        torch.testing.assert_close(have.cpu(), want, rtol=1e-5, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize(("dtype", "tile", "stages"), [("bfloat16", (64, 16), 6), ("float32", (64, 32), 3)])
def test_positions_along_columns(dtype, tile, stages):
    (kernel,) = scanned(16384, 32768, dtype).steps
    section = replace(kernel.sections[0], statements=(kernel.sections[0].statements[0], POSITION))
    tiles = plan(replace(kernel, sections=(section,)))
    assert ((tiles.outer, tiles.inner), tiles.num_stages[0]) == (tile, stages)


POSITION = Reduce(("p",), "argmax", Ref("x"), "int64")


def test_two_tiles_have_none_ahead():
    for rows, stages in ((64, 1), (96, 3)):
        (kernel,) = scanned(rows, 32768, "float32").steps
        section = replace(kernel.sections[0], statements=(kernel.sections[0].statements[0], POSITION))
        assert plan(replace(kernel, sections=(section,))).num_stages[0] == stages


def grouped(rows: Dim, channels: int, size: int, dtype: str = "float32") -> LoopGraph:
    """Moments of rows of channels; their elements scaled by channel, (x - mean) * w; the sum and the least of x * w."""
    flat, whole = at(("i", channels * size), ("j", 1)), at(("i", channels * size), ("c", size), ("k", 1))
    loop = (
        Load("x", "x", flat, dtype),
        Compute("wide", "convert", (Ref("x"),), "float32"),
        Reduce(("mean", "squares", "count"), "welford", Ref("wide"), "float32"),
    )
    again = (
        Load("x2", "x", whole, dtype),
        Compute("wide2", "convert", (Ref("x2"),), "float32"),
        Load("w", "w", at(("c", 1)), "float32"),
    )
    centred = (
        *again,
        Compute("off", "sub", (Ref("wide2"), Ref("mean")), "float32"),
        Compute("scaled", "mul", (Ref("off"), Ref("w")), "float32"),
        Store("y", whole, Ref("scaled")),
    )
    folds = (
        *again,
        Compute("p", "mul", (Ref("wide2"), Ref("w")), "float32"),
        Reduce(("sum",), "sum", Ref("p"), "float32"),
        Reduce(("min",), "min", Ref("p"), "float32"),
    )
    names = ("mean", "squares", "count", "sum", "min")
    stores = tuple(Store(name, at(("i", 1)), Ref(name)) for name in names)
    inner = (Axis("c", channels), Axis("k", size))
    kernel = Kernel(
        "k",
        (Axis("i", rows),),
        (
            Section((Axis("j", channels * size),), loop),
            Section(inner, centred),
            Section(inner, folds),
            Section((), stores),
        ),
    )
    buffers = (
        Buffer("x", contiguous(dtype, (rows, channels, size)), "input"),
        Buffer("w", contiguous("float32", (channels,)), "input"),
        *(Buffer(name, contiguous("float32", (rows,)), "kernel") for name in names),
        Buffer("y", contiguous("float32", (rows, channels, size)), "kernel"),
    )
    return LoopGraph(
        buffers=buffers, inputs=("x", "w"), outputs=tuple(Ref(name) for name in (*names, "y")), steps=(kernel,)
    )


@pytest.mark.parametrize(
    ("channels", "size", "kept", "limits"),
    [(4, 200, 4, {}), (4, 256, 4, {}), (3, 512, 3, {}), (3, 320, 15, {"run_tiles": (64,), "least_run": 64}),
     (4, 200, 2, {"cached_run": 8}), (4, 200, None, {"most_unrolled": 2}),
     (3, 320, None, {"most_unrolled": 2, "run_tiles": (64,), "least_run": 64})],
)  # fmt: skip
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_tiles_within_channels(channels, size, kept, limits, dtype, directory, device, monkeypatch):
    """A factor of a channel is one number in a tile; what is kept of a row is loaded once."""
    retuned(monkeypatch, **limits)
    graph = grouped(3, channels, size, dtype)
    tiles = plan(graph.steps[0])
    assert (tiles.run, tiles.cached) == (size, kept)
    x, w = torch.randn(3, channels, size).to(getattr(torch, dtype)), torch.randn(channels)
    mean, squares, count, total, least, y = run(graph, directory, device, x, w)
    wide, scaled = x.float().flatten(1), x.float() * w[:, None]
    torch.testing.assert_close(mean, wide.mean(1))
    torch.testing.assert_close(squares, wide.var(1, correction=0) * channels * size)
    assert count.tolist() == [channels * size] * 3
    torch.testing.assert_close(total, scaled.flatten(1).sum(1), rtol=1e-4, atol=1e-4)
    assert torch.equal(least, scaled.flatten(1).amin(1))
    torch.testing.assert_close(y, (x.float() - wide.mean(1)[:, None, None]) * w[:, None])


@pytest.mark.usefixtures("counting_interpreter")
def test_channels_of_any_number_of_rows(directory, device, monkeypatch):
    retuned(monkeypatch, most_unrolled=2)
    x, w = torch.randn(5, 3, 200), torch.randn(3)
    mean, *_, y = run(grouped(symbol("n"), 3, 200), directory, device, x, w)
    torch.testing.assert_close(mean, x.flatten(1).mean(1))
    torch.testing.assert_close(y, (x - x.mean((1, 2), keepdim=True)) * w[:, None])


@pytest.mark.parametrize("limits", [{}, {"most_unrolled": 2}])
def test_channels_of_what_is_not_finite(limits, directory, device, monkeypatch):
    """What lies behind the end of a channel is in none of the sums, whatever is computed there."""
    retuned(monkeypatch, **limits)
    w = torch.tensor([1.0, float("inf"), 2.0])
    *_, total, least, _ = run(grouped(2, 3, 200), directory, device, torch.ones(2, 3, 200), w)
    assert total.tolist() == [float("inf")] * 2
    assert least.tolist() == [1.0] * 2


@pytest.mark.parametrize("parts", [3, 600])
@pytest.mark.parametrize("limits", [{}, {"most_unrolled": 2}])
def test_channels_behind_a_loop_over_parts(parts, limits, directory, device, monkeypatch):
    """y = x * w + total: only what is made of channels has its tiles within these."""
    retuned(monkeypatch, **limits)
    rows, channels, size, dtype = 3, 4, 200, "float32"
    whole = at(("i", channels * size), ("c", size), ("k", 1))
    folds = (Load("t", "t", at(("i", parts), ("p", 1)), dtype), Reduce(("total",), "sum", Ref("t"), dtype))
    body = (
        Load("x", "x", whole, dtype),
        Load("w", "w", at(("c", 1)), dtype),
        Compute("p", "mul", (Ref("x"), Ref("w")), dtype),
        Compute("s", "add", (Ref("p"), Ref("total")), dtype),
        Store("y", whole, Ref("s")),
    )
    sections = (Section((Axis("p", parts),), folds), Section((Axis("c", channels), Axis("k", size)), body))
    buffers = (
        Buffer("t", contiguous(dtype, (rows, parts)), "input"),
        Buffer("x", contiguous(dtype, (rows, channels, size)), "input"),
        Buffer("w", contiguous(dtype, (channels,)), "input"),
        Buffer("y", contiguous(dtype, (rows, channels, size)), "kernel"),
    )
    kernel = Kernel("k", (Axis("i", rows),), sections)
    graph = LoopGraph(buffers=buffers, inputs=("t", "x", "w"), outputs=(Ref("y"),), steps=(kernel,))
    assert plan(kernel).run == size
    t, x, w = torch.randint(-9, 9, (rows, parts)).float(), torch.randn(rows, channels, size), torch.randn(channels)
    (found,) = run(graph, directory, device, t, x, w)
    torch.testing.assert_close(found, x * w[:, None] + t.sum(1)[:, None, None])


@pytest.mark.parametrize(("channels", "size"), [(4, 100), (4, 300), (4, 4098), (2, 12544)])
def test_channels_that_do_not_fill_tiles_are_flat(channels, size):
    assert plan(grouped(3, channels, size).steps[0]).run == 0


@pytest.mark.parametrize(("rows", "size", "is_tile"), [(100352, 96, True), (6272, 384, False), (6272, 768, False)])
def test_vectors_are_loaded_as_the_tiles_beside_them(rows, size, is_tile):
    """Where threads would have some of their elements, but fewer than of a tile."""
    (kernel,) = crossing(rows, size, loops=2).steps
    body = (
        Load("a", "x", at(("i", size), ("j", 1)), "bfloat16"),
        Load("w", "w", at(("j", 1)), "bfloat16"),
        Compute("p", "mul", (Ref("a"), Ref("w")), "float32"),
        Reduce(("s",), "sum", Ref("p"), "float32"),
    )
    kernel = replace(kernel, sections=(Section((Axis("j", size),), body), kernel.sections[1]))
    buffers = [Buffer("x", contiguous("bfloat16", (rows, size)), "input")]
    buffers += [
        Buffer("w", contiguous("bfloat16", (size,)), "input"),
        Buffer("t", contiguous("float32", (rows,)), "kernel"),
    ]
    graph = LoopGraph(buffers=tuple(buffers), inputs=("x", "w"), outputs=(Ref("t"),), steps=(kernel,))
    text = emit(graph, Options(target="triton")).source
    assert ("p1 + (r0) + tl.zeros([XBLOCK, 1], tl.int32)" in text) == is_tile


def normed(axes: dict[str, int], fixed: str, dtype: str = "float32", reads: int = 4) -> LoopGraph:
    """y = (((x - a) * b) + c) * d ..., x having all axes and the others those in `fixed`."""
    sizes = list(axes.items())
    steps = [(name, prod(size for _, size in sizes[n + 1 :])) for n, (name, _) in enumerate(sizes)]
    own = [(name, size) for name, size in sizes if name in fixed]
    own_steps = [(name, prod(size for _, size in own[n + 1 :])) for n, (name, _) in enumerate(own)]
    statements: list[Load | Compute | Store] = [Load("v", "x", at(*steps), dtype)]
    value = "v"
    for n in range(reads):
        statements.append(Load(f"f{n}", f"p{n}", at(*own_steps), dtype))
        statements.append(Compute(f"g{n}", "mul", (Ref(f"f{n}"), 0.5), dtype))
        statements.append(Compute(f"w{n}", ("sub", "mul", "add")[n % 3], (Ref(value), Ref(f"g{n}")), dtype))
        value = f"w{n}"
    statements.append(Store("y", at(*steps), Ref(value)))
    shape, short = tuple(axes.values()), tuple(size for _, size in own)
    return LoopGraph(
        buffers=(
            Buffer("x", contiguous(dtype, shape, "cuda:0"), "input"),
            *(Buffer(f"p{n}", contiguous(dtype, short, "cuda:0"), "input") for n in range(reads)),
            Buffer("y", contiguous(dtype, shape, "cuda:0"), "kernel"),
        ),
        inputs=("x", *(f"p{n}" for n in range(reads))),
        outputs=(Ref("y"),),
        steps=(Kernel("k", tuple(Axis(*one) for one in sizes), (Section((), tuple(statements)),)),),
    )


@pytest.mark.parametrize(
    ("axes", "fixed", "sides"),
    [
        ({"i": 64, "j": 96}, "j", (("i", 16), 4)),
        ({"i": 34, "j": 96}, "j", (("i", 17), 2)),
        ({"b": 3, "s": 17, "h": 12, "d": 32}, "sd", (("h", 3), 4)),
        ({"b": 4, "s": 17, "h": 12, "d": 32}, "sd", (("b", 1), 4)),
    ],
    ids=["channels", "two", "heads", "the slowest"],
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_points_with_much_in_common_are_beside_each_other(axes, fixed, sides, dtype, directory, device, monkeypatch):
    retuned(monkeypatch, programs=1)
    graph = normed(axes, fixed, dtype)
    made = plan(graph.steps[0])
    (axis, size), side = sides
    assert (made.kind, made.inner) == ("shared", side)
    assert {one.name: one.size for one in made.kernel.axes}[axis] == size
    x, *factors = inputs = [
        torch.randint(-8, 9, b.type.shape).to(getattr(torch, dtype)) for b in graph.buffers if b.role == "input"
    ]
    (found,) = run(graph, directory, device, *inputs)
    shape = [size if name in fixed else 1 for name, size in axes.items()]
    wanted = x
    for n, factor in enumerate(factors):
        half = (factor * 0.5).reshape(shape)
        wanted = (wanted - half, wanted * half, wanted + half)[n % 3]
    torch.testing.assert_close(found.reshape(x.shape), wanted, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("axes", "reads"),
    [({"i": 64, "j": 96}, 2), ({"i": 63, "j": 96}, 4), ({"i": 20, "j": 96}, 4)],
    ids=["little in common", "an odd size", "few points"],
)
def test_other_points_are_flat(axes, reads, monkeypatch):
    retuned(monkeypatch, programs=1)
    assert plan(normed(axes, "j", reads=reads).steps[0]).kind == "row"


def test_points_that_load_much_of_their_own_are_flat(monkeypatch):
    retuned(monkeypatch, programs=1)
    (kernel,) = normed({"i": 64, "j": 96}, "j").steps
    assert plan(kernel).kind == "shared"
    (section,) = kernel.sections
    first = section.statements[0]
    more = tuple(replace(first, result=f"more{n}", buffer=f"x{n}") for n in range(3))
    assert plan(replace(kernel, sections=(Section((), (*more, *section.statements)),))).kind == "row"
