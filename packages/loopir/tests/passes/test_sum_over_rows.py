"""sum_over_rows: the gradient of a weight is made where that of the operand is, and the numbers stay the same."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loopir.interpret import interpret
from loopir.passes.split_reductions import SplitReductions
from loopir.passes.sum_over_rows import SumOverRows
from loopir.pipeline import PASSES
from loopir.stage import LoopIR, Options
from loopir.testing.graphs import document, kernels
from stagewire.loop import Loop, Store
from stagewire.parser import parse
from stagewire.printer import print_document
from stagewire.verify import verify


def norm(rows: tuple[int | str, ...], size: int | str) -> str:
    """Gradients of something like a norm: dx of each row; dw, db and the sum of dx over all rows. Names: open sizes."""
    shape, many = (f"[{', '.join(map(str, sizes))}]" for sizes in ((*rows, size), rows))
    outer = list(range(len(rows)))
    return f"""\
input %x: f32{shape}@cuda:0
input %g: f32{shape}@cuda:0
input %w: f32[{size}]@cuda:0
%gx: f32{shape}@cuda:0 = prims.mul(%g, %x)
%dw: f32[{size}]@cuda:0 = prims.sum(%gx, {outer})
%db: f32[{size}]@cuda:0 = prims.sum(%g, {outer})
%ws: f32{shape}@cuda:0 = prims.broadcast_in_dim(%w, {shape}, [{len(rows)}])
%gw: f32{shape}@cuda:0 = prims.mul(%g, %ws)
%p: f32{shape}@cuda:0 = prims.mul(%gw, %x)
%c: f32{many}@cuda:0 = prims.sum(%p, [{len(rows)}])
%cs: f32{shape}@cuda:0 = prims.broadcast_in_dim(%c, {shape}, {outer})
%xc: f32{shape}@cuda:0 = prims.mul(%x, %cs)
%dx: f32{shape}@cuda:0 = prims.sub(%gw, %xc)
%sx: f32[{size}]@cuda:0 = prims.sum(%dx, {outer})
return %dx, %dw, %db, %sx
"""


def sums_of(loop: Loop) -> list[str]:
    """The buffers of sums over rows."""
    found = [s for kernel in kernels(loop.forward) for section in kernel.sections for s in section.statements]
    return [s.buffer for s in found if isinstance(s, Store) and s.mode == "sum"]


def test_one_kernel_reads_the_rows_and_one_combines_the_parts() -> None:
    loop = LoopIR().run(document(norm((4096,), 256)))
    first, last = kernels(loop.forward)
    assert [axis.size for axis in first.axes] == [4096]
    assert len(sums_of(loop)) == 3
    assert [axis.size for section in last.sections for axis in section.axes] == [256]
    text = print_document(loop)
    assert " sum= " in text
    assert parse(text) == loop


NEEDED = norm((4096,), 256).replace("prims.mul(%x, %cs)", "prims.mul(%x, %dws)").replace(
    "%xc:", "%dws: f32[4096, 256]@cuda:0 = prims.broadcast_in_dim(%dw, [4096, 256], [1])\n%xc:"
)  # fmt: skip
"""Rows that need the sums."""


@pytest.mark.parametrize(
    "text",
    [norm((4096,), 20000), norm((64,), 256), norm((4096,), 256).replace("@cuda:0", ""), NEEDED],
    ids=["long rows", "few rows", "on a CPU", "rows that need the sums"],
)
def test_what_stays(text: str) -> None:
    assert not sums_of(LoopIR().run(document(text)))


def test_registers_hold_the_sums_and_what_is_read_again() -> None:
    """Three sums and two operands of four bytes: 20 an element, of 200 KiB."""
    assert len(sums_of(LoopIR().run(document(norm((4096,), 10240))))) == 3
    assert len(sums_of(LoopIR().run(document(norm((4096,), 10752))))) == 2
    wider = tuple(SumOverRows(registers=1 << 30) if isinstance(one, SumOverRows) else one for one in PASSES)
    assert len(sums_of(LoopIR().run(document(norm((4096,), 10752)), Options(passes=wider)))) == 3


def numbers(rows: tuple[int, ...], size: int, seed: int = 0) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Inputs of `norm`, and what comes out."""
    random = np.random.default_rng(seed)
    x, g = (random.integers(-3, 4, (*rows, size)).astype(np.float32) for _ in range(2))
    w = random.integers(-3, 4, size).astype(np.float32)
    outer = tuple(range(len(rows)))
    dx = g * w - x * (g * w * x).sum(-1, keepdims=True)
    return [x, g, w], [dx, (g * x).sum(outer), g.sum(outer), dx.sum(outer)]


