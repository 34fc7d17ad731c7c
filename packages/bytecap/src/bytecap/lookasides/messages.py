"""Warnings and messages of logging are written after the graph, and say the place where plain code writes them."""

from __future__ import annotations

import logging
import sys
import types
import warnings
from collections.abc import Callable
from functools import cache
from types import FunctionType
from typing import Any

from absint.forms import symbolic_form
from bytecap.bytecode import rebuild
from bytecap.context_types import Tracer
from bytecap.errors import UnsupportedCall
from bytecap.objects.base import NONE, Constant, Value
from bytecap.objects.containers.sequences import TupleValue
from bytecap.objects.functions import ClassValue
from bytecap.objects.instances.exceptions import ExceptionValue
from bytecap.semantics.effects import CallEffect
from stagewire.capture import Item


def _refuse_raised(tracer: Tracer, message: Value | None, category: Value | None) -> None:
    """A warning that a filter makes an exception is raised where the call stands, for its handlers: it ends the graph.

    Which filters do that is guarded.
    """
    kind, text = _category(message, category), message.value if isinstance(message, Constant) else None
    guards, source = tracer.guards, tracer.places.attribute(tracer.places.of(warnings), "filters")
    guards.length(source, len(warnings.filters))
    for at, (action, pattern, base, *_) in enumerate(warnings.filters):
        row = Item(source, at)
        guards.equals(Item(row, 0), action)
        if action != "error":
            continue
        guards.identity(Item(row, 1), pattern)
        guards.identity(Item(row, 2), base)
        is_met = pattern is None or not isinstance(text, str) or pattern.match(text)
        if is_met and (kind is None or issubclass(kind, base)):
            raise UnsupportedCall(f"warnings.warn() of a {base.__name__}, which a filter makes an exception")


def _category(message: Value | None, category: Value | None) -> type[Warning] | None:
    """The class of a warning, where it is known."""
    if isinstance(message, ExceptionValue):
        return message.python_type()
    if category is None or category.is_none():
        return UserWarning
    return category.real if isinstance(category, ClassValue) else None


def message(function: Callable[..., Any], at: int | None = None) -> Callable[..., Value]:
    """A call whose only effect is a message, made after the graph, which says where plain code has the call.

    at: the position of the argument "stacklevel" (default: it is given by name alone).
    """

    def later(tracer: Tracer, *args: Value, **kwargs: Value) -> Value:
        for value in (*args, *kwargs.values()):
            if not _stays(tracer, value) and value is not args[0]:
                raise UnsupportedCall(f"{function.__qualname__}() with a {value.describe()}")
        if function is warnings.warn:
            by_name = {**dict(zip(("message", "category"), args, strict=False)), **kwargs}
            _refuse_raised(tracer, by_name.get("message"), by_name.get("category"))
        kwargs = _with_exception(tracer, function, kwargs)
        given, named = list(args[:at]), dict(kwargs)
        named.update(zip(("stacklevel", "source"), () if at is None else args[at:], strict=False))
        level = named.pop("stacklevel", Constant(1))
        placed = None
        if isinstance(level, Constant) and type(level.value) is int and "skip_file_prefixes" not in named:
            placed = _placed(tracer, function, max(level.value, 1))
        if placed is None:
            placed, given, named = function, list(args), kwargs
        tracer.effects.append(CallEffect(placed, given, named))
        return NONE

    return later


def _with_exception(tracer: Tracer, function: Callable[..., Any], named: dict[str, Value]) -> dict[str, Value]:
    """With the exception that is handled where the call stands, if it is asked for: where it is written, none is."""
    handled = tracer.frames.handled
    asked = named.get("exc_info", Constant(function is logging.Logger.exception))
    is_told = isinstance(asked, Constant) and asked.value and handled and not handled[-1].is_none()
    return {**named, "exc_info": handled[-1]} if is_told else named


def _placed(tracer: Tracer, function: Callable[..., Any], above: int) -> Callable[..., Any] | None:
    """The function as called by the frame that is `above` it: one that is evaluated, or one outside of these."""
    frames = tracer.frames
    if above > len(frames):
        return rebuild.called_from_above(function, above - len(frames), frames.is_part)
    frame = frames[-above]
    names, place = frame.globals.real, frames.line_of(frame)
    if names is None:
        return None
    return rebuild.called_on_line(function, names, place.file, place.line, frame.function.code.co_name)


def _stays(tracer: Tracer, value: Value) -> bool:
    """Whether a message that is written later says the same of the value."""
    if isinstance(value, TupleValue):
        return all(_stays(tracer, item) for item in value.values(tracer))
    return isinstance(value, (Constant, ClassValue, ExceptionValue))


class Warns(BaseException):
    """A function of torch, called on abstract tensors, would warn. No `Exception`: it is not one that eager raises."""


def _raise(*args: Any, **kwargs: Any) -> None:
    raise Warns


def without_warnings(function: FunctionType) -> FunctionType:
    """A Python function of torch that raises `Warns` where it warns, by itself or in functions of its module.

    Called on abstract tensors, a function would warn while it is captured, from a line of the compiler, and then
    never again; the body of one that warns is evaluated instead.
    """
    if not _may_warn(function) or symbolic_form(function) is not function:
        return function
    names = dict(function.__globals__)
    names["warnings"] = types.SimpleNamespace(**{**vars(warnings), "warn": _raise})
    for name, found in names.items():
        if isinstance(found, FunctionType) and found.__globals__ is function.__globals__ and _may_warn(found):
            names[name] = _copied(found, names)
    return _copied(function, names)


def _copied(function: FunctionType, names: dict[str, Any]) -> FunctionType:
    made = FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)
    made.__kwdefaults__ = function.__kwdefaults__
    return made


@cache
def _may_warn(function: FunctionType) -> bool:
    """Whether its code names warnings.warn, or a function of its module whose code does."""
    return _reaches_warn(function, set())


def _reaches_warn(function: FunctionType, seen: set[FunctionType]) -> bool:
    seen.add(function)
    names = function.__code__.co_names
    if "warnings" in names and "warn" in names:
        return function.__globals__.get("warnings") is sys.modules["warnings"]
    found = [function.__globals__.get(name) for name in names]
    return any(
        isinstance(one, FunctionType)
        and one not in seen
        and one.__globals__ is function.__globals__
        and _reaches_warn(one, seen)
        for one in found
    )
