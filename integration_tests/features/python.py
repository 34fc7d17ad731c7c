"""Python in a program, and what it does to objects outside."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import functools
import itertools
import logging
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from integration_tests.features.probe import Probes, matrix

probes = Probes("Python")
Pair = namedtuple("Pair", "first second")
SEEN: list[int] = []
COUNTS: dict[str, int] = {"calls": 0}


class Color(enum.Enum):
    RED = 1
    BLUE = 2


@dataclasses.dataclass
class Settings:
    scale: float = 2.0
    names: list[str] = dataclasses.field(default_factory=list)


@probes("dataclasses and named tuples", trains=True)
def records(x: Tensor) -> Any:
    settings = dataclasses.replace(Settings(), scale=3.0)
    pair = Pair(x * settings.scale, second=x.sum())
    return pair._replace(first=pair.first + 1)


@probes("generators", trains=True)
def generators(x: Tensor) -> Tensor:
    def rows(start: int) -> Any:
        for number in range(start, 3):
            sent = yield x[number]
            assert sent is None
        yield from (x[3], x[4])

    return torch.stack(list(rows(1)))


@probes("match statements and enums")
def matching(x: Tensor) -> Tensor:
    total = x
    for value in ({"kind": Color.RED, "by": 2}, (1, [2, 3]), Color.BLUE):
        match value:
            case {"kind": Color.RED, "by": by}:
                total = total * by
            case (int() as first, [_, *rest]):
                total = total + first + len(rest)
            case Color.BLUE:
                total = -total
    return total


@probes("try, except, finally and exception groups", outcome="with breaks")
def exceptions(x: Tensor) -> Any:
    said = []
    try:
        try:
            raise ValueError("first")
        except ValueError as error:
            raise KeyError("second") from error
        finally:
            said.append("cleaned")
    except KeyError as error:
        said.append(str(error.__cause__))
    try:
        raise ExceptionGroup("two", [ValueError(1), TypeError(2)])
    except* TypeError:
        said.append("types")
    except* ValueError:
        said.append("values")
    return x + len(said), said


@probes("context managers of the program", trains=True)
def managers(x: Tensor) -> Any:
    entered: list[str] = []

    @contextlib.contextmanager
    def scope(name: str) -> Any:
        entered.append(name)
        try:
            yield len(entered)
        finally:
            entered.append(f"left {name}")

    with scope("a") as first, contextlib.ExitStack() as stack:
        second = stack.enter_context(scope("b"))
        x = x * first + second
    return x, entered


@probes("sets, dicts, deques, counters and heaps")
def containers(x: Tensor) -> Any:
    import heapq

    counts = Counter("abracadabra")
    groups = defaultdict(list)
    for letter, count in counts.items():
        groups[count].append(letter)
    last = deque((1, 2, 3), maxlen=2)
    heap = [5, 1, 4]
    heapq.heapify(heap)
    ordered = OrderedDict(sorted(groups.items()))
    ordered.move_to_end(1)
    return x * heapq.heappop(heap) + sum(last), {*"ab"} & {*"bc"} == {"b"}, list(ordered)


@probes("itertools and functools")
def iterators(x: Tensor) -> Any:
    pairs = list(itertools.combinations(range(4), 2))
    total = functools.reduce(lambda a, b: a + b[0] * b[1], pairs, 0)
    groups = [(key, len(list(group))) for key, group in itertools.groupby("aabbb")]
    return functools.partial(torch.add, x, alpha=total)(1), groups


@probes("a class statement inside")
def class_inside(x: Tensor) -> Tensor:
    class Local:
        factor = 3

        def apply(self, value: Tensor) -> Tensor:
            return value * self.factor

    return Local().apply(x)


@probes("min and max of tensors")
def extrema_of_tensors(x: Tensor) -> Any:
    return max(x[0, 0], x[1, 1]), min(x[:, 0].sum(), x[:, 1].sum())


@probes("text with numbers of tensors' sizes")
def texts(x: Tensor) -> Any:
    return x + 1, f"{x.shape[1]:>4}|{x.dtype}|{1.5:.2f}|{x.dim()!r}"


@probes("a list and a dict outside are written")
def effects() -> Any:
    SEEN.clear()
    COUNTS["calls"] = 0

    def program(x: Tensor) -> Any:
        SEEN.append(x.shape[1])
        COUNTS["calls"] += 1
        return x * COUNTS["calls"], list(SEEN)

    return program, lambda size: (matrix(size),)


@probes("logging, warnings and print")
def speaking(x: Tensor) -> Tensor:
    logging.getLogger(__name__).debug("called with %s", x.shape)
    return x + 1


@probes("recursion with tensors", trains=True)
def recursion(x: Tensor) -> Tensor:
    def power(value: Tensor, count: int) -> Tensor:
        return value if count == 0 else value * power(value, count - 1)

    return power(x, 4)


@probes("modules that keep state")
def state() -> Any:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.calls = 0
            self.register_buffer("mean", torch.zeros(8))

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            self.mean.lerp_(x.mean(0), 0.1)
            return x * self.calls - self.mean

    return Counting(), lambda size: (matrix(size),)


@probes("hooks of modules and tensors", trains=True)
def hooks() -> Any:
    module = nn.Linear(8, 4)
    module.register_forward_hook(lambda module, inputs, output: output * 2)
    module.register_forward_pre_hook(lambda module, inputs: (inputs[0] + 1,))
    return module, lambda size: (matrix(size),)


numpy = Probes("NumPy")


@numpy("arithmetic and reductions")
def array_arithmetic(x: Tensor) -> Any:
    array = x.numpy()
    return np.where(array > 0, np.sin(array), array * 2).mean(axis=0)


@numpy("arrays that the program makes and writes")
def array_writes(x: Tensor) -> Any:
    array = np.zeros((4, 4), dtype=np.float32)
    array[1:3, ::2] = 5
    return torch.from_numpy(array) + x[:4, :4]


@numpy("numbers that arrays give")
def array_numbers(x: Tensor) -> Any:
    array = x.numpy()
    return x * array.mean() + float(array.sum()), int(abs(array).max()) + 1


@numpy("linalg and fft of arrays that data decides")
def array_algebra(x: Tensor) -> Any:
    array = x.numpy()
    return np.linalg.norm(array, axis=1), np.abs(np.fft.rfft(array, axis=1))


@numpy("items of an array from outside are assigned")
def array_outside() -> Any:
    table = np.arange(8, dtype=np.float32)

    def program(x: Tensor) -> Any:
        table[2] = 7
        return x + torch.from_numpy(table)

    return program, lambda size: (matrix(size),)
