"""Functions of the standard library: itertools, functools, contextlib, copy, dataclasses, logging, warnings."""

from __future__ import annotations

import contextvars
import copy
import dataclasses
import functools
import itertools
import logging
import os
import threading
import typing
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from bytecap.errors import UnsupportedCall
from bytecap.operations import as_int, binary, collect, is_none, iterate_host, next_value, truth
from bytecap.signals import End
from bytecap.values.base import Value
from bytecap.values.classes import ClassValue
from bytecap.values.constant import Constant
from bytecap.values.identity import IdentityToken
from bytecap.values.iterators import HostIterator
from bytecap.values.mappings import DictValue, SetValue
from bytecap.values.objects import ExceptionValue, ObjectValue
from bytecap.values.sequences import ListValue, TupleValue

if TYPE_CHECKING:
    from bytecap.tracer import Tracer

NONE = Constant(None)


def _chain(tracer: Tracer, *values: Value) -> Value:
    return HostIterator((item for value in values for item in iterate_host(tracer, value)), itertools.chain)


def _chain_from(tracer: Tracer, values: Value) -> Value:
    rows = iterate_host(tracer, values)
    return HostIterator((item for row in rows for item in iterate_host(tracer, row)), itertools.chain)


def _islice(tracer: Tracer, values: Value, *bounds: Value) -> Value:
    limits = [None if is_none(bound) else as_int(tracer, bound) for bound in bounds]
    return HostIterator(itertools.islice(iterate_host(tracer, values), *limits), itertools.islice)


def _count(tracer: Tracer, start: Value = Constant(0), step: Value = Constant(1)) -> Value:  # noqa: B008
    def numbers() -> Iterator[Value]:
        value = start
        while True:
            yield value
            value = binary(tracer, "+", value, step)

    return HostIterator(numbers(), itertools.count)


def _repeat(tracer: Tracer, item: Value, times: Value | None = None) -> Value:
    items = itertools.repeat(item) if times is None else itertools.repeat(item, as_int(tracer, times))
    return HostIterator(items, itertools.repeat)


def _cycle(tracer: Tracer, values: Value) -> Value:
    return HostIterator(itertools.cycle(collect(tracer, values)), itertools.cycle)


def _tuples_of(function: Callable[..., Any]) -> Callable[..., Value]:
    """product, permutations, combinations... over collected items."""

    def make(tracer: Tracer, *values: Value, **options: Value) -> Value:
        args = [v.concrete() if isinstance(v, Constant) and isinstance(v.value, int) else collect(tracer, v)
                for v in values]  # fmt: skip
        rows = function(*args, **{name: option.concrete() for name, option in options.items()})
        return HostIterator((TupleValue(list(row)) for row in rows), function)  # type: ignore[arg-type]

    return make


def _starmap(tracer: Tracer, function: Value, rows: Value) -> Value:
    items = (function.call(tracer, collect(tracer, row), {}) for row in iterate_host(tracer, rows))
    return HostIterator(items, itertools.starmap)


def _takewhile(tracer: Tracer, test: Value, values: Value) -> Value:
    items = itertools.takewhile(lambda item: truth(tracer, test.call(tracer, [item], {})), iterate_host(tracer, values))
    return HostIterator(items, itertools.takewhile)


def _dropwhile(tracer: Tracer, test: Value, values: Value) -> Value:
    items = itertools.dropwhile(lambda item: truth(tracer, test.call(tracer, [item], {})), iterate_host(tracer, values))
    return HostIterator(items, itertools.dropwhile)


def _accumulate(tracer: Tracer, values: Value, function: Value | None = None, *, initial: Value | None = None) -> Value:
    def sums() -> Iterator[Value]:
        total = None if initial is None or is_none(initial) else initial
        if total is not None:
            yield total
        for item in iterate_host(tracer, values):
            if total is None:
                total = item
            elif function is None or is_none(function):
                total = binary(tracer, "+", total, item)
            else:
                total = function.call(tracer, [total, item], {})
            yield total

    return HostIterator(sums(), itertools.accumulate)


def _zip_longest(tracer: Tracer, *values: Value, fillvalue: Value = NONE) -> Value:
    rows = itertools.zip_longest(*(collect(tracer, value) for value in values), fillvalue=fillvalue)
    return HostIterator((TupleValue(list(row)) for row in rows), itertools.zip_longest)


