"""What Python asks of classes besides attributes: special methods of metaclasses, protocols, patterns, modules with a
class of their own, imports that fail.

Each case is (program, arguments, a change after compilation): the compiled program must follow.
"""

from __future__ import annotations

import collections
import sys
import types
import typing
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from bytecap import executor, optimize
from bytecap.testing.changes import Cases, check_change, patched, setting

T = torch.arange(6.0).reshape(2, 3)
case = CASES = Cases()


# Special methods of metaclasses: (method of the metaclass by what it reads, what the program asks of the class)
OF_METACLASSES: dict[str, tuple[str, Callable[[list[Any]], Any], Callable[[Any], Any]]] = {
    "len": ("__len__", lambda held: lambda cls: held[0], len),
    "truth": ("__bool__", lambda held: lambda cls: held[0] > 3, bool),
    "truth by length": ("__len__", lambda held: lambda cls: held[0] - 2, bool),
    "iteration": ("__iter__", lambda held: lambda cls: iter([held[0]]), list),
    "contains": ("__contains__", lambda held: lambda cls, item: item in held, lambda cls: 5 in cls),
    "item": ("__getitem__", lambda held: lambda cls, key: held[0] + key, lambda cls: cls[1]),
    "equality": ("__eq__", lambda held: lambda cls, other: held[0] == other, lambda cls: cls == 5),
    "sum": ("__add__", lambda held: lambda cls, other: held[0] + other, lambda cls: cls + 1),
    "reflected sum": ("__radd__", lambda held: lambda cls, other: held[0] + other, lambda cls: 1 + cls),
    "negation": ("__neg__", lambda held: lambda cls: -held[0], lambda cls: -cls),
    "repr": ("__repr__", lambda held: lambda cls: str(held[0]), lambda cls: (repr(cls), str(cls), f"{[cls]}")),
    "str": ("__str__", lambda held: lambda cls: str(held[0]), lambda cls: (str(cls), f"{cls}")),
    "dir": ("__dir__", lambda held: lambda cls: [str(item) for item in held], dir),
    "isinstance": ("__instancecheck__", lambda held: lambda cls, it: it in held, lambda cls: isinstance(5, cls)),
    "issubclass": ("__subclasscheck__", lambda held: lambda cls, it: 5 in held, lambda cls: issubclass(int, cls)),
    "exact class": ("__instancecheck__", lambda held: lambda cls, it: held[0] == 5, lambda cls: isinstance(cls(), cls)),
}  # fmt: skip


@pytest.mark.parametrize("replaced", [False, True])
@pytest.mark.parametrize("name", OF_METACLASSES)
def test_a_special_method_of_a_metaclass(name: str, replaced: bool) -> None:
    """It is evaluated, and what it reads is guarded; so is the method."""
    method, make, ask = OF_METACLASSES[name]
    held = [2]
    metaclass = type("Meta", (type,), {method: make(held), "__hash__": type.__hash__})
    cls = metaclass("Own", (), {})

    def program(x: torch.Tensor) -> Any:
        return x * 2, ask(cls)

    change = (lambda: setattr(metaclass, method, make([5]))) if replaced else (lambda: held.insert(0, 5))
    check_change((program, (T,), change))


@case
def name_in_the_text_of_a_class():
    own = type("Own", (), {})

    def f(x):
        return x * 2, repr(own), f"{own}"

    return f, (T,), lambda: setattr(own, "__qualname__", "Other")


@case
def reflected_method_of_a_subclass():
    first = type("First", (), {"__add__": lambda self, other: 2})
    second = type("Second", (first,), {})
    left, right = first(), second()

    def f(x):
        return x * (left + right)

    return f, (T,), lambda: setattr(second, "__radd__", lambda self, other: 8)


@case
def subclasses():
    own, made = type("Own", (), {}), []

    def f(x):
        return x * len(own.__subclasses__())

    return f, (T,), lambda: made.append(type("Sub", (own,), {}))


@case
def match_args():
    class Own:
        __match_args__ = ("first",)
        first, second = 2, 5

    own = Own()

    def f(x):
        match own:
            case Own(value):
                return x * value
        return x

    return f, (T,), lambda: setattr(Own, "__match_args__", ("second",))


@case
def field_of_a_namedtuple():
    pair = collections.namedtuple("pair", "a b")
    value = pair(1, 2)

    def f(x):
        return x * value.b

    return f, (T,), lambda: setattr(pair, "b", property(lambda self: 9))


