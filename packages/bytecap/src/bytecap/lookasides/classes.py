"""Builtin classes called as constructors, C `__new__` functions, class statements."""

from __future__ import annotations

import builtins
import functools
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch

from bytecap.bytecode.decode import decode
from bytecap.context_types import Tracer
from bytecap.errors import UnsupportedCall
from bytecap.nodes.torch_calls import number_of
from bytecap.objects.arrays.numpy_arrays import TracedArray
from bytecap.objects.arrays.tensors import TensorValue
from bytecap.objects.base import NONE, Constant, Value, collect, run
from bytecap.objects.class_lookup import static_lookup
from bytecap.objects.containers.host_containers import SetValue, keys_of
from bytecap.objects.containers.mappings import DictValue, MappingProxyValue
from bytecap.objects.containers.sequences import ListValue, SliceValue, TupleValue, field_names
from bytecap.objects.functions import ClassValue, FunctionValue, MethodValue, PartialValue
from bytecap.objects.instances.objects import ObjectValue, call_special
from bytecap.objects.live import call_native, native
from bytecap.objects.numbers.symbolic import is_symbolic
from bytecap.semantics.constant_folding import fold_call
from bytecap.semantics.string_conversion import open_text, repr_of, str_of


def _tuple_of(cls: type) -> Callable[..., Value]:
    def make(tracer: Tracer, values: Value | None = None) -> Value:
        if isinstance(values, TupleValue) and values.cls is cls is tuple:
            return values
        return TupleValue([] if values is None else collect(tracer, values), cls=cls)

    return make


def _dict_of(cls: type) -> Callable[..., Value]:
    def make(tracer: Tracer, /, *args: Value, **more: Value) -> Value:
        made = DictValue(cls=cls)
        made.call_method(tracer, "__init__", list(args), more)
        return made

    return make


def _set_of(cls: type) -> Callable[..., Value]:
    def make(tracer: Tracer, values: Value | None = None, /) -> Value:
        if cls is frozenset and isinstance(values, SetValue) and values.cls is frozenset:
            return values
        return SetValue(tracer.objects, call_native(tracer, cls, () if values is None else keys_of(tracer, values)))

    return make


def _slice(tracer: Tracer, *args: Value) -> Value:
    return SliceValue(*{1: (NONE, *args, NONE), 2: (*args, NONE), 3: args}[len(args)])


def _number(cls: type, method: str) -> Callable[..., Value]:
    def make(tracer: Tracer, *args: Value, **kwargs: Value) -> Value:
        if args and isinstance(args[0], TracedArray) and not args[0].example.ndim:
            args = (args[0].memory, *args[1:])
        if args and isinstance(args[0], TensorValue):
            return number_of(tracer, args[0], method, f"{cls.__name__}() of a tensor", cls)
        if args and isinstance(args[0], ObjectValue):
            if (found := call_special(tracer, args[0], method)) is not None:
                return found
            if args[0].base is None and args[0]._special(tracer, "__index__") is not None:
                args = (Constant(args[0].as_int(tracer)), *args[1:])
        if cls is int and len(args) == 1 and is_symbolic(args[0], int):
            return args[0]
        return fold_call(tracer, cls, list(args), kwargs)

    return make


def _str(tracer: Tracer, value: Value | None = None, *more: Value) -> Value:
    if more:
        return fold_call(tracer, str, [value, *more], {})  # type: ignore[list-item]
    return Constant("") if value is None else open_text(tracer, value) or Constant(str_of(tracer, value))


def _partial(tracer: Tracer, function: Value, *args: Value, **kwargs: Value) -> Value:
    if isinstance(function, PartialValue):  # as in CPython, a partial of a partial is one partial
        function, args, kwargs = function.function, (*function.args, *args), {**function.keywords, **kwargs}
    return PartialValue(function, list(args), dict(kwargs))


def _new_tuple(tracer: Tracer, cls: Value, values: Value | None = None) -> Value:
    items, real = [] if values is None else collect(tracer, values), cls.concrete()
    if real in (tuple, torch.Size) or field_names(real):
        return TupleValue(items, cls=real)
    made = tracer.objects.new_object(real)
    made.base = TupleValue(items)
    return made


def _mapping_proxy(tracer: Tracer, mapping: Value, /) -> Value:
    if not isinstance(mapping, DictValue):
        return fold_call(tracer, types.MappingProxyType, [mapping], {})
    return MappingProxyValue(mapping)


