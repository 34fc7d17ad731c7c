"""Real objects as values: which abstract value stands for which kind of object, and what its use guards."""

from __future__ import annotations

import decimal
import enum
import functools
import random
import types
import weakref
from array import array
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterator
from contextvars import ContextVar
from io import IOBase
from typing import Any

import torch

from absint.symbolic import Size, SizeFloat, unwrap
from absint.wire import to_arg
from bytecap.context_types import Tracer
from bytecap.errors import ChangingNumber, UnsupportedCall, UnsupportedValue
from bytecap.evaluator.calls import is_torch_function
from bytecap.guards import print_source
from bytecap.guards.guard_set import is_exempt
from bytecap.guards.printing import REGISTRIES
from bytecap.hook import Dispatcher
from bytecap.nodes.streams import EVENTS, STREAMS, may_be_nodes, wrap_queue
from bytecap.objects import functions
from bytecap.objects.arrays.numpy_arrays import NUMPY, OutsideArray, is_array, is_function, is_number
from bytecap.objects.base import LITERALS, NONE, TORCH_CONSTANTS, Constant, Value
from bytecap.objects.class_lookup import LRU_CACHE, is_python_class, static_lookup
from bytecap.objects.containers.host_containers import DequeValue, SetValue, set_in_order
from bytecap.objects.containers.mappings import DICT_TYPES, DictValue, DictView, can_name
from bytecap.objects.containers.sequences import Lazy, ListValue, SliceValue, TupleValue, field_names
from bytecap.objects.distributed import DistributedConstant, is_constant_class
from bytecap.objects.identity import UserKey
from bytecap.objects.instances.exceptions import OutsideException
from bytecap.objects.instances.objects import HOOKS, NNModuleValue, ObjectValue
from bytecap.objects.instances.random_streams import OutsideRandom
from bytecap.objects.numbers.open_constants import OPEN_KINDS, is_readable, refuse_changing
from bytecap.objects.numbers.symbolic import as_value
from bytecap.objects.opaque import ContextVariable, OpaqueValue, UnknownValue
from bytecap.objects.outside_iterators import outside_iterator
from bytecap.torch_capabilities import TORCH
from stagewire.capture import Attribute, Cell, Item, Local, Reading, Source
from stagewire.capture import DictValue as ValueAt

_REGISTRIES = frozenset(REGISTRIES + HOOKS)
_BUILTIN_CALLABLES = (
    types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType, types.MethodWrapperType,
    types.ClassMethodDescriptorType, LRU_CACHE, TORCH.op_overload, TORCH.op_overload_packet,
)  # fmt: skip
_VIEWS = {type({}.keys()): "keys", type({}.values()): "values", type({}.items()): "items"}

Wrapper = Callable[["Tracer", Any, "Source | None"], Value]


def wrap_object(tracer: Tracer, real: Any, source: Source | None) -> Value:
    """The value of a real object read from `source` (None: part of something already guarded, or a library's).

    What has no model can still be passed along, if it is known where it comes from.
    """
    try:
        wrapper = _BY_TYPE.get(type(real)) or next(wrapper for test, wrapper in _BY_TEST if test(real))
        return wrapper(tracer, real, source)
    except UnsupportedValue as error:
        if source is None:
            raise
        tracer.guards.type_is(source, type(real))
        return UnknownValue(real, error.message, source=source)


# -- constants


def _literal(tracer: Tracer, real: Any, source: Source | None) -> Value:
    if source is None:
        return Constant(real)
    if type(real) in (int, float) and (known := tracer.sizes.number(real, source)) is not None:
        return known
    if type(real) in OPEN_KINDS and is_readable(source):
        return tracer.objects.open_constant(real, source)
    tracer.guards.literal(source, real)
    return Constant(real, source)


def _identified(kind: Callable[[Any, Source | None], Value]) -> Wrapper:
    """What is guarded by its identity alone."""

    def wrap(tracer: Tracer, real: Any, source: Source | None) -> Value:
        tracer.guards.identity(source, real)
        return kind(real, source)

    return wrap


_identity_constant = _identified(Constant)


def _distributed(tracer: Tracer, real: Any, source: Source | None) -> Value:
    tracer.guards.frozen(real, source)
    return DistributedConstant(real, source)


def _numpy_number(tracer: Tracer, real: Any, source: Source | None) -> Value:
    """Guarded by class and value: each read of an array's item is another object."""
    if source is None:
        return Constant(real)
    place = Reading(tracer.names.of(NUMPY.generic.item), source)
    tracer.guards.type_is(source, type(real))
    if place in tracer.changing:
        return UnknownValue(real, f"{print_source(source)} differs from call to call", ChangingNumber, source)
    tracer.guards.literal(place, real.item())
    return Constant(real, source)


