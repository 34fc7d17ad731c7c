"""What a use of an object guards: lookups in its class, literals, keys, and which objects are one."""

from __future__ import annotations

import dataclasses
import decimal
import enum
import types
from typing import Any

import torch

from absint.wire import to_arg
from bytecap.bytecode.rebuild import HEAP_TYPE, stored_items
from bytecap.bytecode.wrappers import inner_tensors
from bytecap.context_types import Tracer
from bytecap.guards.guard_set import GuardSet, Names, is_exempt, is_watched
from bytecap.objects.arrays.tensors import TensorValue
from bytecap.objects.base import LITERALS, TORCH_CONSTANTS, Constant, Value
from bytecap.objects.class_lookup import filled_slots, has_own_layout, static_lookup
from bytecap.objects.containers.mappings import DictValue
from bytecap.objects.containers.sequences import TupleValue, field_names
from bytecap.objects.distributed import is_shared
from bytecap.objects.instances.objects import NNModuleValue
from bytecap.objects.numbers.open_constants import refuse_changing
from bytecap.objects.numbers.symbolic import is_symbolic
from bytecap.objects.outside_iterators import OutsideIterator
from stagewire.capture import Attribute, DictKey, Global, HasAttribute, Item, Reading, Source
from stagewire.graph import SourceLine

_IMMUTABLE_TYPE = 1 << 8
"""Py_TPFLAGS_IMMUTABLETYPE."""
_C_FUNCTIONS = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)
# Kinds of constants of which there may be several equal objects.
_COPIED = frozenset({int, float, complex, str, bytes, range})
# What torch itself notes on tensors of wrapper classes: it follows from the rest.
_NOTES = ("_dynamo_", "_sym_sizes_capsule", "_sym_strides_capsule")


