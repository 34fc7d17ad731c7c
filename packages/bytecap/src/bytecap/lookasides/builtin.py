"""Functions of `builtins`, and the C functions of `operator`."""

from __future__ import annotations

import operator
import sys
import typing
from abc import ABCMeta, get_cache_token
from collections.abc import Callable
from types import UnionType
from typing import Any

import torch

from bytecap.context_types import Tracer
from bytecap.errors import UnsupportedCall
from bytecap.guards.guard_set import is_exempt, is_watched
from bytecap.lookasides.classes import make_class
from bytecap.nodes.chosen_tensors import choose
from bytecap.objects.arrays.numpy_arrays import TracedArray
from bytecap.objects.arrays.tensors import TensorValue, WrapperValue
from bytecap.objects.base import (
    NONE,
    Constant,
    End,
    NotConcrete,
    PythonRaise,
    Value,
    collect,
    fold,
    result_or_stop,
    run,
)
from bytecap.objects.class_lookup import has_method, static_lookup, stranger
from bytecap.objects.containers.host_containers import DequeValue, SetValue
from bytecap.objects.containers.mappings import DictValue, DictView
from bytecap.objects.containers.sequences import ListValue, Sequence, SequenceIterator, SliceValue, TupleValue
from bytecap.objects.functions import (
    BuiltinFunction,
    BuiltinMethod,
    ClassValue,
    FunctionValue,
    MethodValue,
    ModuleValue,
    SuperValue,
)
from bytecap.objects.identity import Identity, IdentityToken, is_lasting_key
from bytecap.objects.instances.objects import ObjectValue, call_special
from bytecap.objects.live import LiveSequence, call_native, native
from bytecap.objects.numbers.open_constants import OpenConstant
from bytecap.objects.numbers.symbolic import extreme, is_symbolic
from bytecap.objects.opaque import SINGLE
from bytecap.semantics.constant_folding import fold_call
from bytecap.semantics.effects import CallEffect
from bytecap.semantics.methods import PROTOCOL
from bytecap.semantics.operations import BINARY, COMPARE, UNARY, binary, compare, is_same, unary
from bytecap.semantics.string_conversion import format_of, open_text, str_of
from bytecap.torch_capabilities import TORCH


def _len(tracer: Tracer, value: Value) -> Value:
    if isinstance(value, TensorValue) and value.abstract.dim():
        return tracer.objects.fresh(value.abstract.shape[0])
    return Constant(value.length(tracer))


def _instance_of(tracer: Tracer, value: Value, classes: Value) -> bool:
    if isinstance(classes, TupleValue):
        return any(_instance_of(tracer, value, cls) for cls in classes.values(tracer))
    cls = classes.concrete()
    if isinstance(cls, UnionType) and all(isinstance(part, type) for part in cls.__args__):
        return any(_instance_of(tracer, value, tracer.objects.wrap(part, None)) for part in cls.__args__)
    is_exact = value.python_type() is cls  # which C does not ask the metaclass about
    if not is_exact and (own := call_special(tracer, classes, "__instancecheck__", value)) is not None:
        return own.truth(tracer)
    if isinstance(value, (TensorValue, WrapperValue)):
        if cls in (torch.nn.Parameter, torch.nn.Buffer):
            return issubclass(value.cls, cls) or _is_marked(tracer, value, cls)
        return run(tracer, isinstance, (value.real if value.real is not None else _likeness(value), cls))
    found = _instance_of_real(tracer, value, cls)
    if found is None:
        found = run(tracer, issubclass, (value.python_type(), cls))
    if not isinstance(cls, type) or cls not in value.python_type().__mro__[:1]:
        tracer.guards.bases(value.python_type(), cls)
    if getattr(cls, "_is_protocol", False):
        _guard_members(tracer, value, cls)
    if not found and isinstance(cls, ABCMeta) and not is_exempt(value.python_type().__module__):
        # A class may be registered with the abstract class later.
        tracer.guards.reading(get_cache_token, (), get_cache_token())
    return found


