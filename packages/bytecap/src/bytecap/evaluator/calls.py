"""Calls: which function is a table entry, which a torch node, which is inlined."""

from __future__ import annotations

import _random
import enum
import functools
import inspect
import types
import typing
from abc import ABCMeta, get_cache_token
from typing import Any

import torch

from bytecap.bytecode.decode import argument_names
from bytecap.bytecode.wrappers import is_wrapper
from bytecap.context_types import Tracer
from bytecap.errors import CannotCapture, DisabledCall, GraphBreak, UnsupportedCall, UnsupportedValue
from bytecap.hook import directives
from bytecap.lookasides.messages import Warns, without_warnings
from bytecap.lookasides.numpy_calls import call_numpy, is_numpy_function
from bytecap.lookasides.replaced_functions import STAND_INS
from bytecap.nodes.torch_calls import call_torch
from bytecap.nodes.wrapper_calls import call_wrapper
from bytecap.objects.arrays.tensors import TensorValue, WrapperValue
from bytecap.objects.base import HANDLERS, TORCH_CONSTANTS, Constant, NotConcrete, Value, collect, handler_of, run
from bytecap.objects.class_lookup import LRU_CACHE, is_made_in_c, is_python_class, static_lookup
from bytecap.objects.containers.mappings import DICT_TYPES
from bytecap.objects.containers.sequences import ListValue, TupleValue, field_names
from bytecap.objects.distributed import is_layout, is_value_class
from bytecap.objects.functions import ClassValue, FunctionValue, MethodValue
from bytecap.objects.instances.exceptions import ExceptionValue
from bytecap.objects.instances.objects import ObjectValue
from bytecap.objects.instances.random_streams import RandomStream
from bytecap.objects.iterators import GeneratorValue
from bytecap.objects.opaque import refuse_unguarded
from bytecap.semantics.attributes import bind
from bytecap.semantics.constant_folding import fold_call, is_pure
from bytecap.semantics.methods import pairs_of
from bytecap.torch_capabilities import TORCH
from stagewire.capture import Cell
from stagewire.capture import DictValue as ValueAt

_DISPATCH: Any = functools.singledispatch(lambda value: None).dispatch
_SINGLE_DISPATCH = _DISPATCH.__code__
"""The code of every `dispatch` function."""


def _single_dispatch(tracer: Tracer, function: FunctionValue, args: list[Value]) -> Value:
    """`function.dispatch(cls)` of functools.singledispatch: looked up at once, what it is chosen from is guarded."""
    real: Any = function.real
    if len(args) != 1 or not isinstance(args[0], ClassValue):
        raise UnsupportedCall("dispatch() of what is no class")
    registry = real.__closure__[_SINGLE_DISPATCH.co_freevars.index("registry")].cell_contents
    place = tracer.places.handle(registry) if function.source is None else Cell("registry", function.source)
    found = run(tracer, real, (args[0].real,))
    tracer.guards.length(place, len(registry))
    if any(isinstance(cls, ABCMeta) for cls in registry):
        # A class may be registered with an abstract class later.
        tracer.guards.reading(get_cache_token, (), get_cache_token())
    index = next(at for at, value in enumerate(registry.values()) if value is found)
    return tracer.objects.wrap(found, ValueAt(place, index))


# Python functions of these modules are one node each; every other Python function is inlined.
LEAF_MODULES = frozenset(
    {"torch.nn.functional", "torch.functional", "torch._tensor", "torch.special", "torch.linalg", "torch.fft",
     "torch.masked._ops"}
)  # fmt: skip
BREAKS_FOR_ITSELF = frozenset({"torch.optim.optimizer"})
"""Where torch breaks its own graphs, round a change of the grad mode that this capture follows."""
# What torch keeps its own capture out of is evaluated here like any function.
_HIDDEN_FROM_TORCH = TORCH.hide_from_dynamo(lambda: None).__code__ if TORCH.has("hide_from_dynamo") else None
_C_METHODS = (types.MethodDescriptorType, types.WrapperDescriptorType, types.GetSetDescriptorType)
_TENSOR_BASE = torch.Tensor.__mro__[1]


