"""The memory of a run that is kept for the next one."""

from pathlib import Path

import pytest
import torch

from codegen import Options, load
from codegen.stage import emit
from stagewire.expr import symbol
from stagewire.graph import Ref
from stagewire.loop import (
    Axis,
    AxisAtom,
    Buffer,
    Compute,
    Extern,
    Index,
    Kernel,
    Load,
    LoopGraph,
    Section,
    Store,
    Term,
)  # fmt: skip
from stagewire.types import TensorType


def twice_sines():
    """y = sin(sort(sin(x))), of which two buffers lie in the arena."""
    n = symbol("n")
    at = Index(0, (Term(1, AxisAtom("i")),))
    type_ = TensorType("float32", (n,), (1,))
    buffers = [Buffer("x", type_, "input"), Buffer("a", type_, "kernel"), Buffer("b", type_, "kernel")]
    buffers += [Buffer("s", type_, "extern"), Buffer("y", type_, "kernel")]

    def sine(name, source, target):
        body = (
            Load("v", source, at, "float32"), Compute("w", "sin", (Ref("v"),), "float32"), Store(target, at, Ref("w")),
        )  # fmt: skip
        return Kernel(name, (Axis("i", n),), (Section((), body),))

    steps = (
        sine("first", "x", "a"),
        sine("second", "a", "b"),
        Extern("aten.neg.default", (Ref("b"),), {}, ("s",)),
        sine("third", "s", "y"),
    )
    return emit(LoopGraph(buffers=tuple(buffers), inputs=("x",), outputs=(Ref("y"),), steps=steps), Options())


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="no /proc/self/statm")
def test_most_of_a_large_arena_is_given_back(directory):
    run = load(twice_sines(), directory)
    small, large = torch.ones(100), torch.ones(30_000_000)
    torch.testing.assert_close(run(small)[0], small.sin().sin().neg().sin())
    before = resident()
    run(large)
    kept = resident() - before
    assert kept > 100_000_000, "the arena is kept for the next run"
    for _ in range(20):
        (found,) = run(small)
        torch.testing.assert_close(found, small.sin().sin().neg().sin())
    assert resident() - before < kept / 4
    for size in (30_000_000, 100, 30_000_000, 7):
        x = torch.ones(size)
        torch.testing.assert_close(run(x)[0][-3:], x.sin().sin().neg().sin()[-3:])
