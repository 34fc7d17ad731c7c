"""Which objects are one object: asked by `is`, id(), hash(), as keys and in sets, before and after that changes."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch

from bytecap import executor, optimize
from bytecap.errors import CannotCapture
from bytecap.testing import differences


class Plain:
    def method(self) -> int:
        return 1


def local_functions() -> tuple[Any, Any]:
    return tuple((lambda number=number: number) for number in (1, 2))  # type: ignore[return-value]


OWNERS = Plain(), Plain()
PAIRS: dict[str, tuple[Any, Any]] = {
    "objects": OWNERS,
    "lists": ([1], [1]),
    "locks": (threading.Lock(), threading.Lock()),
    "iterators": (iter([1]), iter([1])),
    "numbers of numpy": (numpy.float64(2.0), numpy.float64(3.0)),
    "references": (weakref.ref(OWNERS[0]), weakref.ref(OWNERS[1])),
    "bytearrays": (bytearray(b"1"), bytearray(b"1")),
    "functions": local_functions(),
    "methods": (OWNERS[0].method, OWNERS[1].method),
    "tensors": (torch.ones(2), torch.ones(2)),
    "modules": (torch.nn.ReLU(), torch.nn.ReLU()),
    "ints": (2**70, 2**71),
    "nothing": (None, True),
}
QUESTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "is": lambda p, q: p is q,
    "equal": lambda p, q: p is q or (not isinstance(p, torch.Tensor) and p == q),
    "id": lambda p, q: id(p) == id(q),
    "id in a set": lambda p, q: id(p) in {id(q)},
    "id in a list": lambda p, q: id(p) in [id(q)],
    "key": lambda p, q: p in {q: 1},
    "hash": lambda p, q: hash(p) == hash(q),
    "hash of a tuple": lambda p, q: hash((p, 1)) == hash((q, 1)),
    "set": lambda p, q: len({p, q}) == 1,
}


def outcome(function: Callable[..., Any], *args: Any) -> Any:
    try:
        return function(*args)
    except Exception as error:
        return type(error)


@pytest.mark.parametrize("asked", QUESTIONS)
@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.filterwarnings("ignore::bytecap.CaptureWarning")
def test_one_object_or_two(name, asked):
    question, (one, other) = QUESTIONS[asked], PAIRS[name]

    def program(x: torch.Tensor, p: Any, q: Any) -> torch.Tensor:
        return x + (1 if question(p, q) else 2)

    x = torch.ones(3)
    calls = [(one, other), (one, one), (other, one), (other, other)]
    for order in (calls, calls[::-1], calls[1:]):
        compiled = optimize(program, lambda capture, _: executor(capture))
        for p, q in order:
            assert not differences(outcome(compiled, x, p, q), outcome(program, x, p, q)), (p, q)


@pytest.mark.parametrize("question", [lambda k: k == k, lambda k: k in {1.0: 2}])
@pytest.mark.filterwarnings("ignore::bytecap.CaptureWarning")
def test_numbers_of_numpy_that_differ_from_call_to_call(question):
    def program(x: torch.Tensor, k: Any) -> torch.Tensor:
        return x + (1 if question(k) else 2)

    compiled = optimize(program, lambda capture, _: executor(capture))
    for number in (*range(3, 12), float("nan"), 1):
        k = numpy.float64(number)
        assert not differences(compiled(torch.ones(2), k), program(torch.ones(2), k)), k


def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@pytest.mark.parametrize(
    "lookup",
    [
        lambda x, module, table, chosen: module(x) * table[id(module)],
        lambda x, module, table, chosen: x + (1 if id(module) in table else 2),
        lambda x, module, table, chosen: x + (torch.relu in chosen) + 2 * (torch.sin in chosen),
        lambda x, module, table, chosen: sum((f(x) for f in chosen if f is twice), x),
    ],
)
def test_tables_by_the_id_of_a_module_and_frozensets_of_functions(lookup: Callable[..., torch.Tensor]) -> None:
    modules = [torch.nn.Tanh(), torch.nn.ReLU()]
    table = {id(modules[0]): 3, id(modules[1]): 5}
    sets = [frozenset({torch.relu, twice}), frozenset({torch.sin, "name", torch.float32})]
    compiled = optimize(lookup, lambda capture, _: executor(capture), fullgraph=True)
    for module in (*modules, modules[0]):
        for chosen in (*sets, sets[0]):
            assert not differences(
                compiled(torch.ones(2), module, table, chosen), lookup(torch.ones(2), module, table, chosen)
            )
    table[id(modules[1])] = 7
    assert not differences(
        compiled(torch.ones(2), modules[1], table, sets[0]), lookup(torch.ones(2), modules[1], table, sets[0])
    )


def test_weak_references_to_objects_from_outside():
    owner, modules = Plain(), [torch.nn.Tanh(), torch.nn.ReLU()]

    def program(x: torch.Tensor) -> tuple[Any, ...]:
        module, tensor = weakref.ref(owner.module), weakref.ref(x)
        return module()(x), module, tensor() is x, tensor() + 1

    compiled = optimize(program, lambda capture, _: executor(capture), fullgraph=True)
    x = torch.ones(2)
    for module in (*modules, modules[0]):
        owner.module = module
        got, want = compiled(x), program(x)
        assert got[1] is want[1]
        assert not differences((got[0], *got[2:]), (want[0], *want[2:]))


class Child:
    def __init__(self, parent: Any) -> None:
        self.parent = weakref.ref(parent)


def to_a_result(x: torch.Tensor) -> Any:
    made = x * 3
    return weakref.ref(made)() * 2


def to_a_parent(x: torch.Tensor) -> Any:
    parent = Plain()
    parent.children = [Child(parent), Child(parent)]
    parent.rate = 3
    first, second = parent.children
    return x * first.parent().rate, first.parent is second.parent, first.parent() is parent


def to_what_is_returned(x: torch.Tensor) -> Any:
    parent = Plain()
    child = Child(parent)
    return parent, child, x + 1


def behind_a_change(x: torch.Tensor) -> Any:
    OUTSIDE.count = 3
    return x * weakref.ref(OUTSIDE)().count


def to_what_has_none(x: torch.Tensor) -> Any:
    try:
        weakref.ref(3)
    except TypeError as error:
        return x + 1, str(error)


def to_what_is_gone(x: torch.Tensor) -> Any:
    return x + 1, weakref.ref(Plain())() is None


def to_what_was_replaced(x: torch.Tensor) -> Any:
    owner = Plain()
    owner.held = Plain()
    reference = weakref.ref(owner.held)
    owner.held = None
    return x + 1, reference() is None


def as_keys(x: torch.Tensor) -> Any:
    known, key = weakref.WeakKeyDictionary(), Plain()
    known[key] = 2
    return x * known[key]


OUTSIDE = Plain()


def seen(result: Any) -> list[Any]:
    """The result, with weak references as what they refer to."""
    parts = result if isinstance(result, tuple) else (result,)
    return [
        part.parent() is parts[0] if isinstance(part, Child) else part for part in parts if not isinstance(part, Plain)
    ]


@pytest.mark.parametrize("program", [to_a_result, to_a_parent, to_what_is_returned, behind_a_change, to_what_has_none])
def test_weak_references_to_what_variables_hold(program: Callable[..., Any]) -> None:
    compiled = optimize(program, lambda capture, _: executor(capture), fullgraph=True)
    for x in (torch.ones(2), torch.ones(2) + 1):
        assert not differences(seen(compiled(x)), seen(program(x)))


@pytest.mark.parametrize("program", [to_what_is_gone, to_what_was_replaced, as_keys])
@pytest.mark.filterwarnings("ignore::bytecap.CaptureWarning")
def test_weak_references_to_what_may_be_gone_run_plain(program: Callable[..., Any]) -> None:
    compiled = optimize(program, lambda capture, _: executor(capture))
    for x in (torch.ones(2), torch.ones(2) + 1):
        assert not differences(compiled(x), program(x))
    with pytest.raises(CannotCapture):
        optimize(program, lambda capture, _: executor(capture), fullgraph=True)(torch.ones(2))


def test_numbers_of_identity_leave_the_code() -> None:
    module = torch.nn.Tanh()

    def program(x: torch.Tensor, other: Plain) -> tuple[Any, ...]:
        made = Plain()
        OUTSIDE.last = id(module)
        numbers = id(module), hash(other), threading.get_ident(), id(x), {id(module): 1, hash(module): 2}
        return x * 2, numbers, id(other) == hash(other), id(made) == id(made), made, id(made)

    compiled = optimize(program, lambda capture, _: executor(capture), fullgraph=True)
    for other in (Plain(), Plain()):
        x = torch.ones(2)
        got, want = compiled(x, other), program(x, other)
        assert not differences(got[:4], want[:4])
        assert got[5] == id(got[4])
        assert OUTSIDE.last == id(module)