def check(loop: Loop, rows: tuple[int, ...], size: int, seed: int = 0) -> None:
    inputs, outputs = numbers(rows, size, seed)
    for found, wanted in zip(interpret(loop.forward, inputs), outputs, strict=True):
        np.testing.assert_array_equal(found, wanted)


def eager(shortest: int) -> Options:
    """Splits and sums where an interpreter is quick, too."""
    split = SplitReductions(points=8, columns=64, row=0, long_row=0, parts=2, shortest_column=shortest)
    changed = (split, SumOverRows(programs=8, least=2, rows=2))
    return Options(passes=tuple(next((one for one in changed if one.name == p.name), p) for p in PASSES))


def test_the_last_part_may_have_fewer_rows() -> None:
    loop = LoopIR().run(document(norm((4099,), 256)))
    assert len(sums_of(loop)) == 3
    check(loop, (4099,), 256)


@settings(deadline=None, max_examples=80)
@given(
    rows=st.lists(st.sampled_from((1, 2, 3, 4, 6, 8)), min_size=1, max_size=3).map(tuple),
    size=st.integers(2, 9),
    shortest=st.integers(1, 4),
    seed=st.integers(0, 9),
    shared=st.booleans(),
    parts=st.sampled_from((0, 1, 1, 2)),
)
def test_the_numbers_are_the_same(
    rows: tuple[int, ...], size: int, shortest: int, seed: int, shared: bool, parts: int
) -> None:
    loop = LoopIR().run(document(norm(rows, size)), eager(shortest))
    verify(loop)
    check(loop, rows, size, seed)
    # Sums of something else are combined beside them; or sums over some of the rows, each wanted as it is, or turned.
    shape = [*rows, size]
    factor = "%x" if shared else "%h"
    outer, kept = list(range(len(rows)))[parts:], [*rows[:parts], size]
    other = f"""%hh: f32{shape}@cuda:0 = prims.mul(%h, {factor})
%ph: f32{kept}@cuda:0 = prims.sum(%hh, {outer})
%sh: f32{kept}@cuda:0 = prims.neg(%ph)
%pt: f32{kept}@cuda:0 = prims.sum(%hh, {outer})
%st: f32{kept}@cuda:0 = prims.flip(%pt, [0])"""
    text = f"input %h: f32{shape}@cuda:0\n" + norm(rows, size).replace("return %dx", f"{other}\nreturn %sh, %st, %dx")
    loop = LoopIR().run(document(text), eager(shortest))
    verify(loop)
    inputs, outputs = numbers(rows, size, seed)
    h = np.random.default_rng(seed + 1).integers(-3, 4, shape).astype(np.float32)
    sums = (h * (inputs[0] if shared else h)).sum(tuple(outer))
    wanted = [-sums, np.flip(sums, 0), *outputs]
    for found, one in zip(interpret(loop.forward, [h, *inputs]), wanted, strict=True):
        np.testing.assert_array_equal(found, one)


@pytest.mark.parametrize("hints", [(64, 2, 4), (4, 32, 4), (40, 40, 8)], ids=str)
@pytest.mark.parametrize("rows", [("n",), ("n", "k"), ("n", 3), (3, "n")], ids=str)
@pytest.mark.parametrize("size", ["m", 4])
def test_open_sizes(rows: tuple[int | str, ...], size: int | str, hints: tuple[int, ...]) -> None:
    named = {name: hint for name, hint in zip("nkm", hints, strict=True) if name in (*rows, size)}
    loop = LoopIR().run(document(norm(rows, size), named), eager(2))
    verify(loop)
    if math.prod(named.get(n, n) for n in rows) >= 64:
        assert len(sums_of(loop)) == 3
    for sizes in (
        {"n": 1, "k": 1, "m": 1},
        {"n": 2, "k": 3, "m": 5},
        {"n": 64, "k": 2, "m": 4},
        {"n": 37, "k": 11, "m": 9},
    ):
        check(loop, tuple(sizes.get(n, n) for n in rows), sizes.get(size, size))


def test_rows_of_open_length_are_shorter() -> None:
    """A tile holds them as a whole, whatever their length is."""
    open_length, long_rows = norm(("n",), "m"), norm(("n",), 8192)
    assert len(sums_of(LoopIR().run(document(open_length, {"n": 8192, "m": 4096})))) == 3
    assert not sums_of(LoopIR().run(document(open_length, {"n": 8192, "m": 8192})))
    assert sums_of(LoopIR().run(document(long_rows, {"n": 8192})))