def _guard_members(tracer: Tracer, value: Value, protocol: Any) -> None:
    """An object and its class have the members of a protocol, or lack them, as they do now."""
    for name in sorted(typing._get_protocol_attrs(protocol)):  # type: ignore[attr-defined]
        tracer.guards.lookup(value.python_type(), name)
        if isinstance(value, ObjectValue):
            value.attributes.lookup(tracer, Constant(name))


def _instance_of_real(tracer: Tracer, value: Value, cls: Any) -> bool | None:
    """Asked of the object; None where there is none, or where looking at its items would fix the sizes among them."""
    looks_at_class = type(cls) in (type, ABCMeta)
    if looks_at_class and isinstance(value, (Sequence, DictValue, SetValue, SliceValue)):
        return None
    by_class = is_symbolic(value) or (looks_at_class and isinstance(value, OpenConstant))
    try:
        return run(tracer, isinstance, (value.stand_in() if by_class else value.concrete(), cls))
    except NotConcrete:
        return None


def _likeness(value: TensorValue | WrapperValue) -> torch.Tensor:
    """A real tensor of the class, dtype and device of a result: what torch.FloatTensor and Variable look at."""
    if isinstance(value, WrapperValue):
        return value.abstract  # type: ignore[no-any-return]
    likeness = torch.empty(0, dtype=value.abstract.dtype, device=value.abstract.device)
    return likeness if value.cls is torch.Tensor else TORCH.make_subclass(value.cls, likeness)


def _is_marked(tracer: Tracer, value: TensorValue | WrapperValue, cls: type) -> bool:
    """nn.Parameter and nn.Buffer take tensors with a mark for instances; the code may have set it."""
    mark = _attribute(tracer, value, "_is_param" if cls is torch.nn.Parameter else "_is_buffer")
    return mark is not None and mark.truth(tracer)


def _issubclass(tracer: Tracer, cls: Value, classes: Value) -> Value:
    if isinstance(classes, TupleValue):
        return Constant(any(_issubclass(tracer, cls, other).concrete() for other in classes.values(tracer)))
    if (own := call_special(tracer, classes, "__subclasscheck__", cls)) is not None:
        return Constant(own.truth(tracer))
    other = classes.concrete()
    if isinstance(cls, ClassValue):
        tracer.guards.bases(cls.real, other)
    return Constant(run(tracer, issubclass, (cls.concrete(), other)))


def _check_name(tracer: Tracer, function: Any, name: Value) -> None:
    """getattr() and its like want a text."""
    if not issubclass(name.python_type(), str):
        run(tracer, function, (object(), stranger(name), *([None] if function is setattr else [])))


def _attribute(tracer: Tracer, value: Value, name: str) -> Value | None:
    """An attribute, or None where the value has none."""
    try:
        return value.get_attribute(tracer, name)
    except PythonRaise as error:
        if issubclass(error.value.python_type(), AttributeError):
            return None
        raise


def _getattr(tracer: Tracer, value: Value, name: Value, default: Value | None = None) -> Value:
    _check_name(tracer, getattr, name)
    if default is None:
        return value.get_attribute(tracer, name.concrete())
    found = _attribute(tracer, value, name.concrete())
    return default if found is None else found


def _hasattr(tracer: Tracer, value: Value, name: Value) -> Value:
    _check_name(tracer, hasattr, name)
    return Constant(_attribute(tracer, value, name.concrete()) is not None)


def _setattr(tracer: Tracer, value: Value, name: Value, item: Value) -> Value:
    _check_name(tracer, setattr, name)
    value.set_attribute(tracer, name.concrete(), item)
    return NONE


def _type(tracer: Tracer, *args: Value) -> Value:
    if len(args) == 3:
        return make_class(tracer, *args)
    if len(args) != 1:
        run(tracer, type, (None,) * len(args))
    return tracer.objects.wrap(args[0].python_type(), None)


