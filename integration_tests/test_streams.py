"""Streams and events of a GPU in one graph: what is queued where, what waits for what, and results.

Without a GPU, streams stand in that only write down what is asked of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import stagefold
from bytecap.errors import CannotCapture
from bytecap.nodes import call_arguments, streams
from integration_tests.zoo.devices import ON_GPU, TWO_GPUS

pytestmark = pytest.mark.filterwarnings("error::stagefold.errors.RunsPlain")
current_stream = torch.cuda.current_stream


class Stream(torch.Stream):
    """A stream of the CPU that writes down what is asked of it."""

    log: list[str]
    name: str

    def wait_stream(self, other: Any) -> None:
        self.log.append(f"{self.name} waits for {other.name}")

    def synchronize(self) -> None:
        self.log.append(f"the host waits for {self.name}")


class Event(torch.Event):
    log: list[str]
    name: str

    def record(self, stream: Any = None) -> None:
        self.log.append(f"{self.name} behind {stream.name}")

    def wait(self, stream: Any = None) -> None:
        self.log.append(f"{stream.name} waits for {self.name}")


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What is asked of stand-ins: a stream `main` is the current one."""
    log: list[str] = []
    now = [made(Stream, "main", log)]
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: now[0])

    def set_to(stream: Any) -> None:
        log.append(f"on {stream.name}")
        now[0] = stream

    monkeypatch.setattr(torch.cuda, "set_stream", set_to)
    monkeypatch.setattr(call_arguments, "current_gpu", lambda tracer: torch.device("cuda", 0))
    monkeypatch.setattr(streams, "current_gpu", lambda tracer: torch.device("cuda", 0))
    yield log
    assert now[0].name == "main"


def made(kind: Any, name: str, log: list[str]) -> Any:
    found = kind(device="cpu")
    found.name, found.log = name, log
    return found


def test_what_is_asked_of_streams_is_asked_in_order(log: list[str]) -> None:
    side, event = made(Stream, "side", log), made(Event, "event", log)

    def program(x: Tensor) -> Tensor:
        y = x.sin() * 2
        event.record(current_stream())
        with side:
            side.wait_event(event)
            z = y.cos() + 1
            event.record()
        event.wait()
        side.wait_stream(current_stream())
        side.synchronize()
        return (z * y).exp() - 1

    compiled = stagefold.compile(program, fullgraph=True)
    for rows in (3, 5, 3):
        x = torch.randn(rows, 4, requires_grad=True)
        del log[:]
        found = compiled(x)
        y = x.sin() * 2
        expected = ((y.cos() + 1) * y).exp() - 1
        torch.testing.assert_close(found, expected)
        gradients = [torch.autograd.grad(result.sum(), x)[0] for result in (found, expected)]
        torch.testing.assert_close(*gradients)
        assert log == [
            "event behind main", "on side", "side waits for event", "event behind side", "on main",
            "main waits for event", "side waits for main", "the host waits for side",
        ]  # fmt: skip


def test_an_error_leaves_the_stream_that_was_current(log: list[str]) -> None:
    side = made(Stream, "side", log)

    def program(x: Tensor, index: Tensor) -> Tensor:
        with side:
            y = x.exp()[index] + 1
        return y * 2

    compiled = stagefold.compile(program, fullgraph=True)
    compiled(torch.ones(3), torch.tensor([1]))
    with pytest.raises(IndexError):
        compiled(torch.ones(3), torch.tensor([7]))
    assert log[-1] == "on main"


def test_what_may_not_be_in_a_graph(log: list[str]) -> None:
    side = made(Stream, "side", log)

    def escapes(x: Tensor) -> Any:
        return x + 1, torch.Event(device="cpu")

    def asks(x: Tensor) -> Tensor:
        return x + 1 if side.query() else x - 1

    def inside(x: Tensor) -> Tensor:
        def branch(v: Tensor) -> Tensor:
            side.synchronize()
            return v + 1

        return torch.cond(x.sum() > 0, branch, torch.sin, (x,))

    for program in (escapes, asks, inside):
        with pytest.raises(CannotCapture):
            stagefold.compile(program, fullgraph=True)(torch.ones(3))


# ---- on a GPU


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 64)).cuda()


