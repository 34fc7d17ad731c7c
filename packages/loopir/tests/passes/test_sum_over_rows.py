"""sum_over_rows: the gradient of a weight is made where that of the operand is, and the numbers stay the same."""

from __future__ import annotations

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


def norm(rows: tuple[int, ...], size: int) -> str:
    """Gradients of something like a norm: dx of each row; dw, db and the sum of dx over all rows."""
    shape, outer = f"{[*rows, size]}", list(range(len(rows)))
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
%c: f32{list(rows)}@cuda:0 = prims.sum(%p, [{len(rows)}])
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
    assert [axis.size for axis in first.axes] == [256, 16]
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
    [norm((4096,), 20000), norm((64,), 256), norm((4099,), 256), norm((4096,), 256).replace("@cuda:0", ""), NEEDED],
    ids=["long rows", "few rows", "a prime number of rows", "on a CPU", "rows that need the sums"],
)
def test_what_stays(text: str) -> None:
    assert not sums_of(LoopIR().run(document(text)))


@settings(deadline=None, max_examples=40)
@given(
    rows=st.lists(st.sampled_from((1, 2, 3, 4, 6, 8)), min_size=1, max_size=3),
    size=st.integers(2, 9),
    shortest=st.integers(1, 4),
    seed=st.integers(0, 9),
)
def test_the_numbers_are_the_same(rows: list[int], size: int, shortest: int, seed: int) -> None:
    split = SplitReductions(points=8, columns=64, shortest_column=shortest)
    changed = (split, SumOverRows(programs=8, least=2, rows=2))
    passes = tuple(next((one for one in changed if one.name == p.name), p) for p in PASSES)
    loop = LoopIR().run(document(norm(tuple(rows), size)), Options(passes=passes))
    verify(loop)
    random = np.random.default_rng(seed)
    x, g = (random.integers(-3, 4, (*rows, size)).astype(np.float32) for _ in range(2))
    w = random.integers(-3, 4, size).astype(np.float32)
    dx, dw, db, sx = interpret(loop.forward, [x, g, w])
    outer = tuple(range(len(rows)))
    np.testing.assert_array_equal(dx, g * w - x * (g * w * x).sum(-1, keepdims=True))
    np.testing.assert_array_equal(sx, dx.sum(outer))
    np.testing.assert_array_equal(dw, (g * x).sum(outer))
    np.testing.assert_array_equal(db, g.sum(outer))
