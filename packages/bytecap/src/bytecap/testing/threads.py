"""Programs of many threads that call compiled functions: none may hang, and each result is eager's.

`lock`: threads call one function that breaks inside `with lock:`. `crowd`: first calls, recompiles for other dtypes,
ranks and numbers, resets, backwards, exceptions and locks, all at once.

    python -m bytecap.testing.threads lock 10        ten rounds; a traceback of all threads and exit status 1 on a hang
"""

from __future__ import annotations

import faulthandler
import random
import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any

import torch

from bytecap.driver.executor import executor
from bytecap.driver.optimize import optimize
from bytecap.driver.stances import reset

Compile = Callable[[Callable[..., Any]], Callable[..., Any]]


def in_threads(count: int, work: Callable[[int], None]) -> None:
    """Run `work(number)` in that many threads, begun together; raises the first exception of any."""
    errors: list[BaseException] = []
    start = threading.Barrier(count)

    def guarded(number: int) -> None:
        start.wait()
        try:
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def lock(compile_: Compile, seed: int, threads: int = 4, calls: int = 10) -> None:
    """Sums under a lock, with a graph break on both sides of it."""
    guard, total = threading.Lock(), torch.zeros(3)

    def add(x: torch.Tensor) -> torch.Tensor:
        with guard:
            total.add_(x)
            return total.clone()

    def add_some(x: torch.Tensor, count: int) -> torch.Tensor:
        for _ in range(count):
            with guard:
                total.add_(x)
                if total.sum().item() < 0:
                    total.zero_()
        return x + 1

    call, call_some = compile_(add), compile_(add_some)

    def work(number: int) -> None:
        for turn in range(calls):
            if (number + seed) % 2:
                call(torch.ones(3))
            else:
                assert torch.equal(call_some(torch.ones(3), 1 + turn % 2), torch.full((3,), 2.0))

    in_threads(threads, work)
    kinds = [(number + seed) % 2 for number in range(threads)]
    expected = sum(calls if kind else sum(1 + turn % 2 for turn in range(calls)) for kind in kinds)
    assert torch.equal(total, torch.full((3,), float(expected))), (total, expected)


class Refused(Exception):
    """Raised by a program, and expected."""


def _mixed(x: torch.Tensor, scale: Any) -> torch.Tensor:
    y = torch.relu(x) * scale
    if y.sum().item() > 4:
        y = y * 2
    for _ in range(2):
        y = y + 1
        if scale is None:
            raise Refused
    return y.sum(-1) if y.dim() > 1 else y


def _raising(x: torch.Tensor, number: int) -> torch.Tensor:
    if number % 3 == 0:
        raise Refused(number)
    try:
        return [x, x + 1][number]
    except IndexError:
        return x - 1


def _counting(x: torch.Tensor, seen: list[int], guard: threading.Lock) -> torch.Tensor:
    with guard:
        seen.append(len(seen))
        y = x * 2
    return y + 1


def _trained(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
    weight = weight.detach().requires_grad_()
    loss = torch.sin(x @ weight).sum()
    loss.backward()
    return loss.detach(), weight.grad


_INPUTS: tuple[Callable[[], torch.Tensor], ...] = (
    lambda: torch.ones(3),
    lambda: torch.ones(2, 3),
    lambda: torch.ones(2, 2, 3),
    lambda: torch.arange(4),
    lambda: torch.ones(3, dtype=torch.float64),
    lambda: torch.linspace(0, 1, 7),
    lambda: torch.zeros(5),
)
_SCALES = (1, 2, 3, 0.5, True, 7, None, 11)


def _outcome(function: Callable[..., Any], *args: Any) -> Any:
    try:
        return function(*args)
    except Exception as error:
        return type(error), str(error)


def crowd(compile_: Compile, seed: int, threads: int = 64, calls: int = 8) -> None:
    """Threads that share compiled functions, call them with all kinds of arguments, and reset."""
    guard: Any = threading.Lock()
    seen: list[int] = []
    mixed, raising, counting, trained = map(compile_, (_mixed, _raising, _counting, _trained))

    def step(choose: random.Random) -> None:
        match choose.randrange(6):
            case 0 | 1:
                x, scale = choose.choice(_INPUTS)(), choose.choice(_SCALES)
                _check(_outcome(mixed, x, scale), _outcome(_mixed, x, scale))
            case 2:
                x, number = choose.choice(_INPUTS)(), choose.randrange(6)
                _check(_outcome(raising, x, number), _outcome(_raising, x, number))
            case 3:
                _check(counting(torch.ones(3), seen, guard), torch.full((3,), 3.0))
            case 4:
                size = choose.choice((2, 3, 5))
                x, weight = torch.ones(2, size), torch.linspace(0, 1, size).reshape(size, 1)
                _check(trained(x, weight), _trained(x, weight))
            case _:
                if choose.random() < 0.1:
                    reset()

    def work(number: int) -> None:
        choose = random.Random(1000 * seed + number)
        for _ in range(calls):
            step(choose)

    in_threads(threads, work)
    assert seen == [*range(len(seen))]


def _check(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found, expected) if _has_tensors(expected) else _equal(found, expected)


def _has_tensors(value: Any) -> bool:
    return isinstance(value, torch.Tensor) or (isinstance(value, tuple) and isinstance(value[0], torch.Tensor))


def _equal(found: Any, expected: Any) -> None:
    assert found == expected, (found, expected)


PROGRAMS: dict[str, Callable[[Compile, int], None]] = {"lock": lock, "crowd": crowd}


def run(name: str, rounds: int, compile_: Compile, first: int = 0, limit: float = 120.0) -> None:
    """Run rounds of a program, each with functions of its own. first: the seed of the first round.

    limit: the seconds after which a round counts as hung: then all threads' tracebacks are shown and the process ends.
    """
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    sys.setswitchinterval(1e-4)
    for seed in range(first, first + rounds):
        faulthandler.dump_traceback_later(limit, exit=True)
        PROGRAMS[name](compile_, seed)
        faulthandler.cancel_dump_traceback_later()
        reset()
    print(f"{name}: {rounds} rounds")


if __name__ == "__main__":
    run(sys.argv[1], int(sys.argv[2]), lambda function: optimize(function, lambda capture, _: executor(capture)))
