"""Attribute lookup as CPython does it: data descriptors, the instance, other class attributes, `__getattr__`."""

from __future__ import annotations

import ctypes
import functools
import types
from collections.abc import Callable
from typing import Any

from bytecap.bytecode import rebuild
from bytecap.context_types import Tracer
from bytecap.errors import UnsupportedCall, UnsupportedMutation
from bytecap.guards.guard_set import is_exempt, is_watched
from bytecap.hook import Dispatcher
from bytecap.objects.base import Constant, PythonRaise, Value, run
from bytecap.objects.class_lookup import (
    LRU_CACHE,
    MISSING,
    is_data_descriptor,
    missing_name,
    no_attribute,
    static_lookup,
)
from bytecap.objects.containers.mappings import ClassNames, MappingProxyValue
from bytecap.objects.functions import BuiltinFunction, BuiltinMethod, ClassValue, FunctionValue, MethodValue, SuperValue
from bytecap.objects.instances.exceptions import ExceptionValue
from bytecap.objects.instances.objects import NNModuleValue, ObjectValue, note_write, registry_attribute
from stagewire.capture import Attribute, Item, Source

# What methods of classes made by pybind11 are.
_OBJECT = ctypes.py_object
_INSTANCE_METHOD: Any = type(ctypes.PYFUNCTYPE(_OBJECT, _OBJECT)(("PyInstanceMethod_New", ctypes.pythonapi))(len))
# Descriptors written in C that make a method of the receiver's own (C) type.
_C_METHODS = (
    types.MethodDescriptorType, types.WrapperDescriptorType, types.BuiltinFunctionType, types.ClassMethodDescriptorType,
    _INSTANCE_METHOD,
)  # fmt: skip
# Py_TPFLAGS_METHOD_DESCRIPTOR: functions of Python and of what is like it (Cython).
_METHOD_DESCRIPTOR = 1 << 17
_C_MEMBERS = (types.GetSetDescriptorType, types.MemberDescriptorType)


def bind(tracer: Tracer, raw: Any, owner: type, receiver: Value | None, cls: type, name: str) -> Value:
    """What a class attribute becomes when read through `receiver` (None: through the class itself)."""
    # Where the lookup starts, so that a class in between which gets the name is seen; not for super().
    is_first = static_lookup(cls.__mro__, name)[1] is owner
    source = tracer.places.class_attribute(cls if is_first else owner, name)
    match raw:
        case types.FunctionType() | Dispatcher():
            function = tracer.objects.wrap(raw, source)
            return function if receiver is None else MethodValue(function, receiver)
        case staticmethod():
            return tracer.objects.wrap(raw.__func__, source if isinstance(raw.__func__, types.FunctionType) else None)
        case classmethod():
            function = tracer.objects.wrap(raw.__func__, tracer.places.attribute(source, "__func__"))
            return MethodValue(function, ClassValue(cls))
        case types.ClassMethodDescriptorType():
            return BuiltinMethod(ClassValue(cls), name)
        case property() if receiver is not None:
            if raw.fget is None:
                raise no_attribute(tracer, receiver, name)
            return tracer.objects.wrap(raw.fget, tracer.places.attribute(source, "fget")).call(tracer, [receiver], {})
        case functools.cached_property() if receiver is not None:
            return _cached_property(tracer, raw, receiver, tracer.places.attribute(source, "func"))
    if isinstance(raw, LRU_CACHE):
        function = tracer.objects.wrap(raw, source)
        return function if receiver is None else MethodValue(function, receiver)
    if isinstance(raw, types.BuiltinFunctionType) and cls is not super:  # (which looks attributes up elsewhere)
        # No descriptor: `__new__` of a C type, a class attribute torch.sin.
        return tracer.objects.wrap(raw, None if name == "__new__" else source)
    if isinstance(raw, _C_METHODS):
        plain = raw.__func__ if isinstance(raw, _INSTANCE_METHOD) else raw
        return tracer.objects.wrap(plain, None) if receiver is None else BuiltinMethod(receiver, plain.__name__)
    if isinstance(raw, _C_MEMBERS) and receiver is not None:
        return _c_member(tracer, raw, receiver, name)
    get = static_lookup(type(raw).__mro__, "__get__")[0]
    if isinstance(get, types.FunctionType):
        descriptor = _descriptor(tracer, raw, source)
        instance = Constant(None) if receiver is None else receiver
        getter = tracer.objects.wrap(get, tracer.places.class_attribute(type(raw), "__get__"))
        return MethodValue(getter, descriptor).call(tracer, [instance, ClassValue(cls)], {})
    tracer.guards.lookup(type(raw), "__get__")
    found = tracer.objects.wrap(raw, source)
    if get is MISSING or receiver is None or isinstance(raw, types.MethodType):
        return found
    if type(raw).__flags__ & _METHOD_DESCRIPTOR:
        return MethodValue(found, receiver)
    raise UnsupportedCall(f"reading {name!r} of a {receiver.describe()}, a {type(raw).__name__}")