def _callable(tracer: Tracer, value: Value) -> Value:
    if isinstance(value, (FunctionValue, MethodValue, BuiltinMethod, BuiltinFunction, ClassValue)):
        return Constant(True)
    cls = value.python_type()
    found = static_lookup(cls.__mro__, "__call__")[1] is not None
    if value.source is not None and is_watched(cls.__module__):
        tracer.guards.reading(callable, (), found, value.source)
    return Constant(found)


def _id(tracer: Tracer, value: Value) -> Value:
    if not isinstance(value, Constant):
        return IdentityToken(tracer.objects.identified(value))
    if not issubclass(value.python_type(), SINGLE):
        raise UnsupportedCall(f"id() of a {value.describe()}: equal ones may be one object, or not")
    return IdentityToken(value.concrete())


def _iter(tracer: Tracer, value: Value, sentinel: Value | None = None) -> Value:
    if sentinel is None:
        return value.iterate(tracer)
    if not _callable(tracer, value).concrete():
        raise tracer.raises(TypeError, "iter(v, w): v must be callable")
    return native(iter)(tracer, value, sentinel)


def _next(tracer: Tracer, iterator: Value, default: Value | None = None) -> Value:
    found = iterator.next(tracer)
    if isinstance(found, End) and default is not None:
        return default
    return result_or_stop(tracer, found)


def _sum(tracer: Tracer, iterable: Value, /, start: Value = Constant(0)) -> Value:  # noqa: B008
    values = collect(tracer, iterable)
    fixes = sys.version_info >= (3, 12) and any(is_symbolic(value, float) for value in values)
    if fixes and (computed := tracer.sizes.compute(sum, [ListValue(values), start])) is not None:
        return computed
    is_known = all(isinstance(value, Constant) and (fixes or not is_symbolic(value)) for value in (start, *values))
    if is_known:
        # CPython 3.12 adds floats with compensation: only its own sum() is exact.
        return fold(tracer, sum, ([value.concrete() for value in values], start.concrete()))
    total = start
    for value in values:
        total = binary(tracer, "+", total, value)
    return total


def _extreme(function: Any) -> Callable[..., Value]:
    by_comparing = native(function)

    def pick(tracer: Tracer, *args: Value, **options: Value) -> Value:
        items = collect(tracer, args[0]) if len(args) == 1 else list(args)
        key = options.get("key")
        of_data = None
        if items and (key is None or key.is_none()):
            of_data = extreme(tracer, items, least=function is min) or choose(tracer, function, items)
        return of_data or by_comparing(tracer, *([ListValue(items)] if len(args) < 2 else items), **options)

    return pick


def _reversed(tracer: Tracer, values: Value) -> Value:
    if isinstance(values, ObjectValue):
        if (found := call_special(tracer, values, "__reversed__")) is not None:
            return found
        items = has_method(values, "__getitem__") if values.base is None else values._special(tracer, "__getitem__")
        if items:
            return tracer.objects.iterator(call_native(tracer, reversed, LiveSequence(tracer, values)))
        values = values.base or values
    if isinstance(values, Sequence) and not isinstance(values, DequeValue):
        return SequenceIterator(values, len(values.items) - 1, -1)
    if isinstance(values, Constant):
        return fold(tracer, reversed, (values.value,))
    if isinstance(values, (DequeValue, DictValue, DictView, TensorValue)):
        return values.call_method(tracer, "__reversed__", [], {})
    raise tracer.raises(TypeError, f"'{values.python_type().__name__}' object is not reversible")


def _super(tracer: Tracer, *args: Value) -> Value:
    if len(args) == 2:
        return SuperValue(args[0].concrete(), args[1])
    if args:
        raise UnsupportedCall("super() with one argument")
    frame = tracer.frames[-1]
    cell = frame.cells.get("__class__")
    if cell is None:
        complaint = "super(): __class__ cell not found" if frame.function.code.co_argcount else "super(): no arguments"
        raise tracer.raises(RuntimeError, complaint)
    return SuperValue(cell.get(tracer, "__class__").concrete(), frame.first_argument())


