"""Hooks that captured code puts on tensors from outside: registered when the graph has run, before its backward can.

handle ::= tensor.register_hook(function) | tensor.register_post_accumulate_grad_hook(function)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.hooks import RemovableHandle

from bytecap.errors import UnsupportedCall
from bytecap.values.base import Value
from bytecap.values.constant import Constant
from bytecap.values.tensors import TensorValue

if TYPE_CHECKING:
    from bytecap.emit import Emitter
    from bytecap.tracer import Tracer


class HookHandle(Value):
    """The handle of a hook; also the side effect of registering it."""

    __slots__ = ("function", "is_removed", "register", "tensor")

    def __init__(self, register: Callable[..., Any], tensor: TensorValue, function: Value) -> None:
        super().__init__()
        self.register = register
        self.tensor = tensor
        self.function = function
        self.is_removed = False

    def python_type(self) -> type:
        return RemovableHandle

    def get_attribute(self, tracer: Tracer, name: str) -> Value:
        from bytecap.values.functions import BuiltinMethod

        if name != "remove":
            raise UnsupportedCall(f"attribute {name!r} of the handle of a hook")
        return BuiltinMethod(self, name)

    def call_method(self, tracer: Tracer, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        self.is_removed = True
        if self in tracer.effects:
            tracer.effects.remove(self)
        return Constant(None)

    def reconstruct(self, emitter: Emitter) -> None:
        emitter.load(self.tensor)
        emitter.load(self.function)
        emitter.call_function(self.register, arguments=2)
        if self.is_removed:
            emitter.copy()
            emitter.call_function(RemovableHandle.remove, arguments=1)
            emitter.pop()


def register_hook(register: Callable[..., Any]) -> Callable[..., Value]:
    """The handler of a method of tensors that registers a hook."""

    def handle(tracer: Tracer, self: TensorValue, hook: Value) -> Value:
        if not self.abstract.requires_grad:
            raise tracer.raises(RuntimeError, "cannot register a hook on a tensor that doesn't require gradient")
        if register is torch.Tensor.register_post_accumulate_grad_hook and not self.abstract.is_leaf:
            complaint = "post accumulate grad hooks cannot be registered on non-leaf tensors"
            raise tracer.raises(RuntimeError, complaint)
        is_outside = self.role in ("tensor", "parameter", "buffer") or self.place is not None
        if not is_outside or (not self.abstract.is_leaf and self.abstract.storage_record.version):
            raise UnsupportedCall(f"Tensor.{register.__name__}() of a tensor that the captured code makes")
        made = HookHandle(register, self, hook)
        tracer.effects.append(made)
        return made

    return handle


TENSOR_HOOKS: dict[Any, Callable[..., Value]] = {
    method: register_hook(method)
    for method in (torch.Tensor.register_hook, torch.Tensor.register_post_accumulate_grad_hook)
}