def _array(tracer: Tracer, real: Any, source: Source | None) -> Value:
    if source is None:
        return OpaqueValue(real)
    tracer.guards.type_is(source, type(real))
    return OutsideArray(real, lambda array: array.guard_content(tracer), tracer.objects.outside_memory, source)


def _opaque(tracer: Tracer, real: Any, source: Source | None, kind: type[OpaqueValue] = OpaqueValue) -> Value:
    if source is None:
        return kind(real)
    tracer.guards.type_is(source, type(real))
    return kind(real, lambda: tracer.guards.identity(source, real), source)


def _decimal(tracer: Tracer, real: decimal.Decimal, source: Source | None) -> Value:
    tracer.guards.has_decimals = True
    return _opaque(tracer, real, source)


def _iterator(tracer: Tracer, real: Any, source: Source | None) -> Value:
    """What is left of an iterator changes with each use, and no guard could tell, save of a few kinds."""
    if source is None:
        return OpaqueValue(real)
    tracer.guards.type_is(source, type(real))
    if (known := outside_iterator(tracer, real, source)) is not None:
        return known
    return UnknownValue(real, f"a started {type(real).__name__} from outside the frame", UnsupportedCall, source)


def _buffer(tracer: Tracer, real: Any, source: Source | None) -> Value:
    raise UnsupportedValue(f"a {type(real).__name__}, whose bytes may change and no guard would see it")


def _range(tracer: Tracer, real: range, source: Source | None) -> Value:
    tracer.guards.type_is(source, range)
    for name in ("start", "stop", "step"):
        tracer.guards.literal(tracer.places.attribute(source, name), getattr(real, name))
    return Constant(real, source)


# -- containers


def _items(tracer: Tracer, real: Any, source: Source | None) -> list[Any]:
    return [Lazy(item, None if source is None else Item(source, index)) for index, item in enumerate(real)]


def _tuple(tracer: Tracer, real: tuple[Any, ...], source: Source | None) -> Value:
    tracer.guards.type_is(source, type(real))
    tracer.guards.length(source, len(real))
    is_modelled = type(real) in (tuple, torch.Size) or field_names(type(real))
    items = _items(tracer, tuple.__iter__(real), source)
    return TupleValue(items, cls=type(real) if is_modelled else tuple, real=real, source=source)


def _list(tracer: Tracer, real: Any, source: Source | None) -> Value:
    pin = _length_pin(tracer, real, source)
    return ListValue(_items(tracer, list.__iter__(real), source), pin=pin, real=real, source=source)


def _length_pin(tracer: Tracer, real: Any, source: Source | None) -> Callable[[], None] | None:
    """What guards the length of an outside list as soon as it matters; its class is guarded at once."""
    if source is None:
        return None
    line = tracer.line()
    tracer.guards.type_is(source, type(real), line)
    if source in tracer.changing:
        return lambda: refuse_changing(source, len(real), "the length of ")
    return lambda: tracer.guards.length(source, len(real), line)


def _deque(tracer: Tracer, real: Any, source: Source | None) -> Value:
    pin = _length_pin(tracer, real, source)
    tracer.guards.literal(tracer.places.attribute(source, "maxlen"), real.maxlen)
    return DequeValue(_items(tracer, real, source), pin=pin, maxlen=real.maxlen, real=real, source=source)


def _dict(tracer: Tracer, real: Any, source: Source | None) -> Value:
    # The class of dictionaries that nn.Module itself makes is not in question.
    if not (isinstance(source, Attribute) and source.name in _REGISTRIES):
        tracer.guards.type_is(source, type(real))
    kind = next(base for base in type(real).__mro__ if base in DICT_TYPES)
    factory = _part(tracer, real, source, "default_factory") if kind is defaultdict else NONE
    place_of = None if source is None else item_source(source)
    factory = None if factory.is_none() else factory
    return DictValue(cls=kind, real=real, source=source, item_source=place_of, factory=factory)


def item_source(source: Source) -> Callable[[Any, int | None], Source | None]:
    """Where the value under a key of the dict at `source` is read."""

    def locate(key: Any, index: int | None) -> Source | None:
        if can_name(key):
            return Item(source, key)
        return None if index is None else ValueAt(source, index)

    return locate