@case
def method_of_a_text():
    own = type("Own", (str,), {})
    text = own("ab")

    def f(x):
        return x * 2, text.upper()

    return f, (T,), lambda: setattr(own, "upper", lambda self: "other")


@case
def missing_in_the_base():
    base = type("Base", (), {})

    class Own(base):
        def ask(self):
            return getattr(super(), "new", 3)

    own = Own()

    def f(x):
        return x * own.ask()

    return f, (T,), lambda: setattr(base, "new", 7)


@case
def missing_in_nn_module():
    class Own(nn.Module):
        def forward(self, x):
            return x * 2 if hasattr(super(), "a_new_name") else x * 3

    own = Own()

    def f(x):
        return own(x)

    return f, (T,), lambda: patched(nn.Module, "a_new_name", 1)


@typing.runtime_checkable
class Walks(typing.Protocol):
    legs: int

    def walk(self): ...


@pytest.mark.parametrize("where", ["class", "object"])
def test_a_protocol(where: str) -> None:
    own = type("Own", (), {"legs": 2})
    value = own()

    def program(x: torch.Tensor) -> Any:
        return x * 2 if isinstance(value, Walks) else x * 3

    check_change((program, (T,), lambda: setattr(own if where == "class" else value, "walk", lambda *args: None)))


# Modules


def module_of(cls: type) -> Any:
    return cls("a_module")


@case
def property_of_a_module():
    held = [2]
    module = module_of(type("Own", (types.ModuleType,), {"scale": property(lambda self: held[0])}))

    def f(x):
        return x * module.scale

    return f, (T,), lambda: held.insert(0, 7)


@case
def getattr_of_the_class_of_a_module():
    held = [2]
    module = module_of(type("Own", (types.ModuleType,), {"__getattr__": lambda self, name: held[0]}))

    def f(x):
        return x * module.scale

    return f, (T,), lambda: held.insert(0, 7)


@case
def another_class_of_a_module():
    module = types.ModuleType("a_module")
    module.scale = 2
    other = type("Own", (types.ModuleType,), {"scale": property(lambda self: 7)})

    def f(x):
        return x * module.scale

    return f, (T,), lambda: setattr(module, "__class__", other)


@case
def import_that_failed():
    def f(x):
        try:
            import an_absent_module
        except ImportError:
            return x * 9
        return x * an_absent_module.scale

    module = types.ModuleType("an_absent_module")
    module.scale = 5
    return f, (T,), lambda: item_set(sys.modules, module.__name__, module)


class item_set:
    """`mapping[key] = value` for a while."""

    def __init__(self, mapping, key, value):
        self.mapping, self.key = mapping, key
        mapping[key] = value

    def __enter__(self):
        return self

    def __exit__(self, *raised):
        del self.mapping[self.key]


@case
def property_of_a_module_of_torch():
    def f(x):
        return x * 2, torch.utils.deterministic.fill_uninitialized_memory

    return f, (T,), lambda: patched_property(torch.utils.deterministic, "fill_uninitialized_memory", False)


@case
def quantized_engine():
    def f(x):
        return x * 2, torch.backends.quantized.engine

    engines = torch.backends.quantized.supported_engines
    other = next(engine for engine in engines if engine != torch.backends.quantized.engine)
    return f, (T,), lambda: patched_property(torch.backends.quantized, "engine", other)


@case
def setting_of_torch_future():
    def f(x):
        return x * 2, torch.__future__.get_swap_module_params_on_conversion()

    future = torch.__future__
    read, write = future.get_swap_module_params_on_conversion, future.set_swap_module_params_on_conversion
    return f, (T,), lambda: setting(read, write, not read())


def patched_property(owner: Any, name: str, value: Any) -> Any:
    return setting(lambda: getattr(owner, name), lambda new: setattr(owner, name, new), value)


@pytest.mark.parametrize("name", CASES)
def test_a_change_shows(name: str) -> None:
    check_change(CASES[name]())


@pytest.mark.parametrize("name", ["_version", "_backward_hooks", "names"])
def test_attributes_of_results_are_not_taken_for_missing(name: str) -> None:
    """What a tensor of the graph does not show may be there in the program's own."""

    def program(x: torch.Tensor) -> Any:
        y = x * 2
        return y + 1, hasattr(y, name), getattr(y, name, "missing")

    assert str(optimize(program, lambda capture, inputs: executor(capture))(T)) == str(program(T))
