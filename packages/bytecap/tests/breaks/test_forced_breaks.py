"""Property: a break at any instruction of any program changes nothing that a user can see."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, event, given, settings
from hypothesis import strategies as st

from bytecap import Broke, Refused, optimize
from bytecap.testing import check
from bytecap.testing.breaking import ForcedBreak, each, forced_breaks, once
from bytecap.testing.programs import programs_below
from bytecap.testing.strategies import arguments, define, sources

# A rebuilt set is iterated in the same order, but where a later member goes depends on what was taken out before.
# What a segment is given lives until it returns. What a graph itself raises has the line of the segment.
NOT_KEPT = {"the_order_of_sets", "an_object_with_an_end", "effects_come_before"}
CORPUS = [program for program in programs_below(Path(__file__).parent.parent) if str(program) not in NOT_KEPT]
RULES = st.one_of(st.integers(0, 80).map(once), st.integers(0, 20).map(each))


def check_broken(make, rule):
    """Assert that the program is as plain with these breaks."""
    with forced_breaks(rule) as forced:
        report = check(make, whole=False)
    assert "BC014" not in report.codes, report.events
    refused = [event for event in report.events if isinstance(event, Refused) and isinstance(event.error, ForcedBreak)]
    event(f"{min(forced.breaks, 10)} breaks, {len(refused)} refused")


@settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate],  # a program does not shrink
)
@given(program=st.sampled_from(CORPUS), rule=RULES)
def test_corpus(program, rule):
    check_broken(program.make, rule)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(source=sources(), make_arguments=arguments(), rule=RULES)
def test_generated(source, make_arguments, rule):
    function = define(source)
    check_broken(lambda: (function, make_arguments(function)), rule)


@pytest.mark.parametrize("count", [0, 1, 5, 9])
def test_breaks_are_forced(count):
    def program(x):
        y = x + 1
        return y * 2

    with forced_breaks(each(count)) as forced:
        report = check(lambda: (program, ((1,), {})), whole=False)
    assert (forced.breaks > 0) == (count < 9)
    assert [type(event) for event in report.events if isinstance(event, Broke)] == [Broke] * forced.breaks
    assert optimize(program, lambda capture, inputs: None)(1) == 4


@pytest.mark.parametrize("count", range(50, 75))
def test_an_iterator_stays_behind_the_end_of_a_list(count):
    """The list is emptied behind it, and grows again."""
    (program,) = (program for program in CORPUS if str(program) == "iterators_over_what_has_grown_find_their_place")
    check_broken_at(program.make, once(count))


FOUND = (
    ("changes_during_iteration", once(46)),
    ("changes_during_iteration", once(60)),
    ("exceptions_leave_the_frame", each(2)),
)
"""Programs that once were not as plain with these breaks."""


@pytest.mark.parametrize(("name", "rule"), FOUND)
def test_found_before(name, rule):
    (program,) = (program for program in CORPUS if str(program) == name)
    check_broken_at(program.make, rule)


def check_broken_at(make, rule):
    """As `check_broken`, outside of hypothesis."""
    with forced_breaks(rule):
        assert "BC014" not in check(make, whole=False).codes
