"""interpret(stage(d)) == interpret(d) for graphs over a symbolic size: compiled once, run at several values."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loopir.interpret import interpret
from loopir.pipeline import UNFUSED
from loopir.stage import LoopIR, Options
from loopir.testing.externs import EXTERNS
from loopir.testing.graph_builder import assert_same
from loopir.testing.irregular_steps import FAMILIES
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
        assert_same(found, expected, scenario.close)


@pytest.mark.parametrize("family", FAMILIES)
@GENERATED
@given(st.data())
def test_the_stage_preserves_meaning_at_every_size(family: str, data: st.DataObject) -> None:
    check(data.draw(symbolic_scenarios(FAMILIES[family])), Options())


@GENERATED
@given(symbolic_scenarios(), selections())
def test_any_selection_of_passes_preserves_meaning_at_every_size(scenario: SymbolicScenario, options: Options) -> None:
    check(scenario, options)


@GENERATED
@given(symbolic_scenarios())
def test_one_kernel_a_prim_at_every_size(scenario: SymbolicScenario) -> None:
    check(scenario, Options(passes=UNFUSED, kernel_passes=()))
