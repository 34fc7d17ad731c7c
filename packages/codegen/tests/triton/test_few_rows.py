"""Products of few rows: by which kernels, what they compute, and which of them run side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from codegen import Options, load
from codegen.stage import emit
from codegen.testing.interpreter import retuned
from codegen.triton.few_rows import few_rows_of
from codegen.triton.plan import plan
from stagewire.graph import Ref
from stagewire.loop import Axis, AxisAtom, Buffer, Compute, Index, Kernel, Load, LoopGraph, Reduce, Section, Store, Term
from stagewire.program import Launch
from stagewire.statements import map_buffers
from stagewire.types import contiguous


def at(**steps: int) -> Index:
    return Index(0, tuple(Term(step, AxisAtom(name)) for name, step in steps.items() if step))


def wide(name: str, dtype: str) -> tuple[Any, ...]:
    """A loaded value in float32."""
    return () if dtype == "float32" else (Compute(f"{name}_wide", "convert", (Ref(name),), "float32"),)


def product(
    name: str, sizes: tuple[int, int, int, int], dtypes: tuple[str, str], *, turned: bool = False, weights: int = 1
) -> tuple[Kernel, list[Buffer]]:
    """y[b, i, j] = c[j] + the sum of x[b, i, k] * w[b, j, k], for each of the weights; turned: w is [b, k, j]."""
    batch, rows, columns, depth = sizes
    left, right = dtypes
    axes = tuple(Axis(n, size) for n, size in zip("bij", (batch, rows, columns), strict=True))
    loop: list[Any] = [Load("x", "x", at(b=rows * depth, i=depth, k=1), left), *wide("x", left)]
    last: list[Any] = [Load("c", "c", at(j=1), "float32")]
    place = {"j": 1, "k": columns} if turned else {"j": depth, "k": 1}
    factor = Ref("x" if left == "float32" else "x_wide")
    for n in range(weights):
        w = f"w{n}"
        loop += [Load(w, f"{name}_{w}", at(b=columns * depth, **place), right), *wide(w, right)]
        other = Ref(w if right == "float32" else f"{w}_wide")
        loop += [
            Compute(f"p{n}", "mul", (factor, other), "float32"),
            Reduce((f"s{n}",), "sum", Ref(f"p{n}"), "float32"),
        ]
        last += [Compute(f"t{n}", "add", (Ref(f"s{n}"), Ref("c")), "float32")]
        last += [Store(f"{name}_y{n}", at(b=rows * columns, i=columns, j=1), Ref(f"t{n}"))]
    kernel = Kernel(name, axes, (Section((Axis("k", depth),), tuple(loop)), Section((), tuple(last))))
    shape = (batch, depth, columns) if turned else (batch, columns, depth)
    buffers = [Buffer("x", contiguous(left, (batch, rows, depth)), "input")]
    buffers += [Buffer("c", contiguous("float32", (columns,)), "input")]
    buffers += [Buffer(f"{name}_w{n}", contiguous(right, shape), "input") for n in range(weights)]
    return kernel, buffers + [
        Buffer(f"{name}_y{n}", contiguous("float32", (batch, rows, columns)), "kernel") for n in range(weights)
    ]


def graph_of(device: str, *made: tuple[Kernel, list[Buffer]]) -> LoopGraph:
    buffers = {one.name: replace(one, type=replace(one.type, device=device)) for _, few in made for one in few}
    return LoopGraph(
        buffers=tuple(buffers.values()),
        inputs=tuple(name for name, one in buffers.items() if one.role == "input"),
        outputs=tuple(Ref(name) for name, one in buffers.items() if one.role != "input"),
        steps=tuple(kernel for kernel, _ in made),
    )


def tensors_of(graph: LoopGraph) -> list[torch.Tensor]:
    torch.manual_seed(0)
    types = [one.type for one in graph.buffers if one.role == "input"]
    return [torch.randn(type_.shape).to(getattr(torch, type_.dtype)).to(type_.device) for type_ in types]


def run(graph: LoopGraph, tensors: list[torch.Tensor], directory: Path) -> list[torch.Tensor]:
    return load(emit(graph, Options(target="triton")), directory)(*tensors)


DTYPES = st.sampled_from(
    (("float16", "float16"), ("bfloat16", "bfloat16"), ("float32", "bfloat16"), ("float32", "float16"))
)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(
    sizes=st.tuples(st.integers(1, 3), st.integers(2, 16), st.integers(17, 70), st.integers(1, 90)),
    dtypes=DTYPES, turned=st.booleans(), weights=st.integers(1, 2),
)  # fmt: skip
def test_meaning(monkeypatch, interpreted_products, directory, device, sizes, dtypes, turned, weights) -> None:  # type: ignore[no-untyped-def]
    """Tiles are full in no direction, and results are as far from exact ones as sums in float32 are."""
    retuned(monkeypatch, least_product=1, multiprocessors=1, product_bytes=2048)
    made = product("kernel", sizes, dtypes, turned=turned, weights=weights)
    assert plan(made[0]).kind == "product"
    graph = graph_of(device, made)
    tensors = tensors_of(graph)
    x, c, *factors = [one.double() for one in tensors]
    for w, y in zip(factors, run(graph, tensors, directory), strict=True):
        torch.testing.assert_close(y.double(), x @ (w if turned else w.mT) + c, rtol=1e-4, atol=1e-4)


def test_what_is_not_finite_stays_so(monkeypatch, interpreted_products, directory, device) -> None:  # type: ignore[no-untyped-def]
    """Numbers that are multiplied in parts: infinite ones, nan, and those next to the largest."""
    retuned(monkeypatch, least_product=1, multiprocessors=1)
    graph = graph_of(device, product("kernel", (1, 4, 32, 64), ("float32", "bfloat16")))
    x, c, w = tensors_of(graph)
    x[0, 0, 3], x[0, 1, 5], x[0, 2, 7] = float("inf"), float("nan"), torch.finfo(torch.float32).max
    (found,) = run(graph, [x, c, w], directory)
    wanted = x.float() @ w.float().mT + c
    torch.testing.assert_close(found[0, (0, 1, 3)], wanted[0, (0, 1, 3)], rtol=1e-4, atol=1e-4, equal_nan=True)
    torch.testing.assert_close(found[0, 2], wanted[0, 2], rtol=1e-2, atol=0.0, equal_nan=True)


@pytest.mark.parametrize(
    ("sizes", "dtypes", "kind"),
    [
        ((1, 8, 2048, 2048), ("bfloat16", "bfloat16"), "product"),
        ((1, 17, 2048, 2048), ("bfloat16", "bfloat16"), "row"),  # more rows than a tile has
        ((1, 8, 64, 64), ("bfloat16", "bfloat16"), "row"),  # little to read
        ((1, 8, 512, 2048), ("float32", "bfloat16"), "row"),  # few programs, each of three products
    ],
)
def test_plans(sizes: tuple[int, int, int, int], dtypes: tuple[str, str], kind: str) -> None:
    kernel, _ = product("kernel", sizes, dtypes)
    schedule = plan(kernel)
    assert schedule.kind == kind
    if kind == "product":
        assert schedule.grid == (-(-sizes[2] // schedule.columns),)


def test_a_kernel_that_does_more_is_none() -> None:
    """Where a value depends on rows and columns, or a product is used again, tensor cores have nothing to multiply."""
    kernel, _ = product("kernel", (1, 8, 64, 64), ("bfloat16", "bfloat16"))
    assert few_rows_of(kernel) is not None
    loop, last = kernel.sections
    both = Load("m", "m", at(i=64, j=1), "float32")
    for more in ((both,), (Reduce(("greatest",), "max", Ref("p0"), "float32"),)):
        section = Section(loop.axes, (*loop.statements, *more))
        assert few_rows_of(replace(kernel, sections=(section, last))) is None
    assert few_rows_of(replace(kernel, sections=(loop, last, loop))) is None


@pytest.mark.parametrize("rows", [1, 4])
def test_small_products_run_side_by_side(rows, monkeypatch, interpreted_products, directory, device) -> None:  # type: ignore[no-untyped-def]
    """Those of one operand in one launch, whatever their sizes; what reads a result in a launch of its own."""
    retuned(monkeypatch, least_product=1)
    sizes = [(1, rows, 64, 64), (1, rows, 32, 64), (1, rows, 64, 64)]
    *both, (last, buffers) = [product(f"kernel{n}", one, ("float16", "float16")) for n, one in enumerate(sizes)]
    reads = map_buffers(last, {"c": "kernel1_y0"})
    graph = graph_of(device, *both, (reads, buffers))
    unit = emit(graph, Options(target="triton"))
    launches = [one for one in unit.instructions if isinstance(one, Launch)]
    assert [len(one.buffers) for one in launches] == [6, 4]
    if rows > 1:
        assert unit.kernels[0].grid == (4 + 2,)
    tensors = tensors_of(graph)
    named = dict(zip(graph.inputs, tensors, strict=True))
    found = run(graph, tensors, directory)
    x = named["x"].double()
    first, second = (x @ named[f"kernel{n}_w0"].double().mT for n in range(2))
    torch.testing.assert_close(found[0].double(), first + named["c"], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found[1].double(), second + named["c"][:32], rtol=1e-4, atol=1e-4)
