"""Names that are added, removed or hidden: dictionaries of classes, metaclasses, libraries, signatures.

Each case is (program, arguments, a change after compilation): the compiled program must follow.
"""

from __future__ import annotations

import abc
import decimal
import enum
import functools
import inspect
import math
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from bytecap import Broke, Captured, executor, optimize
from bytecap.testing.changes import Cases, check_change, patched

T = torch.arange(6.0).reshape(2, 3)
case = CASES = Cases()


def made(**names: Any) -> Any:
    return type("Made", (), {"x": 1, **names})


# Dictionaries of classes: (what the program asks of the class, what changes)
OF_DICTIONARIES: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "length": (lambda cls: len(cls.__dict__), lambda cls: setattr(cls, "new", 1)),
    "names": (lambda cls: list(cls.__dict__), lambda cls: setattr(cls, "new", 1)),
    "order": (lambda cls: list(vars(cls)), lambda cls: (delattr(cls, "x"), setattr(cls, "x", 1))),
    "a name that is added": (lambda cls: "new" in cls.__dict__, lambda cls: setattr(cls, "new", 1)),
    "a name that goes": (lambda cls: "x" in vars(cls), lambda cls: delattr(cls, "x")),
    "a default": (lambda cls: cls.__dict__.get("new", 5), lambda cls: setattr(cls, "new", 1)),
    "a value": (lambda cls: cls.__dict__["x"], lambda cls: setattr(cls, "x", 3)),
    "a value that goes to a base": (lambda cls: cls.__dict__.get("x", 7), lambda cls: delattr(cls, "x")),
    "values": (
        lambda cls: [value for value in cls.__dict__.values() if isinstance(value, int)],
        lambda cls: setattr(cls, "new", 4),
    ),
    "items": (
        lambda cls: [value for name, value in cls.__dict__.items() if name == "x"], lambda cls: setattr(cls, "x", 4),
    ),
    "a static method": (
        lambda cls: cls.__dict__["static"].__func__(), lambda cls: setattr(cls, "static", staticmethod(lambda: 3)),
    ),
    "a property": (
        lambda cls: cls.__dict__["computed"].fget(1), lambda cls: setattr(cls, "computed", property(lambda self: 7)),
    ),
    "a copy": (lambda cls: sorted(dict(cls.__dict__)), lambda cls: setattr(cls, "new", 1)),
    "unpacked": (lambda cls: sorted({**cls.__dict__}), lambda cls: setattr(cls, "new", 1)),
    "joined": (lambda cls: sorted(cls.__dict__ | {"more": 1}), lambda cls: setattr(cls, "new", 1)),
    "as text": (lambda cls: "'new'" in repr(cls.__dict__), lambda cls: setattr(cls, "new", 1)),
    "compared": (lambda cls: dict(cls.__dict__) == cls.__dict__, lambda cls: setattr(cls, "new", 1)),
    "its class": (
        lambda cls: (type(cls.__dict__).__name__, isinstance(cls.__dict__, dict)), lambda cls: setattr(cls, "new", 1),
    ),
    "all classes": (
        lambda cls: [name for base in cls.__mro__[:2] for name in base.__dict__],
        lambda cls: setattr(cls.__mro__[1], "new", 1),
    ),
    "dir of the class": (
        lambda cls: [name for name in dir(cls) if name[0] != "_"], lambda cls: setattr(cls.__mro__[1], "new", 1),
    ),
    "dir of an instance": (
        lambda cls: [name for name in dir(cls()) if name[0] != "_"], lambda cls: setattr(cls, "new", 1),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OF_DICTIONARIES)
def test_a_dictionary_of_a_class(name: str) -> None:
    ask, change = OF_DICTIONARIES[name]

    class Base:
        x = 2

    class Own(Base):
        x = 1
        static = staticmethod(lambda: 2)
        computed = property(lambda self: 5)

    def program(x: torch.Tensor) -> Any:
        return x * 2, ask(Own)

    events = check_change((program, (T,), lambda: change(Own)))
    captures = sum(isinstance(event, Captured) for event in events)
    assert captures <= 2
    assert not any(isinstance(event, Broke) for event in events)


