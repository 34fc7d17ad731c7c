"""The objects that a capture has met or made, as values: one value for each."""

from __future__ import annotations

import builtins
import sys
import types
from collections import OrderedDict, deque
from collections.abc import Hashable, Iterator
from io import IOBase
from typing import Any

import torch

from bytecap.context_types import Tracer
from bytecap.errors import ChangingNumber, UnsupportedValue
from bytecap.evaluator.wrapping import keys_in, wrap_object
from bytecap.guards.guard_set import is_exempt
from bytecap.guards.printing import print_source
from bytecap.objects.arrays.numpy_arrays import ArrayValue, OutsideMemory, is_array
from bytecap.objects.arrays.tensors import refuse_chosen
from bytecap.objects.base import LITERALS, Constant, Value
from bytecap.objects.class_lookup import static_lookup
from bytecap.objects.containers.host_containers import DequeValue, SetValue
from bytecap.objects.containers.mappings import DICT_TYPES, DictValue, DictView
from bytecap.objects.containers.sequences import Lazy, ListValue, SliceValue, TupleValue
from bytecap.objects.functions import CellValue, MethodValue
from bytecap.objects.identity import Identity, IdentityToken, UserKey, WeakReference
from bytecap.objects.instances.exceptions import ExceptionValue
from bytecap.objects.instances.objects import NNModuleValue, ObjectValue
from bytecap.objects.live import Live, NativeIterator
from bytecap.objects.numbers.open_constants import OpenConstant, refuse_changing
from bytecap.objects.opaque import OpaqueValue, UnguardedValue, UnknownValue
from bytecap.semantics.attributes import bind
from stagewire.capture import Builtin, Global, HandleSource, Item, Source, TypeOf

# Values that are the same object wherever they are read: immutable, or cheap to make again.
_NOT_SHARED = (
    *LITERALS, tuple, torch.Size, slice, range, types.MethodType, types.BuiltinFunctionType, torch.SymInt,
    torch.SymFloat,
)  # fmt: skip

_DICT_VIEWS = {
    type(getattr(cls(), what)()): what for cls in (dict, OrderedDict) for what in ("keys", "values", "items")
}


_SETTINGS = frozenset({"torch.__future__"})
"""Modules of libraries whose data are settings, which functions of theirs give and set."""


