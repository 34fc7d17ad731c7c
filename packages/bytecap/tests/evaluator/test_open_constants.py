"""Numbers, texts and containers from outside that are only counted up, passed on or added to: one capture for all."""

from __future__ import annotations

import collections
import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from bytecap import Broke, Captured, LimitReached, Refused, executor, optimize
from bytecap.testing import differences

CALLS = 12


class Store:
    """What a program changes from call to call."""

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self.label = "a"
        self.items: list[Any] = []
        self.table: dict[Any, Any] = {}
        self.groups: Any = collections.defaultdict(list)
        self.last: Any = collections.deque(maxlen=3)
        self.seen: set[Any] = set()


def count(store, x, n):
    store.count += 1
    return x * 2


def count_down_in_a_loop(store, x, n):
    for _ in range(5):
        store.count -= 2
    store.total = -store.total + n * 0.5
    return x * 2, store.count


def doubled_often(store, x, n):
    total = store.count
    for _ in range(30):
        total = total + total
    store.count = total + 1
    return x * 2, total


def asked_for_its_class(store, x, n):
    store.count += 1
    kinds = isinstance(store.count, int), isinstance(n, float | int), isinstance(store.label, collections.abc.Sequence)
    return x * sum(kinds), inspect.isfunction(n), inspect.isclass(store.count), store.count


def mean(store, x, n):
    store.total += n
    store.items.append(store.total / 4)
    return x * 2


def counted_and_told(store, x, n):
    store.count += 1
    print("step", store.count, f"{store.count:>4}|{n!s}", sep=":")
    return x.relu()


def labels(store, x, n):
    store.label = store.label + "b"
    store.table["label"] = store.label
    return x + 1


def passed_on(store, x, n):
    return x + 1, [n, store.label, {"n": n}], n


def old_and_new(store, x, n):
    before = store.count
    store.count = before + 1
    store.items.extend([before, store.count, before])
    return x + 1, before


def collected(store, x, n):
    store.items.append(x.sum())
    store.items += [x, n]
    store.last.append(x.mean())
    store.last.extend([n, x.max()])
    return store.items[-1], x * 2


def stored(store, x, n):
    store.table["last"] = x.sum()
    store.table.update(n=n, both=(x, n))
    store.groups["all"].append(x)
    store.seen.add("a")
    return x * 2, store.table["last"]


def stored_under_any_key(store, x, n):
    store.table[n] = x.sum()
    store.table[f"{store.label}{n}"] = x
    store.table[n * 2.5] = n
    return x * 2


def stored_and_deleted(store, x, n):
    store.table["gone"] = x
    del store.table["gone"]
    store.extra = n
    del store.extra
    return x * 2


PROGRAMS: dict[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (
        count, count_down_in_a_loop, doubled_often, mean, counted_and_told, labels, passed_on, old_and_new, collected,
        stored, stored_under_any_key, stored_and_deleted, asked_for_its_class,
    )
}  # fmt: skip


def run(
    program: Callable[..., Any], numbers: list[Any], capsys: pytest.CaptureFixture[str], calls: int = CALLS
) -> list[Any]:
    """Call plain and captured, each on a store of its own; returns the events."""
    events: list[Any] = []
    captured = optimize(program, lambda capture, inputs: executor(capture), on_event=events.append)
    stores = Store(), Store()
    for number in range(calls):
        results, texts = [], []
        for store, function in zip(stores, (program, captured), strict=True):
            results.append(function(store, torch.arange(3.0) + number, numbers[number % len(numbers)]))
            texts.append(capsys.readouterr().out)
        assert texts[0] == texts[1]
        assert not differences(results[0], results[1]), number
        assert not differences(vars(stores[0]), vars(stores[1])), number
    return events