def call_function(tracer: Tracer, function: FunctionValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Call a Python function."""
    real = function.real
    if real is not None:
        if real.__dict__ or real.__module__ in directives.MODULES_WITH_MARKS:
            found = call_marked(tracer, function, args, kwargs)
            if found is not None:
                return found
        handler = handler_of(real)
        if handler is not None:
            return call_entry(tracer, handler, real, args, kwargs)
        if real.__module__ in LEAF_MODULES and "<locals>" not in real.__qualname__:
            try:
                return call_torch(tracer, real, args, kwargs, abstract=without_warnings(real))
            except (UnsupportedValue, Warns):
                # A warning, or an argument that a node cannot hold (a function, an object): inline instead.
                return inline(tracer, function, args, kwargs)
        if is_pure(real):
            return _call_pure(tracer, function, args, kwargs)
        if is_numpy_function(real):
            return call_numpy(tracer, real, args, kwargs)
        if real.__code__ is _SINGLE_DISPATCH:
            return _single_dispatch(tracer, function, args)
        if real.__code__ is _HIDDEN_FROM_TORCH:
            return tracer.objects.wrap(real.__wrapped__, None).call(tracer, args, kwargs)
        stand_in = STAND_INS.get((real.__module__, real.__qualname__))
        if stand_in is not None:
            return tracer.objects.wrap(stand_in, None).call(tracer, args, kwargs)
    return inline(tracer, function, args, kwargs)


def _call_pure(tracer: Tracer, function: FunctionValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """A Python function without side effects: done at once on real objects, evaluated on others (`isfunction(x)`)."""
    try:
        return fold_call(tracer, function.real, args, kwargs)
    except UnsupportedCall as refusal:
        try:
            return inline(tracer, function, args, kwargs)
        except CannotCapture:
            raise refusal from None


def call_marked(tracer: Tracer, function: FunctionValue, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
    """A call of what carries a mark (see `bytecap.hook.directives`); None for other functions."""
    real = function.real
    match directives.mark_of(real):
        case "break":
            if tracer.frames.module() in BREAKS_FOR_ITSELF:
                return Constant(None)
            raise GraphBreak("graph_break() was called")
        case "disabled" | "skipped":
            reason = directives.reason_of(real)
            raise DisabledCall(f"{real.__qualname__} is disabled{f': {reason}' if reason else ''}")
        case "constant":
            try:
                return _call_now(tracer, real, args, kwargs)
            except NotConcrete as error:
                raise UnsupportedCall(f"the constant {real.__qualname__} was given {error.args[0]!r}") from None
    original = directives.original_of(real)
    if original is None:
        return None
    place = tracer.places.attribute(function.source, directives.ORIGINAL)
    return tracer.objects.wrap(original, place).call(tracer, args, kwargs)


def _call_now(tracer: Tracer, real: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """A call that is made while the frame is captured. Raises `NotConcrete`."""
    concrete = tuple(arg.concrete() for arg in args)
    named = {key: value.concrete() for key, value in kwargs.items()}
    return tracer.objects.wrap(run(tracer, real, concrete, named), None)


def call_entry(tracer: Tracer, handler: Any, real: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Call a table entry; a wrong argument list raises CPython's TypeError in the evaluated program."""
    refuse_unguarded(*args, *kwargs.values())
    try:
        return handler(tracer, *args, **kwargs)
    except TypeError as error:
        is_of_this_call = error.__traceback__ is not None and error.__traceback__.tb_next is None
        if not is_of_this_call:
            raise
    _refuse_arguments(tracer, real, args, kwargs)
    name = getattr(real, "__qualname__", str(real))
    raise UnsupportedCall(f"{name}() with these arguments: {len(args)} and {sorted(kwargs)}")


def _refuse_arguments(tracer: Tracer, real: Any, args: list[Value], kwargs: dict[str, Value]) -> None:
    """Raise what `real` says of the argument list, if it takes no such list."""
    try:
        inspect.signature(real).bind(*args, **kwargs)
    except ValueError:
        if not isinstance(real, type) and args:
            return
    except TypeError:
        pass
    else:
        return
    run(tracer, real, (None,) * len(args), dict.fromkeys(kwargs))


def call_builtin(tracer: Tracer, real: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Call a function written in C."""
    handler = handler_of(real)
    if handler is not None:
        return call_entry(tracer, handler, real, args, kwargs)
    if isinstance(real, _C_METHODS):
        return _call_descriptor(tracer, real, args, kwargs)
    if isinstance(real, LRU_CACHE):
        return _call_cached(tracer, real, args, kwargs)
    if is_torch_function(real):
        return call_torch(tracer, real, args, kwargs)
    if is_pure(real):
        return fold_call(tracer, real, args, kwargs)
    if is_numpy_function(real):
        return call_numpy(tracer, real, args, kwargs)
    name = getattr(real, "__qualname__", None) or repr(real)
    raise UnsupportedCall(f"call of {getattr(real, '__module__', None)}.{name}, which has no known meaning")


def is_torch_function(real: Any) -> bool:
    """Whether a callable is an operation of torch on tensors."""
    if isinstance(real, (TORCH.op_overload, TORCH.op_overload_packet)):
        return True
    module = getattr(real, "__module__", None) or ""
    owner = getattr(real, "__self__", None)
    if isinstance(owner, types.ModuleType):
        module = owner.__name__
    return (
        module.split(".")[0] == "torch"
        or getattr(owner, "__name__", "") == "_VariableFunctionsClass"
        or (isinstance(owner, type) and owner.__module__.split(".")[0] == "torch")
    )


def _call_descriptor(tracer: Tracer, real: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if not args:
        raise tracer.raises(TypeError, f"unbound method {real.__name__}() needs an argument")
    of_tensors = isinstance(args[0], (TensorValue, WrapperValue)) or issubclass(_TENSOR_BASE, real.__objclass__)
    if of_tensors and real.__objclass__ is not object:
        return call_torch(tracer, real, args, kwargs)
    return args[0].call_method(tracer, real.__name__, args[1:], kwargs)


def _call_cached(tracer: Tracer, real: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """functools.lru_cache: the cached function is taken to be pure."""
    try:
        return _call_now(tracer, real, args, kwargs)
    except NotConcrete:
        return tracer.objects.wrap(real.__wrapped__, None).call(tracer, args, kwargs)


def inline(tracer: Tracer, function: FunctionValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Evaluate the function's body in a new frame."""
    code = function.code
    if code.co_flags & (inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
        raise UnsupportedCall(f"async function {code.co_qualname}")
    frame = tracer.evaluate.frame(tracer, function, bind_arguments(tracer, function, args, kwargs))
    if code.co_flags & inspect.CO_GENERATOR:
        return GeneratorValue(frame)
    with tracer.frames.entering(frame):
        return frame.run()


def expand_mapping(tracer: Tracer, value: Value) -> dict[str, Value]:
    """The keyword arguments of `**value`."""
    result: dict[str, Value] = {}
    for key, item in pairs_of(tracer, value):
        if not isinstance(key, Constant) or not isinstance(key.value, str):
            raise tracer.raises(TypeError, "keywords must be strings")
        result[key.value] = item
    return result


# -- arguments bound to parameters, by CPython


def bind_arguments(
    tracer: Tracer, function: FunctionValue, args: list[Value], kwargs: dict[str, Value]
) -> dict[str, Any]:
    """Local variables at the start of a call; raises the TypeErrors that CPython raises."""
    code = function.code
    twin = types.FunctionType(_twin(code), {}, function.name, function.defaults or None)
    twin.__kwdefaults__ = function.kwdefaults
    twin.__qualname__ = code.co_qualname if function.real is None else function.real.__qualname__
    try:
        bound: dict[str, Any] = twin(*args, **kwargs)
    except TypeError as error:
        raise tracer.raises(TypeError, str(error)) from None
    for name in argument_names(code)[code.co_argcount + code.co_kwonlyargcount :]:
        rest = bound[name]
        bound[name] = TupleValue(list(rest)) if isinstance(rest, tuple) else tracer.objects.new_dict(rest)
    return bound


def _bound() -> dict[str, Any]:
    """The body of the twins below."""
    return locals()


def _twin(code: types.CodeType) -> types.CodeType:
    """A function with the same parameters that returns what they are bound to."""
    names = argument_names(code)
    return _bound.__code__.replace(
        co_argcount=code.co_argcount,
        co_posonlyargcount=code.co_posonlyargcount,
        co_kwonlyargcount=code.co_kwonlyargcount,
        co_varnames=names,
        co_nlocals=len(names),
        co_flags=_bound.__code__.co_flags | code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS),
        co_name=code.co_name,
        co_qualname=code.co_qualname,
    )


# -- classes that are called: `type.__call__` for Python classes, table entries for builtin ones

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
    if is_value_class(cls) or is_layout(cls):
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