class ObjectGuards(GuardSet):
    """The guards of a capture, and what needs guarding of an object."""

    tracer: Tracer

    def __init__(self, names: Names) -> None:
        super().__init__(names)
        self._no_hooks: set[str] = set()
        self._looked_up: set[tuple[int, str]] = set()
        self.has_decimals = False  # whether the context of decimal numbers is guarded

    def here(self) -> SourceLine | None:
        return self.tracer.line() if self.tracer.frames else None

    def lookup(self, cls: type, name: str) -> None:
        """Looking `name` up in `cls` finds what it finds now, or nothing as now."""
        if (id(cls), name) in self._looked_up:
            return
        if cls is not torch.Tensor and (not is_watched(cls.__module__) or hasattr(type(cls), "__getattr__")):
            return
        self._looked_up.add((id(cls), name))
        self.tracer.objects.alive.append(cls)
        raw, owner = static_lookup(cls.__mro__, name)
        place = self.tracer.places.of(cls)
        if owner is not None:
            source = Attribute(place, name)
            is_method = isinstance(raw, classmethod)
            found = raw.__func__ if isinstance(raw, (staticmethod, classmethod)) else raw
            self.identity(Attribute(source, "__func__") if is_method else source, found)
        elif static_lookup(type(cls).__mro__, name)[1] is None:
            self.add(HasAttribute(place, name, False))

    def reading(self, function: Any, arguments: tuple[Any, ...], value: Any, base: Source | None = None) -> None:
        """A C function without side effects returns `value` again (a literal, or a process group)."""
        is_literal = isinstance(value, (*LITERALS, torch.device, *TORCH_CONSTANTS)) and not isinstance(value, bytes)
        if isinstance(function, _C_FUNCTIONS) and (is_literal or is_shared(value)):
            source = Reading(self.tracer.names.of(function), base, tuple(to_arg(argument) for argument in arguments))
            self.frozen(value, source)

    def bases(self, cls: type, other: Any) -> None:
        """A class of the user's has the bases that it has now, unless its layout says whether `other` is one."""
        if is_watched(cls.__module__) and not hasattr(type(cls), "__getattr__") and not has_own_layout(other):
            self.identity(Attribute(self.tracer.places.of(cls), "__mro__"), cls.__mro__)

    def class_lacks(self, cls: type, name: str) -> None:
        """No class of an object has an attribute of this name; what the metaclass has (`__name__`) is not looked at."""
        if static_lookup(type(cls).__mro__, name)[1] is not None or hasattr(type(cls), "__getattr__"):
            self.names_lack(cls, name)
        elif self.may_change(cls) and static_lookup(cls.__mro__, name)[1] is None:
            self.add(HasAttribute(self.tracer.places.of(cls), name, False))

    def is_asked(self) -> bool:
        """Whether the program itself asks, no library that it calls: of libraries too, names may be added for it."""
        return bool(self.tracer.frames) and not is_exempt(self.tracer.frames.module())

    def may_change(self, cls: type) -> bool:
        """Whether the attributes of a class are guarded here: of users' classes, of torch.nn's, where the program asks
        of libraries', but of no class whose attributes cannot be set."""
        is_mutable = cls.__flags__ & HEAP_TYPE and not cls.__flags__ & _IMMUTABLE_TYPE
        return bool(is_mutable) and (is_watched(cls.__module__) or self.is_asked())

    def names_lack(self, cls: type, name: str, start: int = 0) -> None:
        """Neither a class nor its bases, from one of its method resolution order on, have the name."""
        if len(cls.__mro__) > 2 and self.may_change(cls):
            self.identity(Attribute(self.tracer.places.of(cls), "__mro__"), cls.__mro__)
        for base in cls.__mro__[start:]:
            if self.may_change(base) and name not in base.__dict__:
                self.has_key(self.class_names(base), name, False)

    def class_names(self, cls: type) -> Source:
        """Where the own dictionary of a class is read."""
        return Attribute(self.tracer.places.of(cls), "__dict__")

    def all_names(self, cls: type) -> None:
        """A class and its bases have the attributes that they have now, whatever these hold."""
        if self.may_change(cls):
            self.identity(Attribute(self.tracer.places.of(cls), "__mro__"), cls.__mro__)
        for base in cls.__mro__:
            if self.may_change(base):
                self.keys(self.class_names(base), tuple(base.__dict__))

    def lacks(self, source: Source | None, name: str) -> None:
        """An outside object has no attribute of this name."""
        if source is not None:
            self.add(HasAttribute(source, name, False))

    def literal(self, source: Source | None, real: Any, line: SourceLine | None = None) -> None:
        """source == real, and of the same type; line: where it is read, if not here."""
        if real is None or isinstance(real, bytes):
            self.identity(source, real, line)
        elif source is not None:
            self.equals(source, to_arg(real), line)

    def wrapper_state(self, real: torch.Tensor, source: Source, names: list[str]) -> None:
        """What a tensor of a wrapper class has beside the tensors that it holds, and what the class makes of it."""
        for name in ("__torch_dispatch__", "__torch_function__", "__tensor_flatten__", "__tensor_unflatten__"):
            self.lookup(type(real), name)
        for name, value in _stored(real):
            if name not in names and not name.startswith(_NOTES):
                self.frozen(value, Attribute(source, name))

    def frozen(self, real: Any, source: Source | None) -> None:
        """An outside object as a whole: literals by value, tuples, lists and plain objects by what they hold."""
        is_ragged = type(real) is tuple and any(isinstance(size, torch.SymInt) for size in real)
        if source is None or isinstance(real, torch.Tensor) or is_ragged:
            return  # sizes of a jagged tensor follow from what it holds
        if real is None or isinstance(real, (*LITERALS, *TORCH_CONSTANTS)):
            self.literal(source, real)
        elif type(real) is dict and all(type(key) is str for key in real):
            self.keys(source, tuple(real))
            for key, item in real.items():
                self.frozen(item, Item(source, key))
        elif type(real) in (tuple, list, torch.Size) or (isinstance(real, tuple) and field_names(type(real))):
            self.type_is(source, type(real))
            self.length(source, len(real))
            for at, item in enumerate(real):
                self.frozen(item, Item(source, at))
        elif isinstance(real, (type, enum.Enum)) or not hasattr(real, "__dict__") or callable(real) or is_shared(real):
            self.identity(source, real)
        else:
            self.type_is(source, type(real))
            for name, item in _attributes(real):
                self.frozen(item, Attribute(source, name))
            for name in _computed_in_c(type(real)):
                self.reading(getattr, (name,), getattr(real, name), source)

    def not_same(self, left: Value, right: Value) -> None:
        """`left is not right`, for two outside objects of one class; constants are guarded by value."""
        first, second = left.source, right.source
        if first is None or second is None or isinstance(left, Constant) or isinstance(right, Constant):
            return
        if left.python_type() is right.python_type():
            self.same(first, second, False)

    def whether_same(self, left: Value, right: Value, same: bool) -> None:
        """Whether `left is right`: immutable objects of one value may be one object in one call and two in another."""
        first, second = left.source, right.source
        if first is not None and first == second:
            return
        if isinstance(left, Constant) and isinstance(right, Constant):
            is_known = not is_symbolic(left) and not is_symbolic(right)
            may_differ = is_known and left.python_type() is right.python_type() in _COPIED
            if may_differ and first is not None and second is not None and left.value == right.value:
                self.same(first, second, same)
        elif not same:
            self.not_same(left, right)
        elif isinstance(left, TupleValue) and isinstance(right, TupleValue) and left is not right:
            if first is not None and second is not None:
                self.same(first, second, True)
            elif first is not None or second is not None:
                self.identity(first or second, left.real)

    def dict_key(self, shadow: DictValue, key: Any, *, present: bool) -> None:
        """Whether `key` is in an outside dict."""
        if shadow.source is None:
            return
        self._check_settled(shadow)
        if type(key) in LITERALS and not isinstance(key, (bytes, complex)):
            self.has_key(shadow.source, key, present)
        else:
            self.dict_keys(shadow)

    def dict_length(self, shadow: DictValue) -> None:
        """The number of items of an outside dict."""
        if shadow.source is not None and shadow.real is not None:
            self._check_settled(shadow)
            self.length(shadow.source, dict.__len__(shadow.real))

    def dict_keys(self, shadow: DictValue) -> None:
        """The keys of an outside dict, in order."""
        if shadow.source is None or shadow.real is None:
            return
        self._check_settled(shadow)
        keys = [key for key, _ in stored_items(shadow.real)]
        if all(type(key) in LITERALS and not isinstance(key, (bytes, complex)) for key in keys):
            self.keys(shadow.source, tuple(to_arg(key) for key in keys))
            return
        self.length(shadow.source, len(keys))
        for index, key in enumerate(keys):
            self.tracer.objects.wrap(key, DictKey(shadow.source, index))  # such a place is fixed at once

    def _check_settled(self, shadow: DictValue) -> None:
        if shadow.source in self.tracer.changing:
            refuse_changing(shadow.source, shadow.real, "the content of ")

    def written(self) -> None:
        """A tensor that the graph writes into is no other input as well, where a caller could pass it twice.

        (Tensors that modules hold are where their registries have them: they are not compared with each other.)
        """
        inputs = [
            tensor
            for tensor in self.tracer.inputs.tensors.values()
            if tensor.role != "result" and tensor.source is not None
        ]
        for alike in _alike(inputs):
            if any(tensor.role == "tensor" for tensor in alike):
                written = {id(tensor) for tensor in alike if tensor.abstract.storage_record.version}
                self._apart({id(tensor): tensor.source for tensor in alike}, written)

    def ragged(self) -> None:
        """Jagged tensors have one ragged size where they hold the same tensor of offsets or lengths, else others."""
        inputs = self.tracer.inputs
        jagged = [wrapper.abstract for wrapper in inputs.wrappers.values() if wrapper.abstract.is_nested]
        held = [inputs.value_of(inner) for tensor in jagged for inner in inner_tensors(tensor)]
        sources = {id(value): value.source for value in held if not value.abstract.is_floating_point()}
        self._apart(sources, set(sources))

    def changed(self) -> None:
        """An outside object that the program changes is none of the others that it looks at."""
        places = {id(cell): cell.place for cell in self.tracer.objects.cells.values()}
        self._apart(places, {id(effect) for effect in self.tracer.effects})
        owners = [getattr(effect, "owner", None) or effect for effect in self.tracer.effects]
        changed = {id(value): value for value in owners if isinstance(value, Value) and _has_place(value)}
        alike: dict[type, dict[int, Source | None]] = {value.python_type(): {} for value in changed.values()}
        for value in changed.values():
            if isinstance(value, OutsideIterator):
                value.look_at_container(self.tracer, frozenset(alike))
        others = {id(value): value for value in self.tracer.objects.by_object.values()} if changed else {}
        for number, value in {**changed, **others}.items():
            is_registry = isinstance(value.source, Attribute) and value.source.name.startswith("_")
            is_compared = number in changed or (_has_place(value) and not is_registry)
            if is_compared and value.python_type() in alike:
                alike[value.python_type()][number] = value.source
        for sources in alike.values():
            self._apart(sources, set(changed))

    def hashed(self) -> None:
        """Outside objects that were hashed by their identity are as many as they were.

        (Modules, and tensors that modules hold, are where the registries have them: they are not compared.)
        """
        alike: dict[type, dict[int, Source | None]] = {}
        hashed = self.tracer.objects.hashed_by_identity
        for number, value in hashed.items():
            if not isinstance(value, NNModuleValue) or not _is_held(value):
                alike.setdefault(value.python_type(), {})[number] = value.source
        free = {number for number, value in hashed.items() if not _is_held(value)}
        for sources in alike.values():
            self._apart(sources, free)

    def decimals(self) -> None:
        """The context of decimal numbers, if there are any: precision, rounding..., and the flags, which arithmetic
        has set by now, and sets again where they have been cleared."""
        if self.has_decimals:
            held, fields = Reading(self.tracer.names.of(decimal.getcontext)), decimal.getcontext().__reduce__()[1]
            self.frozen(fields, Item(Reading(self.tracer.names.of(decimal.Context.__reduce__), held), 1))

    def _apart(self, sources: dict[int, Source | None], apart: set[int]) -> None:
        """Those of these objects, by their numbers, that are `apart`: different from each other and from the rest."""
        known = {number: source for number, source in sources.items() if source is not None}
        self.distinct(
            [source for number, source in known.items() if number in apart],
            [source for number, source in known.items() if number not in apart],
        )

    def global_hooks(self, hooks: dict[Any, Any], name: str) -> bool:
        """Whether a global nn.Module hook is registered; guards that there is none."""
        if not hooks and name not in self._no_hooks:
            self._no_hooks.add(name)
            self.length(Global(name, "torch.nn.modules.module"), 0)
        return bool(hooks)


