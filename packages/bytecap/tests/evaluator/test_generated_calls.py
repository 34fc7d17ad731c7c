"""Property: one captured function, called with other arguments each time, behaves as plain: its guards are enough."""

from __future__ import annotations

import itertools

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bytecap.testing import check
from bytecap.testing.strategies import arguments, define, sources


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(source=sources(), makers=st.lists(arguments(), min_size=3, max_size=4))
def test_other_arguments_in_each_call(source, makers):
    function = define(source)
    # The first is for the function alone; then each call makes its arguments twice, plain and captured.
    order = itertools.chain(makers[:1], itertools.chain.from_iterable((maker, maker) for maker in makers))
    report = check(lambda: (function, next(order)(function)), whole=False, calls=len(makers))
    assert "BC014" not in report.codes, report.events
