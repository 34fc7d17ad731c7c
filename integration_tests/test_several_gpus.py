"""Programs on the second of two GPUs, and on both at once."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import stagefold
from codegen.runtime.triton_loader import TritonWrapper
from integration_tests.zoo.devices import TWO_GPUS

pytestmark = TWO_GPUS
MODES = ["default", "reduce-overhead"]


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 8), nn.Softmax(-1))


def step(run, net: nn.Module, x: Tensor) -> list[Tensor]:
    net.zero_grad()
    y = run(x)
    y.square().sum().backward()
    return [y.detach().clone(), *(p.grad.clone() for p in net.parameters())]


@pytest.mark.parametrize("mode", MODES)
def test_the_second_gpu_while_the_first_is_current(mode: str) -> None:
    net = network().to("cuda:1")
    fast = stagefold.compile(net, mode=mode)
    for _ in range(4):
        x = torch.randn(64, 16, device="cuda:1")
        torch.testing.assert_close(step(fast, net, x), step(net, net, x), rtol=1e-4, atol=1e-5)
        assert torch.cuda.current_device() == 0


@pytest.mark.parametrize("mode", MODES)
def test_one_function_on_both(mode: str) -> None:
    fast = stagefold.compile(lambda x: torch.softmax(x * 2, -1).cumsum(0), mode=mode)
    for device in ("cuda:0", "cuda:1") * 3:
        x = torch.randn(300, 70, device=device)
        y = fast(x)
        assert y.device == x.device
        torch.testing.assert_close(y, torch.softmax(x * 2, -1).cumsum(0), rtol=1e-4, atol=1e-5)


class Pipeline(nn.Module):
    """The second half lies on the second GPU; the statistics of both come back to the first."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = network().to("cuda:0"), nn.Linear(8, 8).to("cuda:1")

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        z = torch.relu(self.second(y.to("cuda:1")))
        return (z.to("cuda:0") + y).sin()


