"""Programs run plain and captured: torch.inference_mode."""

from __future__ import annotations

import pytest
import torch

from bytecap import Broke, executor, optimize
from bytecap.testing import Programs, check

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
