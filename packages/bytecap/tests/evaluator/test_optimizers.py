"""Programs run plain and captured: steps of optimizers, gradients and attributes of tensors written."""

from __future__ import annotations

import copy
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

from bytecap import executor, optimize
from bytecap.testing import Programs, check

PROGRAMS = Programs()
MAKERS = {
    "sgd": lambda ps: torch.optim.SGD(ps, 0.1),
    "momentum": lambda ps: torch.optim.SGD(ps, 0.1, momentum=0.9, weight_decay=0.01, nesterov=True),
    "adam": lambda ps: torch.optim.Adam(ps, 0.1),
    "amsgrad": lambda ps: torch.optim.Adam(ps, 0.1, amsgrad=True, weight_decay=0.1),
    "adamw, foreach": lambda ps: torch.optim.AdamW(ps, 0.1, foreach=True),
    "rate is a tensor": lambda ps: torch.optim.Adam(ps, torch.tensor(0.1), foreach=False),
    "rmsprop": lambda ps: torch.optim.RMSprop(ps, 0.1),
    "adagrad": lambda ps: torch.optim.Adagrad(ps, 0.1),
    "adamax": lambda ps: torch.optim.Adamax(ps, 0.1),
    "nadam": lambda ps: torch.optim.NAdam(ps, 0.1),
    "rprop": lambda ps: torch.optim.Rprop(ps, 0.1),
}


def trained() -> nn.Module:
    torch.manual_seed(2)
    model = nn.Linear(3, 2)
    model(torch.ones(4, 3)).square().sum().backward()
    return model


