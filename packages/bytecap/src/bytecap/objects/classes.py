"""Classes and Python modules as values: attribute reads and instantiation."""

from __future__ import annotations

from types import FunctionType, ModuleType

import torch
from torch.backends import ContextProp

from bytecap.context_types import Tracer
from bytecap.errors import UnsupportedMutation
from bytecap.guards.guard_set import is_exempt
from bytecap.objects.base import Constant, RealValue, Value, fold, run
from bytecap.objects.class_lookup import static_lookup
from bytecap.objects.containers.mappings import DICT_TYPES, DictValue
from bytecap.objects.dispatch import handler_of


class ClassValue(RealValue):
    """A class."""

    words = "class {0.real.__qualname__}"

    def get_attribute(self, tracer: Tracer, name: str) -> Value:
        return tracer.evaluate.class_get_attribute(tracer, self, name)

    def set_attribute(self, tracer: Tracer, name: str, value: Value) -> None:
        tracer.evaluate.class_set_attribute(tracer, self, name, value)

    def delete_attribute(self, tracer: Tracer, name: str) -> None:
        tracer.evaluate.class_set_attribute(tracer, self, name, None)

    def call(self, tracer: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return tracer.evaluate.instantiate(tracer, self.real, args, kwargs)

    def call_method(self, tracer: Tracer, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if name == "fromkeys" and self.real in DICT_TYPES:
            return DictValue(cls=self.real).call_method(tracer, name, args, kwargs)
        if name == "apply" and issubclass(self.real, torch.autograd.Function):
            return tracer.evaluate.apply_function(tracer, self, *args, **kwargs)
        handler = handler_of(getattr(self.real, name, None))
        if handler is not None:
            return handler(tracer, *args, **kwargs)
        return tracer.evaluate.fold_call(tracer, run(tracer, getattr, (self.real, name)), args, kwargs)

    def get_item(self, tracer: Tracer, key: Value) -> Value:
        raw, owner = static_lookup(self.real.__mro__, "__class_getitem__")
        if isinstance(getattr(raw, "__func__", None), FunctionType) and not is_exempt(owner.__module__):  # type: ignore[union-attr]
            return tracer.evaluate.bind(tracer, raw, owner, None, self.real, "__class_getitem__").call(
                tracer, [key], {}
            )  # type: ignore[arg-type]
        return fold(tracer, lambda: self.real[key.concrete()], ())  # type: ignore[index]


class ModuleValue(RealValue):
    """A Python module; its names are read lazily, each with its own guard."""

    names: DictValue
    cls = ModuleType
    words = "module {0.real.__name__}"

    def get_attribute(self, tracer: Tracer, name: str) -> Value:
        if name == "__dict__":
            return self.names
        found = self.names.lookup(tracer, Constant(name))
        if found is not None:
            return found
        hook = self.names.lookup(tracer, Constant("__getattr__")) if self.names.source is not None else None
        if hook is not None and name not in vars(self.real):
            return hook.call(tracer, [Constant(name)], {})
        setting, _ = static_lookup(type(self.real).__mro__, name)
        if isinstance(setting, ContextProp):
            return tracer.objects.wrap(setting.getter, None).call(tracer, [], {})
        # A lazily loaded name (module __getattr__, or a submodule import) appears by being read.
        return tracer.objects.wrap(run(tracer, getattr, (self.real, name)), None)

    def set_attribute(self, tracer: Tracer, name: str, value: Value) -> None:
        setting, _ = static_lookup(type(self.real).__mro__, name)
        if isinstance(setting, ContextProp) and not torch.backends.flags_frozen():
            tracer.objects.wrap(setting.setter, None).call(tracer, [value], {})
        elif hasattr(type(setting), "__set__"):
            raise UnsupportedMutation(f"cannot assign {self.real.__name__}.{name} in captured code")
        else:
            self.names.set_item(tracer, Constant(name), value)