def _reduce(tracer: Tracer, function: Value, values: Value, initial: Value | None = None) -> Value:
    items = values.iterate(tracer)
    total: Any = initial if initial is not None else next_value(tracer, items)
    if isinstance(total, End):
        raise tracer.raises(TypeError, "reduce() of empty iterable with no initial value")
    while not isinstance(item := next_value(tracer, items), End):
        total = function.call(tracer, [total, item], {})
    return total


def _copy(tracer: Tracer, value: Value) -> Value:
    if isinstance(value, (ListValue, DictValue, SetValue)):
        return value.call_method(tracer, "copy", [], {})
    if isinstance(value, ObjectValue):
        method = value._special(tracer, "__copy__")
        return method.call(tracer, [], {}) if method is not None else _copy_object(tracer, value)
    return value


def _copy_object(tracer: Tracer, value: ObjectValue) -> Value:
    made = tracer.new_object(value.cls)
    made.base = None if value.base is None else _copy(tracer, value.base)
    for key, item in value.attributes.pairs(tracer):
        made.attributes.set_item(tracer, key, item)
    made.slots.update(value.slots)
    return made


def _fields(tracer: Tracer, value: Value) -> Value:
    cls = value.concrete() if _is_class(value) else value.python_type()
    return TupleValue([tracer.wrap(field, None) for field in dataclasses.fields(cls)])


def _is_class(value: Value) -> bool:
    return issubclass(value.python_type(), type)


def _is_dataclass(tracer: Tracer, value: Value) -> Value:
    cls = value.concrete() if _is_class(value) else value.python_type()
    return Constant(dataclasses.is_dataclass(cls))


def _dataclass_replace(tracer: Tracer, value: Value, **changes: Value) -> Value:
    cls = value.python_type()
    for field in dataclasses.fields(cls):
        if field.init and field.name not in changes:
            changes[field.name] = value.get_attribute(tracer, field.name)
    return tracer.wrap(cls, None).call(tracer, [], changes)


def _message(function: Callable[..., Any]) -> Callable[..., Value]:
    """A call whose only effect is a message, made after the graph."""

    def later(tracer: Tracer, *args: Value, **kwargs: Value) -> Value:
        from bytecap.effects import CallEffect

        for value in (*args, *kwargs.values()):
            if not isinstance(value, (Constant, ClassValue, ExceptionValue)) and value is not args[0]:
                raise UnsupportedCall(f"{function.__qualname__}() with a {value.describe()}")
        tracer.effects.append(CallEffect(function, list(args), kwargs))
        return NONE

    return later


def _thread_identity(tracer: Tracer) -> Value:
    return IdentityToken(threading.get_ident)


def _context_get(tracer: Tracer, variable: Value, default: Value | None = None) -> Value:
    real = variable.concrete()
    return tracer.wrap(real.get(*([] if default is None else [default.concrete()])), None)


LIBRARY: dict[Any, Callable[..., Value]] = {
    itertools.chain: _chain, itertools.chain.from_iterable: _chain_from, itertools.islice: _islice,
    itertools.count: _count, itertools.repeat: _repeat, itertools.cycle: _cycle,
    itertools.product: _tuples_of(itertools.product), itertools.permutations: _tuples_of(itertools.permutations),
    itertools.combinations: _tuples_of(itertools.combinations), itertools.pairwise: _tuples_of(itertools.pairwise),
    itertools.starmap: _starmap, itertools.takewhile: _takewhile, itertools.dropwhile: _dropwhile,
    itertools.accumulate: _accumulate, itertools.zip_longest: _zip_longest, functools.reduce: _reduce,
    threading.get_ident: _thread_identity, copy.copy: _copy, dataclasses.fields: _fields,
    dataclasses.is_dataclass: _is_dataclass, typing.cast: lambda tracer, kind, value: value,
    dataclasses.replace: _dataclass_replace, warnings.warn: _message(warnings.warn),
    contextvars.ContextVar.get: _context_get,
    os.environ.get: lambda tracer, key, default=NONE: Constant(os.environ.get(key.concrete(), default.concrete())),
} | {
    getattr(logging.Logger, name): _message(getattr(logging.Logger, name))
    for name in ("debug", "info", "warning", "error", "exception", "critical", "log", "warn")
}  # fmt: skip
