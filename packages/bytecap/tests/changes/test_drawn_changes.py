"""What a drawn program reads is guarded, and nothing else is. Oracle: the plain program, before and after changes."""

from __future__ import annotations

import os
import random
import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bytecap import executor, optimize
from bytecap.testing import differences

READS = {
    "more[0]": "arguments[0][3] = 7",
    "named['z']": "arguments[1]['z'] = 6",
    "len(named)": "arguments[1]['y'] = 6",
    "keyword_only": "arguments[1]['keyword_only'] = 9",
    "in_cell": "put(6)",
    "GLOBAL": "GLOBAL = 4",
    "first.rate": "first.rate = 3.0",
    "Holder.rate": "Holder.rate = 4.0",
    "Holder.Inner.level": "Holder.Inner.level = 8",
    "Answered.level": "Answered.level = 8",
    "len(first.items)": "first.items.append(9)",
    "keyword.items[-1]": "keyword.items[-1] = 8",
    "max(first.items)": "first.items[0] = 11",
    "helper(first)": "helper.__defaults__ = (5,)",
    "named_helper(first)": "named_helper.__kwdefaults__ = {'factor': 6}",
    "other_helper(first)": "other_helper.__code__ = (lambda holder, factor=3: holder.rate - factor).__code__",
    "third_helper(first)": "third_helper = lambda holder: holder.rate",
    "isinstance(keyword, Holder)": "Holder = type('Holder', (), {'rate': 2.0})",
    "hasattr(first, 'late')": "first.late = 1",
    "'late' in keyword.table": "keyword.table['late'] = 2",
    "keyword.table.get('late', 7)": "keyword.table['late'] = 3",
    "[*keyword.table][0] == 'early'": "keyword.table = {'other': 1, **keyword.table}",
    "first is keyword": "arguments[0][2] = first if keyword is not first else Holder()",
    "torch.is_grad_enabled()": "torch.set_grad_enabled(False)",
    "torch.get_default_dtype() is torch.float32": "torch.set_default_dtype(torch.float64)",
    "x.requires_grad": "arguments[0][0] = torch.ones(3, requires_grad=True)",
    "x.shape[0]": "arguments[0][0] = torch.ones(4)",
    "x.dtype is torch.float32": "arguments[0][0] = torch.ones(3, dtype=torch.float64)",
    "list_of[0].rate": "list_of[0] = types.SimpleNamespace(rate=5)",
    "type(first).__name__ == 'Holder'": "Holder.__name__ = 'Other'",
    "callable(first)": "Holder.__call__ = lambda self: 1",
    "first.inner.rate": "first.inner = types.SimpleNamespace(rate=8)",
    "Colour.RED.value": "Colour = enum.Enum('Colour', {'RED': 4})",
    "kind is int": "kind = float",
    "maths.pi": "maths = types.SimpleNamespace(pi=3)",
    "len(ITEMS)": "ITEMS['b'] = 2",
    "first.layer(x).sum()": "first.layer.register_forward_hook(lambda module, args, result: result * 3)",
    "keyword.layer(x).max()": "torch.nn.Identity.forward = lambda self, value: value * 5",
    "first.layer.training": "first.layer.eval()",
    "int(first.layer.count)": "first.layer.count.fill_(9)",
    "os.environ.get('BYTECAP_DRAWN') == 'on'": "os.environ['BYTECAP_DRAWN'] = 'on'",
    "reference().rate": "reference = weakref.ref(Colour.RED)",
}
"""What a program reads, and a statement that changes it."""

PROGRAM = """
import enum
import math as maths
import os
import types
import weakref

import torch

GLOBAL, list_of, kind = 3, [], int
ITEMS = {{"a": 1}}

class Colour(enum.Enum):
    RED = 1
    rate = 6

class Answering(type):
    def __getattr__(cls, name):
        return 7

class Answered(metaclass=Answering):
    level = 3

class Holder:
    rate = 2.0

    class Inner:
        level = 1

    def __init__(self):
        self.items, self.table, self.inner = [1, 2], {{"early": 1}}, None
        self.layer = torch.nn.Identity()
        self.layer.register_buffer("count", torch.tensor(3))

def helper(holder, factor=2):
    return holder.rate * factor

def named_helper(holder, *, factor=2):
    return holder.rate * factor

other_helper = types.FunctionType(helper.__code__, globals(), "other_helper", (3,))
third_helper = types.FunctionType(helper.__code__, globals(), "third_helper", (4,))
held = Holder()
reference = weakref.ref(held)

def outer():
    in_cell = 5

    def program(x, first, keyword, *more, keyword_only=1, **named):
        total = 0.0
        {body}
        return x * 2 + total

    def put(value):
        nonlocal in_cell
        in_cell = value

    return program, put

program, put = outer()
"""


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    yield from restored()


def restored() -> Iterator[None]:
    """Puts back what the changes may change of torch and of the process."""
    forward, grad, dtype = torch.nn.Identity.forward, torch.is_grad_enabled(), torch.get_default_dtype()
    yield
    torch.nn.Identity.forward = forward  # type: ignore[method-assign]
    torch.set_grad_enabled(grad)
    torch.set_default_dtype(dtype)
    os.environ.pop("BYTECAP_DRAWN", None)
    sys.modules.pop("drawn_program", None)


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**64 - 1))
def test_what_a_program_reads_is_guarded_and_nothing_else_is(seed: int) -> None:
    """A call that reads nothing new is served by what there is; each call is served by compiled code."""
    for _ in restored():
        check(random.Random(seed))


def check(order: random.Random) -> None:
    reads = order.sample(sorted(READS), order.randrange(1, 6))
    body = "".join(f"total = total + ({read})\n        " for read in reads)
    module = types.ModuleType("drawn_program")
    if order.random() < 0.5:  # else nobody finds its classes by name
        sys.modules["drawn_program"] = module
    names = vars(module)
    exec(PROGRAM.format(body=body), names)
    program, Holder = names["program"], names["Holder"]
    first, keyword = Holder(), Holder()
    first.inner = Holder()
    names["list_of"].append(first)
    if order.random() < 0.3:
        keyword = first
    captured: list[Any] = []
    ran: list[Any] = []

    def backend(capture: Any, _: Any) -> Any:
        captured.append(capture)
        run = executor(capture)
        return lambda *inputs: (ran.append(capture), run(*inputs))[1]

    compiled = optimize(program, backend, recompile_limit=50, dynamic=False)
    arguments = [[torch.ones(3), first, keyword, 4], {"keyword_only": 2, "z": 5}]

    def step(what: str) -> None:
        expected = outcome(program, arguments)
        ran.clear()
        assert not differences(outcome(compiled, arguments), expected), (what, reads, expected)
        assert ran or isinstance(expected, type), (what, reads, "no compiled code ran")

    def twice(what: str) -> None:
        step(what)
        before = len(captured)
        step(what)
        assert len(captured) == before, (what, reads, "the same call was captured again")

    twice("first")
    of_these, of_any = [READS[one] for one in reads], order.sample(sorted(READS.values()), 2)
    for change in order.sample([*of_these, *of_any], min(4, len(of_these) + 2)):
        names |= {"first": first, "keyword": keyword, "arguments": arguments}
        exec(change, names)
        twice(change)


def outcome(function: Any, arguments: Any) -> Any:
    try:
        return function(*arguments[0], **arguments[1])
    except Exception as error:
        return type(error)
