"""After a call everything stands as eager leaves it: values, types, memory, version counters, history, gradients."""

from __future__ import annotations

import random

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


def test_shared_memory_is_found_wherever_inputs_have_moved_to() -> None:
    def program(a, b, c, d, e):
        a.add_(c)
        b.mul_(d + e)

    call = bind_interpreted(AotGrad().run(capture_by_torch_function(program, [torch.ones(3) for _ in range(5)])[0]))
    memory = torch.ones(40)
    chance = random.Random(0)
    starts = [0, 6, 12, 18, 24]
    refused = 0
    for _ in range(400):
        starts = [start if chance.random() < 0.7 else chance.randrange(38) for start in starts]
        inputs = [memory[start : start + 3] for start in starts]
        met = any(abs(starts[i] - starts[j]) < 3 for i in (0, 1) for j in range(5) if i != j)
        refused += met
        if met:
            with pytest.raises(AliasedMutation):
                call(*inputs)
            starts = [0, 6, 12, 18, 24] if chance.random() < 0.5 else starts
        else:
            call(*inputs)
    assert 100 < refused < 300


@pytest.mark.parametrize("writes", [1, 2, 3, 8, 9, 10, 20])
def test_version_counters_count_the_writes(writes: int) -> None:
    def program(x, y):
        for _ in range(writes):
            x.add_(1)
        y.add_(x)

    call = bind_capture(capture_by_torch_function(program, [torch.ones(3), torch.ones(3)])[0])
    x, y = torch.ones(3), torch.ones(3)
    call(x, y)
    assert (x._version, y._version) == (writes, 1)


@pytest.mark.parametrize("name", RUN_PLAIN)
def test_refused_programs_have_a_code(name: str) -> None:
    capture = captured(RUN_PLAIN[name])
    with pytest.raises(StageError) as caught:
        AotGrad().run(capture)
    assert caught.value.refuses_program
    assert caught.value.code in ("AG004", "AG005", "AG007")