def _set(tracer: Tracer, real: Any, source: Source | None) -> Value:
    tracer.guards.type_is(source, type(real))
    if source is None or type(real) is not set:
        cls = set if isinstance(real, set) else frozenset
        return SetValue(tracer.objects, keys_in(tracer, real, cls, source), real=real, source=source)

    def look() -> Any:
        if source in tracer.changing:
            refuse_changing(source, real, "the content of ")
        return keys_in(tracer, real, set, source)

    return SetValue(tracer.objects, set(), look=look, real=real, source=source)


def keys_in(tracer: Tracer, real: Any, cls: type, source: Source | None) -> Any:
    """The keys of a real set, or of what a subclass of one holds, in its own order; guards the members."""
    stored = list(cls.__iter__(real))
    values = [
        tracer.objects.wrap(member, place)
        for member, place in zip(stored, _places_in(tracer, stored, cls, source), strict=True)
    ]
    keys = list(map(tracer.objects.key_of, values))
    if type(real) is not cls or not all(map(_is_key, keys, stored)):
        return set_in_order(cls, keys)
    for member, value in zip(stored, values, strict=True):
        tracer.objects.keys.setdefault(id(member), (member, value))
    return real


def _is_key(key: Hashable, member: Any) -> bool:
    """Whether a member of a set is as good a key as that of its value: no code of the program's compares it."""
    is_plain = type(member).__eq__ in (object.__eq__, types.BuiltinFunctionType.__eq__, tuple.__eq__, frozenset.__eq__)
    return key is member or (is_plain and not isinstance(key, UserKey) and key == member)


def _places_in(tracer: Tracer, stored: list[Any], cls: type, source: Source | None) -> list[Source | None]:
    """Where the members of a set are read; None for those that its keys say all about."""
    if source is None or all(type(member) in LITERALS and type(member) is not bytes for member in stored):
        tracer.guards.keys(source, () if source is None else tuple(map(to_arg, stored)))
        return [None] * len(stored)
    tracer.guards.length(source, len(stored))
    reduced = Reading(tracer.names.of(cls.__reduce__), source)  # (class, (list of the members,), attributes)
    get_item = tracer.names.of(list.__getitem__)
    return [Reading(get_item, Item(Item(reduced, 1), 0), (number,)) for number in range(len(stored))]


def _slice(tracer: Tracer, real: slice, source: Source | None) -> Value:
    tracer.guards.type_is(source, slice)
    return SliceValue(*[_part(tracer, real, source, name) for name in ("start", "stop", "step")], source=source)


def _part(tracer: Tracer, real: Any, source: Source | None, name: str) -> Any:
    """What an attribute of an object holds."""
    return tracer.objects.wrap(getattr(real, name), tracer.places.attribute(source, name))


def _view(tracer: Tracer, real: Any, source: Source | None) -> Value:
    if source is not None:
        raise UnsupportedValue(f"a {type(real).__name__} from outside the frame")
    pairs = real.mapping
    return DictView(tracer.objects.wrap(dict(pairs), None), _VIEWS[type(real)])  # type: ignore[arg-type]


# -- callables


def _function(tracer: Tracer, real: types.FunctionType, source: Source | None) -> Value:
    own = None if source is None or is_exempt(real.__globals__.get("__name__")) else source
    # A function that another one made (a lambda, a closure): the next may be another object.
    is_made_often = isinstance(own, _GIVEN) and "<locals>" in real.__qualname__ and not real.__dict__
    if is_made_often:
        _guard_parts(tracer, real, own)  # type: ignore[arg-type]
    elif source is not None:
        tracer.guards.identity(source, real)
    names = real.__code__.co_freevars
    cells = tuple(
        tracer.objects.cell(
            cell,
            None if own is None else Cell(name, own),
            Item(Attribute(own, "__closure__"), at) if is_made_often else None,  # type: ignore[arg-type]
        )
        for at, (name, cell) in enumerate(zip(names, real.__closure__ or (), strict=True))
    )
    return functions.FunctionValue(
        real.__code__,
        tracer.objects.module_dict(real.__globals__),
        name=real.__name__,
        defaults=tuple(
            _default(own, "__defaults__", at, item, is_made_often) for at, item in enumerate(real.__defaults__ or ())
        ),
        kwdefaults={
            key: _default(own, "__kwdefaults__", key, item, is_made_often)
            for key, item in (real.__kwdefaults__ or {}).items()
        },
        closure=cells,
        real=real,
        attributes=_attributes(tracer, real, own),
        source=source,
    )


# Where a function is that its caller may make anew for each call.
_GIVEN = (Local, Item, Cell)