def side_by_side(x: Tensor, net: nn.Module, side: Any) -> Tensor:
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        slow = x @ x.t()
        for _ in range(30):
            slow = slow @ slow * 0
        y = net(x + slow.sum()) * 2
    z = x.softmax(-1) + 1
    torch.cuda.current_stream().wait_stream(side)
    return (y + z).sin() * z


def made_inside(x: Tensor, net: nn.Module, side: Any) -> Tensor:
    own = torch.cuda.Stream()
    own.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(own):
        y = net(x).cos()
    torch.cuda.current_stream().wait_stream(own)
    return y.exp() + x


def by_events(x: Tensor, net: nn.Module, side: Any) -> Tensor:
    ready, y = torch.cuda.Event(), x * 2 + 1
    ready.record()
    with torch.cuda.stream(side):
        ready.wait()
        z = net(y) + y
        done = side.record_event()
    w = y.cos() * 3
    done.wait(torch.cuda.current_stream())
    z.record_stream(torch.cuda.current_stream())
    return z * w


def to_the_host(x: Tensor, net: nn.Module, side: Any) -> Tensor:
    y = net(x).relu() + 1
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        z = (y * 2).to("cpu", non_blocking=True)
    side.synchronize()
    return z.sin() + 1


def generic(x: Tensor, net: nn.Module, side: Any) -> Tensor:
    other = torch.Stream(device="cuda")
    other.wait_stream(torch.accelerator.current_stream())
    with other:
        y = net(x) - 1
    torch.accelerator.current_stream().wait_stream(other)
    torch.cuda.synchronize()
    return y * y.mean()


PROGRAMS = [side_by_side, made_inside, by_events, to_the_host, generic]


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize("program", [pytest.param(each, marks=ON_GPU, id=each.__name__) for each in PROGRAMS])
def test_as_eager(program: Callable[..., Tensor], mode: str) -> None:
    net, side = model(), torch.cuda.Stream()
    compiled = stagefold.compile(lambda x: program(x, net, side), fullgraph=True, mode=mode)
    for rows in (128, 128, 128, 77, 128):
        found = []
        x = torch.randn(rows, 64, device="cuda")
        for run in (compiled, lambda x: program(x, net, side)):
            given = x.clone().requires_grad_()
            net.zero_grad()
            y = run(given)
            y.square().mean().backward()
            found.append((y, given.grad, [p.grad for p in net.parameters()]))
        torch.testing.assert_close(*found, rtol=1e-3, atol=1e-4)
        assert torch.cuda.current_stream() == torch.cuda.default_stream()


@pytest.mark.parametrize("program", [pytest.param(each, marks=ON_GPU, id=each.__name__) for each in PROGRAMS])
def test_with_breaks_as_before(program: Callable[..., Tensor]) -> None:
    net, side = model(), torch.cuda.Stream()
    compiled = stagefold.compile(lambda x: program(x, net, side))
    for _ in range(3):
        x = torch.randn(32, 64, device="cuda")
        torch.testing.assert_close(compiled(x), program(x, net, side), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("second", [pytest.param("cuda:1", marks=TWO_GPUS)])
def test_a_stream_of_another_gpu(second: str) -> None:
    """It may be waited for; entering it changes the current GPU, and ends a graph."""
    side = torch.cuda.Stream(second)

    def enters(x: Tensor) -> Tensor:
        with torch.cuda.stream(side):
            side.wait_stream(torch.cuda.current_stream(0))
            y = x.to(second).sin() * 2
        torch.cuda.current_stream(0).wait_stream(side)
        return y.to(x.device) + x

    def waits(x: Tensor) -> Tensor:
        y = x * 2 + 1
        torch.cuda.current_stream().wait_stream(side)
        side.wait_stream(torch.cuda.current_stream())
        return y.cos() - x

    with pytest.raises(CannotCapture):
        stagefold.compile(enters, fullgraph=True)(torch.ones(3, device="cuda:0"))
    for program, whole in ((enters, False), (waits, True)):
        compiled = stagefold.compile(program, fullgraph=whole)
        for _ in range(3):
            x = torch.randn(1000, device="cuda:0")
            torch.testing.assert_close(compiled(x), program(x))
