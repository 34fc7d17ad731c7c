"""nn.Module instances: attributes in three registries, calls that are `forward` while no hook is registered."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.modules import module as torch_module

from bytecap.context_types import Tracer
from bytecap.guards.printing import REGISTRIES
from bytecap.objects.base import Constant, Value
from bytecap.objects.class_lookup import no_attribute
from bytecap.objects.containers.mappings import DictValue
from bytecap.objects.instances.objects import ObjectValue
from bytecap.torch_capabilities import TORCH

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
GLOBAL_HOOKS = tuple(f"_global{name}" for name in HOOKS)
# As torch defines them: users replace them, on classes and on instances.
_OWN_CALL, _OWN_CALL_IMPL = torch.nn.Module.__call__, TORCH.call_impl


class NNModuleValue(ObjectValue):
    """An nn.Module."""

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
        for registry_name in REGISTRIES:
            registry = self.registry(tracer, registry_name)
            if registry is None:
                return False
            if registry.lookup(tracer, Constant(name)) is not None or _was_none(registry, name):
                if registry_name == "_buffers" and issubclass(kind, (torch.Tensor, type(None))):
                    registry.set_item(tracer, Constant(name), item)
                    return True
                return False
        tracer.evaluate.default_set_attribute(tracer, self, name, item)
        return True


def _was_none(registry: DictValue, name: str) -> bool:
    return registry.real is not None and name in registry.real


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