def _guard_parts(tracer: Tracer, real: types.FunctionType, source: Source) -> None:
    """All of a function that its calls depend on, in the place of its identity; cells are guarded as they are read."""
    tracer.guards.type_is(source, types.FunctionType)
    tracer.guards.identity(Attribute(source, "__code__"), real.__code__)
    tracer.guards.identity(Attribute(source, "__globals__"), real.__globals__)
    tracer.guards.length(Attribute(source, "__dict__"), 0)
    for name in ("__defaults__", "__kwdefaults__"):
        place, held = Attribute(source, name), getattr(real, name)
        if held is None:
            tracer.guards.identity(place, None)
        elif name == "__defaults__":
            tracer.guards.length(place, len(held))
        else:
            tracer.guards.keys(place, tuple(held))


def _default(function: Source | None, where: str, key: int | str, real: Any, is_made_often: bool) -> Lazy:
    """A default value: the guard on the function fixes the object, what is in it needs a place."""
    settled = not is_made_often and isinstance(real, (*LITERALS, type, types.FunctionType, types.BuiltinFunctionType))
    return Lazy(real, None if function is None or settled else Item(Attribute(function, where), key))


def _method(tracer: Tracer, real: types.MethodType, source: Source | None) -> Value:
    tracer.guards.type_is(source, types.MethodType)
    return functions.MethodValue(*[_part(tracer, real, source, name) for name in ("__func__", "__self__")], source)


def _builtin(tracer: Tracer, real: Any, source: Source | None) -> Value:
    owner = getattr(real, "__self__", None)
    found = static_lookup(owner.__mro__, real.__name__)[0] if isinstance(owner, type) else None
    if isinstance(found, types.ClassMethodDescriptorType):  # dict.fromkeys, from torch 2.14 on Function.apply
        return _builtin_method(tracer, real, source)
    is_method = owner is not None and not isinstance(owner, (types.ModuleType, type))
    if is_method and source is not None and not is_torch_function(real) and type(owner) not in _BY_TYPE:
        raise UnsupportedValue(f"a method of a {type(owner).__name__} from outside the frame")
    if is_method and not is_torch_function(real):
        return _builtin_method(tracer, real, source)
    tracer.guards.identity(source, real)
    return functions.BuiltinFunction(real, source)


def _builtin_method(tracer: Tracer, real: Any, source: Source | None) -> Value:
    """`[].append`, `dict.fromkeys`: each read of the attribute makes another object, told apart by owner and name."""
    tracer.guards.type_is(source, type(real))
    tracer.guards.literal(tracer.places.attribute(source, "__name__"), real.__name__)
    return functions.BuiltinMethod(_part(tracer, real, source, "__self__"), real.__name__)


def _dispatcher(tracer: Tracer, real: Dispatcher, source: Source | None) -> Value:
    """What another `optimize` made: in captured code it is the function that it wraps. Without owner: disabled."""
    if real.owner is None:
        return _opaque(tracer, real, source)
    tracer.guards.type_is(source, Dispatcher)
    return _part(tracer, real, source, "__wrapped__")  # type: ignore[no-any-return]


def _partial(tracer: Tracer, real: functools.partial[Any], source: Source | None) -> Value:
    tracer.guards.type_is(source, functools.partial)
    function, args, keywords = [_part(tracer, real, source, name) for name in ("func", "args", "keywords")]
    named = {str(k.concrete()): v for k, v in keywords.pairs(tracer)}
    return functions.PartialValue(function, args.values(tracer), named, real=real, source=source)


# -- classes, modules, objects


def _module(tracer: Tracer, real: types.ModuleType, source: Source | None) -> Value:
    tracer.guards.identity(source, real)
    if not is_exempt(real.__name__):
        tracer.guards.type_is(source, type(real))
    return functions.ModuleValue(real, tracer.objects.module_dict(real.__dict__), source)


def _tensor(tracer: Tracer, real: torch.Tensor, source: Source | None) -> Value:
    return tracer.inputs.tensor(real, source)


def _object(tracer: Tracer, real: Any, source: Source | None, kind: type[ObjectValue] = ObjectValue) -> Value:
    cls = type(real)
    tracer.guards.type_is(source, cls)
    kind = NNModuleValue if isinstance(real, torch.nn.Module) else kind
    return kind(
        cls, attributes=_attributes(tracer, real, source), base=_base_of(tracer, real, source), real=real, source=source
    )


def _exception(tracer: Tracer, real: BaseException, source: Source | None) -> Value:
    tracer.guards.type_is(source, type(real))
    return OutsideException(tracer, real, source, _attributes(tracer, real, source))