def _descriptor(tracer: Tracer, raw: Any, source: Source | None) -> Value:
    """A descriptor written in Python. Its place cannot be read in replacement code without calling its `__get__`."""
    if source is None:
        return tracer.objects.wrap(raw, None)
    tracer.guards.identity(source, raw)
    return tracer.objects.wrap(raw, tracer.places.handle(raw))


def _cached_property(tracer: Tracer, raw: Any, receiver: Value, source: Source | None) -> Value:
    made = tracer.objects.wrap(raw.func, source).call(tracer, [receiver], {})
    attributes = getattr(receiver, "attributes", None)
    if attributes is not None:
        attributes.set_item(tracer, Constant(raw.attrname), made)
    return made


def _c_member(tracer: Tracer, raw: Any, receiver: Value, name: str) -> Value:
    if isinstance(receiver, ExceptionValue):
        return receiver.c_member(tracer, name)
    if isinstance(receiver, ObjectValue):
        if name in receiver.slots:
            found = receiver.slots[name]
            if found is None:
                raise no_attribute(tracer, receiver, name)
            return found
        if receiver.real is None:
            if receiver.base is None:
                raise no_attribute(tracer, receiver, name)
            return receiver.base.get_attribute(tracer, name)  # (default_factory)
        if not hasattr(receiver.real, name):
            tracer.guards.lacks(receiver.source, name)
        value = tracer.objects.wrap(
            run(tracer, getattr, (receiver.real, name)), tracer.places.attribute(receiver.source, name)
        )
        receiver.slots[name] = value
        return value
    return tracer.objects.fresh(run(tracer, getattr, (receiver.concrete(), name)))


def generic_get_attribute(tracer: Tracer, value: Value, name: str) -> Value:
    """`value.name` for values without instance attributes."""
    cls = value.python_type()
    if name == "__class__":
        return tracer.objects.wrap(cls, None)
    raw, owner = static_lookup(cls.__mro__, name)
    if owner is None:
        raise no_attribute(tracer, value, name)
    return bind(tracer, raw, owner, value, cls, name)


def instance_get_attribute(tracer: Tracer, value: ObjectValue, name: str) -> Value:
    """`value.name` by the full protocol."""
    tracer.guards.lookup(value.cls, "__getattribute__")
    custom, owner = static_lookup(value.cls.__mro__, "__getattribute__")
    try:
        if isinstance(custom, types.FunctionType):
            method = bind(tracer, custom, owner or object, value, value.cls, "__getattribute__")
            return method.call(tracer, [Constant(name)], {})
        found = find_attribute(tracer, value, name)
    except PythonRaise as error:
        fallback, owner = static_lookup(value.cls.__mro__, "__getattr__")
        if owner is None or not issubclass(error.value.python_type(), AttributeError):
            raise
        return value_fallback(tracer, value, fallback, owner, name)
    if found is not None:
        return found
    tracer.guards.class_lacks(value.cls, name)
    tracer.guards.lookup(value.cls, "__getattr__")
    fallback, owner = static_lookup(value.cls.__mro__, "__getattr__")
    if owner is None:
        raise no_attribute(tracer, value, name)
    return value_fallback(tracer, value, fallback, owner, name)


def value_fallback(tracer: Tracer, value: ObjectValue, fallback: Any, owner: type, name: str) -> Value:
    """Call the class's `__getattr__`; nn.Module's own is looked up in its three registries directly."""
    if isinstance(value, NNModuleValue) and owner.__module__ == "torch.nn.modules.module":
        return registry_attribute(tracer, value, name)
    method = bind(tracer, fallback, owner, value, value.cls, "__getattr__")
    return method.call(tracer, [Constant(name)], {})