class KnownObjects:
    """Real objects to values, new objects, and the keys that stand for objects in dicts and sets."""

    tracer: Tracer

    def __init__(self) -> None:
        self.frame_globals: DictValue | None = None
        self.arrays: list[ArrayValue] = []
        self.outside_memory = OutsideMemory()
        self.by_object: dict[int, Value] = {}
        self.dicts: dict[int, DictValue] = {}
        self.cells: dict[int, CellValue] = {}
        self.alive: list[Any] = []
        self.iterators: dict[int, NativeIterator] = {}
        self.hashed_by_identity: dict[int, Value] = {}
        self.keys: dict[int, tuple[Hashable, Value]] = {}
        self.weak: dict[int, WeakReference] = {}

    def wrap(self, real: Any, source: Source | None) -> Value:
        """The value of a real object; one value per object, so that identity is kept."""
        if source is not None and TypeOf(source) in self.tracer.changing:
            return UnguardedValue(f"the class of {print_source(source)} differs", real, ChangingNumber, source)
        if isinstance(real, _NOT_SHARED):
            return wrap_object(self.tracer, real, source)
        known = self.by_object.get(id(real))
        if known is not None:
            if source is not None:
                # A second path to a known object: it must lead to the same object again.
                if isinstance(real, (type, types.ModuleType)) or known.source is None:
                    self.tracer.guards.identity(source, real)
                elif known.source != source:
                    self.tracer.guards.same(known.source, source, True)
            return known
        value = wrap_object(self.tracer, real, source)
        self.by_object[id(real)] = value
        self.alive.append(real)
        return value

    def fresh(self, real: Any) -> Value:
        """The value of an object that a host call just made: containers belong to the evaluated program."""
        kind = type(real)
        if kind is Live or isinstance(real, Live):
            return real.value
        if kind is tuple:
            return TupleValue([self.fresh(item) for item in real])
        if kind is int:
            return Constant(real)
        if isinstance(real, Value):
            return real
        if kind is Lazy:
            return self.wrap(real.real, real.source)
        if kind is list:
            return ListValue([self.fresh(item) for item in real])
        if kind is deque:
            return DequeValue([self.fresh(item) for item in real], maxlen=real.maxlen)
        if is_array(real):
            self.arrays.append(ArrayValue(real))
            return self.arrays[-1]
        if isinstance(real, tuple):
            return TupleValue([self.fresh(item) for item in real], cls=kind)
        if kind in DICT_TYPES:
            made = DictValue(cls=kind)
            for key, item in real.items():
                made.set_item(self.tracer, self.wrap(key, None), self.fresh(item))
            return made
        if kind in _DICT_VIEWS:
            return DictView(self.fresh(OrderedDict(real.mapping)), _DICT_VIEWS[kind])  # type: ignore[arg-type]
        if kind in (set, frozenset):
            return SetValue(self, keys_in(self.tracer, real, kind, None))
        if isinstance(real, Iterator) and not isinstance(real, IOBase):
            return self.iterator(real)
        return self.wrap(real, None)

    def iterator(self, host: Any) -> NativeIterator:
        """The value of an iterator that C made during the capture; one value per object."""
        return self.iterators.setdefault(id(host), NativeIterator(host))

    def constant(self, real: Any) -> Value:
        """A constant of a code object; a tuple is one object, however often it is loaded."""
        if type(real) is not tuple:
            return self.fresh(real)
        known = self.by_object.get(id(real))
        if known is None:
            known = self.by_object[id(real)] = TupleValue([self.constant(item) for item in real], real=real)
        return known

    def new_dict(self, items: dict[str, Value]) -> DictValue:
        """A new dict with string keys."""
        made = DictValue()
        made.new = {self.hash_key(key): (key, v) for key, v in ((Constant(k), v) for k, v in items.items())}
        return made

    def new_set(self, members: list[Value]) -> SetValue:
        """A new set."""
        made = SetValue(self, set())
        for member in members:
            made.add(self.tracer, member)
        return made

    def new_object(self, cls: type) -> ObjectValue:
        """A new instance of a Python class, before its `__init__`."""
        return (NNModuleValue if issubclass(cls, torch.nn.Module) else ObjectValue)(cls)

    def key_of(self, value: Value) -> Hashable:
        """The key of a member of a set, which leads back to it: the very object stands for no other value."""
        key = self.hash_key(value)
        if isinstance(value, Constant):
            return key
        if isinstance(key, LITERALS) or key == ():
            key = UserKey(self.tracer, value, hash(key))
        return self.keys.setdefault(id(key), (key, value))[0]

    def of_key(self, key: Hashable) -> Value:
        """The member of a set with this key."""
        known = self.keys.get(id(key))
        return self.wrap(key, None) if known is None else known[1]

    def hash_key(self, value: Value) -> Hashable:
        """A host key (see `objects.identity`) of a value."""
        if isinstance(value, Constant):
            return run_hash(self.tracer, value.value)
        if isinstance(value, TupleValue):
            return tuple(self.hash_key(item) for item in value.values(self.tracer))
        if isinstance(value, SetValue) and value.cls is frozenset:
            return value.keys
        if isinstance(value, ObjectValue):
            return self._object_key(value)
        if value.python_type().__hash__ is None:
            raise self.tracer.raises(TypeError, f"unhashable type: '{value.python_type().__name__}'")
        if isinstance(value, SliceValue):
            raise self.tracer.raises(TypeError, "unhashable type: 'slice'")
        if isinstance(value, OpaqueValue):
            return run_hash(self.tracer, value.real)
        if isinstance(value, IdentityToken):
            return value.function, Identity(value.real)
        if isinstance(value, WeakReference):
            return value.key(self.tracer)
        if isinstance(value, MethodValue):
            return types.MethodType, self._identity_key(value.receiver), self.hash_key(value.function)
        if isinstance(value, UnknownValue) and value.python_type().__hash__ is not object.__hash__:
            raise UnsupportedValue(f"the hash of a {value.describe()} from outside the frame")
        return self._identity_key(value)

    def _identity_key(self, value: Value) -> Identity:
        return Identity(self.identified(value))

    def identified(self, value: Value) -> Any:
        """What stands for the identity of an object; objects from outside stay as many: see `guards.hashed`."""
        refuse_chosen(self.tracer, value)
        real = getattr(value, "real", None)
        found = value if real is None else real
        if value.source is not None and not isinstance(value, Constant):
            self.hashed_by_identity.setdefault(id(found), value)
        return found

    def _object_key(self, value: ObjectValue) -> Hashable:
        raw, owner = static_lookup(value.cls.__mro__, "__hash__")
        if raw is None:
            raise self.tracer.raises(TypeError, f"unhashable type: '{value.cls.__name__}'")
        if isinstance(raw, types.FunctionType):
            method = bind(self.tracer, raw, owner or object, value, value.cls, "__hash__")
            return UserKey(self.tracer, value, _hash_number(self.tracer, method.call(self.tracer, [], {})))
        if isinstance(value.base, (Constant, TupleValue)) and not isinstance(value, ExceptionValue):
            return self.hash_key(value.base)
        return self._identity_key(value)

    def module_dict(self, names: dict[str, Any]) -> DictValue:
        """The shadow of a module's dictionary; one per dictionary."""
        known = self.dicts.get(id(names))
        if known is None:
            known = self.dicts[id(names)] = self._new_module_dict(names)
        return known

    def _new_module_dict(self, names: dict[str, Any]) -> DictValue:
        module = names.get("__name__")
        if is_exempt(module):
            return DictValue(real=names, item_source=lambda key, index: self._library_source(names, key))
        base = self.tracer.places.of(names)
        if not isinstance(base, HandleSource):
            return DictValue(real=names, source=base, item_source=lambda key, index: Global(key, module))
        return DictValue(real=names, source=base, item_source=lambda key, index: Item(base, key))

    def _library_source(self, names: dict[str, Any], key: Any) -> Source | None:
        """Where a name of a library is read: its functions and classes may be replaced, its data (and, of private
        names, all) only change for others' code: a library is taken to know what it does."""
        module = names.get("__name__")
        loaded = sys.modules.get(module) if isinstance(module, str) else None
        if loaded is None or loaded.__dict__ is not names or not isinstance(key, str):
            return None
        is_code = isinstance(names.get(key), (types.FunctionType, types.BuiltinFunctionType, type, types.ModuleType))
        is_private = key.startswith("_") and self.tracer.frames.module() == module
        is_registry = key.startswith("_global_")  # hooks of all modules or optimizers, which users register
        is_asked = bool(self.tracer.frames) and not is_exempt(self.tracer.frames.module())  # by the program itself
        if is_registry or is_asked or module in _SETTINGS or (is_code and not is_private):
            return Global(key, module)
        return None

    def set_frame_globals(self, names: dict[str, Any]) -> DictValue:
        """The shadow of the captured frame's own globals."""
        base = self.tracer.places.of(names)
        shadow = DictValue(real=names, source=base, item_source=lambda key, index: Global(key))
        self.dicts[id(names)] = self.frame_globals = shadow
        return shadow

    def builtin(self, name: str) -> Value:
        """A builtin, which no global of the captured frame hides."""
        real = getattr(builtins, name)
        self.tracer.guards.identity(Builtin(name), real)
        return self.wrap(real, None)

    def cell(self, real: types.CellType, source: Source | None, place: Source | None = None) -> CellValue:
        """The shadow of an outside cell; one per cell. place: where it is found, if another may be there next time."""
        known = self.cells.get(id(real))
        if known is None:
            known = self.cells[id(real)] = CellValue(real=real, content_source=source)
            known.place = place
            self.alive.append(real)
        elif place is not None and known.place is not None and known.place != place:
            self.tracer.guards.same(known.place, place, True)
        return known

    def open_constant(self, real: Any, source: Source) -> OpenConstant:
        """A number or text from outside: its class is guarded, and the value as soon as it is asked for."""
        line = self.tracer.line()
        self.tracer.guards.class_unless_value(source, type(real), line)
        if source in self.tracer.changing:
            return OpenConstant(real, lambda: refuse_changing(source, real), source=source)
        return OpenConstant(real, lambda: self.tracer.guards.literal(source, real, line), source=source)


def _hash_number(tracer: Tracer, value: Value) -> int:
    """What `__hash__` gave, as hash() gives it; one number for all where it is an address."""
    if not isinstance(value, Constant):
        return 0
    if not isinstance(value.value, int):
        raise tracer.raises(TypeError, "__hash__ method should return an integer")
    number = int(value.value)
    if abs(number) > sys.maxsize:
        return hash(number)
    # CPython keeps -1 for errors.
    return -2 if number == -1 else number


def run_hash(tracer: Tracer, real: Any) -> Hashable:
    """The object itself if it is hashable; else TypeError in the evaluated program."""
    try:
        hash(real)
    except TypeError as error:
        raise tracer.raises_real(error) from None
    return real
