"""Builtin classes called as constructors, and C `__new__` functions."""

from __future__ import annotations

import functools
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any

import torch

from bytecap.context_types import Tracer
from bytecap.nodes.torch_calls import number_of
from bytecap.objects.arrays.numpy_arrays import TracedArray
from bytecap.objects.arrays.tensors import TensorValue
from bytecap.objects.base import Value, collect
from bytecap.objects.classes import ClassValue
from bytecap.objects.constant import NONE, Constant
from bytecap.objects.containers.mappings import DictValue, MappingProxyValue
from bytecap.objects.containers.sequences import ListValue, SliceValue, TupleValue, field_names
from bytecap.objects.containers.sets import SetValue, keys_of
from bytecap.objects.functions import MethodValue, PartialValue
from bytecap.objects.instances.objects import ObjectValue
from bytecap.objects.live import call_native, native
from bytecap.objects.numbers.open_constants import open_format
from bytecap.objects.numbers.symbolic import is_symbolic
from bytecap.semantics.constant_folding import fold_call
from bytecap.semantics.string_conversion import repr_of, str_of


def _list(tracer: Tracer, values: Value | None = None) -> Value:
    return ListValue([] if values is None else collect(tracer, values))


def _tuple(tracer: Tracer, values: Value | None = None) -> Value:
    if isinstance(values, TupleValue) and values.cls is tuple:
        return values
    return TupleValue([] if values is None else collect(tracer, values))


def _dict_of(cls: type) -> Callable[..., Value]:
    def make(tracer: Tracer, values: Value | None = None, **more: Value) -> Value:
        made = DictValue(cls=cls)
        made.call_method(tracer, "update", [] if values is None else [values], more)
        return made

    return make


def _defaultdict(tracer: Tracer, factory: Value | None = None, values: Value | None = None, **more: Value) -> Value:
    made = DictValue(cls=defaultdict, factory=None if factory is None or factory.is_none() else factory)
    made.call_method(tracer, "update", [] if values is None else [values], more)
    return made


def _set_of(cls: type) -> Callable[..., Value]:
    def make(tracer: Tracer, values: Value | None = None, /) -> Value:
        if cls is frozenset and isinstance(values, SetValue) and values.cls is frozenset:
            return values
        return SetValue(tracer.objects, call_native(tracer, cls, () if values is None else keys_of(tracer, values)))

    return make


def _slice(tracer: Tracer, *args: Value) -> Value:
    start, stop, step = {1: (NONE, *args, NONE), 2: (*args, NONE), 3: args}[len(args)]
    return SliceValue(start, stop, step)


def _number(cls: type, method: str) -> Callable[..., Value]:
    def make(tracer: Tracer, *args: Value, **kwargs: Value) -> Value:
        if args and isinstance(args[0], TracedArray) and not args[0].example.ndim:
            args = (args[0].memory, *args[1:])
        if args and isinstance(args[0], TensorValue):
            return number_of(tracer, args[0], method, f"{cls.__name__}() of a tensor", cls)
        if args and isinstance(args[0], ObjectValue):
            found = args[0]._special(tracer, method)
            if found is not None:
                return found.call(tracer, [], {})
            if args[0].base is None and args[0]._special(tracer, "__index__") is not None:
                args = (Constant(args[0].as_int(tracer)), *args[1:])
        if cls is int and len(args) == 1 and is_symbolic(args[0], int):
            return args[0]
        return fold_call(tracer, cls, list(args), kwargs)

    return make


def _bool(tracer: Tracer, value: Value | None = None) -> Value:
    return Constant(False if value is None else value.truth(tracer))


def _str(tracer: Tracer, value: Value | None = None, *more: Value) -> Value:
    if more:
        return fold_call(tracer, str, [value, *more], {})  # type: ignore[list-item]
    return Constant("") if value is None else open_format(value, "") or Constant(str_of(tracer, value))


def _repr(tracer: Tracer, value: Value) -> Value:
    return Constant(repr_of(tracer, value))


def _partial(tracer: Tracer, function: Value, *args: Value, **kwargs: Value) -> Value:
    if isinstance(function, PartialValue):
        # As CPython does: a partial of a partial is one partial.
        inner = function
        return PartialValue(inner.function, [*inner.args, *args], {**inner.keywords, **kwargs})
    return PartialValue(function, list(args), dict(kwargs))


def _method_type(tracer: Tracer, function: Value, receiver: Value) -> Value:
    return MethodValue(function, receiver)


def _size(tracer: Tracer, values: Value | None = None) -> Value:
    return TupleValue([] if values is None else collect(tracer, values), cls=torch.Size)


def _object(tracer: Tracer) -> Value:
    return tracer.objects.new_object(object)


def _new_object(tracer: Tracer, cls: Value, *args: Value, **kwargs: Value) -> Value:
    assert isinstance(cls, ClassValue)
    return tracer.evaluate.allocate(tracer, cls.real, list(args))


def _call_class(tracer: Tracer, cls: Value, *args: Value, **kwargs: Value) -> Value:
    return tracer.evaluate.construct(tracer, cls.concrete(), list(args), kwargs)


def _new_tuple(tracer: Tracer, cls: Value, values: Value | None = None) -> Value:
    items, real = [] if values is None else collect(tracer, values), cls.concrete()
    if real in (tuple, torch.Size) or field_names(real):
        return TupleValue(items, cls=real)
    made = tracer.objects.new_object(real)
    made.base = TupleValue(items)
    return made


def _mapping_proxy(tracer: Tracer, mapping: Value, /) -> Value:
    inner = mapping.plain()
    if not isinstance(inner, DictValue) or inner is not mapping:
        return fold_call(tracer, types.MappingProxyType, [mapping], {})
    return MappingProxyValue(inner)


CLASSES: dict[Any, Callable[..., Value]] = {
    list: _list, tuple: _tuple, deque: native(deque, 1, "maxlen"), range: native(range, 0, 1, 2),
    dict: _dict_of(dict), OrderedDict: _dict_of(OrderedDict), defaultdict: _defaultdict,
    set: _set_of(set), frozenset: _set_of(frozenset), slice: _slice,
    int: _number(int, "__int__"), float: _number(float, "__float__"), complex: _number(complex, "__complex__"),
    bool: _bool, str: _str, repr: _repr, functools.partial: _partial, type(_size.__get__(0)): _method_type,
    torch.Size: _size, type.__call__: _call_class, object: _object, object.__new__: _new_object,
    dict.__new__: _new_object,
    OrderedDict.__new__: _new_object, list.__new__: _new_object, set.__new__: _new_object,
    str.__new__: _new_object, int.__new__: _new_object, float.__new__: _new_object, tuple.__new__: _new_tuple,
    types.MappingProxyType: _mapping_proxy,
    frozenset.__new__: _new_object, BaseException.__new__: _new_object, Exception.__new__: _new_object,
}  # fmt: skip