CLASSES: dict[Any, Callable[..., Value]] = {
    list: lambda tracer, values=None: ListValue([] if values is None else collect(tracer, values)),
    tuple: _tuple_of(tuple), deque: native(deque, 1, "maxlen"), range: native(range, 0, 1, 2),
    **{cls: _dict_of(cls) for cls in (dict, OrderedDict, defaultdict)},
    set: _set_of(set), frozenset: _set_of(frozenset), slice: _slice,
    int: _number(int, "__int__"), float: _number(float, "__float__"), complex: _number(complex, "__complex__"),
    bool: lambda tracer, value=None: Constant(False if value is None else value.truth(tracer)),
    repr: lambda tracer, value: open_text(tracer, value, repr) or Constant(repr_of(tracer, value)),
    types.MethodType: lambda tracer, function, receiver: MethodValue(function, receiver),
    object: lambda tracer: tracer.objects.new_object(object),
    type.__call__: lambda tracer, cls, *args, **kwargs: tracer.evaluate.construct(
        tracer, cls.concrete(), list(args), kwargs
    ),
    str: _str, functools.partial: _partial, torch.Size: _tuple_of(torch.Size),
    tuple.__new__: _new_tuple, types.MappingProxyType: _mapping_proxy,
    **{
        cls.__new__: lambda tracer, cls, *args, **kwargs: tracer.evaluate.allocate(tracer, cls.concrete(), list(args))
        for cls in (object, dict, OrderedDict, list, set, frozenset, str, int, float, BaseException, Exception)
    },
}  # fmt: skip


# -- Class statements in captured code: the class is made when the frame is captured, and its later runs share it.
#
# Each run of the program makes another class, so that of the capture is nobody else's: it does not leave the code
# (`Emitter.constant`), and nothing is stored in it. CPython itself runs the body, where that makes nothing but methods,
# known decorators and constants: no run can tell whether it was run again.

_NAMES = frozenset({"__name__", "staticmethod", "classmethod", "property"})
_STATEMENTS = frozenset(
    {"RESUME", "NOP", "CACHE", "MAKE_CELL", "LOAD_CLOSURE", "BUILD_TUPLE", "LOAD_CONST", "MAKE_FUNCTION",
     "SET_FUNCTION_ATTRIBUTE", "PUSH_NULL", "PRECALL", "CALL", "COPY", "STORE_NAME", "RETURN_VALUE", "RETURN_CONST",
     "SETUP_ANNOTATIONS", "LOAD_FAST", "LOAD_NAME"}
)  # fmt: skip


def _build_class(tracer: Tracer, body: Value, name: Value, *bases: Value, **options: Value) -> Value:
    names = tracer.frames[-1].globals.real
    is_plain = isinstance(body, FunctionValue) and names is not None and not options and _is_plain(body, names)
    if not is_plain or not all(isinstance(base, ClassValue) and _takes_subclasses(base.real) for base in bases):
        raise UnsupportedCall(f"the statement of class {name.concrete()}")
    function = FunctionType(body.code, names)  # type: ignore[attr-defined,arg-type]
    given = (function, name.concrete(), *[base.concrete() for base in bases])
    return _made(tracer, run(tracer, builtins.__build_class__, given))


def make_class(tracer: Tracer, name: Value, bases: Value, attributes: Value) -> Value:
    """`type(name, bases, attributes)`, with plain bases and no attributes but constants."""
    values = [] if not isinstance(attributes, DictValue) else attributes.pairs(tracer)
    is_plain = isinstance(attributes, DictValue) and all(isinstance(each, Constant) for pair in values for each in pair)
    given = bases.concrete()
    if not is_plain or not all(map(_takes_subclasses, given)):
        raise UnsupportedCall("creating a class with type(name, bases, dict)")
    module = tracer.frames[-1].globals.lookup(tracer, Constant("__name__"))
    names = {key.concrete(): value.concrete() for key, value in values}
    return _made(tracer, run(tracer, type, (name.concrete(), given, {**names, "__module__": module.concrete()})))


def _made(tracer: Tracer, made: type) -> Value:
    tracer.made_classes.append(made)
    return tracer.objects.wrap(made, None)


def _is_plain(body: FunctionValue, names: dict[str, Any]) -> bool:
    """Whether the body reads nothing that may differ in the next run, and does nothing but to make its attributes."""
    hidden = (names.keys() | set(map(str, body.globals.written))) - {"__name__"}
    rows = decode(body.code).instructions
    loaded = {row.argval for row in rows if row.opname == "LOAD_NAME"}
    is_known = loaded <= _NAMES and hidden.isdisjoint(loaded)
    return is_known and not body.code.co_freevars and all(row.opname in _STATEMENTS for row in rows)


def _takes_subclasses(base: Any) -> bool:
    """Whether making a subclass runs no code of the program's."""
    return type(base) is type and static_lookup(base.__mro__, "__init_subclass__")[1] is object


CLASS_STATEMENTS: dict[Any, Callable[..., Value]] = {builtins.__build_class__: _build_class}
