"""Tensors of wrapper classes: the graph has what they hold, and their operations are Python on that."""

from __future__ import annotations

from types import MemberDescriptorType
from typing import Any

import torch

from bytecap.bytecode import wrappers
from bytecap.context_types import Emitter, Tracer
from bytecap.errors import UnsupportedCall, UnsupportedMutation, UnsupportedValue
from bytecap.objects.arrays import tensors
from bytecap.objects.base import Constant, Value, state
from bytecap.objects.class_lookup import no_attribute, static_lookup
from bytecap.objects.distributed import masks_of
from bytecap.objects.functions import BuiltinMethod
from bytecap.torch_capabilities import TORCH
from stagewire.capture import Attribute


class WrapperValue(Value):
    """One tensor of a wrapper class.

    abstract: a tensor of the class whose inner tensors are abstract, with the history that autograd gives it. Where it
    requires grad, the tensors of the graph that stand for the inner ones do too; those of the program do not.
    tangent: the structure of its gradient, where that is another. producer: the call that made it. stand_ins: names of
    values that are its inner tensors, whose gradients are parts of one of another structure.
    version: how many writes into it will have been counted.
    """

    abstract: Any
    real: torch.Tensor | None = None
    tangent: Any = None
    producer: Any = None
    stand_ins: list[tuple[Any, list[str]]] = state(default_factory=list)
    cls: type = state()
    attributes: dict[str, Value] = state(default_factory=dict)
    version: int = state()
    words = "tensor of class {0.cls.__qualname__}"

    def __post_init__(self) -> None:
        self.cls = type(self.abstract)
        self.version = self.writes

    @property
    def writes(self) -> int:
        """How many writes the capture has made."""
        return 0 if self.abstract.is_inference() else int(self.abstract._version)

    @property
    def is_linked(self) -> bool:
        return bool(self.abstract.requires_grad)

    def get_attribute(self, tracer: Tracer, name: str) -> Value:
        if name in self.attributes:
            return self.attributes[name]
        raw, owner = static_lookup(self.cls.__mro__, name)
        if owner is None or owner in tensors.OWN_CLASSES:
            found = self._of_tensor(tracer, name)
            if found is not None:
                return found
        is_slot = isinstance(raw, MemberDescriptorType) and hasattr(self.abstract, name)
        if is_slot or (name in vars(self.abstract) and not hasattr(type(raw), "__set__")):
            return self._own(tracer, name)
        if owner is not None and owner not in tensors.OWN_CLASSES:
            return tracer.evaluate.bind(tracer, raw, owner, self, self.cls, name)
        if callable(getattr(self.cls, name, None)):
            return BuiltinMethod(self, name)
        tracer.guards.tensor_lacks(self.source, name)
        raise no_attribute(tracer, self, name)

    def _of_tensor(self, tracer: Tracer, name: str) -> Value | None:
        """What every tensor has."""
        if name in tensors.TYPE_ATTRIBUTES:
            with TORCH.no_subclass_function():
                return tracer.objects.fresh(getattr(self.abstract, name))
        if name in tensors.VIEW_ATTRIBUTES:
            return tensors.view_attribute(tracer, self, name)
        if name == "__class__":
            return tracer.objects.wrap(self.cls, None)
        if name == "grad_fn":
            return tensors.GradFunction() if self.is_linked and not self.abstract.is_leaf else Constant(None)
        if name == "grad":
            if self.real is None or self.source is None:
                return Constant(None)
            return tracer.objects.wrap(self.real.grad, tracer.places.attribute(self.source, name))
        return None

    def _own(self, tracer: Tracer, name: str) -> Value:
        """An attribute or slot of the object: mostly a tensor that it holds."""
        inner = getattr(self.abstract, name)
        known = tracer.inputs.value_of(inner) if isinstance(inner, torch.Tensor) else None
        if isinstance(known, tensors.TensorValue) and known.name in tracer.inputs.linked:
            # Below autograd it has no history.
            made = tracer.evaluate.call_torch(tracer, torch.Tensor.detach, [known], {})
            if self.real is not None and self.source is not None:
                made.real, made.source = getattr(self.real, name), Attribute(self.source, name)  # type: ignore[attr-defined]
            known = made
        elif known is None and self.real is not None and hasattr(self.real, name):
            known = tracer.objects.wrap(getattr(self.real, name), tracer.places.attribute(self.source, name))
        if known is None:
            if isinstance(inner, torch.Tensor):
                raise UnsupportedValue(f"a tensor in {name!r} of a {self.describe()}, which its class does not flatten")
            known = tracer.objects.fresh(inner)
        self.attributes[name] = known
        return known

    def set_attribute(self, tracer: Tracer, name: str, value: Value) -> None:
        raise UnsupportedMutation(f"cannot set attribute {name!r} of a {self.describe()}")

    def call_method(self, tracer: Tracer, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return tracer.evaluate.call_torch(tracer, getattr(torch.Tensor, name), [self, *args], kwargs)

    def get_item(self, tracer: Tracer, key: Value) -> Value:
        return self._special(tracer, "__getitem__", key)

    def set_item(self, tracer: Tracer, key: Value, value: Value) -> None:
        self._special(tracer, "__setitem__", key, value)

    def _special(self, tracer: Tracer, name: str, *args: Value) -> Value:
        if static_lookup(self.cls.__mro__, name)[1] not in tensors.OWN_CLASSES:
            raise UnsupportedCall(f"{name} of a {self.describe()}")
        return self.call_method(tracer, name, list(args), {})

    def length(self, tracer: Tracer) -> int:
        return int(self._special(tracer, "__len__").concrete())

    def truth(self, tracer: Tracer) -> bool:
        return bool(self._special(tracer, "__bool__").concrete())

    def iterate(self, tracer: Tracer) -> Value:
        return self._special(tracer, "unbind", Constant(0)).iterate(tracer)

    def reconstruct(self, emitter: Emitter) -> None:
        tracer = emitter.tracer
        structure = wrappers.structure_of(self.abstract, tracer.objects.fresh)
        inner = tuple(tracer.inputs.value_of(tensor) for tensor in wrappers.inner_tensors(self.abstract))
        if None in inner or masks_of(self.abstract):
            raise UnsupportedValue(f"a {self.describe()} that holds a tensor from elsewhere")
        emitter.call_with(wrappers.wrap, structure, (self.tangent or structure) if self.is_linked else None, inner)
