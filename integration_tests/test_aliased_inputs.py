"""Drawn programs on inputs that share memory leave everything as eager leaves it."""

from __future__ import annotations

import warnings

from hypothesis import HealthCheck, given, settings

from aotgrad import bind_capture
from aotgrad.testing.aliased_programs import aliased_programs
from aotgrad.testing.effect_programs import Effect
from aotgrad.testing.effects import differences, observe
from bytecap import optimize
from bytecap.driver.stage import Options


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(aliased_programs())
def test_inputs_that_share_memory_are_left_as_eager_leaves_them(drawn: Effect) -> None:
    program, make = drawn
    call = optimize(program, lambda capture, inputs: bind_capture(capture), options=Options(allow_empty=True))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = observe(program, make)
        assert differences(expected, observe(call, make)) == []
        assert differences(expected, observe(call, make)) == [], "the second call"
