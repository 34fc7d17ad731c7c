"""interpret(stage(d)) == interpret(d) for graphs over a symbolic size: compiled once, run at several values."""

from __future__ import annotations

import numpy as np
from hypothesis import HealthCheck, given, settings

from loopir.interpret import interpret
from loopir.pipeline import UNFUSED
from loopir.stage import LoopIR, Options
from loopir.testing.externs import EXTERNS
from loopir.testing.prim_meaning import prim_meaning
from loopir.testing.strategies import selections
from loopir.testing.symbolic import VALUES, SymbolicScenario, symbolic_scenarios
from stagewire.parser import parse
from stagewire.printer import print_document
from stagewire.verify import verify

GENERATED = settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))


def check(scenario: SymbolicScenario, options: Options) -> None:
    """The stage's result verifies, prints, and gives the same bits as the prims at every value."""
    loop = LoopIR().run(scenario.document(), options)
    verify(loop)
    assert parse(print_document(loop)) == loop
    for n in VALUES:
        at = scenario.at(n)
        expected = prim_meaning(at.graph, at.inputs, EXTERNS)
        found = interpret(loop.forward, scenario.inputs_at(n), EXTERNS)
        for want, have in zip(expected, found, strict=True):
            assert isinstance(have, np.ndarray)
            np.testing.assert_array_equal(have, want)


@GENERATED
@given(symbolic_scenarios())
def test_the_stage_preserves_meaning_at_every_size(scenario: SymbolicScenario) -> None:
    check(scenario, Options())


@GENERATED
@given(symbolic_scenarios(), selections())
def test_any_selection_of_passes_preserves_meaning_at_every_size(scenario: SymbolicScenario, options: Options) -> None:
    check(scenario, options)


@GENERATED
@given(symbolic_scenarios())
def test_one_kernel_a_prim_at_every_size(scenario: SymbolicScenario) -> None:
    check(scenario, Options(passes=UNFUSED, kernel_passes=()))
