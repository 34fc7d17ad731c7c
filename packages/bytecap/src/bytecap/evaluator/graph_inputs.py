"""Tensors and numbers from outside as inputs of the graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import torch

from absint import AbstractTensor, DataDependentError, Meta
from absint.errors import UnsupportedTensor
from absint.meta import from_tensor, to_wire
from absint.symbolic import SizeFloat
from absint.wire import to_arg
from bytecap._evalframe import TENSOR_MAX_RANK
from bytecap.bytecode import wrappers
from bytecap.context_types import Tracer
from bytecap.errors import UnsupportedCall, UnsupportedValue
from bytecap.graph.builder import Outside as FromOutside
from bytecap.graph.builder import input_role, source_hint, tensor_type
from bytecap.nodes.constant_tensors import note_buffer
from bytecap.nodes.wrapper_calls import Recorder
from bytecap.objects.arrays.inference import note_memory
from bytecap.objects.arrays.tensors import TensorValue, WrapperValue, is_plain_class, is_subclassed
from bytecap.objects.distributed import is_constant_class, masks_of
from bytecap.objects.numbers.symbolic import write_term
from bytecap.torch_capabilities import TORCH
from stagewire.capture import Attribute, InputRole, Item, Source
from stagewire.graph import Arg, Ref

# Numbers and texts with a class of their own (members of an IntEnum), as the numbers and texts that they are.
_PLAIN = ((int, int.__pos__), (float, float.__pos__), (str, str.__str__))


@dataclass(frozen=True)
class Outside:
    """wrappers: those that require grad: where each is read, what `Split` takes, and which inputs its inner tensors are
    (None: unused).

    subclassed: inputs of classes with a `__torch_function__`.
    """

    wrappers: list[tuple[Source, Any, Any, tuple[int | None, ...]]]
    subclassed: tuple[int, ...]


class Computed(torch.autograd.Function):
    """A wrapper as something that was computed: see `bytecap.graph.builder.Outside`."""

    @staticmethod
    def forward(ctx: Any, leaf: Any, make: Callable[[], Any]) -> Any:
        return make()


class GraphInputs:
    """Which value of the graph each tensor is."""

    tracer: Tracer

    def __init__(self) -> None:
        self.tensors: dict[int, TensorValue] = {}
        self.wrappers: dict[int, WrapperValue] = {}
        self.linked: set[str] = set()
        self._links: list[tuple[Source, Any, Any, list[str]]] = []
        self._arrived: dict[str, str] = {}  # inputs, by the results of waiting for them

    def tensor(self, real: torch.Tensor, source: Source | None, *, linked: bool = False) -> Any:
        """A tensor from outside as a graph input, a wrapper as those that it holds.

        linked: the graph is given it as one that requires grad, for the wrapper that it is inside of.
        """
        if not is_subclassed(type(real)):
            return self._tensor(real, source, linked)
        with TORCH.no_subclass_function():
            return self._tensor(real, source, linked)

    def _tensor(self, real: torch.Tensor, source: Source | None, linked: bool) -> Any:
        if hasattr(type(real), "trigger_wait"):
            return self._arriving(real, source, linked)
        if wrappers.is_wrapper(type(real)):
            return self._wrapper(real, source, linked)
        if not is_plain_class(type(real)):
            raise UnsupportedValue(f"a tensor of class {type(real).__qualname__}")
        if real.is_nested:
            raise UnsupportedValue("a nested tensor")
        if real.dim() > TENSOR_MAX_RANK:
            raise UnsupportedValue(f"a tensor of more than {TENSOR_MAX_RANK} dimensions")
        if real.is_conj() or real.is_neg():
            raise UnsupportedValue("a conjugate or negative view, whose memory holds other values")
        try:
            role: InputRole = "constant" if source is None else input_role(real, source)
            abstract = self._abstract(real, None if source is None else self.tracer.sizes.meta_of(real, source, role))
        except UnsupportedTensor as error:
            raise UnsupportedValue(error.message) from None
        type_ = tensor_type(abstract)
        if source is None:
            source = self.tracer.places.handle(real)
        else:
            self.tracer.guards.tensor(source, type_, real)
        linked = linked and (real.is_floating_point() or real.is_complex())
        given = msgspec.structs.replace(type_, requires_grad=True) if linked else type_
        name = self.tracer.graph.add_input(source_hint(source), given, source, role)
        if linked:
            self.linked.add(name)
        value = TensorValue(abstract, name, cls=type(real), real=real, role=role, source=source)
        self.tensors[id(abstract)] = value
        if role == "buffer":
            note_buffer(value, self.tracer)
        return value

    def _arriving(self, real: Any, source: Source | None, linked: bool) -> TensorValue:
        """What eager gave for a collective's result that nobody has waited for: a plain tensor, for which the graph
        waits."""
        tracer = self.tracer
        if source is None:
            raise UnsupportedValue("the result of a collective, which no input holds")
        linked = linked or real.requires_grad
        tracer.guards.tensor(source, to_wire(from_tensor(real), requires_grad=real.requires_grad), real)
        value = self.tensor(real.elem, Attribute(source, "elem"), linked=linked)
        if real.requires_grad:
            abstract = AbstractTensor(value.abstract.meta, value.abstract.storage_record, requires_grad=True)
            if not real.is_leaf:
                with torch.enable_grad():
                    abstract = super(torch.autograd.Function, FromOutside).apply(abstract)
            self._links.append((source, wrappers.PLAIN, None, [value.name]))
            value = TensorValue(abstract, value.name, real=value.real, role=value.role, source=value.source)
            self.tensors[id(abstract)] = value
        wait = torch.ops._c10d_functional.wait_tensor.default
        waited: TensorValue = tracer.evaluate.call_torch(tracer, wait, [value], {})
        self._arrived[waited.name] = value.name
        if linked:
            self.linked.add(waited.name)
        return waited

    def _wrapper(self, real: Any, source: Source | None, linked: bool) -> WrapperValue:
        tracer = self.tracer
        if source is None:
            source = tracer.places.handle(real)
        linked = linked or real.requires_grad
        context = real.__tensor_flatten__()[1]
        names, objects = [name for name, _ in wrappers.parts_of(real)], wrappers.objects_of(real)
        if masks_of(real):
            raise UnsupportedValue("a DTensor that waits for the sum of what was looked up in several processes")
        if not all(is_constant_class(type(part)) for _, part in objects):
            raise UnsupportedValue(f"a {type(real).__qualname__}, of which not all that it is flattened to are tensors")
        inner: dict[str, Any] = {}
        ragged = [dim for dim, size in enumerate(real.size()) if not isinstance(size, int)]
        for name in names:
            at = _place_of(real, name, source)
            if ragged:  # other calls have other lengths
                tracer.sizes.open(at, getattr(real, name), ragged[0] - 1)
            is_asked = linked and not (ragged and name != names[0])
            found = self.tensor(getattr(real, name), at, linked=True) if is_asked else None
            inner[name] = tracer.objects.wrap(getattr(real, name), at) if found is None else found
            if not isinstance(inner[name], (TensorValue, WrapperValue)):
                raise UnsupportedValue(f"a {type(real).__qualname__} that holds {inner[name].describe()}")
        held = {name: value.abstract for name, value in inner.items()} | dict(objects)
        layout: tuple[Any, Any] = ((), ())
        if ragged:  # sizes follow from what it holds
            tracer.guards.type_is(source, type(real))
            for name in ("requires_grad", *(["is_leaf"] if real.requires_grad else [])):
                tracer.guards.literal(Attribute(source, name), getattr(real, name))
        else:
            metas = [tensor.meta for value in inner.values() for tensor in wrappers.inner_tensors(value.abstract)]
            meta = tracer.sizes.meta_like(real, metas)
            tracer.guards.tensor(source, to_wire(meta, requires_grad=real.requires_grad), real)
            layout = meta.shape, meta.stride
        tracer.guards.wrapper_state(real, source, names)

        def make() -> Any:
            return wrappers.unflatten(type(real), held, context, *layout)

        with tracer.mode, torch.no_grad():
            abstract = make()
        if type(abstract) is not type(real):
            raise UnsupportedValue(f"a {type(real).__qualname__}, whose __tensor_unflatten__ makes another class")
        if real.requires_grad:
            abstract.requires_grad_()
            if not real.is_leaf:
                with Recorder(tracer), torch.enable_grad():
                    abstract = super(torch.autograd.Function, Computed).apply(abstract, make)
            names = [self.value_of(tensor).name for tensor in wrappers.inner_tensors(abstract)]  # type: ignore[union-attr]
            self._links.append((source, None, None, [self._arrived.get(name, name) for name in names]))
        value = self.wrappers[id(abstract)] = WrapperValue(abstract, real=real, source=source)
        return value

    def parts(self, value: TensorValue, like: Any) -> list[str]:
        """Inputs of the graph that stand for a tensor from outside, a part each of its gradient, which is a wrapper."""
        if value.source is None or value.role == "result":
            raise UnsupportedCall("a wrapper as the gradient of a tensor that the captured code makes")
        return self._link(value.source, like, None, [(hint, value, value.abstract.meta) for hint in like[2]])

    def parts_of_wrapper(self, value: WrapperValue, gradient: Any) -> list[str]:
        """Inputs of the graph that stand for what a wrapper from outside holds, whose gradients are parts of one of
        this structure; none where that is its own."""
        abstract, like = value.abstract, wrappers.structure_of(gradient)
        with self.tracer.mode, torch.no_grad():
            again = wrappers.join(wrappers.structure_of(abstract), wrappers.inner_tensors(abstract))
            if wrappers.structure_of(again) == like:
                return []
        metas, own = ([each.meta for each in wrappers.inner_tensors(one)] for one in (gradient, abstract))  # type: ignore[attr-defined]
        layouts = None if metas == own else tuple((meta.shape, meta.stride, meta.dtype) for meta in metas)
        for source, known, others, names in self._links:
            if source == value.source and (known, others) == (like, layouts):
                return names
        inner = [self.tensors[id(tensor)] for tensor in wrappers.inner_tensors(value.abstract)]
        return self._link(value.source, like, layouts, [("part", *pair) for pair in zip(inner, metas, strict=True)])

    def _link(self, source: Source, like: Any, layouts: Any, parts: list[tuple[str, TensorValue, Meta]]) -> list[str]:
        """Names of new inputs (hint, what each stands for, its type), which `Split` gives of what is at `source`."""
        names = []
        for hint, of, meta in parts:
            real, memory = of.real, of.abstract.storage_record
            if layouts is not None:
                real = torch.empty_strided(meta.shape, meta.stride, dtype=meta.dtype, device=meta.device)
                memory = self.tracer.mode.lift(real).storage_record
            part = AbstractTensor(meta, memory, requires_grad=True)
            name = self.tracer.graph.add_input(hint, tensor_type(part), of.source, "tensor")  # type: ignore[arg-type]
            self.tensors[id(part)] = TensorValue(part, name, real=real, role="tensor", source=of.source)
            names.append(name)
        self.linked.update(names)
        self._links.append((source, like, layouts, names))
        return names

    def value_of(self, abstract: Any) -> TensorValue | WrapperValue | None:
        """What an abstract tensor, or a wrapper of such, is to the program."""
        return self.tensors.get(id(abstract)) or self.wrappers.get(id(abstract))

    @property
    def has_views_only(self) -> bool:
        """Whether all that the graph gives are views of what it is given, which it does not write."""
        given = {id(value.abstract.storage_record) for value in self.tensors.values() if value.role != "result"}
        memories = {value.name: value.abstract.storage_record for value in self.tensors.values()}
        made = {one.name for node in self.tracer.graph.nodes for one in node.results}
        return all(name in memories and id(memories[name]) in given and not memories[name].version for name in made)

    def examples(self) -> dict[str, Any]:
        """What the graph is given in this call, by the names of its tensors from outside."""
        found: dict[str, Any] = {}
        for value in self.tensors.values():
            if value.role != "result":
                real: Any = wrappers.as_subclass(value.real, torch.Tensor) if is_subclassed(value.cls) else value.real  # type: ignore[arg-type]
                found[value.name] = real.detach().requires_grad_() if value.name in self.linked else real
        return found

    def outside(self) -> Outside:
        """How the finished graph's inputs are made of what the frame has."""
        places = {item.value.name: at for at, item in enumerate(self.tracer.graph.inputs)}
        links = [(*link, tuple(map(places.get, names))) for *link, names in self._links]
        subclassed = tuple(
            places[value.name]
            for value in self.tensors.values()
            if value.role != "result" and value.name in places and is_subclassed(value.cls)
        )
        return Outside([link for link in links if any(place is not None for place in link[3])], subclassed)

    def _abstract(self, real: torch.Tensor, meta: Meta | None) -> AbstractTensor:
        lifted = self.tracer.mode.lift(real)
        if meta is not None:
            lifted = AbstractTensor(meta, lifted.storage_record)
        # The content of an input may differ in the next call: nothing may be concluded from it.
        lifted.storage_record.constant = None
        lifted.storage_record.is_inference = real.is_inference()
        if not real.requires_grad:
            return lifted
        abstract = AbstractTensor(lifted.meta, lifted.storage_record, requires_grad=True)
        if real.is_leaf:
            return abstract
        with torch.enable_grad():
            # Function.apply itself is Python that looks for functorch wrappers; this is what it calls.
            return super(torch.autograd.Function, FromOutside).apply(abstract)

    def size_of_data(self, lower: int | None, upper: int | None) -> Any:
        """A new symbol for a size that data decides."""
        if self.tracer.graph.is_body:
            raise DataDependentError("a size inside a function of the graph depends on data")
        return self.tracer.sizes.create_unbacked(self.tracer.graph.name("count"), lower, upper)

    def tensor_of(self, abstract: AbstractTensor, name: str) -> TensorValue:
        """The value of a node's result; an input that an in-place op returns stays itself."""
        known = self.tensors.get(id(abstract))
        if known is None:
            known = self.tensors[id(abstract)] = TensorValue(abstract, name)
            note_memory(self.tracer, known)
        return known

    def named(self, name: str) -> TensorValue:
        """The tensor of that name in the graph."""
        for tensor in self.tensors.values():
            if tensor.name == name:
                return tensor
        raise UnsupportedValue(f"a tensor {name} that was made outside the captured graph")

    def wire_argument(self, host: Any) -> Arg:
        """A host argument that is no plain data as document data."""
        if isinstance(host, AbstractTensor):
            known = self.tensors.get(id(host))
            if known is None:
                raise UnsupportedValue("a tensor that was made outside the captured graph")
            return Ref(known.name)
        if isinstance(host, range):
            return to_arg(list(host))
        if isinstance(host, SizeFloat):
            return write_term(self.tracer, host.node.term)
        for kind, plain in _PLAIN:
            if isinstance(host, kind):
                return to_arg(plain(host))
        return NotImplemented  # type: ignore[return-value]


def _place_of(real: torch.Tensor, name: str, source: Source) -> Source:
    """Where an inner tensor of a wrapper is read: behind a property, in a dict of the wrapper."""
    held = getattr(real, name)
    for attribute, value in vars(real).items():
        if type(value) is dict:
            for key, item in value.items():
                if item is held:
                    return Item(Attribute(source, attribute), key)
    return Attribute(source, name)
