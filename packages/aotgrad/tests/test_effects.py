"""After a call everything stands as eager leaves it: values, types, memory, version counters, history, gradients."""

from __future__ import annotations

import pytest
import torch

from aotgrad import AotGrad, bind_capture, bind_interpreted
from aotgrad.errors import AliasedMutation
from aotgrad.testing import capture_by_torch_function
from aotgrad.testing.effect_programs import ALIASED, PROGRAMS, RUN_PLAIN, Effect
from aotgrad.testing.effects import differences, observe
from stagewire.capture import Capture
from stagewire.errors import StageError


def captured(effect: Effect, apart: bool = False) -> Capture:
    """The program on inputs like those of the effect; `apart`: on memory of their own."""
    program, make = effect
    inputs, _ = make()
    if apart:
        inputs = [x.detach().clone().requires_grad_(x.requires_grad) for x in inputs]
        inputs = [x * 1 if x.requires_grad else x for x in inputs]
    return capture_by_torch_function(program, inputs)[0]


def eager_raises(effect: Effect) -> bool:
    return "raises" in observe(*effect)


@pytest.mark.parametrize("name", [name for name in PROGRAMS if not eager_raises(PROGRAMS[name])])
def test_a_program_leaves_what_eager_leaves(name: str) -> None:
    program, make = PROGRAMS[name]
    call = bind_capture(captured(PROGRAMS[name]))
    assert differences(observe(program, make), observe(call, make)) == []


@pytest.mark.parametrize("name", ALIASED)
def test_inputs_that_share_memory_run_the_captured_calls(name: str) -> None:
    program, make = ALIASED[name]
    call = bind_capture(captured(ALIASED[name], apart=True))
    assert differences(observe(program, make), observe(call, make)) == []


def test_without_the_captured_calls_shared_memory_is_refused() -> None:
    program, make = ALIASED["a tensor and its end"]
    call = bind_interpreted(AotGrad().run(captured((program, make), apart=True)))
    inputs, _ = make()
    before = [x.clone() for x in inputs]
    with pytest.raises(AliasedMutation, match="share memory"):
        call(*inputs)
    assert all(torch.equal(a, b) for a, b in zip(inputs, before, strict=True))


@pytest.mark.parametrize("name", RUN_PLAIN)
def test_refused_programs_have_a_code(name: str) -> None:
    capture = captured(RUN_PLAIN[name])
    with pytest.raises(StageError) as caught:
        AotGrad().run(capture)
    assert caught.value.refuses_program
    assert caught.value.code in ("AG004", "AG005", "AG007")