@pytest.mark.parametrize("mode", MODES)
def test_a_model_on_two(mode: str) -> None:
    net = Pipeline()
    fast = stagefold.compile(net, mode=mode)
    for _ in range(4):
        x = torch.randn(64, 16, device="cuda:0")
        torch.testing.assert_close(step(fast, net, x), step(net, net, x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("busy", [0, 1])
@pytest.mark.parametrize("mode", MODES)
def test_a_model_on_two_of_which_one_is_behind(mode: str, busy: int) -> None:
    net = Pipeline()
    fast = stagefold.compile(net, mode=mode)
    for _ in range(4):
        x = torch.randn(64, 16, device="cuda:0")
        expected = step(net, net, x)
        with torch.cuda.device(busy):
            torch.cuda._sleep(50_000_000)
        torch.testing.assert_close(step(fast, net, x), expected, rtol=1e-4, atol=1e-5)


class Halves(nn.Module):
    """Enough launches on each GPU to be recorded; a view of what the first one makes, a buffer that is written, and
    random numbers of both."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = (
            nn.Sequential(*[nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16), nn.GELU()) for _ in range(4)]).to(device)
            for device in ("cuda:0", "cuda:1")
        )
        self.register_buffer("calls", torch.zeros((), device="cuda:1"))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.first(torch.dropout(x, 0.2, self.training))
        self.calls += 1
        z = self.second(torch.dropout(y.to("cuda:1"), 0.2, self.training)) * self.calls
        return z.to("cuda:0") + y, y.t()


def of_halves(run: Any, net: Halves, x: Tensor) -> list[Tensor]:
    torch.manual_seed(1)
    net.zero_grad()
    y, side = run(x)
    (y.square().sum() + side.sin().sum()).backward()
    return [y.detach(), side.detach(), *(p.grad.clone() for p in net.parameters())]


@pytest.mark.parametrize("dynamic", [False, True])
def test_each_half_is_recorded(recorded: list[dict[str, int]], dynamic: bool) -> None:
    """Forward and backward, on both GPUs; what is held stays what it was."""
    net, exact = Halves(), Halves()
    fast = stagefold.compile(net, mode="reduce-overhead", dynamic=dynamic)
    held = []
    for rows in (64, 64, 32, 64, 64, 64, 32, 32) if dynamic else (64,) * 6:
        x = torch.randn(rows, 16, device="cuda:0")
        held.append((of_halves(fast, net, x), of_halves(exact, exact, x)))
    for found, expected in held:
        for one, other in zip(found, expected, strict=True):  # gradients are sums of numbers that are much larger
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4 * other.abs().max().item())
    torch.testing.assert_close(net.calls, exact.calls)
    assert len(recorded) >= 4


def test_inference_of_halves_is_two_replays(monkeypatch: pytest.MonkeyPatch) -> None:
    net, replays = Halves().eval(), []
    fast = stagefold.compile(net, mode="reduce-overhead")
    replay = torch.cuda.CUDAGraph.replay
    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", lambda graph: (replays.append(graph), replay(graph))[1])
    with torch.no_grad():
        for _ in range(5):
            del replays[:]
            x = torch.randn(64, 16, device="cuda:0")
            found, net.calls = fast(x), net.calls - 1
            torch.testing.assert_close(found, net(x), rtol=1e-4, atol=1e-5)
            net.calls -= 1
    assert len(replays) == 2


def test_kernels_of_a_model_on_two_are_not_launched_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Any, *of_the_kernel: Any) -> None:
        raise AssertionError("launched from Python")

    monkeypatch.setattr(TritonWrapper, "launch", refuse)
    net = Pipeline()
    fast = stagefold.compile(net)
    x = torch.randn(64, 16, device="cuda:0")
    torch.testing.assert_close(step(fast, net, x), step(net, net, x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("busy", [0, 1])
def test_sizes_that_change_on_two(busy: int) -> None:
    net = Pipeline()
    fast = stagefold.compile(net, dynamic=True)
    for rows in (64, 3, 130, 64):
        x = torch.randn(rows, 16, device="cuda:0")
        expected = step(net, net, x)
        with torch.cuda.device(busy):
            torch.cuda._sleep(50_000_000)
        torch.testing.assert_close(step(fast, net, x), expected, rtol=1e-4, atol=1e-5)


def test_numbers_on_each_device() -> None:
    fast = stagefold.compile(lambda *numbers: [number + 1 for number in numbers], fullgraph=True)
    numbers = [torch.tensor(k, device=device) for k, device in enumerate(("cpu", "cuda:0", "cuda:1") * 2)]
    found = fast(*numbers)
    assert [(one.device, one.item()) for one in found] == [(one.device, one.item() + 1) for one in numbers]


def test_dropout_draws_the_numbers_of_its_own_gpu() -> None:
    fast = stagefold.compile(lambda x: torch.dropout(x * 2, 0.5, True))
    for device in ("cuda:1", "cuda:0", "cuda:1"):
        x = torch.randn(1000, device=device)
        torch.manual_seed(3)
        found = [fast(x), fast(x)]
        torch.manual_seed(3)
        torch.testing.assert_close(found, [torch.dropout(x * 2, 0.5, True) for _ in range(2)])


def test_the_device_of_a_with_block() -> None:
    def program(n: int) -> Tensor:
        with torch.cuda.device(1):
            y = torch.arange(n, device="cuda")
        return y * 2

    fast = stagefold.compile(program)
    y = fast(7)
    assert y.device == torch.device("cuda:1")
    assert y.tolist() == [0, 2, 4, 6, 8, 10, 12]
    assert torch.cuda.current_device() == 0


def test_threads_with_a_gpu_each() -> None:
    nets = [network().to(f"cuda:{i}") for i in range(2)]
    fast = [stagefold.compile(net) for net in nets]
    wrong: list[object] = []

    def work(i: int) -> None:
        try:
            torch.cuda.set_device(i)
            for _ in range(20):
                x = torch.randn(64, 16, device="cuda")
                torch.testing.assert_close(step(fast[i], nets[i], x), step(nets[i], nets[i], x), rtol=1e-4, atol=1e-5)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert not wrong


@pytest.mark.filterwarnings("ignore")
def test_data_parallel() -> None:
    """`nn.DataParallel` copies the module for each GPU at every call, and runs the copies in threads."""
    net = network().cuda()
    x = torch.randn(64, 16, device="cuda")
    expected = step(nn.DataParallel(net), net, x)
    torch.testing.assert_close(step(stagefold.compile(nn.DataParallel(net)), net, x), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(step(nn.DataParallel(stagefold.compile(net)), net, x), expected, rtol=1e-4, atol=1e-5)