def _attributes(tracer: Tracer, real: Any, source: Source | None) -> DictValue:
    try:
        names = object.__getattribute__(real, "__dict__")
    except AttributeError:
        return DictValue()
    if source is None:
        return DictValue(real=names)
    home = Attribute(source, "__dict__")
    # Past a __getattribute__ written in Python, only the dictionary itself can be read without running it.
    custom = isinstance(static_lookup(type(real).__mro__, "__getattribute__")[0], types.FunctionType)
    return DictValue(
        real=names,
        source=home,
        item_source=item_source(home) if custom else lambda key, index: tracer.places.attribute(source, key),
    )


def _base_of(tracer: Tracer, real: Any, source: Source | None) -> Value | None:
    """The builtin part of an instance of a subclass, read past the subclass's own methods."""
    for cls, wrapper in ((dict, _dict), (list, _list), ((set, frozenset), _set), (tuple, _tuple)):
        if isinstance(real, cls):  # type: ignore[arg-type]
            return wrapper(tracer, real, source)
    for literal, reader in _READERS.items():
        if isinstance(real, literal):
            tracer.guards.literal(tracer.places.reading(reader, source), reader(real))
            return Constant(reader(real))
    for literal in (bytes, complex):
        if isinstance(real, literal):
            tracer.guards.identity(source, real)
            return Constant(literal(real))  # type: ignore[arg-type]
    return None


# C functions that give the number or text under an instance of a subclass.
_READERS: dict[type, Callable[[Any], Any]] = {int: int.__int__, float: float.__float__, str: str.__str__}


def _queue(tracer: Tracer, real: Any, source: Source | None) -> Value:
    """A stream or event of a GPU: of the graph where that may not end."""
    if may_be_nodes(tracer):
        return wrap_queue(tracer, real, source)
    return (_object if is_python_class(type(real)) else _opaque)(tracer, real, source)


_BY_TYPE: dict[type, Wrapper] = {
    **dict.fromkeys(LITERALS, _literal),
    **{kind: _identity_constant for kind in TORCH_CONSTANTS if kind is not torch.device},
    torch.device: _literal,
    type(Ellipsis): _identity_constant,
    type(NotImplemented): _identity_constant,
    types.CodeType: _identity_constant,
    range: _range,
    tuple: _tuple,
    torch.Size: _tuple,
    list: _list,
    deque: _deque,
    **dict.fromkeys(DICT_TYPES, _dict),
    set: _set,
    frozenset: _set,
    slice: _slice,
    **dict.fromkeys(_VIEWS, _view),
    types.FunctionType: _function,
    types.CellType: lambda tracer, real, source: tracer.objects.cell(real, None),
    types.MethodType: _method,
    functools.partial: _partial,
    Dispatcher: _dispatcher,
    torch.Tensor: _tensor,
    torch.nn.Parameter: _tensor,
    **dict.fromkeys((torch.SymInt, Size, torch.SymFloat, SizeFloat), lambda tracer, real, _: as_value(unwrap(real))),
    ContextVar: functools.partial(_opaque, kind=ContextVariable),
    decimal.Decimal: _decimal,
    random.Random: functools.partial(_object, kind=OutsideRandom),
    torch.finfo: _opaque,
    torch.iinfo: _opaque,
    torch.jit.ScriptFunction: _opaque,  # from 3.12 on its objects keep their attributes as Python objects do
    **dict.fromkeys((bytearray, memoryview, array), _buffer),
}

_BY_TEST: tuple[tuple[Callable[[Any], bool], Wrapper], ...] = (
    (lambda real: isinstance(real, enum.Enum), _identity_constant),
    (lambda real: isinstance(real, type), _identified(functions.ClassValue)),
    (lambda real: isinstance(real, types.ModuleType), _module),
    (lambda real: isinstance(real, torch.Tensor), _tensor),
    (lambda real: isinstance(real, _BUILTIN_CALLABLES), _builtin),
    (lambda real: isinstance(real, tuple) and bool(field_names(type(real))), _tuple),
    (lambda real: isinstance(real, BaseException), _exception),
    (lambda real: isinstance(real, (*STREAMS, *EVENTS)), _queue),
    (lambda real: is_constant_class(type(real)), _distributed),
    (lambda real: is_python_class(type(real)), _object),
    (is_number, _numpy_number),
    (is_function, _builtin),
    (is_array, _array),
    # The class is asked, not the object: proxies answer for others.
    (lambda x: issubclass(type(x), Iterator) and not issubclass(type(x), (IOBase, *weakref.ProxyTypes)), _iterator),
    (lambda real: True, _opaque),
)
