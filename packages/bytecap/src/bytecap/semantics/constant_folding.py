"""Doing things at once: host calls on real objects whose result cannot depend on a tensor's content; which are pure."""

from __future__ import annotations

import base64
import collections
import contextlib
import datetime
import decimal
import importlib.util
import inspect
import json
import os
import re
import sys
import typing
from collections.abc import Callable, Iterable
from typing import Any

import torch

from bytecap.context_types import Tracer, Value
from bytecap.errors import UnsupportedCall
from bytecap.guards.guard_set import is_exempt
from bytecap.objects.base import Constant, NotConcrete, fold, run
from bytecap.objects.class_lookup import filled_slots
from bytecap.objects.containers.mappings import DictValue, DictView
from bytecap.objects.containers.sequences import Sequence
from bytecap.objects.functions import ClassValue, FunctionValue, MethodValue, PartialValue
from bytecap.objects.instances.objects import ObjectValue
from bytecap.objects.numbers.symbolic import as_value, compute_of_sizes
from bytecap.objects.opaque import PURE_CLASSES, OpaqueValue
from stagewire.capture import Attribute


def fold_call(tracer: Tracer, function: Callable[..., Any], args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Call a known-pure function on values that all have real objects."""
    if looks_elsewhere(function):
        raise UnsupportedCall(f"call of {function.__qualname__}, which may return something else at the next run")
    of_sizes = run(tracer, compute_of_sizes, (function, args)) if not kwargs else None
    if of_sizes is not None:
        return as_value(of_sizes)
    if not kwargs and (computed := tracer.sizes.compute(function, args)) is not None:
        return computed
    if not looks_at_classes_alone(function):
        for value in (*args, *kwargs.values()):
            settle(tracer, value)
    elif not _is_predicate(function):
        for value in (*args, *kwargs.values()):
            _settle_callable(tracer, function, value)
    try:
        real_args = tuple(_concrete(arg) for arg in args)
        real_kwargs = {key: _concrete(value) for key, value in kwargs.items()}
    except NotConcrete as error:
        name = getattr(function, "__qualname__", repr(function))
        raise UnsupportedCall(f"{name} needs plain Python values, got {error.args[0]!r}") from None
    return fold(tracer, function, real_args, real_kwargs)


def fold_method(tracer: Tracer, receiver: Value, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """A method of an immutable object, done at once."""
    is_pure = (
        isinstance(receiver, OpaqueValue) and not receiver.shows_changes() and isinstance(receiver.real, PURE_CLASSES)
    )
    if not is_pure and not isinstance(receiver, Constant):
        raise UnsupportedCall(f"method {name!r} of a {receiver.describe()}")
    method = run(tracer, getattr, (receiver.concrete(), name))
    return fold_call(tracer, method, args, kwargs)


def _concrete(value: Value) -> Any:
    """The real object; for a new instance of a subclass of a number or text, the number or text."""
    if isinstance(value, ObjectValue) and value.real is None and isinstance(value.base, Constant):
        return value.base.value
    return value.concrete()


def settle(tracer: Tracer, value: Value) -> None:
    """Guard all that a host call can read of an outside value: what containers hold, the attributes of objects.

    Objects of classes of the program are refused: the call may run their code.
    """
    waiting, seen = [value], set[int]()
    while waiting:
        value = waiting.pop()
        if id(value) not in seen:
            seen.add(id(value))
            waiting += _parts(tracer, value)


def _parts(tracer: Tracer, value: Value) -> Iterable[Value]:
    match value:
        case Sequence():
            return value.values(tracer)
        case DictView():
            return (value.dictionary,)
        case DictValue() if value.real is None or value.source is not None:
            return (part for pair in value.pairs(tracer) for part in pair)
        case ObjectValue(base=Constant()):
            return ()  # a number or text of a subclass, which is guarded to be this object
        case ObjectValue() if value.real is not None and value.source is not None:
            if not is_exempt(value.cls.__module__):
                raise UnsupportedCall(f"a library function that is given a {value.describe()}, whose code it may run")
            parts = [value.get_attribute(tracer, name) for name in filled_slots(value.real)]
            return [*parts, value.attributes, *([] if value.base is None else [value.base])]
        case _:
            with contextlib.suppress(NotConcrete):
                value.concrete()  # a number that was left open is fixed
    return ()


def _settle_callable(tracer: Tracer, function: Any, value: Value) -> None:
    """Guard what a function of `inspect` reads of a callable. Classes and objects of the program's are refused, save by
    `signature`: what others look at is seen where they are evaluated."""
    match value:
        case MethodValue():
            _settle_callable(tracer, function, value.function)
        case PartialValue():
            for part in (value.function, *value.args, *value.keywords.values()):
                _settle_callable(tracer, function, part)
        case FunctionValue() if value.real is not None and value.source is not None:
            for name in ("__defaults__", "__kwdefaults__", "__annotations__"):
                tracer.guards.frozen(getattr(value.real, name), Attribute(value.source, name))
            for _, attribute in value.attributes.pairs(tracer):  # (`__wrapped__`, `__signature__`)
                _settle_callable(tracer, function, attribute)
        case ClassValue() | ObjectValue():
            cls = value.real if isinstance(value, ClassValue) else value.cls
            if function is not inspect.signature:
                if tracer.guards.may_change(cls):
                    raise UnsupportedCall(f"inspecting a {value.describe()}, whose attributes may change")
            elif isinstance(value, ClassValue):
                for name in ("__init__", "__new__", "__signature__", "__text_signature__"):
                    tracer.guards.lookup(cls, name)
                tracer.guards.lookup(type(cls), "__call__")
            else:
                tracer.guards.lookup(cls, "__call__")
                value.attributes.lookup(tracer, Constant("__signature__"))


# -- Callables without side effects whose result depends on their arguments alone.

# Whole modules of such functions (top-level name, or the full dotted name).
PURE_MODULES = frozenset(
    {"math", "cmath", "_operator", "operator", "inspect", "typing", "re", "string", "textwrap", "fractions",
     "statistics", "types", "keyword", "packaging", "numbers", "_struct", "struct", "unicodedata", "colorsys",
     "sre_compile", "ast", "typing_extensions", "posixpath", "genericpath", "decimal", "binascii"}
)  # fmt: skip

PURE: frozenset[Any] = frozenset(
    {
        ascii, bin, bytes, chr, hex, oct, ord, inspect.signature, importlib.util.find_spec, re.compile,
        typing.get_type_hints, typing.get_origin, typing.get_args, collections.Counter,
        str.maketrans, bytes.maketrans, sys.intern, json.dumps, json.loads, base64.b64encode, base64.b64decode,
        datetime.timedelta, datetime.date, datetime.datetime, datetime.time,
        torch.finfo, torch.iinfo, torch.is_storage, torch.typename, torch.promote_types, torch.can_cast, os.fspath,
        torch.cuda.is_available, torch.backends.mps.is_available, torch.cuda.device_count,
        torch.cuda.is_bf16_supported, torch.cuda.get_device_capability, torch.cuda.get_device_name,
    }
)  # fmt: skip

_ELSEWHERE = frozenset(
    {datetime.datetime.now, datetime.datetime.today, datetime.datetime.utcnow, datetime.date.today,
     decimal.getcontext, decimal.setcontext, decimal.localcontext, inspect.currentframe, inspect.stack, inspect.trace}
) | frozenset(
    getattr(os.path, name)
    for name in (
        "exists", "lexists", "isfile", "isdir", "islink", "ismount", "getsize", "getmtime", "getatime", "getctime",
        "samefile", "sameopenfile", "abspath", "realpath", "relpath", "expanduser", "expandvars",
    )
)  # fmt: skip
"""Of the modules above, but they read files, clocks, frames, or what belongs to the process."""

_OF_CLASSES = frozenset({"inspect", "typing", "typing_extensions", "types", "dataclasses"})
_OF_ANY_OBJECT = frozenset({torch.is_storage, torch.typename})


def looks_elsewhere(function: Any) -> bool:
    """Whether the result depends on more than the arguments and the code."""
    try:
        return function in _ELSEWHERE
    except TypeError:
        return False


def _is_predicate(function: Any) -> bool:
    """Whether a function of these modules asks for the class alone (`inspect.isfunction`)."""
    if function.__module__ == "inspect":
        return function.__name__.startswith("is")
    return function is not typing.get_type_hints


def looks_at_classes_alone(function: Any) -> bool:
    """Whether a pure callable reads nothing of an object but its class (and what classes and functions hold)."""
    return getattr(function, "__module__", None) in _OF_CLASSES or function in _OF_ANY_OBJECT


def is_pure(real: Any) -> bool:
    """Whether calling `real` at capture time, on real arguments, is sound."""
    try:
        if real in PURE:
            return True
    except TypeError:
        return False
    owner = getattr(real, "__self__", None)
    module = getattr(real, "__module__", None) or getattr(owner, "__name__", None) or ""
    if not isinstance(module, str):
        return False
    return module in PURE_MODULES or module.split(".")[0] in PURE_MODULES
