"""Steps of optimizers, compiled: parameters, states and version counters as in eager."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import stagefold
from integration_tests.zoo.devices import DEVICES, NEEDS_GPU
from integration_tests.zoo.traces import traced
from stagewire.program import CallExtern, Launch

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adam": lambda p: torch.optim.Adam(p, lr=1e-2, foreach=True),
    "adam, one by one": lambda p: torch.optim.Adam(p, lr=1e-2, foreach=False),
    "adamw, amsgrad": lambda p: torch.optim.AdamW(p, lr=1e-2, amsgrad=True, foreach=True),
    "adamw, maximize": lambda p: torch.optim.AdamW(p, lr=1e-2, maximize=True, foreach=True, weight_decay=0.1),
    "sgd": lambda p: torch.optim.SGD(p, lr=1e-2),
    "sgd, momentum": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9, nesterov=True, foreach=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-2, centered=True, foreach=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-2, foreach=True),
    "nadam": lambda p: torch.optim.NAdam(p, lr=1e-2, foreach=True),
    "adamax": lambda p: torch.optim.Adamax(p, lr=1e-2, foreach=True),
    "adadelta": lambda p: torch.optim.Adadelta(p, lr=1e-2, foreach=True),
}
ON_A_GPU: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adam, capturable": lambda p: torch.optim.Adam(p, lr=1e-2, foreach=True, capturable=True),
    "adamw, a rate on the CPU": lambda p: torch.optim.AdamW(p, lr=torch.tensor(1e-2)),
    "adamw, a rate on the GPU": lambda p: torch.optim.AdamW(p, lr=torch.tensor(1e-2).cuda(), capturable=True),
}
SIZES = ((64, 33), (64,), (1,), (0, 3), (40, 16), (16,), (24, 16, 3, 3), (7,))


def check(make: Callable[..., torch.optim.Optimizer], device: str, dtype: torch.dtype, steps: int = 5) -> None:
    torch.manual_seed(0)
    eager = [nn.Parameter(torch.randn(size).to(device, dtype)) for size in SIZES]
    ours = copy.deepcopy(eager)
    first, second = make(eager), make(ours)
    step = stagefold.compile(second.step)
    for number in range(steps):
        for a, b in zip(eager, ours, strict=True):
            a.grad = torch.randn_like(a) * (number + 1)
            b.grad = a.grad.clone()
        first.step()
        step()
        torch.testing.assert_close(ours, eager)
        assert [p._version for p in ours] == [p._version for p in eager]
    for a, b in zip(eager, ours, strict=True):
        torch.testing.assert_close(dict(second.state[b]), dict(first.state[a]))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps(name: str, device: str) -> None:
    check(OPTIMIZERS[name], device, torch.float32)


@pytest.mark.gpu
@NEEDS_GPU
@pytest.mark.parametrize("name", ON_A_GPU)
def test_numbers_of_a_step(name: str) -> None:
    """Step counts and rates that lie on the GPU, or as tensors on the CPU."""
    check(ON_A_GPU[name], "cuda", torch.float32)


@pytest.mark.parametrize("device", DEVICES)
def test_clipped_gradients(device: str) -> None:
    torch.manual_seed(0)
    eager = [nn.Parameter(torch.randn(size).to(device)) for size in SIZES]
    ours = copy.deepcopy(eager)

    def stepper(parameters: list[nn.Parameter]) -> Callable[[], Tensor]:
        optimizer = torch.optim.AdamW(parameters, lr=1e-2, foreach=True)

        def step() -> Tensor:
            norm = nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            return norm

        return step

    first, second = stepper(eager), stagefold.compile(stepper(ours))
    for _ in range(4):
        for a, b in zip(eager, ours, strict=True):
            a.grad = torch.randn_like(a)
            b.grad = a.grad.clone()
        torch.testing.assert_close(second(), first())
        torch.testing.assert_close(ours, eager)


@pytest.mark.gpu
@NEEDS_GPU
def test_one_kernel_a_parameter_and_few_launches(tmp_path: Path) -> None:
    """What is computed of step counts on the CPU is given to kernels by value, and small ones share launches."""
    parameters = [nn.Parameter(torch.randn(64, n + 1, device="cuda")) for n in range(60)]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    step = stagefold.compile(torch.optim.AdamW(parameters, foreach=True).step, options={"trace_dir": str(tmp_path)})
    for _ in range(3):
        step()
    units = [program.forward for program in traced(tmp_path, "program")]
    assert units
    for unit in units:
        assert not [one for one in unit.instructions if isinstance(one, CallExtern)]
        assert sum(isinstance(one, Launch) and one.kernel.startswith("kernel") for one in unit.instructions) < 10


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.int64, torch.float32, torch.float64, torch.bfloat16, torch.bool], ids=str)
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_numbers_on_the_cpu_beside_tensors(dtype: torch.dtype, device: str, mode: str) -> None:
    """A 0-dim tensor on the CPU may stand beside tensors of a GPU, and is another number at the next call."""

    def program(x: Tensor, n: Tensor) -> tuple[Tensor, ...]:
        m = n + 1 if n.dtype != torch.bool else n
        return x * n, torch.where(x > 0, x, n), (x + m).sum(), m, (x + n) / (n + 2)

    fast = stagefold.compile(program, mode=mode)
    for number in (3, 0, 1, 5, 3):
        x, n = torch.randn(33, 7, device=device), torch.tensor(number, dtype=dtype)
        torch.testing.assert_close(fast(x, n), program(x, n))
