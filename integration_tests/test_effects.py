"""After a compiled call everything stands as eager leaves it: values, types, memory, versions, history, gradients."""

from __future__ import annotations

import warnings

import pytest
import torch

import stagefold
from aotgrad.testing.effect_programs import ALIASED, PROGRAMS, RUN_PLAIN
from aotgrad.testing.effects import differences, observe
from stagefold.errors import RunsPlain


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_compiled_program_leaves_what_eager_leaves(name: str) -> None:
    program, make = PROGRAMS[name]
    call = stagefold.compile(program, fullgraph=True)
    expected = observe(program, make)
    assert differences(expected, observe(call, make)) == []
    assert differences(expected, observe(call, make)) == [], "the second call"


@pytest.mark.parametrize("name", ALIASED)
def test_inputs_that_share_memory_run_plain(name: str) -> None:
    program, make = ALIASED[name]
    call = stagefold.compile(program, fullgraph=True)
    with pytest.warns(RunsPlain):
        found = observe(call, make)
    assert differences(observe(program, make), found) == []


def test_the_same_program_is_compiled_for_inputs_that_do_not() -> None:
    program, make = ALIASED["two overlapping slices"]
    call = stagefold.compile(program, fullgraph=True)

    def apart() -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        return [x.clone() for x in make()[0]], []

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert differences(observe(program, apart), observe(call, apart)) == []
    with pytest.warns(RunsPlain):
        assert differences(observe(program, make), observe(call, make)) == []


@pytest.mark.filterwarnings("ignore::stagefold.errors.RunsPlain", "ignore:runs plain")
def test_a_write_that_torch_refuses_for_overlapping_operands_is_refused_as_by_torch() -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        y.add_(x)
        return x * y

    left = []
    for function in (program, stagefold.compile(program)):
        memory = torch.ones(4)
        with pytest.raises(RuntimeError, match="single memory location"):
            function(memory[:3], memory[1:])
        left.append(memory.tolist())
    assert left[0] == left[1]


@pytest.mark.filterwarnings("ignore:runs plain")
@pytest.mark.parametrize("name", RUN_PLAIN)
def test_what_no_graph_can_say_runs_plain(name: str) -> None:
    program, make = RUN_PLAIN[name]
    assert differences(observe(program, make), observe(stagefold.compile(program), make)) == []


class MakesItsLayer(torch.nn.Module):
    """Makes its layer in the first call, and a scale in each."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = None

    def forward(self, x):
        if self.layer is None:
            self.layer = torch.nn.Linear(x.shape[-1], 3)
        return self.layer(x) * torch.nn.Parameter(torch.full((3,), 2.0))


def test_parameters_made_in_the_forward_are_trained() -> None:
    outcomes = []
    for wrap in (lambda module: module, lambda module: stagefold.compile(module, fullgraph=True)):
        torch.manual_seed(4)
        module = MakesItsLayer()
        call = wrap(module)
        losses = []
        for _ in range(3):
            loss = call(torch.ones(2, 5)).square().sum()
            loss.backward()
            losses.append(loss.detach())
        outcomes.append([*losses, *[parameter.grad for parameter in module.parameters()]])
    for expected, found in zip(*outcomes, strict=True):
        torch.testing.assert_close(found, expected)


def test_a_copied_input_may_be_written_before_the_backward() -> None:
    def scores(x: torch.Tensor, queue: torch.Tensor) -> torch.Tensor:
        return (x @ queue.clone().detach()).tanh()

    gradients = []
    for call in (scores, stagefold.compile(scores, fullgraph=True)):
        torch.manual_seed(0)
        x, queue = torch.randn(3, 4, requires_grad=True), torch.randn(4, 12)
        result = call(x, queue)
        queue[:, :2] = 1.0
        result.sum().backward()
        gradients.append(x.grad)
    torch.testing.assert_close(*gradients)
