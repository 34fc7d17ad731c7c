"""sum_one_hot: no loop where one term at most is not zero, and the same numbers."""

from __future__ import annotations

import numpy as np
import pytest

from loopir.interpret import interpret
from loopir.pipeline import PASSES
from loopir.stage import LoopIR, Options
from loopir.testing.graphs import document, kernels, lowered
from stagewire.verify import verify

ROWS, CLASSES = 6, 5
LOSS = """\
input %t: i64[6]
input %g: f32[6]
input %keep: b8[6]
%i: i64[5] = prims.iota(5, 0, 1, dtype(int64))
%is: i64[6, 5]{0, 1} = prims.broadcast_in_dim(%i, [6, 5], [1])
%ts: i64[6, 5]{1, 0} = prims.broadcast_in_dim(%t, [6, 5], [0])
%hit: b8[6, 5] = prims.eq(%is, %ts)
%keeps: b8[6, 5]{1, 0} = prims.broadcast_in_dim(%keep, [6, 5], [0])
%both: b8[6, 5] = prims.logical_and(%hit, %keeps)
%gs: f32[6, 5]{1, 0} = prims.broadcast_in_dim(%g, [6, 5], [0])
%hot: f32[6, 5] = prims.where(%both, %gs, 0.0)
%narrow: f16[6, 5] = prims.convert_element_type(%hot, dtype(float16))
%wide: f32[6, 5] = prims.convert_element_type(%narrow, dtype(float32))
%sum: f32[6] = prims.sum(%wide, [1])
"""
ALONE = LOSS + "return %sum\n"
BOTH = LOSS + (
    "%sums: f32[6, 5]{1, 0} = prims.broadcast_in_dim(%sum, [6, 5], [0])\n"
    "%y: f32[6, 5] = prims.sub(%wide, %sums)\n%top: f32[6] = prims.amax(%wide, [1])\nreturn %y, %top\n"
)
TARGETS = np.array([0, 4, 2, 5, -1, 3])
GIVEN = np.array([1.5, -2.0, 0.1, 7.0, np.inf, np.nan], np.float32)
KEPT = np.array([True, True, True, True, True, False])


def loops(text: str) -> list[int]:
    return [len(section.axes) for kernel in kernels(lowered(text)) for section in kernel.sections]


def test_the_sum_is_its_term() -> None:
    assert loops(ALONE) == [0]
    assert loops(ALONE.replace("where(%both", "where(%hit")) == [0]
    assert max(loops(BOTH)) == 1


@pytest.mark.parametrize("text", [ALONE, BOTH, ALONE.replace("eq(%is, %ts)", "eq(%ts, %is)")])
@pytest.mark.parametrize("targets", [TARGETS, TARGETS[::-1].copy(), np.array([-9, 9, 1, 1, 0, 4])])
def test_the_numbers_stay(text: str, targets: np.ndarray) -> None:
    loop = LoopIR().run(document(text))
    verify(loop)
    passes = tuple(p for p in PASSES if p.name != "sum_one_hot")
    plain = LoopIR().run(document(text), Options(passes=passes))
    for found, wanted in zip(
        interpret(loop.forward, [targets, GIVEN, KEPT]), interpret(plain.forward, [targets, GIVEN, KEPT]), strict=True
    ):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(
    "change",
    [
        ("iota(5, 0, 1,", "iota(5, 1, 1,"),
        ("eq(%is", "le(%is"),
        ("eq(%is, %ts)", "eq(%is, %is)"),
        ("%gs, 0.0)", "%gs, 1.0)"),
        ("logical_and(", "logical_or("),
        ("sum(%wide", "amax(%wide"),
        ("where(%both, %gs, 0.0)", "where(%both, 0.0, %gs)"),
    ],
)
def test_other_sums_are_loops(change: tuple[str, str]) -> None:
    text = ALONE.replace(*change)
    assert text != ALONE
    assert max(loops(text)) == 1