def find_attribute(tracer: Tracer, value: ObjectValue, name: str) -> Value | None:
    """object.__getattribute__ without its AttributeError."""
    if name == "__dict__":
        return value.attributes if value.cls.__dictoffset__ else None
    if name == "__class__":
        return tracer.objects.wrap(value.cls, None)
    written = _written_attribute(tracer, value.cls.__mro__, name)
    if written is not None:  # the code stored the name in the class, or deleted it from there
        found, item = value.attributes.lookup(tracer, Constant(name)), written[1]
        if found is not None or item is None:
            return found  # type: ignore[no-any-return]
        return MethodValue(item, value) if isinstance(item, FunctionValue) else item
    raw, owner = static_lookup(value.cls.__mro__, name)
    if owner is not None and _goes_first(tracer, raw) and hasattr(type(raw), "__get__"):
        return bind(tracer, raw, owner, value, value.cls, name)
    found = value.attributes.lookup(tracer, Constant(name))
    if found is not None:
        return found
    if owner is None:
        return None
    return bind(tracer, raw, owner, value, value.cls, name)


def _goes_first(tracer: Tracer, raw: Any) -> bool:
    """Whether a class attribute goes before the instance's own, which its class may change."""
    tracer.guards.lookup(type(raw), "__set__")
    tracer.guards.lookup(type(raw), "__delete__")
    return is_data_descriptor(raw)


def class_set_attribute(tracer: Tracer, value: ClassValue, name: str, item: Value | None) -> None:
    """`cls.name = item`, or `del cls.name` (item None): replayed after the graph."""
    cls = value.real
    tracer.guards.lookup(type(cls), "__setattr__" if item is not None else "__delattr__")
    custom = static_lookup(type(cls).__mro__, "__setattr__" if item is not None else "__delattr__")[0]
    is_special = name.startswith("__") and name.endswith("__")
    kind = None if item is None else item.python_type()
    is_descriptor = kind not in (None, types.FunctionType) and hasattr(kind, "__get__")
    is_refused = is_special or is_descriptor or cls in tracer.made_classes
    if isinstance(custom, types.FunctionType) or is_refused or is_exempt(cls.__module__):
        raise UnsupportedMutation(f"cannot set attribute {name!r} of {value.describe()}")
    if item is None:
        _check_class_has(tracer, value, name)
    note_write(tracer, cls, name, item)


def _written_attribute(tracer: Tracer, classes: tuple[type, ...], name: str) -> Any:
    """(True, value or None if it was deleted) of a class attribute that the code wrote; None: look as ever."""
    for cls in classes if tracer.writes else ():
        written = tracer.writes.get(id(cls))
        if written is not None and name in written.names:
            return (True, written.names[name])
        if name in cls.__dict__:
            return None
    return None


def _check_class_has(tracer: Tracer, value: ClassValue, name: str) -> None:
    """For `del cls.name`: the class itself has it, and no base does (which would show through)."""
    cls = value.real
    written = _written_attribute(tracer, (cls,), name)
    has_it = name in cls.__dict__ if written is None else written[1] is not None
    if not has_it:
        raise missing_name(tracer, f"type object '{cls.__name__}' has no attribute '{name}'", value, name)
    if any(name in base.__dict__ for base in cls.__mro__[1:]):
        raise UnsupportedMutation(f"deleting attribute {name!r} of {value.describe()}, which a base class has too")
    value.get_attribute(tracer, name)


def instance_set_attribute(tracer: Tracer, value: ObjectValue, name: str, item: Value | None) -> None:
    """`value.name = item`, or `del value.name` (item None), by the full protocol."""
    special, given = ("__delattr__", []) if item is None else ("__setattr__", [item])
    tracer.guards.lookup(value.cls, special)
    custom, owner = static_lookup(value.cls.__mro__, special)
    is_python = isinstance(custom, types.FunctionType)
    is_module = isinstance(value, NNModuleValue) and is_python and item is not None
    if is_module and value.plain_setattr(tracer, owner, name, item):  # type: ignore[attr-defined]
        return
    # A C method of another name: `__setattr__ = dict.__setitem__`.
    if is_python or (isinstance(custom, _C_METHODS) and custom.__name__ != special):
        method = bind(tracer, custom, owner or object, value, value.cls, special)
        method.call(tracer, [Constant(name), *given], {})
        return
    default_set_attribute(tracer, value, name, item)


