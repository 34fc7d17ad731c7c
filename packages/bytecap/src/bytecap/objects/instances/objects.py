"""Instances of Python classes, nn.Modules among them: attributes in a `DictValue`, the container they may extend."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import Any

import torch
from torch.nn.modules import module as torch_module

from bytecap.bytecode import rebuild
from bytecap.context_types import Emitter, Tracer
from bytecap.errors import CannotRebuild
from bytecap.guards.printing import REGISTRIES
from bytecap.objects.base import (
    HANDLERS,
    Constant,
    Declared,
    NotConcrete,
    Value,
    checked_iterator,
    checked_length,
    checked_truth,
    state,
)
from bytecap.objects.class_lookup import has_method, is_data_descriptor, no_attribute, static_lookup
from bytecap.objects.containers.mappings import DictValue
from bytecap.objects.live import LiveSequence
from bytecap.torch_capabilities import TORCH


class AttributeWrites(metaclass=Declared):
    """Attributes of an outside class, tensor or object (in slots) that the code stored, which no dictionary holds.

    target: the class, or the value. store, delete: what does it after the graph. owner: the value, if other objects
    from outside are compared with it. names: what is stored last; None: deleted.
    """

    target: Any
    store: Callable[..., Any] = setattr
    delete: Callable[..., Any] = delattr
    owner: Value | None = None
    names: dict[str, Value | None] = field(default_factory=dict)


def note_write(tracer: Tracer, target: Any, name: str, value: Value | None, *how: Any) -> None:
    """The code stores `value` in an attribute of `target`. how: store, delete, owner, where it is the first."""
    if id(target) not in tracer.writes:
        tracer.writes[id(target)] = AttributeWrites(target, *how)
        tracer.effects.append(tracer.writes[id(target)])
    tracer.writes[id(target)].names[name] = value


class ObjectValue(Value):
    """An instance of `cls`; `base` models the builtin container it extends (list, dict, tuple, set, str, int).

    `slots` holds values of `__slots__` members; for a new object, both dictionaries start empty.
    """

    cls: type
    attributes: DictValue = field(default_factory=DictValue)
    base: Value | None = None
    real: Any = None
    slots: dict[str, Value | None] = state(default_factory=dict)
    has_writes: bool = state(default=False)

    def __post_init__(self) -> None:
        self.attributes.owner = self

    def plain(self) -> Value:
        return self if self.base is None else self.base

    def concrete(self) -> Any:
        is_changed = self.attributes.mutated or self.has_writes or getattr(self.base, "mutated", False)
        if self.real is None or is_changed:
            raise NotConcrete(self)
        return self.real

    def _special(self, tracer: Tracer, name: str) -> Value | None:
        return tracer.evaluate.special_method(tracer, self, name)

    def _call_special(self, tracer: Tracer, name: str, *args: Value) -> Value | None:
        method = self._special(tracer, name)
        return None if method is None else method.call(tracer, list(args), {})

    def get_attribute(self, tracer: Tracer, name: str) -> Value:
        return tracer.evaluate.instance_get_attribute(tracer, self, name)

    def set_attribute(self, tracer: Tracer, name: str, value: Value) -> None:
        tracer.evaluate.instance_set_attribute(tracer, self, name, value)

    def delete_attribute(self, tracer: Tracer, name: str) -> None:
        tracer.evaluate.instance_set_attribute(tracer, self, name, None)

    def call(self, tracer: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        method = self._special(tracer, "__call__")
        if method is None:
            return super().call(tracer, args, kwargs)
        return method.call(tracer, args, kwargs)

    def call_method(self, tracer: Tracer, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return tracer.evaluate.call_object_method(tracer, self, name, args, kwargs)

    def get_item(self, tracer: Tracer, key: Value) -> Value:
        found = self._call_special(tracer, "__getitem__", key)
        return (
            self.get_base_item(tracer, self._container(tracer, "is not subscriptable"), key) if found is None else found
        )

    def get_base_item(self, tracer: Tracer, base: Value, key: Value) -> Value:
        """The item of the builtin base; a dict asks the class's `__missing__`."""
        missing = self._special(tracer, "__missing__") if isinstance(base, DictValue) else None
        if missing is None:
            return base.get_item(tracer, key)
        found = base.lookup(tracer, key)
        return missing.call(tracer, [key], {}) if found is None else found

    def set_item(self, tracer: Tracer, key: Value, value: Value) -> None:
        if self._call_special(tracer, "__setitem__", key, value) is None:
            self._container(tracer, "does not support item assignment").set_item(tracer, key, value)

    def delete_item(self, tracer: Tracer, key: Value) -> None:
        if self._call_special(tracer, "__delitem__", key) is None:
            self._container(tracer, "does not support item deletion").delete_item(tracer, key)

    def length(self, tracer: Tracer) -> int:
        made = self._call_special(tracer, "__len__")
        return self._container(tracer, "has no len()").length(tracer) if made is None else checked_length(tracer, made)

    def truth(self, tracer: Tracer) -> bool:
        made = self._call_special(tracer, "__bool__")
        if made is not None:
            return checked_truth(tracer, made)
        if self._special(tracer, "__len__") is not None:
            return self.length(tracer) > 0
        return True if self.base is None else self.base.truth(tracer)

    def as_int(self, tracer: Tracer) -> int:
        made = self._call_special(tracer, "__index__")
        return super().as_int(tracer) if made is None else made.as_int(tracer)

    def is_iterable(self) -> bool:
        return has_method(self, "__iter__") or has_method(self, "__getitem__")

    def iterate(self, tracer: Tracer) -> Value:
        found = self._call_special(tracer, "__iter__")
        if found is not None:
            return checked_iterator(tracer, found)
        if self.base is not None:
            return self.base.iterate(tracer)
        if self._special(tracer, "__getitem__") is not None:
            return tracer.objects.iterator(iter(LiveSequence(tracer, self)))
        raise tracer.raises(TypeError, f"'{self.cls.__name__}' object is not iterable")

    def contains(self, tracer: Tracer, item: Value) -> bool:
        found = self._call_special(tracer, "__contains__", item)
        if found is not None:
            return found.truth(tracer)
        if self.base is not None and has_method(self.base, "__contains__"):
            return self.base.contains(tracer, item)
        return super().contains(tracer, item)

    def _container(self, tracer: Tracer, complaint: str) -> Value:
        if self.base is None:
            raise tracer.raises(TypeError, f"'{self.cls.__name__}' object {complaint}")
        return self.base

    def reconstruct(self, emitter: Emitter) -> None:
        if issubclass(self.cls, property):
            raise CannotRebuild(f"a new {self.cls.__qualname__}")
        if self.base is None:
            emitter.call_function(rebuild.new_object, self.cls)
        elif isinstance(self.base, Constant) or isinstance(self.base.python_type(), type):
            emitter.call_with(rebuild.new_container, self.base, self.cls)
        else:
            raise CannotRebuild(f"cannot build a new {self.cls.__qualname__}")
        emitter.keep(self)
        for name, value in self.slots.items():
            if value is not None:
                self._store(emitter, name, value)
        for key, value in self.attributes.pairs(emitter.tracer):
            self._store(emitter, str(key.concrete()), value, writers_of(self, key)[0])
        emitter.load(self)

    def _store(self, emitter: Emitter, name: str, value: Value, change: Any = object.__setattr__) -> None:
        emitter.call_with(change, self, name, value)
        emitter.pop()


