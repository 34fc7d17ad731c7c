"""interpret(stage(d)) == interpret(d), for the whole stage and with passes left out."""

from __future__ import annotations

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loopir.interpret import interpret
from loopir.pipeline import KERNEL_PASSES, PASSES, UNFUSED
from loopir.stage import LoopIR, Options
from loopir.testing.externs import EXTERNS
from loopir.testing.prim_meaning import prim_meaning
from loopir.testing.strategies import Scenario, prim_scenarios
from stagewire.loop import Loop
from stagewire.verify import verify

GENERATED = settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))


def check(scenario: Scenario, options: Options) -> Loop:
    """The stage's result verifies, and gives the same bits as the prims; inputs are left alone."""
    loop = LoopIR().run(scenario.document(), options)
    verify(loop)
    expected = prim_meaning(scenario.graph, scenario.inputs, EXTERNS)
    found = interpret(loop.forward, scenario.inputs, EXTERNS)
    for want, have in zip(expected, found, strict=True):
        assert isinstance(want, np.ndarray)
        assert isinstance(have, np.ndarray)
        assert want.dtype == have.dtype
        np.testing.assert_array_equal(have, want)
    return loop


@GENERATED
@given(prim_scenarios())
def test_the_stage_preserves_meaning(scenario: Scenario) -> None:
    check(scenario, Options())


@GENERATED
@given(prim_scenarios())
def test_one_kernel_a_prim(scenario: Scenario) -> None:
    check(scenario, Options(passes=UNFUSED, kernel_passes=()))


@GENERATED
@given(prim_scenarios(), st.data())
def test_any_selection_of_passes_preserves_meaning(scenario: Scenario, data: st.DataObject) -> None:
    passes = tuple(p for p in PASSES if data.draw(st.booleans(), label=p.name))
    kernel_passes = tuple(p for p in KERNEL_PASSES if data.draw(st.booleans(), label=p.name))
    check(scenario, Options(passes=passes, kernel_passes=kernel_passes))
