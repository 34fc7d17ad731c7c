"""Calling a class: `type.__call__` for Python classes, table entries for builtin ones."""

from __future__ import annotations

import _random
import enum
import types
import typing
from abc import ABCMeta

import torch

from bytecap.bytecode.wrappers import is_wrapper
from bytecap.context_types import Tracer
from bytecap.errors import UnsupportedCall, UnsupportedValue
from bytecap.evaluator.calls import call_entry
from bytecap.lookasides.numpy_calls import call_numpy, is_numpy_function
from bytecap.nodes.wrapper_calls import call_wrapper
from bytecap.objects.base import TORCH_CONSTANTS, Value, collect, run
from bytecap.objects.class_lookup import is_made_in_c, is_python_class, static_lookup
from bytecap.objects.classes import ClassValue
from bytecap.objects.containers.mappings import DICT_TYPES
from bytecap.objects.containers.sequences import ListValue, TupleValue, field_names
from bytecap.objects.dispatch import HANDLERS, handler_of
from bytecap.objects.distributed import is_value_class
from bytecap.objects.functions import MethodValue
from bytecap.objects.instances.exceptions import ExceptionValue
from bytecap.objects.instances.objects import ObjectValue
from bytecap.objects.instances.random_streams import RandomStream
from bytecap.semantics.attributes import bind
from bytecap.semantics.constant_folding import fold_call, is_pure

# Py_TPFLAGS_IS_ABSTRACT: a class with abstract methods, of which object.__new__ makes no instance.
_IS_ABSTRACT = 1 << 20
# Classes whose `__init__` in C fills the instance.
_FILLED = (BaseException, types.SimpleNamespace)
# C classes of which instances may be made that nobody looks into.
_UNREAD = (property, torch.autograd.Function.__mro__[2])


def instantiate(tracer: Tracer, cls: type, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """`cls(*args, **kwargs)`."""
    handler = handler_of(cls)
    if handler is not None:
        return call_entry(tracer, handler, cls, args, kwargs)
    if is_numpy_function(cls):
        return call_numpy(tracer, cls, args, kwargs)
    if typing.is_typeddict(cls):
        return HANDLERS[dict](tracer, *args, **kwargs)
    if type(cls) is not type:
        tracer.guards.lookup(type(cls), "__call__")
    if is_value_class(cls):
        return fold_call(tracer, cls, args, kwargs)
    if is_wrapper(cls):
        return call_wrapper(tracer, cls, args, kwargs)
    custom = static_lookup(type(cls).__mro__, "__call__")[0]
    if isinstance(custom, types.FunctionType) and type(cls) not in (type, ABCMeta):
        if issubclass(cls, enum.Enum):
            return fold_call(tracer, cls, args, kwargs)
        return MethodValue(tracer.objects.wrap(custom, None), ClassValue(cls)).call(tracer, args, kwargs)
    if issubclass(cls, (BaseException, torch.nn.Module)) or is_python_class(cls):
        return construct(tracer, cls, args, kwargs)
    if issubclass(cls, tuple) and field_names(cls):
        items = args[0].values(tracer) if isinstance(args[0], (ListValue, TupleValue)) else args
        return TupleValue(list(items), cls=cls)
    if issubclass(cls, TORCH_CONSTANTS) or is_pure(cls):
        return fold_call(tracer, cls, args, kwargs)
    raise UnsupportedCall(f"creating a {cls.__module__}.{cls.__qualname__}")


def construct(tracer: Tracer, cls: type, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """type.__call__: `__new__`, then `__init__` if the result is an instance."""
    tracer.guards.lookup(cls, "__new__")
    new, _ = static_lookup(cls.__mro__, "__new__")
    if isinstance(new, staticmethod):
        new = new.__func__
    if isinstance(new, types.FunctionType):
        function = tracer.objects.wrap(new, None)
        made = function.call(tracer, [ClassValue(cls), *args], kwargs)
        if not issubclass(made.python_type(), cls):
            return made
    else:
        if (args or kwargs) and new is object.__new__ and cls.__init__ is object.__init__:
            raise tracer.raises(TypeError, f"{cls.__name__}() takes no arguments")
        made = allocate(tracer, cls, args)
    init, owner = static_lookup(cls.__mro__, "__init__")
    if isinstance(init, types.FunctionType):
        bind(tracer, init, owner or cls, made, cls, "__init__").call(tracer, args, kwargs)
        return made
    tracer.guards.lookup(cls, "__init__")
    if isinstance(made, ObjectValue) and (made.base is not None or issubclass(cls, _FILLED)):
        made.call_method(tracer, "__init__", args, kwargs)
    return made


def allocate(tracer: Tracer, cls: type, args: list[Value]) -> Value:
    """What the C `__new__` of the class's builtin base makes: an empty instance."""
    if static_lookup(cls.__mro__, "__del__")[1] is not None:
        # Its end can be seen, and this evaluator does not know when that is.
        refusal = UnsupportedCall(f"creating a {cls.__qualname__}, which has a __del__")
        refusal.is_whole = True
        raise refusal
    if cls.__flags__ & _IS_ABSTRACT:
        run(tracer, object.__new__, (cls,))
    if issubclass(cls, BaseException):
        return ExceptionValue(cls, list(args))
    if field_names(cls) and issubclass(cls, tuple):
        return TupleValue(list(args), cls=cls)
    base = _builtin_base(tracer, cls, args)
    made = tracer.objects.new_object(cls)
    made.base = base
    return made


def _builtin_base(tracer: Tracer, cls: type, args: list[Value]) -> Value | None:
    for ancestor in cls.__mro__:
        if ancestor in (*DICT_TYPES, list):
            return HANDLERS[ancestor](tracer)
        if ancestor in (set, frozenset):
            return HANDLERS[ancestor](tracer, *(args[:1] if ancestor is frozenset else []))
        if ancestor is tuple:
            return TupleValue(collect(tracer, args[0]) if args else [])
        if ancestor in (int, float, str, bytes, complex):
            return fold_call(tracer, ancestor, args, {})
        if ancestor is _random.Random:
            return RandomStream()
        if ancestor is torch.Tensor:
            raise UnsupportedValue(f"creating a tensor subclass {cls.__qualname__}")
        if is_made_in_c(ancestor) and ancestor is not object and not issubclass(ancestor, _FILLED + _UNREAD):
            raise UnsupportedCall(f"creating a {cls.__qualname__}, which is a {ancestor.__qualname__}")
    return None
