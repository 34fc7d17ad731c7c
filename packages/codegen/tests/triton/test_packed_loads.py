"""Products whose weights are bytes: what is loaded at once, and taken apart."""

from __future__ import annotations

import pytest
import torch

from codegen import Options, load
from codegen.stage import emit
from codegen.testing.interpreter import retuned
from codegen.triton.few_rows import has_every_second, run_of
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


def at(constant: int = 0, **steps: int) -> Index:
    return Index(constant, tuple(Term(step, AxisAtom(name)) for name, step in steps.items() if step))


def product(columns: int, groups: int, run: int, device: str) -> LoopGraph:
    """y[j] = the sum over g, k of (x[g, k, 0] * (w[j, g, k] & 15) + x[g, k, 1] * (w[j, g, k] >> 4)) * scale[j, g]."""
    half = groups * run
    body: list[Statement] = []
    for n, (op, number) in enumerate((("bitwise_and", 15), ("shift_right", 4))):
        body += [Load(f"x{n}", "x", at(n, g=2 * run, k=2), "float16")]
        body += [Compute(f"wide{n}", "convert", (Ref(f"x{n}"),), "float32")]
        body += [Load(f"w{n}", "w", at(j=half, g=run, k=1), "uint8")]
        body += [Compute(f"bits{n}", op, (Ref(f"w{n}"), number), "uint8")]
        body += [Compute(f"number{n}", "convert", (Ref(f"bits{n}"),), "float32")]
        body += [Load(f"scale{n}", "scale", at(j=groups, g=1), "float32")]
        body += [Compute(f"weight{n}", "mul", (Ref(f"number{n}"), Ref(f"scale{n}")), "float32")]
        body += [Compute(f"product{n}", "mul", (Ref(f"wide{n}"), Ref(f"weight{n}")), "float32")]
    body += [Compute("both", "add", (Ref("product0"), Ref("product1")), "float32")]
    loop = Section((Axis("g", groups), Axis("k", run)), (*body, Reduce(("s",), "sum", Ref("both"), "float32")))
    kernel = Kernel("kernel0", (Axis("j", columns),), (loop, Section((), (Store("y", at(j=1), Ref("s")),))))
    shapes = {"x": ("float16", (2 * half,)), "w": ("uint8", (columns, half)), "scale": ("float32", (columns, groups))}
    buffers = [
        Buffer(name, contiguous(dtype, shape, device=device), "input") for name, (dtype, shape) in shapes.items()
    ]
    buffers += [Buffer("y", contiguous("float32", (columns,), device=device), "kernel")]
    return LoopGraph(buffers=tuple(buffers), inputs=tuple(shapes), outputs=(Ref("y"),), steps=(kernel,))


@pytest.mark.parametrize(
    ("columns", "groups", "run_length", "helpers"),
    [
        (3, 4, 32, {"in_pairs", "repeated"}),
        (2, 12, 16, {"in_pairs", "repeated"}),
        (2, 32, 4, {"in_pairs"}),  # a thread has more points than are of one group
        (2, 3, 40, set()),  # tiles hang over the end
        (1, 8, 16, {"in_pairs", "repeated"}),
    ],
)
def test_numbers_of_four_bits(columns, groups, run_length, helpers, monkeypatch, directory, device) -> None:  # type: ignore[no-untyped-def]
    retuned(monkeypatch, byte_tile=64)
    graph = product(columns, groups, run_length, device)
    source = emit(graph, Options(target="triton")).source
    text = source[source.index("def kernel0(") :]
    assert {name for name in ("in_pairs", "repeated") if f"{name}(" in text} == helpers
    torch.manual_seed(0)
    half = groups * run_length
    x, w = torch.randn(2 * half).half(), torch.randint(0, 256, (columns, half), dtype=torch.uint8)
    scale = torch.randn(columns, groups)
    pairs = torch.stack((w & 15, w >> 4), -1).double() * scale.double().repeat_interleave(run_length, 1)[..., None]
    compiled = load(emit(graph, Options(target="triton")), directory)
    (found,) = compiled(*(tensor.to(device) for tensor in (x, w, scale)))
    torch.testing.assert_close(found.cpu().double(), (pairs.flatten(1) @ x.double()), rtol=1e-4, atol=1e-3)


def test_what_runs_and_pairs_are() -> None:
    axes = (Axis("g", 4), Axis("k", 32))
    assert run_of(at(j=4, g=1), axes, 64) == 32
    assert run_of(at(j=4, g=1), axes, 16) == 1
    assert run_of(at(j=4), axes, 64) == 1
    assert run_of(at(g=32, k=1), axes, 64) == 1
    assert has_every_second(at(1, j=7, g=64, k=2), axes)
    assert not has_every_second(at(g=32, k=1), axes)
    assert not has_every_second(at(g=65, k=2), axes)
