"""Programs run plain and captured: torch.inference_mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from bytecap import Broke, executor, optimize
from bytecap.testing import Programs, check, differences

PROGRAMS = Programs()
WEIGHT = torch.ones(3, requires_grad=True)


def ones() -> torch.Tensor:
    return torch.ones(3)


@PROGRAMS.add(ones)
def within(x):
    before = torch.is_inference_mode_enabled(), torch.is_grad_enabled()
    with torch.inference_mode():
        inside = torch.is_inference_mode_enabled(), torch.is_grad_enabled()
        y = x * WEIGHT
        with torch.inference_mode(), torch.no_grad():
            y = y + 1
    return y, before, inside, torch.is_inference_mode_enabled(), torch.is_grad_enabled()


@PROGRAMS.add(ones)
@torch.inference_mode()
def decorated(x):
    return x.mul_(2) * WEIGHT, x


@PROGRAMS.add(ones)
def switched_off(x):
    with torch.no_grad(), torch.inference_mode(mode=False):
        return x * WEIGHT


@PROGRAMS.add(ones)
def left_by_an_exception(x):
    try:
        with torch.inference_mode():
            y = x * 2
            raise ValueError(y.shape)
    except ValueError as error:
        return error.args, torch.is_inference_mode_enabled(), y


@PROGRAMS.add(ones, refusal="BC002")
def in_the_middle(x):
    y = x * WEIGHT
    with torch.inference_mode():
        z = y + 1
    return y * z.sum().item()


@PROGRAMS.add(ones, refusal="BC002")
def work_behind(x):
    with torch.inference_mode():
        y = x + 1
    return x * WEIGHT, y


@pytest.mark.parametrize("program", PROGRAMS, ids=str)
def test_same_as_plain(program):
    program.check()


@pytest.mark.parametrize("program", [within, decorated, switched_off, left_by_an_exception, work_behind])
def test_which_tensors_are_of_inference(program):
    def kinds(function):
        results = function(torch.ones(3))
        items = results if isinstance(results, tuple) else (results,)
        return [item.is_inference() for item in items if isinstance(item, torch.Tensor)]

    assert kinds(optimize(program, lambda c, _: executor(c))) == kinds(program)


def breaks_inside(x):
    with torch.inference_mode():
        y = x * 2
        if y.sum().item() > 1:
            y = y + 1
        inside = torch.is_inference_mode_enabled()
    return y, inside, torch.is_inference_mode_enabled()


def test_a_break_inside():
    report = check(lambda: (breaks_inside, ((torch.ones(3),), {})), whole=False)
    assert any(isinstance(event, Broke) for event in report.events)


def added_in_place(x):
    return x.add_(1)


def view_added_in_place(x):
    x[1:].add_(1)
    return x * 2


def item_set(x):
    x[0] = 5
    return x


def into_out(x):
    return torch.add(x, 1, out=x)


def a_copy_is_written(x):
    return x.clone().add_(1)


def caught(x):
    y = x * 2
    try:
        x.add_(1)
    except RuntimeError:
        return y - 1
    return y


WRITERS = [added_in_place, view_added_in_place, item_set, into_out, a_copy_is_written, caught]


@pytest.mark.parametrize("program", WRITERS)
@pytest.mark.parametrize("inference_first", [True, False])
@pytest.mark.filterwarnings("ignore::bytecap.CaptureWarning")
def test_writes_of_inference_tensors(program, inference_first):
    """Outside of inference mode torch refuses them."""
    compiled = optimize(program, lambda capture, inputs: executor(capture))

    def outcome(function: Callable[[torch.Tensor], Any], is_inference: bool) -> Any:
        with torch.inference_mode(is_inference):
            x = ones()
        try:
            return function(x)
        except RuntimeError as error:
            return str(error)

    for is_inference in (inference_first, not inference_first, inference_first):
        assert not differences(outcome(compiled, is_inference), outcome(program, is_inference))
    with torch.inference_mode():
        assert not differences(outcome(compiled, True), outcome(program, True))