def test_a_class_attribute_that_counts_leaves_its_names_alone() -> None:
    """Another value under a name that the program does not read is no reason to capture again."""

    class Counts:
        calls = 0

    def program(x: torch.Tensor) -> torch.Tensor:
        return x * len(Counts.__dict__) if "calls" in Counts.__dict__ else x

    events = check_change((program, (T,), lambda: setattr(Counts, "calls", 5)))
    assert sum(isinstance(event, Captured) for event in events) == 1


@pytest.mark.parametrize("reads_first", [True, False])
def test_a_class_that_the_program_changes(reads_first: bool) -> None:
    """The dictionary shows at once what is stored in the class."""

    class Own:
        x = 1

    def program(x: torch.Tensor) -> Any:
        names = Own.__dict__ if reads_first else None
        Own.new = 1  # type: ignore[attr-defined]
        return x * 2, "new" in (Own.__dict__ if names is None else names)

    check_change((program, (T,), lambda: delattr(Own, "new")))


# Names of classes, modules and functions that are there later: of the program's own, and of libraries


class Data(torch.utils.data.Dataset):  # type: ignore[type-arg]
    pass


LINEAR, NORMAL = nn.Linear(3, 3), torch.distributions.Normal(0.0, 1.0)
OWN_CLASS, OWN_BASE = type("OwnClass", (made(),), {}), made()
ABSTRACT = abc.ABCMeta("Abstract", (), {})
OWN_ENUM = enum.Enum("OwnEnum", "A B")
OWN_MODULE = types.ModuleType("own_module")
ADDED: dict[str, tuple[Any, Any]] = {
    "class": (OWN_CLASS, OWN_CLASS),
    "class, in a base": (OWN_CLASS, OWN_CLASS.__mro__[1]),
    "abstract class": (ABSTRACT, ABSTRACT),
    "enum": (OWN_ENUM, OWN_ENUM),
    "own module": (OWN_MODULE, OWN_MODULE),
    "torch": (torch, torch),
    "torch.nn.functional": (nn.functional, nn.functional),
    "math": (math, math),
    "layer": (LINEAR, nn.Linear),
    "layer, in nn.Module": (LINEAR, nn.Module),
    "class of a layer": (nn.Linear, nn.Linear),
    "class of a layer, in nn.Module": (nn.Linear, nn.Module),
    "nn.Module": (nn.Module, nn.Module),
    "torch.Tensor": (torch.Tensor, torch.Tensor),
    "distribution": (NORMAL, torch.distributions.Normal),
    "data set": (Data(), torch.utils.data.Dataset),
    "function of torch": (nn.functional.relu, nn.functional.relu),
}


@pytest.mark.parametrize("name", ADDED)
def test_a_name_that_is_added(name: str) -> None:
    asked, owner = ADDED[name]

    def program(x: torch.Tensor) -> Any:
        return x * getattr(asked, "a_new_name", 5), hasattr(asked, "a_new_name")

    events = check_change((program, (T,), lambda: patched(owner, "a_new_name", 2)))
    assert sum(isinstance(event, Captured) for event in events) == 2


@case
def another_base():
    other, own = made(new=4), type("Own", (OWN_BASE,), {})

    def f(x):
        return x * getattr(own, "new", 5)

    return f, (T,), lambda: setattr(own, "__bases__", (other,))


# Classes and their metaclasses


def of_metaclass(meta: dict[str, Any], own: dict[str, Any]) -> tuple[Any, Any, Callable[[torch.Tensor], Any]]:
    metaclass = type("Meta", (type,), meta)
    cls = metaclass("Own", (), own)

    def f(x):
        return x * getattr(cls, "x", 11)

    return metaclass, cls, f


class Given:
    """A descriptor, which has no `__set__` until it is given one."""

    def __get__(self, instance, owner):
        return 7


