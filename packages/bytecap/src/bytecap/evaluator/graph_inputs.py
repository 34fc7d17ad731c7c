"""Tensors and numbers from outside as inputs of the graph."""

from __future__ import annotations

from typing import Any

import torch

from absint import AbstractTensor, DataDependentError, Meta
from absint.errors import UnsupportedTensor
from absint.symbolic import SizeFloat
from absint.wire import to_arg
from bytecap._evalframe import TENSOR_MAX_RANK
from bytecap.context_types import Tracer
from bytecap.errors import UnsupportedValue
from bytecap.graph.builder import Outside, input_role, source_hint, tensor_type
from bytecap.nodes.constant_tensors import note_buffer
from bytecap.objects.arrays.tensors import TensorValue, is_plain_class
from bytecap.objects.numbers.symbolic import write_term
from stagewire.capture import InputRole, Source
from stagewire.graph import Arg, Ref

# Numbers and texts with a class of their own (members of an IntEnum), as the numbers and texts that they are.
_PLAIN = ((int, int.__pos__), (float, float.__pos__), (str, str.__str__))


class GraphInputs:
    """Which value of the graph each tensor is."""

    tracer: Tracer

    def __init__(self) -> None:
        self.tensors: dict[int, TensorValue] = {}

    def tensor(self, real: torch.Tensor, source: Source | None) -> TensorValue:
        """A tensor from outside as a graph input."""
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
            self.tracer.guards.tensor(source, type_, real, self.tracer.line())
        name = self.tracer.graph.add_input(source_hint(source), type_, source, role)
        value = TensorValue(abstract, name, cls=type(real), real=real, role=role, source=source)
        self.tensors[id(abstract)] = value
        if role == "buffer":
            note_buffer(value, self.tracer)
        return value

    def _abstract(self, real: torch.Tensor, meta: Meta | None) -> AbstractTensor:
        lifted = self.tracer.mode.lift(real)
        if meta is not None:
            lifted = AbstractTensor(meta, lifted.storage_record)
        # The content of an input may differ in the next call: nothing may be concluded from it.
        lifted.storage_record.constant = None
        if not real.requires_grad:
            return lifted
        abstract = AbstractTensor(lifted.meta, lifted.storage_record, requires_grad=True)
        if real.is_leaf:
            return abstract
        with torch.enable_grad():
            # Function.apply itself is Python that looks for functorch wrappers; this is what it calls.
            return super(torch.autograd.Function, Outside).apply(abstract)

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
