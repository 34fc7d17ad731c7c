"""Property: a generated Python function behaves the same captured or plain."""

from __future__ import annotations

from hypothesis import HealthCheck, event, given, settings

from bytecap.testing import check
from bytecap.testing.strategies import arguments, define, sources


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(source=sources(), make_arguments=arguments())
def test_captured_as_plain(source, make_arguments):
    function = define(source)
    report = check(lambda: (function, make_arguments(function)), whole=False)
    event(report.codes[0] if report.codes else "captured")
    assert "BC014" not in report.codes, report.events
