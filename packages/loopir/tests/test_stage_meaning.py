"""interpret(stage(d)) == interpret(d), for the whole stage and with passes left out."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loopir.interpret import interpret
from loopir.passes.fuse_nests import FuseNests
from loopir.passes.merge_nests import Limits
from loopir.passes.split_reductions import SplitReductions
from loopir.pipeline import KERNEL_PASSES, PASSES, UNFUSED
from loopir.stage import LoopIR, Options
from loopir.testing.externs import EXTERNS
from loopir.testing.graph_builder import Scenario, assert_same
from loopir.testing.irregular_steps import FAMILIES
from loopir.testing.prim_meaning import prim_meaning
from loopir.testing.strategies import prim_scenarios, selections
from stagewire.loop import Loop
from stagewire.verify import verify

GENERATED = settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))


def check(scenario: Scenario, options: Options) -> Loop:
    """The stage's result verifies, and gives the same bits as the prims; inputs are left alone."""
    loop = LoopIR().run(scenario.document(), options)
    verify(loop)
    expected = prim_meaning(scenario.graph, scenario.inputs, EXTERNS)
    found = interpret(loop.forward, scenario.inputs, EXTERNS)
    assert_same(found, expected, scenario.close)
    return loop


@pytest.mark.parametrize("family", FAMILIES)
@GENERATED
@given(st.data())
def test_the_stage_preserves_meaning(family: str, data: st.DataObject) -> None:
    check(data.draw(prim_scenarios(FAMILIES[family])), Options())


@pytest.mark.parametrize("family", FAMILIES)
@GENERATED
@given(st.data())
def test_one_kernel_a_prim(family: str, data: st.DataObject) -> None:
    check(data.draw(prim_scenarios(FAMILIES[family])), Options(passes=UNFUSED, kernel_passes=()))


@GENERATED
@given(prim_scenarios(), selections())
def test_any_selection_of_passes_preserves_meaning(scenario: Scenario, options: Options) -> None:
    check(scenario, options)


@GENERATED
@given(prim_scenarios())
def test_each_kernel_pass_preserves_the_meaning_of_loops(scenario: Scenario) -> None:
    """On Loop documents as the schedule passes leave them, and as one kernel a prim gives them."""
    for passes in (PASSES, UNFUSED):
        loop = LoopIR().run(scenario.document(), Options(passes=passes, kernel_passes=()))
        expected = interpret(loop.forward, scenario.inputs, EXTERNS)
        for kernel_pass in KERNEL_PASSES:
            changed = msgspec.structs.replace(loop, forward=kernel_pass.run(loop.forward))
            verify(changed)
            assert_same(interpret(changed.forward, scenario.inputs, EXTERNS), expected, scenario.close)


@GENERATED
@given(prim_scenarios(), st.data())
def test_a_splitting_of_reductions_preserves_meaning(scenario: Scenario, data: st.DataObject) -> None:
    """With limits so low that small examples meet them."""
    points, shortest = data.draw(st.sampled_from((4, 64))), data.draw(st.sampled_from((1, 2)))
    split = SplitReductions(points=points, columns=64, long_row=0, parts=2, shortest=shortest)
    fuse = FuseNests(limits=Limits(outer_points=2), gpu_limits=Limits(outer_points=8, inner_points=4), least_bytes=1)
    chosen = {split.name: split, fuse.name: fuse}
    check(scenario, Options(passes=tuple(chosen.get(p.name, p) for p in PASSES)))