def default_set_attribute(tracer: Tracer, value: ObjectValue, name: str, item: Value | None) -> None:
    """object.__setattr__, or object.__delattr__ (item None)."""
    raw, owner = static_lookup(value.cls.__mro__, name)
    is_descriptor = owner is not None and _goes_first(tracer, raw)
    if item is not None or is_descriptor:
        tracer.guards.lookup(value.cls, name)
    if is_descriptor:
        _set_by_descriptor(tracer, value, raw, name, item)
        return
    if item is None:
        if value.attributes.lookup(tracer, Constant(name)) is None:
            raise no_attribute(tracer, value, name)
        value.attributes.delete_item(tracer, Constant(name))
        return
    if value.cls.__dictoffset__ == 0:
        if owner is not None:
            raise tracer.raises(AttributeError, f"'{value.cls.__name__}' object attribute '{name}' is read-only")
        custom = static_lookup(value.cls.__mro__, "__setattr__")[0]
        stand_in = type(value.cls.__name__, (), {"__slots__": (), "__setattr__": custom})()
        raise missing_name(tracer, _complaint(object.__setattr__, stand_in, name, None), value, name)
    value.attributes.set_item(tracer, Constant(name), item)


def _set_by_descriptor(tracer: Tracer, value: ObjectValue, raw: Any, name: str, item: Value | None) -> None:
    given = [] if item is None else [item]
    home = tracer.places.class_attribute(value.cls, name)
    if isinstance(raw, types.MemberDescriptorType):
        if item is None:
            try:
                _c_member(tracer, raw, value, name)
            except PythonRaise:
                raise tracer.raises(AttributeError, name) from None  # in these words
        if value.real is not None:
            note_write(tracer, value, name, item, object.__setattr__, rebuild.empty_slot)
            value.has_writes = True
        value.slots[name] = item
    elif isinstance(raw, property):
        field, what = ("fdel", "deleter") if item is None else ("fset", "setter")
        function = getattr(raw, field)
        if function is None:
            raise tracer.raises(AttributeError, _property_complaint(raw, value, what))
        tracer.objects.wrap(function, tracer.places.attribute(home, field)).call(tracer, [value, *given], {})
    else:
        special = "__delete__" if item is None else "__set__"
        function = static_lookup(type(raw).__mro__, special)[0]
        if not isinstance(function, types.FunctionType):
            raise UnsupportedMutation(f"cannot {'delete' if item is None else 'set'} {name!r} of a {value.describe()}")
        method = tracer.objects.wrap(function, tracer.places.class_attribute(type(raw), special))
        MethodValue(method, _descriptor(tracer, raw, home)).call(tracer, [value, *given], {})


def _property_complaint(raw: property, value: Value, what: str) -> str:
    """What CPython says of a property that has no setter or deleter."""
    stand_in = type(value.python_type().__name__, (), {raw.fget.__name__ if raw.fget else "?": property(raw.fget)})()
    name = next(iter(vars(type(stand_in))))
    text = _complaint(setattr, stand_in, name, None) if what == "setter" else _complaint(delattr, stand_in, name)
    return text.replace(type(stand_in).__qualname__, value.python_type().__qualname__)


def _complaint(change: Callable[..., None], *args: Any) -> str:
    """What CPython says of a change of an attribute that it refuses."""
    try:
        change(*args)
    except AttributeError as error:
        return str(error)
    raise AssertionError("an attribute that can be changed")


def class_get_attribute(tracer: Tracer, value: ClassValue, name: str) -> Value:
    """`cls.name`: metaclass data descriptors, the class's own, then the metaclass's."""
    real, metaclass = value.real, type(value.real)
    if name == "__class__":
        return tracer.objects.wrap(metaclass, None)
    if name == "__mro__" or name == "__bases__":
        return tracer.objects.fresh(getattr(real, name))
    if name in ("__name__", "__qualname__", "__module__", "__doc__"):
        found = run(tracer, getattr, (real, name))
        if is_watched(real.__module__) and isinstance(found, str) and not hasattr(type(real), "__getattr__"):
            tracer.guards.literal(Attribute(tracer.places.of(real), name), found)
        return Constant(found)
    tracer.guards.lookup(metaclass, "__getattribute__")
    if isinstance(static_lookup(metaclass.__mro__, "__getattribute__")[0], types.FunctionType):
        raise UnsupportedCall(f"attribute {name!r} of {value.describe()}, whose class has a `__getattribute__`")
    if name == "__dict__" and static_lookup(metaclass.__mro__, name)[1] is type:
        return _class_names(tracer, real)
    written = _written_attribute(tracer, real.__mro__, name)
    if written is not None:
        if written[1] is None:
            raise missing_name(tracer, f"type object '{real.__name__}' has no attribute '{name}'", value, name)
        return written[1]
    meta_raw, meta_owner = static_lookup(metaclass.__mro__, name)
    is_python = meta_owner is not None and not isinstance(meta_raw, _C_MEMBERS)
    if is_python and _goes_first(tracer, meta_raw) and hasattr(type(meta_raw), "__get__"):
        return bind(tracer, meta_raw, meta_owner, value, metaclass, name)
    raw, owner = static_lookup(real.__mro__, name)
    if owner is not None:
        return bind(tracer, raw, owner, None, real, name)
    if meta_owner is not None:
        tracer.guards.names_lack(real, name)
        return bind(tracer, meta_raw, meta_owner, value, metaclass, name)
    return _missing_in_class(tracer, value, name)


