"""Hooks that captured code puts on tensors.

handle ::= tensor.register_hook(function) | tensor.register_post_accumulate_grad_hook(function)

On a tensor from outside: registered when the graph has run, before its backward can. On one that the graph makes: the
tensor is, from there on, the result of a custom function that copies it, and whose backward is the hook. (A view would
not take writes.)
"""

from __future__ import annotations

import dis
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch.utils.hooks import RemovableHandle

from bytecap.context_types import Emitter, Tracer
from bytecap.errors import UnsupportedCall
from bytecap.objects.arrays.tensors import TensorValue
from bytecap.objects.base import NONE, Constant, Value, state
from bytecap.objects.containers.sequences import TupleValue
from bytecap.objects.functions import BuiltinMethod, CellValue, FunctionValue, MethodValue, PartialValue
from stagewire.graph import node_references


class HookHandle(Value):
    """The handle of a hook; also the side effect of registering it."""

    register: Callable[..., Any]
    tensor: TensorValue
    function: Value
    is_removed: bool = state(default=False)
    cls = RemovableHandle

    def get_attribute(self, tracer: Tracer, name: str) -> Value:
        if name != "remove":
            raise UnsupportedCall(f"attribute {name!r} of the handle of a hook")
        return BuiltinMethod(self, name)

    def _remove(self, tracer: Tracer) -> Value:
        self.is_removed = True
        if self in tracer.effects:
            tracer.effects.remove(self)
        return NONE

    methods: ClassVar = {"remove": lambda tracer, self: self._remove(tracer)}

    def reconstruct(self, emitter: Emitter) -> None:
        emitter.call_with(self.register, self.tensor, self.function)
        if self.is_removed:
            emitter.copy()
            emitter.call_function(RemovableHandle.remove, arguments=1)
            emitter.pop()


class _Hooked(torch.autograd.Function):
    """The tensor again; its gradient is what the hook makes of it."""

    @staticmethod
    def forward(ctx: Any, tensor: Any, hook: Any) -> Any:
        ctx.hook = hook
        return tensor.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        changed = ctx.hook(gradient)
        return gradient if changed is None else changed, None


class GraphHook(Value):
    """The handle of a hook that is part of the graph."""

    cls = RemovableHandle

    def get_attribute(self, tracer: Tracer, name: str) -> Value:
        raise UnsupportedCall(f"attribute {name!r} of the handle of a hook on a tensor that the captured code makes")


def _hook_in_graph(tracer: Tracer, self: TensorValue, hook: Value) -> Value:
    """Put the hook behind the node that makes the tensor, which nothing has used so far."""
    graph = tracer.graph
    is_used = any(self.name in node_references(node) for node in graph.nodes)
    mine = self.abstract.storage_record
    others = [other for other in tracer.inputs.tensors.values() if other is not self]
    is_used = is_used or any(other.abstract.storage_record is mine for other in others)
    is_used = is_used or mine in tracer.hooked  # hooks run in their order
    if is_used or graph.is_body or not torch.is_grad_enabled() or self.abstract.is_leaf or self.attributes:
        raise UnsupportedCall("Tensor.register_hook() of a tensor that the captured code has used before")
    if not _reads_only(tracer, hook):
        raise UnsupportedCall("a hook that may change what the captured code makes, before the gradient is there")
    made = tracer.evaluate.apply_function(tracer, tracer.objects.wrap(_Hooked, None), self, hook)
    if made.abstract.meta != self.abstract.meta:
        raise UnsupportedCall("Tensor.register_hook() of a tensor whose copy has another layout")
    del tracer.inputs.tensors[id(self.abstract)]
    self.abstract, self.name = made.abstract, made.name
    tracer.inputs.tensors[id(self.abstract)] = self
    tracer.hooked.append(self.abstract.storage_record)
    return GraphHook()


def _reads_only(tracer: Tracer, hook: Value) -> bool:
    """Whether a hook can change nothing that the code made (changes of other things are seen when it is evaluated)."""
    match hook:
        case FunctionValue():
            steps, names = dis.get_instructions(hook.code), hook.code.co_freevars
            writes = any(each.opname in ("STORE_DEREF", "DELETE_DEREF") and each.argval in names for each in steps)
            return not writes and all(_cell_is_still(tracer, cell) for cell in hook.closure)
        case PartialValue():
            parts = (hook.function, *hook.args, *hook.keywords.values())
            return all(_reads_only(tracer, part) for part in parts)
        case MethodValue():
            return _reads_only(tracer, hook.function) and _reads_only(tracer, hook.receiver)
        case TupleValue():
            return all(_reads_only(tracer, item) for item in hook.values(tracer))
        case BuiltinMethod():
            return False
    # At last: a class, a module or a function that the code did not make.
    is_known = isinstance(hook, (Constant, TensorValue)) or hook.source is not None
    return is_known or callable(getattr(hook, "real", None))


def _cell_is_still(tracer: Tracer, cell: CellValue) -> bool:
    if cell.content is None or not _reads_only(tracer, cell.content):
        return cell.content is None and cell.real is not None
    tracer.hook_cells.append((cell, cell.content))
    return True


def refuse_rebound(tracer: Tracer) -> None:
    """The variables that hooks in the graph read are what they were when the hooks were evaluated."""
    for cell, content in tracer.hook_cells:
        if cell.content is not content:
            raise UnsupportedCall("a hook in the graph, one of whose variables is assigned again")


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
            return _hook_in_graph(tracer, self, hook)
        made = HookHandle(register, self, hook)
        tracer.effects.append(made)
        return made

    return handle


TENSOR_HOOKS: dict[Any, Callable[..., Value]] = {
    method: register_hook(method)
    for method in (torch.Tensor.register_hook, torch.Tensor.register_post_accumulate_grad_hook)
}