def _locals(tracer: Tracer) -> Value:
    """A dictionary of the variables that are bound; before CPython 3.13, the same one at each call in a frame."""
    frame = tracer.frames[-1]
    if frame.snapshot is None or sys.version_info >= (3, 13):
        frame.snapshot = DictValue()
    code = frame.function.code
    for name in dict.fromkeys((*code.co_varnames, *code.co_cellvars, *code.co_freevars)):
        cell = frame.cells.get(name)
        is_bound = name in frame.locals if cell is None else not cell.is_empty(tracer)
        if is_bound:
            value = frame.load_local(name) if cell is None else cell.get(tracer, name)
            frame.snapshot.set_item(tracer, Constant(name), value)
        elif frame.snapshot.lookup(tracer, Constant(name)) is not None:
            frame.snapshot.delete_item(tracer, Constant(name))
    return frame.snapshot


def _vars(tracer: Tracer, value: Value | None = None) -> Value:
    if value is None:
        return _locals(tracer)
    found = _attribute(tracer, value, "__dict__")
    if found is None:
        raise tracer.raises(TypeError, "vars() argument must have __dict__ attribute")
    return found


def _print(tracer: Tracer, *args: Value, **kwargs: Value) -> Value:
    """Printed after the graph, in order; the texts are those of this moment."""
    is_replaced = tracer.objects.hash_key(Constant("stdout")) in tracer.objects.module_dict(vars(sys)).written
    if is_replaced or not kwargs.get("file", NONE).is_none():
        raise UnsupportedCall("print() to a file in captured code")
    unknown = [name for name in kwargs if name not in ("sep", "end", "file", "flush")]
    if unknown:
        run(tracer, print, (), dict.fromkeys(unknown))
    texts: list[Value] = [open_text(tracer, arg) or Constant(str_of(tracer, arg)) for arg in args]
    tracer.effects.append(CallEffect(print, texts, kwargs))
    return NONE


def _round(tracer: Tracer, value: Value, digits: Value | None = None) -> Value:
    if isinstance(value, TensorValue):
        if not hasattr(torch.Tensor, "__round__"):
            raise tracer.raises(TypeError, "type Tensor doesn't define __round__ method")
        return value.call_method(tracer, "round", [], {} if digits is None else {"decimals": digits})
    return _by_method(tracer, round, value, *([] if digits is None else [digits]))


def _abs(tracer: Tracer, value: Value) -> Value:
    if isinstance(value, TensorValue):
        return value.call_method(tracer, "abs", [], {})
    if isinstance(value, TracedArray):
        return value.call_method(tracer, "__abs__", [], {})
    return _by_method(tracer, abs, value)


def _pow(tracer: Tracer, base: Value, exponent: Value, mod: Value | None = None) -> Value:
    if mod is not None:
        return _by_method(tracer, pow, base, exponent, mod)
    return binary(tracer, "**", base, exponent)


def _by_method(tracer: Tracer, function: Callable[..., Any], value: Value, *rest: Value) -> Value:
    """function(value, *rest) by the dunder method of its name, or by the builtin where Python code defines none."""
    found = call_special(tracer, value, f"__{function.__name__}__", *rest)
    return fold_call(tracer, function, [value, *rest], {}) if found is None else found


def _divmod(tracer: Tracer, left: Value, right: Value) -> Value:
    for receiver, name, other in ((left, "__divmod__", right), (right, "__rdivmod__", left)):
        if (found := call_special(tracer, receiver, name, other)) is not None:
            return found
    if isinstance(left, Constant) and isinstance(right, Constant):
        return fold_call(tracer, divmod, [left, right], {})
    if isinstance(left, TensorValue) or isinstance(right, TensorValue):
        kinds = f"'{left.python_type().__name__}' and '{right.python_type().__name__}'"
        raise tracer.raises(TypeError, f"unsupported operand type(s) for divmod(): {kinds}")
    return TupleValue([binary(tracer, "//", left, right), binary(tracer, "%", left, right)])


