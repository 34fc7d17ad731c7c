"""Functions of the standard library: itertools, functools, contextlib, copy, dataclasses, logging, warnings."""

from __future__ import annotations

import collections
import dataclasses
import inspect
import logging
import os
import sys
import threading
import typing
import warnings
import weakref
from collections.abc import Callable
from typing import Any

from bytecap.context_types import Tracer
from bytecap.errors import UnsupportedCall
from bytecap.objects.base import Value
from bytecap.objects.class_lookup import stranger
from bytecap.objects.classes import ClassValue
from bytecap.objects.constant import NONE, Constant
from bytecap.objects.containers.mappings import get_variable
from bytecap.objects.containers.sequences import TupleValue
from bytecap.objects.dispatch import evaluated
from bytecap.objects.identity import IdentityToken, WeakReference
from bytecap.objects.instances.exceptions import ExceptionValue
from bytecap.objects.signals import run
from bytecap.semantics.constant_folding import fold_call
from bytecap.semantics.effects import CallEffect


def _fields(tracer: Tracer, value: Value) -> Value:
    cls = value.concrete() if _is_class(value) else value.python_type()
    return TupleValue([tracer.objects.wrap(field, None) for field in dataclasses.fields(cls)])


def _is_class(value: Value) -> bool:
    return issubclass(value.python_type(), type)


def _is_dataclass(tracer: Tracer, value: Value) -> Value:
    cls = value.concrete() if _is_class(value) else value.python_type()
    return Constant(dataclasses.is_dataclass(cls))


def _namedtuple(tracer: Tracer, *args: Value, **kwargs: Value) -> Value:
    """A class made when the frame is captured; its later calls share it."""
    module = tracer.frames[-1].globals.lookup(tracer, Constant("__name__"))
    return fold_call(tracer, collections.namedtuple, list(args), {"module": module or NONE, **kwargs})


def _message(function: Callable[..., Any]) -> Callable[..., Value]:
    """A call whose only effect is a message, made after the graph."""

    def later(tracer: Tracer, *args: Value, **kwargs: Value) -> Value:
        for value in (*args, *kwargs.values()):
            if not _stays(tracer, value) and value is not args[0]:
                raise UnsupportedCall(f"{function.__qualname__}() with a {value.describe()}")
        tracer.effects.append(CallEffect(function, list(args), kwargs))
        return NONE

    return later


def _stays(tracer: Tracer, value: Value) -> bool:
    """Whether a message that is written later says the same of the value."""
    if isinstance(value, TupleValue):
        return all(_stays(tracer, item) for item in value.values(tracer))
    return isinstance(value, (Constant, ClassValue, ExceptionValue))


def _exc_info(tracer: Tracer) -> Value:
    if not tracer.frames.handled or tracer.frames.handled[-1].is_none():
        return TupleValue([NONE, NONE, NONE])
    handled = tracer.frames.handled[-1]
    return TupleValue([
        tracer.objects.wrap(handled.python_type(), None), handled, handled.get_attribute(tracer, "__traceback__")
    ])  # fmt: skip


def _weak_reference(tracer: Tracer, value: Value, callback: Value = NONE) -> Value:
    """To an object from outside, which is held there while nothing outside changes, or to one that variables hold."""
    real = getattr(value, "real", None)
    if not callback.is_none():
        if value.source is None or real is None:
            raise UnsupportedCall("a weak reference, with a callback, to what the code made")
        return WeakReference(value, (callback,))
    if value.source is not None and real is not None and not tracer.effects:
        return tracer.objects.wrap(run(tracer, weakref.ref, (real,)), tracer.places.reading(weakref.ref, value.source))
    if not value.python_type().__weakrefoffset__:
        run(tracer, weakref.ref, (stranger(value),))
    return tracer.objects.weak.setdefault(id(value), WeakReference(value))


def _get_logger(tracer: Tracer, name: Value = NONE) -> Value:
    """One logger for each name, behind a lock; what is asked of it is guarded."""
    real = run(tracer, logging.getLogger, (name.concrete(),))
    return tracer.objects.wrap(real, tracer.places.guarded(real))


def _thread_identity(tracer: Tracer) -> Value:
    return IdentityToken(threading.get_ident, threading.get_ident)


LIBRARY: dict[Any, Callable[..., Value]] = {
    function: evaluated(function)
    for function in (
        inspect.isclass, inspect.isfunction, inspect.ismethod, inspect.ismodule, inspect.isbuiltin, typing.cast,
        inspect.isgeneratorfunction, inspect.iscoroutinefunction, inspect.isasyncgenfunction,
    )
} | {
    collections.namedtuple: _namedtuple,
    sys.exc_info: _exc_info, sys.exception: lambda tracer: _exc_info(tracer).items[1],  # type: ignore[attr-defined]
    threading.get_ident: _thread_identity, dataclasses.fields: _fields,
    dataclasses.is_dataclass: _is_dataclass,
    warnings.warn: _message(warnings.warn), weakref.ref: _weak_reference, logging.getLogger: _get_logger,
    os.environ.get: get_variable, os.getenv: get_variable,
} | {
    getattr(logging.Logger, name): _message(getattr(logging.Logger, name))
    for name in ("debug", "info", "warning", "error", "exception", "critical", "log", "warn")
}  # fmt: skip