def _attributes(real: Any) -> list[tuple[str, Any]]:
    """The attributes that make an object what it is: all, or of torch's own dataclasses the fields by which they are
    compared (a DTensorSpec keeps its hash beside them)."""
    if dataclasses.is_dataclass(real) and is_exempt(type(real).__module__):
        return [(field.name, getattr(real, field.name)) for field in dataclasses.fields(real) if field.compare]
    return _stored(real)


def _computed_in_c(cls: type) -> list[str]:
    """Attributes that properties in C compute: of pybind11's classes, what their objects hold."""
    return [
        name
        for base in cls.__mro__
        for name, found in vars(base).items()
        if isinstance(found, property) and not isinstance(found.fget, types.FunctionType)
    ]


def _stored(real: Any) -> list[tuple[str, Any]]:
    """What an object has in its dictionary and its slots."""
    return [*vars(real).items(), *[(name, getattr(real, name)) for name in filled_slots(real)]]


def _has_place(value: Value) -> bool:
    """Whether an object is read somewhere, and known by its identity."""
    return value.source is not None and not isinstance(value, Constant)


def _alike(tensors: list[TensorValue]) -> list[list[TensorValue]]:
    """The tensors, apart where their types say that two are never one, whatever the sizes."""
    metas = [tensor.abstract.meta for tensor in tensors]
    symbolic = {(meta.dtype, meta.ndim) for meta in metas if any(type(size) is not int for size in meta.shape)}
    found: dict[tuple[Any, ...], list[TensorValue]] = {}
    for tensor, meta in zip(tensors, metas, strict=True):
        sizes = () if (meta.dtype, meta.ndim) in symbolic else tuple(meta.shape)
        found.setdefault((meta.dtype, meta.ndim, *sizes), []).append(tensor)
    return list(found.values())


def _is_held(value: Value) -> bool:
    """Whether it is a module or tensor that a module holds."""
    if isinstance(value, NNModuleValue):
        return isinstance(value.source, (Attribute, Item))
    return isinstance(value, TensorValue) and value.role != "tensor"