@pytest.mark.parametrize("name", MAKERS)
def test_steps(name):
    # More exactly than torch's own capture, whose step counts are float32.
    outcomes = []
    for captured in (False, True):
        model = trained()
        optimizer = MAKERS[name](model.parameters())
        step = optimizer.step
        if captured:
            step = optimize(lambda step=step: step(), lambda c, _: executor(c), fullgraph=True)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(4, 3)).square().sum().backward()
            step()
        state = [item for values in optimizer.state.values() for item in values.values()]
        outcomes.append([*model.parameters(), *[item for item in state if isinstance(item, torch.Tensor)]])
    for expected, found in zip(*outcomes, strict=True):
        torch.testing.assert_close(found, expected, rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("name", ["momentum", "adam", "adamw, foreach"])
@pytest.mark.parametrize("kind", [nn.Parameter, lambda data: data.requires_grad_()], ids=["parameters", "tensors"])
def test_a_step_has_as_many_guards_for_each_parameter(name, kind):
    counts = []
    for number in (4, 8, 12):
        parameters = [kind(torch.ones(3)) for _ in range(number)]
        for parameter in parameters:
            parameter.grad = torch.ones(3)
        captures = []
        step = optimize(MAKERS[name](parameters).step, lambda c, _, to=captures: to.append(c) or executor(c))
        step()
        step()
        counts.append([len(capture.guards) for capture in captures])
    few, more, most = counts
    assert [b - a for a, b in zip(few, more, strict=True)] == [b - a for a, b in zip(more, most, strict=True)]


def test_states_that_become_one_are_seen():
    def outcome(captured):
        parameters = [nn.Parameter(torch.full((3,), float(number))) for number in range(4)]
        for parameter in parameters:
            parameter.grad = parameter.detach() + 1
        optimizer = torch.optim.SGD(parameters, 0.1, momentum=0.9)
        captures = []
        step = optimizer.step
        if captured:
            step = optimize(step, lambda c, _: captures.append(c) or executor(c))
        for _ in range(3):
            step()
        states = list(optimizer.state.values())
        states[3]["momentum_buffer"] = states[1]["momentum_buffer"]
        step()
        parameters[2].grad = parameters[0].grad
        step()
        return [parameter.detach() for parameter in parameters], len(captures)

    (expected, _), (found, number) = outcome(False), outcome(True)
    torch.testing.assert_close(found, expected)
    assert number == 3  # the first step, later ones, two buffers as one (gradients are not written)


def test_gradients_of_parameters_that_are_keys_of_the_state_are_dropped():
    model = trained()
    optimizer = torch.optim.Adam(model.parameters(), 0.1, foreach=False)

    def step():
        optimizer.step()
        optimizer.zero_grad()

    captured = optimize(step, lambda c, _: executor(c), fullgraph=True)
    for _ in range(3):
        model(torch.ones(4, 3)).square().sum().backward()
        captured()
        assert [parameter.grad for parameter in model.parameters()] == [None, None]


def test_a_fused_step_ends_the_graph():
    def make():
        model = trained()
        return torch.optim.Adam(model.parameters(), 0.1, fused=True).step, ((), {})

    report = check(make, whole=False)
    assert "BC002" in report.codes


@PROGRAMS.add(trained)
def clipped(model):
    norm = clip_grad_norm_(model.parameters(), 0.5)
    clip_grad_value_(model.parameters(), 0.1)
    return norm, norm * 2


@PROGRAMS.add(trained)
def zeroed(model):
    model.zero_grad()
    return model(torch.ones(1, 3)), [parameter.grad for parameter in model.parameters()]


@PROGRAMS.add(trained, lambda: torch.ones(2, 3))
def gradients_assigned(model, x):
    before = model.weight.grad
    model.weight.grad = x * 2
    model.bias.grad = None
    return before + model.weight.grad, model.bias.grad, model.weight.grad is before


@PROGRAMS.add(trained, lambda: torch.ones(2, 3))
def attributes_of_tensors(model, x):
    if not hasattr(model.weight, "saved"):
        model.weight.saved = model.weight.data.clone()
    x.tag = "seen"
    x.parts = [x * 2]
    y = x + 1
    y.tag = x.tag
    return model.weight.saved * x, x.tag, y, hasattr(y, "parts")


@PROGRAMS.add(trained, refusal="BC008")
def gradient_of_another_shape(model):
    try:
        model.bias.grad = torch.ones(5)
    except RuntimeError as error:
        return str(error)


@PROGRAMS.add(trained, refusal="BC008")
def attribute_that_is_read_only(model):
    try:
        model.weight.shape = 3
    except AttributeError as error:
        return str(error)


@PROGRAMS.add(lambda: torch.ones(3), lambda: torch.ones(3))
def scaled_by_tensors(x, y):
    half = (x * 0.5).sum()
    return (
        x.clone().addcdiv_(x, y, value=half),
        torch.addcmul(x, x, y, value=half),
        x.clone().add_(y, alpha=half),
        x.clone().sub_(y),
        x.addcdiv(x, y, value=2),
    )


@PROGRAMS.add(lambda: torch.ones(3))
def decorated_inside(x):
    @torch.no_grad()
    def doubled(y):
        return y * 2

    @torch.no_grad()
    def parts(y):
        yield y
        yield y * 3

    return doubled(x), list(parts(x))


@pytest.mark.parametrize("program", PROGRAMS, ids=str)
def test_same_as_plain(program):
    program.check()


def test_attributes_of_two_arguments_that_may_be_one():
    def program(a, b):
        a.tag = 1
        b.tag = 2
        return a * a.tag

    call = optimize(program, lambda c, _: executor(c), fullgraph=True)
    assert call(torch.ones(1), torch.ones(1)).item() == 1
    both = torch.ones(1)
    assert call(both, both).item() == 2


def test_a_copy_of_a_model_is_stepped_by_itself():
    model = trained()
    other = copy.deepcopy(model)
    optimizers = [torch.optim.SGD(m.parameters(), 0.5) for m in (model, other)]
    step = optimize(lambda optimizer: optimizer.step(), lambda c, _: executor(c), fullgraph=True)
    before = other.weight.detach().clone()
    for parameter in other.parameters():
        parameter.grad = torch.ones_like(parameter)
    for optimizer in optimizers:
        step(optimizer)
    torch.testing.assert_close(other.weight.detach(), before - 0.5)


BESIDE_TORCH_COMPILE = """
import torch
from bytecap import executor, optimize

weight = torch.ones(3, requires_grad=True)
torch.compile(lambda x: x + 1, backend="eager")(weight)
steps = torch.optim.SGD([weight], lr=0.5, momentum=0.9), torch.optim.Adam([weight])
for optimizer in steps:
    call = optimize(lambda: optimizer.step(), lambda capture, inputs: executor(capture), fullgraph=True)
    for _ in range(2):
        weight.grad = torch.ones(3)
        call()
"""


def test_marks_that_torch_compile_puts_on_optimizers_are_not_ours():
    """It does so in the whole process, the first time that it is used."""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", BESIDE_TORCH_COMPILE], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
