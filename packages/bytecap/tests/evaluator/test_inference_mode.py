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


@PROGRAMS.add(ones)
def in_the_middle(x):
    y = x * WEIGHT
    with torch.inference_mode():
        z = y + 1
        y.detach().add_(2)
    return y * len(z), z.sum() * 2


@PROGRAMS.add(ones)
def work_behind(x):
    with torch.inference_mode():
        y = x + 1
        y += 1
    return x * WEIGHT, y, y[1:], y.clone(), y.view(3, 1).detach(), y + 1


@PROGRAMS.add(ones)
def twice(x):
    with torch.inference_mode():
        y = x + 1
        with torch.inference_mode(False):
            z = x * WEIGHT
        u = y + z
    with torch.inference_mode():
        u += 1
    return z * x, u, torch.is_grad_enabled()


@PROGRAMS.add(ones)
def views_of_others(x):
    y = x * 2
    with torch.inference_mode():
        u, v, w = x.view(3, 1), y[1:], y.detach()
        w.add_(1)
    return u, v, w, y, x + 1


@PROGRAMS.add(ones)
def asked(x):
    with torch.inference_mode():
        y = x + 1
    return x.is_inference(), y.is_inference(), y[0].is_inference(), torch.is_inference(y + 1), x + 1


@PROGRAMS.add(ones)
def in_functions(x):
    with torch.inference_mode():
        y = torch.func.vmap(lambda row: row * 2)(x)
        z = torch.cond(x.sum() > 0, lambda t: t + 1, lambda t: t - 1, (x,))
    return y, z, x + 1


@PROGRAMS.add(ones, refusal="BC002")
def derivative(x):
    with torch.inference_mode():
        return torch.func.grad(lambda t: (t * t).sum())(x)


@PROGRAMS.add(ones, refusal="BC002")
def dual_level(x):
    with torch.inference_mode(), torch.autograd.forward_ad.dual_level():
        return x * 2


@PROGRAMS.add(ones)
def half_by_autocast(x):
    with torch.autocast("cpu", torch.bfloat16), torch.inference_mode():
        y = x[None] @ x[:, None]
    return y, x * WEIGHT


@PROGRAMS.add(ones, refusal="BC003")
def saved_for_backward(x):
    with torch.inference_mode():
        y = x + 1
    return y * WEIGHT


@PROGRAMS.add(ones, refusal="BC003")
def added_where_gradients_are(x):
    with torch.inference_mode():
        y = x + 1
    return y + WEIGHT


@PROGRAMS.add(ones, refusal="BC008")
def written_behind(x):
    with torch.inference_mode():
        y = x + 1
    y.add_(1)
    return y


@PROGRAMS.add(ones, refusal="BC008")
def a_view_is_written_behind(x):
    with torch.inference_mode():
        y = x + 1
    y[1:].mul_(2)
    return y


@PROGRAMS.add(ones, refusal="BC003")
def requires_grad_behind(x):
    with torch.inference_mode():
        y = x + 1
    return y.requires_grad_()


@PROGRAMS.add(ones, refusal="BC003")
def requires_grad_inside(x):
    with torch.inference_mode():
        y = (x + 1).requires_grad_()
    return y.requires_grad, y.is_leaf


@PROGRAMS.add(ones, refusal="BC003")
def memory_of_another(x):
    y = x * 2
    with torch.inference_mode():
        z = x + 1
    y.data = z
    return y


@PROGRAMS.add(ones, refusal="BC002")
def gradients_switched_on(x):
    with torch.inference_mode(), torch.enable_grad():
        y = x * WEIGHT
        return y, y.requires_grad, torch.is_grad_enabled()


@PROGRAMS.add(ones, refusal="BC003")
def a_body_uses_it(x):
    with torch.inference_mode():
        y = x + 1
    return torch.func.grad(lambda t: (t * y).sum())(x)


@pytest.mark.parametrize("program", PROGRAMS, ids=str)
def test_same_as_plain(program):
    program.check()


@pytest.mark.parametrize("program", PROGRAMS, ids=str)
@pytest.mark.filterwarnings("ignore::bytecap.CaptureWarning")
def test_which_tensors_are_of_inference(program):
    def kinds(function):
        try:
            results = function(torch.ones(3))
        except RuntimeError as error:
            return str(error)
        items = results if isinstance(results, tuple) else (results,)
        return [item.is_inference() for item in items if isinstance(item, torch.Tensor)]

    function = program.function
    assert kinds(optimize(function, lambda c, _: executor(c))) == kinds(function)


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


def test_inside_of_the_mode():
    def program(x):
        with torch.inference_mode():
            y = x * 2
        return y.is_inference(), torch.func.vmap(lambda row: row + 1)(y), x.view(3, 1), y

    compiled = optimize(program, lambda capture, inputs: executor(capture), fullgraph=True)
    with torch.inference_mode():
        got, expected = compiled(ones()), program(ones())
    assert not differences(got, expected)
    assert [item.is_inference() for item in got[1:]] == [item.is_inference() for item in expected[1:]]
