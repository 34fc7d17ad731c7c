"""Functions of the standard library: itertools, functools, dataclasses, heapq, bisect, logging, warnings, copy."""

from __future__ import annotations

import _bisect
import _collections
import _heapq
import collections
import copy
import copyreg
import dataclasses
import enum
import functools
import inspect
import itertools
import logging
import operator
import sys
import threading
import types
import typing
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import torch

from bytecap.context_types import Tracer
from bytecap.errors import UnsupportedCall
from bytecap.lookasides.messages import message
from bytecap.objects.arrays.tensors import TensorValue
from bytecap.objects.base import NONE, Constant, IteratorValue, Value, evaluated, fold, inlined, run
from bytecap.objects.class_lookup import stranger
from bytecap.objects.containers.host_containers import DequeValue, SetValue
from bytecap.objects.containers.mappings import DictValue
from bytecap.objects.containers.sequences import ListValue, TupleValue
from bytecap.objects.identity import IdentityToken, WeakReference
from bytecap.objects.instances.objects import ObjectValue, call_special
from bytecap.objects.live import Live, NativeIterator, native, native_on_list
from bytecap.semantics.constant_folding import fold_call


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
    warnings.warn: message(warnings.warn, at=2), weakref.ref: _weak_reference, logging.getLogger: _get_logger,
} | {
    getattr(logging.Logger, name): message(getattr(logging.Logger, name))
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


# -- `copy.copy` and `copy.deepcopy`: CPython's own code, evaluated. What C says of an object there stands here.

_ATOMIC = (
    *(cls for cls, rule in copy._deepcopy_dispatch.items() if rule is copy._deepcopy_atomic),  # type: ignore[attr-defined]
    type, enum.Enum, torch.dtype, torch.device, torch.layout, torch.memory_format,
)  # fmt: skip

_IMMUTABLE = (
    *(cls for cls, rule in copy._copy_dispatch.items() if rule is copy._copy_immutable),  # type: ignore[attr-defined]
    *_ATOMIC,
)


def _deep_copy(tracer: Tracer, value: Value, memo: Value = NONE, *default: Value) -> Value:
    if isinstance(value, Constant) or issubclass(value.python_type(), _ATOMIC):
        return value
    if not isinstance(value, TensorValue):
        real = tracer.objects.wrap(copy.deepcopy, None)
        return tracer.evaluate.inline(tracer, real, [value, memo, *default], {})  # type: ignore[arg-type]
    if value.abstract.requires_grad or not value.abstract.is_contiguous() or value.attributes:
        raise UnsupportedCall(f"copy.deepcopy of a {value.describe()} that requires grad or is not contiguous")
    token = IdentityToken(tracer.objects.identified(value))
    known = memo.lookup(tracer, token) if isinstance(memo, DictValue) else None
    made = known or value.call_method(tracer, "clone", [], {})
    if isinstance(memo, DictValue):
        memo.set_item(tracer, token, made)
    return made


def _copy(tracer: Tracer, value: Value) -> Value:
    if isinstance(value, NativeIterator):
        return fold(tracer, copy.copy, (value.host,))
    if isinstance(value, IteratorValue):
        raise UnsupportedCall(f"copy.copy of a {value.describe()}")
    if isinstance(value, (ListValue, DictValue, SetValue, DequeValue)):
        return value.call_method(tracer, "copy", [], {})
    if isinstance(value, ObjectValue):
        real = tracer.objects.wrap(copy.copy, None)
        return tracer.evaluate.inline(tracer, real, [value], {})  # type: ignore[arg-type]
    if not issubclass(value.python_type(), _IMMUTABLE):
        raise UnsupportedCall(f"copy.copy of a {value.describe()}")
    return value


def reduce_ex(tracer: Tracer, value: Value, protocol: Value) -> Value:
    """What C's `__reduce_ex__` says of an object: a callable, its arguments, attributes, items."""
    cls, base = value.python_type(), value.plain()
    if (own := call_special(tracer, value, "__reduce__")) is not None:
        return own
    known = tracer.objects.wrap(cls, None)
    if protocol.concrete() < 2:
        raise UnsupportedCall("pickling by protocol 0 or 1")
    has_pairs = isinstance(base, DictValue)
    pairs = value.get_attribute(tracer, "items").call(tracer, [], {}).iterate(tracer) if has_pairs else NONE
    state = _state(tracer, value)
    c_reduce: Any = cls.__reduce__
    if c_reduce is object.__reduce__:
        maker = tracer.objects.wrap(copyreg.__newobj__, None)  # type: ignore[attr-defined]
        listed = base.iterate(tracer) if isinstance(base, ListValue) else NONE
        return TupleValue([maker, TupleValue([known, *_new_arguments(tracer, value)]), state, listed, pairs])
    if isinstance(base, SetValue):
        return TupleValue([known, TupleValue([ListValue(base.in_order())]), state])
    if c_reduce in _OF_PAIRS:
        factory = [base.factory or NONE] if issubclass(cls, collections.defaultdict) else []  # type: ignore[attr-defined]
        return TupleValue([known, TupleValue(factory), state, NONE, pairs])
    if isinstance(base, DequeValue):
        bound = [] if base.maxlen is None else [TupleValue([]), Constant(base.maxlen)]
        return TupleValue([known, TupleValue(bound), state, base.iterate(tracer)])
    raise UnsupportedCall(f"a copy of a {value.describe()}, which has rules of its own")


_OF_PAIRS = (
    collections.OrderedDict.__reduce__, collections.defaultdict.__reduce__, types.SimpleNamespace.__reduce__,
)  # fmt: skip


def _new_arguments(tracer: Tracer, value: Value) -> list[Value]:
    base = value.plain()
    if not isinstance(value, ObjectValue):
        return []
    for name in ("__getnewargs_ex__", "__getnewargs__"):
        given = call_special(tracer, value, name)
        if given is not None:
            if not isinstance(given, TupleValue) or name == "__getnewargs_ex__":
                raise UnsupportedCall(f"a copy of a {value.describe()} by {name}()")
            return given.values(tracer)
    return [base] if isinstance(base, (Constant, TupleValue)) else []


def _state(tracer: Tracer, value: Value) -> Value:
    if not isinstance(value, ObjectValue):
        if getattr(value, "own", None):
            raise UnsupportedCall(f"a copy of a {value.describe()} with attributes")
        return NONE
    if (own := call_special(tracer, value, "__getstate__")) is not None:
        return own
    attributes = value.attributes if value.cls.__dictoffset__ else NONE
    if not copyreg._slotnames(value.cls):  # type: ignore[attr-defined]
        return attributes
    if value.real is not None:
        raise UnsupportedCall(f"a copy of a {value.describe()}, which has slots from outside")
    slots = {name: item for name, item in value.slots.items() if item is not None}
    return TupleValue([attributes, tracer.objects.new_dict(slots)]) if slots else attributes


COPIES: dict[Any, Any] = {copy.copy: _copy, copy.deepcopy: _deep_copy}
