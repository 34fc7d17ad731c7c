"""Class attributes as they lie in the classes, without running descriptors."""

from __future__ import annotations

import functools
import threading
import types
from typing import Any

from bytecap.bytecode.rebuild import HEAP_TYPE
from bytecap.context_types import Tracer, Value

MISSING: Any = object()
LRU_CACHE: type = type(functools.lru_cache(lambda: None))


def static_lookup(classes: tuple[type, ...], name: str) -> tuple[Any, type | None]:
    """(raw attribute, class that holds it) along a method resolution order, without running descriptors."""
    for cls in classes:
        found = cls.__dict__.get(name, MISSING)
        if found is not MISSING:
            return found, cls
    return MISSING, None


def is_python_class(cls: type) -> bool:
    """Whether instances are modelled attribute by attribute: classes made by a class statement, SimpleNamespace."""
    if issubclass(cls, types.SimpleNamespace):
        return True
    if issubclass(cls, threading.local):  # its attributes are another dictionary's in each thread
        return False
    for base in cls.__mro__:
        if base.__flags__ & HEAP_TYPE and ("__slots__" in base.__dict__ or base.__dictoffset__ != 0):
            return not is_made_in_c(base)
    return False


def is_made_in_c(cls: type) -> bool:
    """Whether a class is one of C's: a static type, or a heap type whose `__new__` is its own and written in C."""
    if not cls.__flags__ & HEAP_TYPE:
        return True
    new = cls.__dict__.get("__new__")
    return isinstance(new, types.BuiltinFunctionType) and new.__self__ is cls


def has_own_layout(cls: Any) -> bool:
    """Whether instances are laid out by C as no base's are: a class cannot be given such a base, nor lose it."""
    is_static = type(cls) is type and cls is not object and not cls.__flags__ & HEAP_TYPE
    return is_static and cls.__basicsize__ > cls.__base__.__basicsize__


def filled_slots(real: Any) -> list[str]:
    """The names of slots, and of other members in C, that an object has a value in."""
    raw = [(name, found) for cls in type(real).__mro__ for name, found in vars(cls).items()]
    return [name for name, found in raw if isinstance(found, types.MemberDescriptorType) and hasattr(real, name)]


def has_method(value: Value, name: str) -> bool:
    """Whether the value's class has a (not None) attribute of this name."""
    return static_lookup(value.python_type().__mro__, name)[0] not in (MISSING, None)


def stranger(value: Value) -> Any:
    """An object of an empty class of the same name: what C complains of it says the value's class."""
    cls = value.python_type()
    is_static = not cls.__flags__ & HEAP_TYPE and cls.__module__ != "builtins"  # C calls these by their module too
    return type(f"{cls.__module__}.{cls.__name__}" if is_static else cls.__name__, (), {})()


def is_data_descriptor(raw: Any) -> bool:
    """Whether a class attribute goes before the instance's own."""
    kind = type(raw)
    return hasattr(kind, "__set__") or hasattr(kind, "__delete__")


def no_attribute(tracer: Tracer, value: Value, name: str) -> Exception:
    """The AttributeError of the evaluated program."""
    return missing_name(tracer, f"'{value.python_type().__name__}' object has no attribute '{name}'", value, name)


def missing_name(tracer: Tracer, message: str, value: Value, name: str) -> Exception:
    """AttributeError with its `obj` and `name`."""
    error = tracer.raises(AttributeError, message)
    error.value.given[1].update(name=tracer.objects.wrap(name, None), obj=value)  # type: ignore[attr-defined]
    return error
