"""Positions of the greatest and the least, from tile to tile of a loop and in one tile."""

import pytest
import torch
from msgspec.structs import replace

from codegen import Options, load
from codegen.stage import emit
from codegen.testing.interpreter import retuned
from stagewire.graph import Ref
from stagewire.loop import Axis, AxisAtom, Buffer, Index, Kernel, Load, LoopGraph, Reduce, Section, Store, Term
from stagewire.types import contiguous


def positions(rows: int, size: int, dtype: str, kind: str) -> LoopGraph:
    """Of each row, the value and the position."""
    row, whole = Index(0, (Term(1, AxisAtom("i")),)), Index(0, (Term(size, AxisAtom("i")), Term(1, AxisAtom("j"))))
    loop = (
        Load("x", "x", whole, dtype),
        Reduce(("best",), kind[3:], Ref("x"), dtype),
        Reduce(("place",), kind, Ref("x"), "int64"),
    )
    stores = (Store("y", row, Ref("best")), Store("p", row, Ref("place")))
    kernel = Kernel("k", (Axis("i", rows),), (Section((Axis("j", size),), loop), Section((), stores)))
    buffers = (
        Buffer("x", contiguous(dtype, (rows, size)), "input"),
        Buffer("y", contiguous(dtype, (rows,)), "kernel"),
        Buffer("p", contiguous("int64", (rows,)), "kernel"),
    )
    return LoopGraph(buffers=buffers, inputs=("x",), outputs=(Ref("y"), Ref("p")), steps=(kernel,))


def sample(rows: int, size: int, dtype: str) -> torch.Tensor:
    """Ties everywhere; rows of what is not finite; a nan behind others, two nans, a row that is all alike."""
    generator = torch.Generator().manual_seed(rows * size)
    x = torch.randint(-4, 5, (rows, size), generator=generator).to(getattr(torch, dtype))
    x[0] = x[0, 0]
    if x.is_floating_point():
        x[1], x[2] = -torch.inf, torch.inf
        x[3, size // 2 :] = torch.nan
        x[4, -1] = x[4, 1] = torch.nan
        x[5, -1], x[6, -1] = torch.inf, -torch.inf
    return x


def same(row: list[float], value: float) -> list[bool]:
    """Which numbers are the same as one; nans are."""
    return [other == value or (other != other and value != value) for other in row]


@pytest.mark.parametrize("kind", ["argmax", "argmin"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64", "int32", "uint8"])
@pytest.mark.parametrize(("size", "tile"), [(16, 4), (17, 4), (7, 8), (64, 64), (64, 16), (100, 16)])
def test_the_first_of_the_best(size, tile, dtype, kind, directory, device, monkeypatch):
    retuned(monkeypatch, persistent_row=1 if size > tile else 4096, loop_tile=tile)
    graph = positions(8, size, dtype, kind)
    buffers = tuple(replace(b, type=replace(b.type, device=device)) for b in graph.buffers)
    unit = emit(replace(graph, buffers=buffers), Options(target="triton"))
    assert ("for base" in unit.source) == (size > tile)
    assert ("rmask" in unit.source) == (size % tile != 0)
    x = sample(8, size, dtype) if dtype != "uint8" else sample(8, size, "int32").abs().to(torch.uint8)
    best, place = (found.cpu() for found in load(unit, directory)(x.to(device)))
    wide = x.double()
    want = (wide.argmax(1) if kind == "argmax" else wide.argmin(1)).tolist()
    first = [same(row, row[n]).index(True) for row, n in zip(wide.tolist(), want, strict=True)]
    assert place.tolist() == first
    torch.testing.assert_close(best.double(), (wide.amax(1) if kind == "argmax" else wide.amin(1)), equal_nan=True)


def test_a_value_beside_its_position_is_not_reduced_again():
    for size in (64, 8192):
        source = emit(positions(8, size, "float32", "argmax"), Options(target="triton")).source
        assert source.count("tl.reduce(") == 1


def test_the_same_function_of_other_sizes(directory, device):
    """Kernels of the same text, for tiles that fit need no masks: each is launched for its own number of points."""
    sizes = (1024, 4096, 2048)
    steps, buffers = [], []
    for n, size in enumerate(sizes):
        place = Index(0, (Term(1, AxisAtom("i")),))
        body = (Load("v", f"x{n}", place, "float32"), Store(f"y{n}", place, Ref("v")))
        steps.append(Kernel(f"k{n}", (Axis("i", size),), (Section((), body),)))
        buffers += [Buffer(f"x{n}", replace(contiguous("float32", (size,)), device=device), "input")]
        buffers += [Buffer(f"y{n}", replace(contiguous("float32", (size,)), device=device), "kernel")]
    inputs, outputs = tuple(f"x{n}" for n in range(3)), tuple(Ref(f"y{n}") for n in range(3))
    graph = LoopGraph(buffers=tuple(buffers), inputs=inputs, outputs=outputs, steps=tuple(steps))
    unit = emit(graph, Options(target="triton"))
    given = [torch.randn(size).to(device) for size in sizes]
    torch.testing.assert_close(list(load(unit, directory)(*given)), given)