def _missing_in_class(tracer: Tracer, value: ClassValue, name: str) -> Value:
    """What neither a class nor its metaclass has: what the metaclass's `__getattr__` gives."""
    metaclass = type(value.real)
    tracer.guards.lookup(metaclass, "__getattr__")
    for cls in (value.real, metaclass):
        tracer.guards.names_lack(cls, name)
    fallback, owner = static_lookup(metaclass.__mro__, "__getattr__")
    if isinstance(fallback, types.FunctionType) and owner is not None and not is_exempt(owner.__module__):
        return bind(tracer, fallback, owner, value, metaclass, "__getattr__").call(tracer, [Constant(name)], {})
    # Enum members and the like: the `__getattr__` of a library's metaclass is pure.
    return tracer.objects.wrap(run(tracer, getattr, (value.real, name)), None)


def _class_names(tracer: Tracer, real: type) -> MappingProxyValue:
    """`cls.__dict__`: its keys are guarded, and its values as they lie in the class."""
    place = tracer.guards.class_names(real)
    if not tracer.guards.may_change(real):
        return MappingProxyValue(ClassNames(real=dict(real.__dict__), of=real), place)
    names = ClassNames(real=dict(real.__dict__), source=place, item_source=lambda key, index: Item(place, key), of=real)
    return MappingProxyValue(names, place)


def super_attribute(tracer: Tracer, value: SuperValue, name: str) -> Value:
    """`super(cls, receiver).name`."""
    receiver = value.receiver
    is_class = isinstance(receiver, ClassValue)
    mro = receiver.real.__mro__ if is_class else receiver.python_type().__mro__  # type: ignore[attr-defined]
    if is_class and value.cls not in mro and value.cls in type(receiver.real).__mro__:  # type: ignore[attr-defined]
        # In a method of a metaclass the class is the instance.
        is_class, mro = False, type(receiver.real).__mro__  # type: ignore[attr-defined]
    if value.cls not in mro:
        raise tracer.raises(TypeError, "super(type, obj): obj must be an instance or subtype of type")
    raw, owner = static_lookup(mro[mro.index(value.cls) + 1 :], name)
    if owner is None:
        tracer.guards.names_lack(mro[0], name, mro.index(value.cls) + 1)
        raise tracer.raises(AttributeError, f"'super' object has no attribute '{name}'")
    tracer.guards.bases(mro[0], value.cls)
    first = mro[mro.index(value.cls) + 1]  # a class from there to the one that has the method may get the name
    source = tracer.places.class_attribute(first, name)
    if source is not None and isinstance(raw, types.FunctionType) and static_lookup(first.__mro__, name)[0] is raw:
        tracer.guards.identity(source, raw)
    if is_class:
        if name == "__new__":
            return tracer.objects.wrap(raw.__func__ if isinstance(raw, staticmethod) else raw, None)
        tracer.guards.lookup(first, name)
        return bind(tracer, raw, owner, None, receiver.real, name)  # type: ignore[attr-defined]
    if isinstance(raw, _C_METHODS):
        return MethodValue(BuiltinFunction(raw), receiver)
    return bind(tracer, raw, owner, receiver, receiver.python_type(), name)


def special_method(tracer: Tracer, value: Value, name: str) -> Value | None:
    """A dunder method written in Python (or C's by another name), bound; None when the class has none."""
    cls = value.python_type()
    raw, owner = static_lookup(cls.__mro__, name)
    if owner is None or raw is None or (isinstance(raw, _C_METHODS) and raw.__name__ == name):
        tracer.guards.lookup(cls, name)
        return None
    return bind(tracer, raw, owner, value, cls, name)