def _hash(tracer: Tracer, value: Value) -> Value:
    if isinstance(value, TensorValue):
        return _id(tracer, value)
    key = tracer.objects.hash_key(value)
    if isinstance(key, Identity):
        return IdentityToken(tracer.objects.identified(value), hash)
    if not is_lasting_key(key):
        raise UnsupportedCall(f"hash() of a {value.describe()}, with addresses in it")
    return Constant(hash(key))


def _dir(tracer: Tracer, value: Value) -> Value:
    if isinstance(value, ObjectValue):
        if (names := call_special(tracer, value, "__dir__")) is not None:
            return native(sorted)(tracer, ListValue(collect(tracer, names)))
        own = [key.concrete() for key, _ in value.attributes.pairs(tracer)]
        tracer.guards.all_names(value.cls)
        return tracer.objects.fresh(sorted({*dir(value.cls), *own}))
    if isinstance(value, ClassValue):
        if (names := call_special(tracer, value, "__dir__")) is not None:
            return native(sorted)(tracer, ListValue(collect(tracer, names)))
        tracer.guards.all_names(value.real)
    elif isinstance(value, (ModuleValue, FunctionValue)):
        (value.names if isinstance(value, ModuleValue) else value.attributes).list_keys(tracer)
    return fold_call(tracer, dir, [value], {})


_NO_SPEC = Constant("")
BUILTIN: dict[Any, Callable[..., Value]] = {
    len: _len, issubclass: _issubclass, getattr: _getattr, hasattr: _hasattr,
    isinstance: lambda tracer, value, classes: Constant(_instance_of(tracer, value, classes)),
    delattr: lambda tracer, value, name: value.delete_attribute(tracer, name.concrete()) or NONE,
    setattr: _setattr, type: _type, callable: _callable, id: _id, iter: _iter, next: _next,
    any: native(any), all: native(all), sum: _sum, min: _extreme(min), max: _extreme(max), sorted: native(sorted),
    reversed: _reversed, super: _super, vars: _vars, locals: _locals, print: _print, round: _round, abs: _abs,
    pow: _pow, divmod: _divmod, hash: _hash, dir: _dir, globals: lambda tracer: tracer.frames[-1].globals,
    format: lambda tracer, value, spec=_NO_SPEC: Constant(format_of(tracer, value, spec.concrete())),
}  # fmt: skip


def _operator(function: Callable[..., Value], symbol: str, **options: bool) -> Callable[..., Value]:
    return lambda tracer, *operands: function(tracer, symbol, *operands, **options)


BUILTIN |= {row.function: _operator(binary, symbol) for symbol, row in BINARY.items()}
BUILTIN |= {row.inplace: _operator(binary, symbol, inplace=True) for symbol, row in BINARY.items()}
BUILTIN |= {row[0]: _operator(compare, symbol) for symbol, row in COMPARE.items()}
BUILTIN |= {row[0]: _operator(unary, symbol) for symbol, row in UNARY.items()}
BUILTIN |= {
    **{getattr(operator, name): PROTOCOL[f"__{name}__"] for name in ("getitem", "setitem", "delitem", "contains")},
    operator.not_: lambda tracer, value: Constant(not value.truth(tracer)),
    operator.truth: PROTOCOL["__bool__"],
    operator.is_: lambda tracer, left, right: Constant(is_same(tracer, left, right)),
    operator.is_not: lambda tracer, left, right: Constant(not is_same(tracer, left, right)),
    operator.index: lambda tracer, value: value if is_symbolic(value, int) else Constant(value.as_int(tracer)),
}
