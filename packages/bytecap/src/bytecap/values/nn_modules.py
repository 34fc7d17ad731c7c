"""nn.Module instances: attributes in three registries, calls that are `forward` while no hook is registered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn.modules import module as torch_module

from bytecap.values.base import Value
from bytecap.values.constant import Constant
from bytecap.values.mappings import DictValue
from bytecap.values.objects import ObjectValue

if TYPE_CHECKING:
    from bytecap.tracer import Tracer

REGISTRIES = ("_parameters", "_buffers", "_modules")
HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
)
GLOBAL_HOOKS = (
    "_global_forward_hooks",
    "_global_forward_pre_hooks",
    "_global_backward_hooks",
    "_global_backward_pre_hooks",
)


class NNModuleValue(ObjectValue):
    """An nn.Module."""

    __slots__ = ()

    def call(self, tracer: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if self.cls.__call__ is torch.nn.Module.__call__ and not has_hooks(tracer, self):
            forward = self.get_attribute(tracer, "forward")
            return forward.call(tracer, args, kwargs)
        if self.cls.__call__ is torch.nn.Module.__call__:
            return self.get_attribute(tracer, "_call_impl").call(tracer, args, kwargs)
        return super().call(tracer, args, kwargs)

    def registry(self, tracer: Tracer, name: str) -> DictValue | None:
        """`_parameters`, `_buffers` or `_modules`."""
        found = self.attributes.lookup(tracer, Constant(name))
        return found if isinstance(found, DictValue) else None

    def plain_setattr(self, tracer: Tracer, owner: Any, name: str, item: Value) -> bool:
        """Do `nn.Module.__setattr__` here when it only stores the value; False: evaluate it in full."""
        from bytecap.attributes import default_set_attribute

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
        default_set_attribute(tracer, self, name, item)
        return True


def _was_none(registry: DictValue, name: str) -> bool:
    return registry.real is not None and name in registry.real


def registry_attribute(tracer: Tracer, module: NNModuleValue, name: str) -> Value:
    """nn.Module.__getattr__."""
    from bytecap.attributes import no_attribute

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
    return any(tracer.global_hooks(getattr(torch_module, name), name) for name in GLOBAL_HOOKS)