def call_special(tracer: Tracer, value: Value, name: str, *args: Value) -> Value | None:
    """What a dunder method that the value's class defines in Python gives; None where it defines none."""
    return value._call_special(tracer, name, *args)


def writers_of(owner: Value, name: Value) -> tuple[Any, Any]:
    """What stores and deletes in an instance's dictionary: as an attribute, unless the class has a data descriptor."""
    raw = static_lookup(owner.python_type().__mro__, name.concrete())[0]
    is_hidden = is_data_descriptor(raw)
    return (rebuild.set_in_dict, rebuild.delete_in_dict) if is_hidden else (object.__setattr__, object.__delattr__)


def copies_as_itself(value: Value) -> bool:
    """Whether copy() and operators make another instance of the subclass: those of OrderedDict and defaultdict do."""
    return isinstance(value, ObjectValue) and isinstance(value.base, DictValue) and value.base.cls is not dict


HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
GLOBAL_HOOKS = tuple(f"_global{name}" for name in HOOKS)
# As torch defines them: users replace them, on classes and on instances.
_OWN_CALL, _OWN_CALL_IMPL = torch.nn.Module.__call__, TORCH.call_impl


class NNModuleValue(ObjectValue):
    """An nn.Module: attributes in three registries, calls that are `forward` while no hook is registered."""

    def call(self, tracer: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        tracer.guards.lookup(self.cls, "__call__")
        if self.cls.__call__ is not _OWN_CALL:
            return super().call(tracer, args, kwargs)
        compiled = self.attributes.lookup(tracer, Constant("_compiled_call_impl"))
        if compiled is not None and compiled.python_type() is not type(None):
            return compiled.call(tracer, args, kwargs)
        name = "forward" if self._is_plain(tracer) else "_call_impl"
        return self.get_attribute(tracer, name).call(tracer, args, kwargs)

    def _is_plain(self, tracer: Tracer) -> bool:
        """Whether `_call_impl` comes down to `forward`."""
        tracer.guards.lookup(self.cls, "_call_impl")
        is_own = getattr(self.cls, "_call_impl", None) is _OWN_CALL_IMPL
        return is_own and self.attributes.lookup(tracer, Constant("_call_impl")) is None and not has_hooks(tracer, self)

    def registry(self, tracer: Tracer, name: str) -> DictValue | None:
        """`_parameters`, `_buffers` or `_modules`."""
        found = self.attributes.lookup(tracer, Constant(name))
        return found if isinstance(found, DictValue) else None

    def plain_setattr(self, tracer: Tracer, owner: Any, name: str, item: Value) -> bool:
        """Do `nn.Module.__setattr__` here when it only stores the value; False: evaluate it in full."""
        if owner is not torch.nn.Module:
            return False
        kind = item.python_type()
        if issubclass(kind, (torch.nn.Parameter, torch.nn.Module)):
            return False
        if issubclass(kind, torch.Tensor):  # which may be marked as one of these
            classes = tracer.objects.wrap((torch.nn.Parameter, torch.nn.Buffer), None)
            if HANDLERS[isinstance](tracer, item, classes).concrete():
                return False
        for registry_name in REGISTRIES:
            registry = self.registry(tracer, registry_name)
            if registry is None:
                return False
            was_none = registry.real is not None and name in registry.real
            if registry.lookup(tracer, Constant(name)) is not None or was_none:
                if registry_name == "_buffers" and issubclass(kind, (torch.Tensor, type(None))):
                    registry.set_item(tracer, Constant(name), item)
                    return True
                return False
        tracer.evaluate.default_set_attribute(tracer, self, name, item)
        return True


def registry_attribute(tracer: Tracer, module: NNModuleValue, name: str) -> Value:
    """nn.Module.__getattr__."""
    for registry_name in REGISTRIES:
        registry = module.registry(tracer, registry_name)
        found = registry.lookup(tracer, Constant(name)) if registry is not None else None
        if found is not None:
            return found
    raise no_attribute(tracer, module, name)


def has_hooks(tracer: Tracer, module: NNModuleValue) -> bool:
    """Whether any hook would run; guards that there is none."""
    for name in HOOKS:
        hooks = module.attributes.lookup(tracer, Constant(name))
        if hooks is not None and hooks.truth(tracer):
            return True
    return any(tracer.guards.global_hooks(getattr(torch_module, name), name) for name in GLOBAL_HOOKS)
