"""Tensors, also of wrapper classes: a type (an abstract tensor), a name in the graph, perhaps a place in the frame."""

from __future__ import annotations

from types import FunctionType, MemberDescriptorType
from typing import Any

import torch

from bytecap.bytecode import wrappers
from bytecap.bytecode.wrappers import as_subclass
from bytecap.context_types import Emitter, Tracer
from bytecap.errors import CannotRebuild, DataDependent, UnsupportedCall, UnsupportedMutation, UnsupportedValue
from bytecap.guards.guard_set import is_exempt
from bytecap.objects.arrays.numpy_arrays import ArrayValue, OutsideArray
from bytecap.objects.base import HANDLERS, Constant, Value, handler_of, state
from bytecap.objects.class_lookup import no_attribute, static_lookup
from bytecap.objects.containers.sequences import TupleValue
from bytecap.objects.distributed import masks_of
from bytecap.objects.functions import BuiltinMethod, MethodValue
from bytecap.objects.instances.objects import note_write
from bytecap.torch_capabilities import TORCH
from stagewire.capture import Attribute

OWN_CLASSES = frozenset({*torch.Tensor.__mro__, torch.nn.Parameter, torch.nn.Buffer})
_OFF = TORCH.no_torch_function
# What a class may define without changing what its tensors compute.
_HARMLESS = frozenset({
    "__module__", "__doc__", "__dict__", "__weakref__", "__slots__", "__annotations__", "__qualname__", "__new__",
    "__init__", "__repr__", "__str__", "__deepcopy__", "__reduce_ex__", "__torch_function__", "__firstlineno__",
    "__static_attributes__", "__init_subclass__", "__class_getitem__", "__orig_bases__", "__parameters__",
})  # fmt: skip
_OF_TENSORS = frozenset(dir(torch.Tensor)) | {"__getattr__"}
_OFF_DISPATCH = torch.Tensor.__torch_dispatch__


def is_plain_class(cls: type[Any]) -> bool:
    """Whether a tensor of this class computes as a torch.Tensor does, but for what its `__torch_function__` sees."""
    if cls in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
        return True
    if cls.__torch_dispatch__ is not _OFF_DISPATCH:
        return False
    own = {name for base in cls.__mro__ if base not in OWN_CLASSES for name in vars(base)}
    return own.isdisjoint(_OF_TENSORS - _HARMLESS)


def is_subclassed(cls: type[Any]) -> bool:
    """Whether torch's functions ask the class of a tensor."""
    return cls is not torch.Tensor and cls.__torch_function__ is not _OFF


# Attributes that follow from the tensor's type: read from the abstract tensor, no node.
TYPE_ATTRIBUTES = frozenset(
    name
    for name in (
        "shape", "dtype", "device", "ndim", "requires_grad", "layout", "is_cuda", "is_cpu", "is_meta", "is_mps",
        "is_xpu", "is_sparse", "is_sparse_csr", "is_quantized", "is_nested", "is_mkldnn", "is_leaf", "is_vulkan",
        "itemsize", "nbytes", "names", "is_ipu", "is_hpu", "is_xla", "is_maia", "is_mtia", "retains_grad",
    )
    if hasattr(torch.Tensor, name)
)  # fmt: skip
# Attributes that are tensors computed from it: one node each.
VIEW_ATTRIBUTES = frozenset({"T", "mT", "H", "mH", "real", "imag", "data"})


class GradFunction(Value):
    """The `grad_fn` of a tensor of the graph: there is one, and nothing else is known of it."""

    def python_type(self) -> type:
        raise DataDependent("the class of grad_fn of a tensor in the captured graph")

    def get_attribute(self, tracer: Tracer, name: str) -> Value:
        raise DataDependent(f"grad_fn.{name} of a tensor in the captured graph")

    def reconstruct(self, emitter: Emitter) -> None:
        raise CannotRebuild("grad_fn of a tensor in the captured graph")


def _of_any_tensor(tracer: Tracer, tensor: Any, name: str) -> Value | None:
    """What plain tensors and wrappers have in the same way: views, class, gradient; None for other attributes."""
    if name in VIEW_ATTRIBUTES:
        getter = getattr(torch.Tensor, name).__get__
        return tracer.evaluate.call_torch(tracer, getter, [tensor], {}, target=f"torch.Tensor.{name}.__get__")
    if name == "__class__":
        return tracer.objects.wrap(tensor.cls, None)
    if name == "grad_fn":
        return GradFunction() if tensor.abstract.requires_grad and not tensor.abstract.is_leaf else Constant(None)
    if name != "grad":
        return None
    if tensor.real is None or tensor.source is None:
        return Constant(None)
    if getattr(tensor, "role", "") == "constant" and tensor.real.requires_grad:
        raise UnsupportedValue("the gradient of a tensor that is read without a guard")
    return tracer.objects.wrap(tensor.real.grad, tracer.places.attribute(tensor.source, name))