IN_METACLASSES: dict[str, tuple[dict[str, Any], dict[str, Any], Callable[[Any, Any], Any]]] = {
    "hidden by the class": ({"x": 5}, {}, lambda meta, cls: setattr(cls, "x", 2)),
    "hidden no more": ({"x": 5}, {"x": 2}, lambda meta, cls: delattr(cls, "x")),
    "a property of the metaclass": ({}, {"x": 2}, lambda meta, cls: setattr(meta, "x", property(lambda cls: 7))),
    "no property any more": ({"x": property(lambda cls: 7)}, {"x": 2}, lambda meta, cls: delattr(meta, "x")),
    "no property, but": ({"x": property(lambda cls: 7)}, {}, lambda meta, cls: setattr(meta, "x", 3)),
    "added": ({}, {}, lambda meta, cls: setattr(meta, "x", 3)),
    "__getattr__ added": ({}, {}, lambda meta, cls: setattr(meta, "__getattr__", lambda cls, name: 3)),
    "__getattr__": (
        {"__getattr__": lambda cls, name: 3}, {}, lambda meta, cls: setattr(meta, "__getattr__", lambda cls, name: 4),
    ),
    "__getattr__ no more asked": ({"__getattr__": lambda cls, name: 3}, {}, lambda meta, cls: setattr(cls, "x", 2)),
    "__getattribute__ added": ({}, {"x": 1}, lambda meta, cls: setattr(meta, "__getattribute__", lambda cls, name: 3)),
    "a descriptor that becomes one of data": (
        {"x": Given()}, {"x": 2}, lambda meta, cls: patched(Given, "__set__", lambda self, instance, value: None),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", IN_METACLASSES)
def test_an_attribute_of_a_metaclass(name: str) -> None:
    meta, own, change = IN_METACLASSES[name]
    metaclass, cls, program = of_metaclass(meta, own)
    check_change((program, (T,), lambda: change(metaclass, cls)))


def test_the_getattr_of_a_metaclass_is_evaluated() -> None:
    """What it reads is guarded."""
    values = [1]
    _, _, program = of_metaclass({"__getattr__": lambda cls, name: values[0]}, {})
    check_change((program, (T,), lambda: values.insert(0, 2)))


# Signatures


@case
def default_of_a_signature():
    def g(a, b=1):
        pass

    def f(x):
        return x * inspect.signature(g).parameters["b"].default

    return f, (T,), lambda: setattr(g, "__defaults__", (5,))


@case
def annotation_of_a_signature():
    def g(a: int):
        pass

    def f(x):
        return x * 2, inspect.signature(g).parameters["a"].annotation

    return f, (T,), lambda: g.__annotations__.update(a=float)


@case
def signature_of_a_class():
    class Own:
        def __init__(self, a):
            pass

    def f(x):
        return x * len(inspect.signature(Own).parameters)

    return f, (T,), lambda: setattr(Own, "__init__", lambda self, a, b: None)


@case
def signature_of_an_object():
    class Own:
        def __call__(self, a):
            pass

    own = Own()

    def f(x):
        return x * len(inspect.signature(own).parameters)

    return f, (T,), lambda: setattr(Own, "__call__", lambda self, a, b: None)


@case
def signature_of_a_partial():
    def g(a, b=1):
        pass

    partial = functools.partial(g, 1)

    def f(x):
        return x * inspect.signature(partial).parameters["b"].default

    return f, (T,), lambda: setattr(g, "__defaults__", (5,))


# The context of decimal numbers


@case
def precision_of_decimals():
    def f(x):
        return x * 2, str(decimal.Decimal(1) / 3)

    return f, (T,), lambda: patched_context(prec=3)


@case
def rounding_of_decimals():
    number = decimal.Decimal("1.25")

    def f(x):
        return x * 2, str(round(number, 1)), str(number.quantize(decimal.Decimal("0.1")))

    return f, (T,), lambda: patched_context(rounding=decimal.ROUND_UP)


@case
def trap_of_decimals():
    def f(x):
        try:
            return x * 2, str(decimal.Decimal(1) / 3)
        except decimal.Inexact:
            return x * 3, "inexact"

    return f, (T,), lambda: patched_context(traps=[decimal.Inexact])


def patched_context(**fields: Any) -> Any:
    return decimal.localcontext(decimal.Context(**fields))


@pytest.mark.parametrize("name", CASES)
def test_a_change_shows(name: str) -> None:
    check_change(CASES[name]())


def test_flags_of_decimals_are_set_again() -> None:
    """Arithmetic sets flags of the context, in each call."""

    def f(x: torch.Tensor) -> Any:
        return x * 2, str(decimal.Decimal(1) / 3)

    compiled = optimize(f, lambda capture, inputs: executor(capture))
    with decimal.localcontext() as context:
        for _ in range(3):
            context.clear_flags()
            compiled(T)
            assert context.flags[decimal.Inexact]
