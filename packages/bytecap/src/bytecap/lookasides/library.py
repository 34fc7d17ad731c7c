"""Functions of the standard library: itertools, functools, dataclasses, heapq, bisect, logging, warnings."""

from __future__ import annotations

import _bisect
import _collections
import _heapq
import collections
import dataclasses
import functools
import inspect
import itertools
import logging
import operator
import sys
import threading
import typing
import warnings
import weakref
from collections.abc import Callable
from typing import Any

from bytecap.context_types import Tracer
from bytecap.errors import UnsupportedCall
from bytecap.objects.base import NONE, Constant, Value, fold, run
from bytecap.objects.class_lookup import stranger
from bytecap.objects.classes import ClassValue
from bytecap.objects.containers.sequences import TupleValue
from bytecap.objects.dispatch import evaluated, inlined
from bytecap.objects.identity import IdentityToken, WeakReference
from bytecap.objects.instances.exceptions import ExceptionValue
from bytecap.objects.live import Live, NativeIterator, native, native_on_list
from bytecap.semantics.constant_folding import fold_call
from bytecap.semantics.effects import CallEffect


def _of_class(function: Callable[..., Any]) -> Callable[..., Value]:
    """A function that asks an object for its class alone."""

    def ask(tracer: Tracer, value: Value) -> Value:
        cls = value.python_type()
        return fold(tracer, function, (value.concrete() if issubclass(cls, type) else cls,))

    return ask


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


LIBRARY: dict[Any, Callable[..., Value]] = {
    function: evaluated(function)
    for function in (
        inspect.isclass, inspect.isfunction, inspect.ismethod, inspect.ismodule, inspect.isbuiltin, typing.cast,
        inspect.isgeneratorfunction, inspect.iscoroutinefunction, inspect.isasyncgenfunction,
    )
} | {
    collections.namedtuple: _namedtuple,
    sys.exc_info: _exc_info, sys.exception: lambda tracer: _exc_info(tracer).items[1],  # type: ignore[attr-defined]
    threading.get_ident: lambda tracer: IdentityToken(threading.get_ident, threading.get_ident),
    dataclasses.fields: _of_class(dataclasses.fields), dataclasses.is_dataclass: _of_class(dataclasses.is_dataclass),
    warnings.warn: _message(warnings.warn), weakref.ref: _weak_reference, logging.getLogger: _get_logger,
} | {
    getattr(logging.Logger, name): _message(getattr(logging.Logger, name))
    for name in ("debug", "info", "warning", "error", "exception", "critical", "log", "warn")
}  # fmt: skip


# -- Functions and classes of C that run as they are, on `Live` values: iterators, heaps, searches; cmp_to_key.


def _pairwise(tracer: Tracer, iterable: Value, /) -> Value:
    source = iter(Live(tracer, iterable))
    return NativeIterator(itertools.pairwise(source), source)


NATIVE: dict[Any, Callable[..., Value]] = {
    function: native(function)
    for function in (
        zip, map, filter, itertools.chain, itertools.chain.from_iterable, itertools.count, itertools.cycle,
        itertools.compress, itertools.accumulate, itertools.zip_longest, itertools.groupby, itertools.starmap,
        itertools.takewhile, itertools.dropwhile, itertools.filterfalse, functools.reduce,
        _collections._count_elements,  # type: ignore[attr-defined]
    )
} | {
    enumerate: native(enumerate, 1, "start"),
    itertools.islice: native(itertools.islice, 1, 2, 3),
    itertools.repeat: native(itertools.repeat, 1, "times"),
    itertools.product: native(itertools.product, "repeat"),
    itertools.tee: native(itertools.tee, 1),
    itertools.pairwise: _pairwise,
} | {
    function: native(function, 1, "r")
    for function in (itertools.permutations, itertools.combinations, itertools.combinations_with_replacement)
} | {
    function: native_on_list(function)
    for function in (_heapq.heappush, _heapq.heappop, _heapq.heapreplace, _heapq.heappushpop, _heapq.heapify)
} | {
    function: native_on_list(function, 1, 2, "lo", "hi")
    for function in (_bisect.bisect_left, _bisect.bisect_right, _bisect.insort_left, _bisect.insort_right)
}  # fmt: skip


# -- as a Python function


def cmp_to_key(compare: Callable[[Any, Any], Any]) -> Any:
    """functools.cmp_to_key."""
    return _ComparedKey(compare)


def _by_comparing(holds: Callable[[Any, int], Any]) -> Callable[[Any, Any], Any]:
    return lambda self, other: holds(self.compare(self.obj, other.obj), 0)


class _ComparedKey:
    """What cmp_to_key gives: a function from objects to keys, and, with `obj`, such a key."""

    __slots__ = ("compare", "obj")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, compare: Callable[[Any, Any], Any], obj: Any = None) -> None:
        self.compare = compare
        self.obj = obj

    def __call__(self, obj: Any) -> Any:
        return _ComparedKey(self.compare, obj)

    __lt__, __gt__, __eq__, __le__, __ge__ = map(  # type: ignore[assignment]
        _by_comparing, (operator.lt, operator.gt, operator.eq, operator.le, operator.ge)
    )


NATIVE[functools.cmp_to_key] = inlined(cmp_to_key)