class TensorValue(Value):
    """One tensor object; `name` is its value in the graph, None until it is an input or a result.

    place: the local of the replacement that holds it, if it is made in front of the graph.
    chosen: min or max, and the tensors of which it is one.
    """

    abstract: Any
    name: str
    cls: type = torch.Tensor
    real: torch.Tensor | None = None
    role: str = "result"
    place: str | None = state(default=None)
    chosen: tuple[Any, ...] | None = state(default=None)
    attributes: dict[str, Value] = state(default_factory=dict)

    def describe(self) -> str:
        return f"tensor {list(self.abstract.shape)}"

    def get_attribute(self, tracer: Tracer, name: str) -> Value:
        if name in self.attributes:
            return self.attributes[name]
        if name in TYPE_ATTRIBUTES:
            if self.cls is not torch.Tensor and tracer.evaluate.sees_calls(tracer, self):
                getter = getattr(torch.Tensor, name).__get__
                return tracer.evaluate.overridden_call(tracer, getter, [self], {})  # type: ignore[return-value]
            if name == "retains_grad" and self.real is not None and self.source is not None:
                return tracer.objects.wrap(self.real.retains_grad, tracer.places.attribute(self.source, name))
            return tracer.objects.fresh(getattr(self.abstract, name))
        if (found := _of_any_tensor(tracer, self, name)) is not None:
            return found
        raw, owner = static_lookup(self.cls.__mro__, name)
        if owner is not None and owner not in OWN_CLASSES:
            # What a subclass of a user adds.
            if self.real is not None and name in vars(self.real) and not hasattr(type(raw), "__set__"):
                return tracer.objects.wrap(vars(self.real)[name], tracer.places.attribute(self.source, name))
            return tracer.evaluate.bind(tracer, raw, owner, self, self.cls, name)
        found = getattr(self.cls, name, None)
        if callable(found):
            return patched_method(tracer, self, name) or BuiltinMethod(self, name)
        if self.real is not None and name in getattr(self.real, "__dict__", {}):
            return tracer.objects.wrap(getattr(self.real, name), tracer.places.attribute(self.source, name))
        raise _missing(tracer, self, name, owner)

    def set_attribute(self, tracer: Tracer, name: str, value: Value) -> None:
        if name == "requires_grad":
            tracer.evaluate.call_torch(tracer, torch.Tensor.requires_grad_, [self, value], {})
            return
        if name == "data" and isinstance(value, TensorValue):
            self._set_data(tracer, value)
            return
        found = getattr(self.cls, name, None)
        if name == "grad":  # which is none, or fits
            mine, given = self.abstract.meta, value.abstract.meta if isinstance(value, TensorValue) else None
            fits = given and (mine.shape, mine.dtype, mine.device) == (given.shape, given.dtype, given.device)
            if not (fits or value.is_none()) or (self.role == "result" and self.place is None):
                raise UnsupportedMutation(f"cannot assign a {value.describe()} to tensor.grad of a {self.describe()}")
        elif hasattr(type(found), "__set__") or name in VIEW_ATTRIBUTES:
            raise UnsupportedMutation(f"cannot assign tensor.{name} in captured code")
        if self.role == "constant":
            raise UnsupportedMutation(f"cannot set attribute {name!r} of a tensor that is read without a guard")
        self.attributes[name] = value
        if self.role != "result":
            # What modules hold is where their registries have it: it is not compared with all the others.
            note_write(tracer, self, name, value, setattr, delattr, self if self.role == "tensor" else None)

    def _set_data(self, tracer: Tracer, value: TensorValue) -> None:
        """`self.data = value`: the same tensor object, on the memory of another of its type."""
        mine, given = self.abstract, value.abstract
        if mine.meta != given.meta:
            raise UnsupportedMutation(f"tensor.data of {self.describe()} is assigned a tensor of another type")
        if mine.storage_record is given.storage_record:
            return
        tracer.evaluate.record(tracer, "torch.Tensor.data.__set__", (mine, given), {}, None)
        # Both count as written: what stands on the one memory stands on the other from now on.
        for memory in (mine.storage_record, given.storage_record):
            tracer.mode.written.append(memory)
            memory.write()
        mine._storage = given.storage_record

    def call_method(self, tracer: Tracer, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        method = getattr(torch.Tensor, name)
        handler = handler_of(method)
        if handler is not None:
            return handler(tracer, self, *args, **kwargs)
        return tracer.evaluate.call_torch(tracer, method, [self, *args], kwargs)

    def get_item(self, tracer: Tracer, key: Value) -> Value:
        patched = patched_method(tracer, self, "__getitem__")
        if patched is not None:
            return patched.call(tracer, [key], {})
        by_tensors = tracer.evaluate.index_by_tensors(tracer, self, key)
        if by_tensors is not None:
            return by_tensors
        return self.call_method(tracer, "__getitem__", [index_with_arrays(tracer, key)], {})

    def set_item(self, tracer: Tracer, key: Value, value: Value) -> None:
        if (patched := patched_method(tracer, self, "__setitem__")) is not None:
            patched.call(tracer, [key, value], {})
        else:
            self.call_method(tracer, "__setitem__", [index_with_arrays(tracer, key), value], {})

    def length(self, tracer: Tracer) -> int:
        if self.abstract.dim() == 0:
            raise tracer.raises(TypeError, "len() of a 0-d tensor")
        return int(self.abstract.shape[0])

    def as_int(self, tracer: Tracer) -> int:
        return int(tracer.evaluate.data_dependent_scalar(tracer, self, "a tensor used as an integer"))

    def as_index(self, tracer: Tracer) -> int:
        return int(tracer.evaluate.data_dependent_scalar(tracer, self, "a tensor used as an index"))

    def truth(self, tracer: Tracer) -> bool:
        return bool(tracer.evaluate.data_dependent_scalar(tracer, self, "a branch on a tensor"))

    def iterate(self, tracer: Tracer) -> Value:
        if self.abstract.dim() == 0:
            raise tracer.raises(TypeError, "iteration over a 0-d tensor")
        rows = tracer.evaluate.call_torch(tracer, torch.Tensor.unbind, [self, Constant(0)], {})
        return rows.iterate(tracer)

    def contains(self, tracer: Tracer, item: Value) -> bool:
        found = tracer.evaluate.call_torch(tracer, torch.Tensor.__contains__, [self, item], {})
        return bool(found.concrete())

    def reconstruct(self, emitter: Emitter) -> None:
        if self.chosen is not None:
            emitter.call_with(*self.chosen)
            emitter.keep(self)
            emitter.load(self)
        elif self.place is None:
            emitter.graph_output(self.name)
            if is_subclassed(self.cls):
                emitter.call_function(as_subclass, self.cls, arguments=1)
                emitter.keep(self)
                emitter.load(self)
        else:
            emitter.load_local(self.place)
        emitter.set_attributes(self, self.attributes)

    def __repr__(self) -> str:
        return f"<Tensor %{self.name} {list(self.abstract.shape)}>"


def patched_method(tracer: Tracer, value: Value, name: str) -> Value | None:
    """What the program has put in the place of a method of torch.Tensor, bound; None where it is torch's own.

    Which of both it is, is guarded.
    """
    if not isinstance(value, TensorValue):
        return None
    tracer.guards.lookup(torch.Tensor, name)
    found = getattr(value.cls, name, None)
    if not isinstance(found, FunctionType) or is_exempt(found.__module__):
        return None
    return MethodValue(tracer.objects.wrap(found, Attribute(tracer.places.of(torch.Tensor), name)), value)


def index_with_arrays(tracer: Tracer, key: Value) -> Value:
    """The index of a tensor with tensors for NumPy's arrays, as torch takes them."""
    if isinstance(key, (ArrayValue, OutsideArray)):
        return HANDLERS[torch.as_tensor](tracer, key)
    if isinstance(key, TupleValue) and any(isinstance(item, (ArrayValue, OutsideArray)) for item in key.values(tracer)):
        return TupleValue([index_with_arrays(tracer, item) for item in key.values(tracer)])
    return key


def refuse_chosen(tracer: Tracer, *values: Value) -> None:
    """End the graph where the identity of such a value is asked for, and it is min() or max() of tensors."""
    if any(choice.result in values for choice in tracer.choices):
        raise DataDependent("which tensor it is, min() or max() of tensors")


# -- Tensors of wrapper classes: the graph has what they hold, and their operations are Python on that.


def _missing(tracer: Tracer, value: TensorValue | WrapperValue, name: str, owner: type | None) -> Exception:
    """What reading an attribute raises that the value does not show; owner: the class that has it all the same."""
    if owner is not None:
        return UnsupportedCall(f"attribute {name!r} of a tensor")
    tracer.guards.lacks(value.source, name)
    return no_attribute(tracer, value, name)


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
        if owner is None or owner in OWN_CLASSES:
            if name in TYPE_ATTRIBUTES:
                with TORCH.no_subclass_function():
                    return tracer.objects.fresh(getattr(self.abstract, name))
            if (found := _of_any_tensor(tracer, self, name)) is not None:
                return found
        is_slot = isinstance(raw, MemberDescriptorType) and hasattr(self.abstract, name)
        if is_slot or (name in vars(self.abstract) and not hasattr(type(raw), "__set__")):
            return self._own(tracer, name)
        if owner is not None and owner not in OWN_CLASSES:
            return tracer.evaluate.bind(tracer, raw, owner, self, self.cls, name)
        if callable(getattr(self.cls, name, None)):
            return BuiltinMethod(self, name)
        raise _missing(tracer, self, name, owner)

    def _own(self, tracer: Tracer, name: str) -> Value:
        """An attribute or slot of the object: mostly a tensor that it holds."""
        inner = getattr(self.abstract, name)
        known = tracer.inputs.value_of(inner) if isinstance(inner, torch.Tensor) else None
        if isinstance(known, TensorValue) and known.name in tracer.inputs.linked:
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
        if static_lookup(self.cls.__mro__, name)[1] not in OWN_CLASSES:
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
