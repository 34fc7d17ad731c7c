"""Each refusal by its code: it runs plain, and under fullgraph the code is raised with the user's line and a fix."""

from __future__ import annotations

import time

import pytest
import torch

from bytecap import Broke, Refused, executor, optimize
from bytecap.errors import ERROR_CODES, CannotCapture, NoTensorWork, RaisedInCapture
from bytecap.testing import differences


class Subclass(torch.Tensor):
    def mul(self, other):
        return self + other


def an_exception_group(x):
    try:
        raise ValueError
    except* ValueError:
        x = x * 2
    return x


def a_class_statement(x):
    class Local:
        value = x

    return Local.value * 2


def a_c_function(x):
    return x * (time.time() > 0)


def a_file(x):
    with open("/dev/null"):
        return x * 2


def an_evaluated_text(x):
    return eval("x * 2")


def backward_inside(x):
    y = x.clone().requires_grad_()
    (y * 2).sum().backward()
    return y.grad


def a_tensor_subclass(x):
    return x * 2


def bytes_that_may_change(data):
    return torch.ones(2) * len(data)


def a_branch(x):
    return x if x.sum() > 0 else -x


def a_number(x):
    return x * x.sum().item()


def a_mask(x):
    return x[x > 0]


def an_error(x):
    raise KeyError(str(x.shape))


def a_shape_error(x):
    return x @ torch.ones(7)


def a_suspended_generator(x):
    y = x * 2

    def rows():
        yield y

    started = rows()
    next(started)
    return [started]


def an_attribute_of_a_tensor(x):
    x.real = torch.zeros(2)
    return x * 2


def no_tensor_work(x):
    return [x, 3]


def a_long_loop(x):
    count = 0
    while count < 60_000:
        count += 1
    return x * count


CASES = [
    ("BC001", an_exception_group, torch.ones(2)),
    ("BC002", a_class_statement, torch.ones(2)),
    ("BC002", a_c_function, torch.ones(2)),
    ("BC002", a_file, torch.ones(2)),
    ("BC002", an_evaluated_text, torch.ones(2)),
    ("BC002", backward_inside, torch.ones(2)),
    ("BC003", a_tensor_subclass, torch.ones(2).as_subclass(Subclass)),
    ("BC003", bytes_that_may_change, bytearray(b"ab")),
    ("BC004", a_branch, torch.ones(2)),
    ("BC004", a_number, torch.ones(2)),
    ("BC004", a_mask, torch.ones(2)),
    ("BC005", an_error, torch.ones(2)),
    ("BC005", a_shape_error, torch.ones(2)),
    ("BC006", a_suspended_generator, torch.ones(2)),
    ("BC008", an_attribute_of_a_tensor, torch.ones(2)),
    ("BC009", no_tensor_work, torch.ones(2)),
    ("BC015", a_long_loop, torch.ones(2)),
]


def backend(capture, example_inputs):
    return executor(capture)


def outcome(function, argument):
    try:
        return function(argument)
    except Exception as error:
        return type(error), str(error)


@pytest.mark.parametrize(("code", "function", "argument"), CASES, ids=lambda value: getattr(value, "__name__", None))
def test_refused_frames_run_plain(code, function, argument):
    events = []
    got = outcome(optimize(function, backend, on_event=events.append), argument)
    expected = outcome(function, argument)
    if code != "BC006":
        assert differences(expected, got) == []
    event = next(event for event in events if isinstance(event, Broke | Refused))
    assert event.error.code == code
    assert event.error.fix
    assert f" in {function.__name__}" in event.error.where


@pytest.mark.parametrize(("code", "function", "argument"), CASES, ids=lambda value: getattr(value, "__name__", None))
def test_fullgraph_raises(code, function, argument):
    call = optimize(function, backend, fullgraph=True)
    if code in (NoTensorWork.code, RaisedInCapture.code):
        assert differences(outcome(function, argument), outcome(call, argument)) == []
        return
    with pytest.raises(CannotCapture, match=code):
        call(argument)


def test_codes_are_unique():
    assert len(set(ERROR_CODES)) == len(ERROR_CODES)