@pytest.mark.parametrize("name", PROGRAMS)
def test_one_capture_serves_all_calls(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    events = run(PROGRAMS[name], [3, 5, 7, -2, 2**70], capsys)
    made = [event for event in events if isinstance(event, Captured)]
    assert [type(event) for event in events] == [Captured] * len(made)
    # The default of a defaultdict is made in the first call alone.
    assert len(made) <= (2 if name == "stored" else 1), [event.reason for event in made]


def branches_on_count(store, x, n):
    store.count += 1
    if store.count % 4 == 0:
        return x * 3
    return x + store.count


def looks_at_length(store, x, n):
    store.items.append(x)
    return x * len(store.items)


def iterates(store, x, n):
    store.items.append(n)
    return x * sum(store.items)


def memo(store, x, n):
    key = f"k{n}"
    if key not in store.table:
        store.table[key] = x * n
    return store.table[key] + 1


def stored_and_looked_at(store, x, n):
    store.table[n] = x
    store.table["other"] = x + 1
    return store.table[n] * len(store.table)


def looks_at_set(store, x, n):
    store.seen.add(n)
    return x * len(store.seen), n in store.seen


def list_in_itself(store, x, n):
    store.items.extend(store.items[:1])
    store.items.append(x)
    store.items.insert(0, n)
    store.last.appendleft(n)
    return len(store.items)


@pytest.mark.parametrize(
    "program", [branches_on_count, looks_at_length, iterates, memo, stored_and_looked_at, looks_at_set, list_in_itself],
    ids=lambda program: program.__name__,
)  # fmt: skip
def test_what_is_used_is_guarded_and_left_open_in_the_end(
    program: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    events = run(program, list(range(20)), capsys, calls=20)
    assert not [event for event in events if isinstance(event, LimitReached)]
    assert {event.error.code for event in events if isinstance(event, Broke)} <= {"BC016"}


def test_two_lists_that_become_one() -> None:
    def program(x, a, b):
        a.append(x)
        b.append(x + 1)
        return x * len(a)

    captured = optimize(program, lambda capture, inputs: executor(capture))
    for same in (False, True):
        lists: list[Any] = []
        for function in (program, captured):
            a: list[Any] = []
            b = a if same else []
            lists.append((function(torch.ones(2), a, b), a, b))
        assert not differences(*lists)


class Metric(nn.Module):
    """Its states are attributes that are set by name, as torchmetrics does it."""

    def __init__(self) -> None:
        super().__init__()
        self.names = [f"state{number}" for number in range(12)]
        for name in self.names:
            setattr(self, name, torch.zeros(3))

    def __setattr__(self, name, value):
        if name in ("higher_is_better", "is_differentiable"):
            raise RuntimeError(f"cannot change {name}")
        super().__setattr__(name, value)

    def forward(self, x):
        for name in self.names:
            setattr(self, name, getattr(self, name) + x)
        return self.reset() if x.sum().item() > 6 else self.state0

    def reset(self):
        for name in self.names:
            setattr(self, name, torch.zeros(3))
        return self.state3


def test_a_callee_without_tensor_work_is_called_with_many_constants() -> None:
    events: list[Any] = []
    metrics = Metric(), Metric()
    captured = optimize(metrics[1], lambda capture, inputs: executor(capture), on_event=events.append)
    for number in range(6):
        x = torch.arange(3.0) + number
        assert not differences(metrics[0](x), captured(x))
    assert not differences(metrics[0].state5, metrics[1].state5)
    assert not [event for event in events if isinstance(event, LimitReached)]


def test_a_plain_callee_with_many_constants_is_left_alone() -> None:
    class Registry:
        def register(self, name, function):
            if name is None or function is None:
                raise KeyError(name)
            self.last = self.find(name)

        def find(self, name):
            return getattr(self, name, None)

    registry = Registry()

    def program(x, name):
        if x.sum().item() < 0:
            return x
        registry.register(name, len)
        return x * 2

    events: list[Any] = []
    captured = optimize(program, lambda capture, inputs: executor(capture), on_event=events.append)
    for number in range(20):
        assert captured(torch.ones(2) * number, f"n{number}").tolist() == [number * 2.0] * 2
    assert not [event for event in events if isinstance(event, LimitReached)]


def test_a_plain_callee_that_refused_a_changing_name_is_left_alone() -> None:
    class Record(collections.OrderedDict):
        def __init__(self, **values):
            super().__init__()
            for name, value in values.items():
                self[name] = value

        def __setitem__(self, name, value):
            super().__setitem__(name, value)
            super().__setattr__(name, value)

    def program(x):
        values = {f"n{number}": (x + number).reshape((1,) * max(number - 4, 0) + (-1,)) for number in range(16)}
        return Record(**values) if x.sum().item() >= 0 else x

    events: list[Any] = []
    captured = optimize(program, lambda capture, inputs: executor(capture), on_event=events.append)
    for number in range(3):
        assert not differences(program(torch.ones(2) * number), captured(torch.ones(2) * number))
    assert "BC016" in {event.error.code for event in events if isinstance(event, Refused)}
    assert not [event for event in events if isinstance(event, LimitReached)]
