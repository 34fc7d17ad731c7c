"""Torch's functions on tensors of wrapper classes: the graph has what the class does with their inner tensors.

call     ::= function(wrappers of abstract tensors)       torch's autograd, then the class's own __torch_dispatch__
           | node*                                        an ATen call on inner tensors each, without gradients
           | custom.<name>(inner tensors)                 where a result requires grad
backward ::= torch.autograd.grad of the call, on wrappers: what autograd calls is dispatched to the class in turn

So gradients are those of the operations on wrappers, as in eager, whatever the class does below them. The class's
Python runs at capture only, and is taken to depend on its arguments alone.
"""

from __future__ import annotations

import contextlib
import inspect
import operator
from collections.abc import Iterator
from typing import Any

import msgspec
import torch

from absint import AbstractMode, AbstractTensor
from absint.meta import leaves, map_leaves
from bytecap import errors
from bytecap.bytecode import wrappers
from bytecap.context_types import Tracer
from bytecap.graph.builder import GraphBuilder, tensor_type
from bytecap.nodes.bodies import recording
from bytecap.nodes.call_arguments import refuse_sizes
from bytecap.objects.arrays.inference import refuse_writes
from bytecap.objects.arrays.tensors import TensorValue, WrapperValue
from bytecap.objects.base import PythonRaise, Value
from bytecap.objects.containers.mappings import DictValue
from bytecap.objects.containers.sequences import ListValue, Sequence, TupleValue
from bytecap.objects.distributed import give_own_masks, is_constant_class, masks_of
from bytecap.semantics.effects import CallEffect
from bytecap.torch_capabilities import TORCH
from stagewire.capture import CustomFunction
from stagewire.graph import Arg, Graph, Node, Ref, free_names, node_references
from stagewire.graph import Value as WireValue
from stagewire.graph_passes import rename_node

_ASYNC = "_c10d_functional._wrap_tensor_autograd.default"
"""Makes of a collective's result a tensor that waits for it when it is first used; in a graph that is at once."""
_COERCE = "__coerce_tangent_metadata__"
"""Where a class says which layout gradients have."""
_GRAD_MODE = "torch._C._set_grad_enabled"


def holds_wrapper(tracer: Tracer, value: Value) -> bool:
    """Whether it is a tensor of a wrapper class, or a container with one."""
    if isinstance(value, Sequence) and not getattr(value, "is_unseen", False):
        return any(holds_wrapper(tracer, item) for item in value.values(tracer))
    if isinstance(value, DictValue) and value.real is None:
        return any(holds_wrapper(tracer, item) for _, item in value.pairs(tracer))
    return isinstance(value, WrapperValue)


class Recorder(AbstractMode):
    """Writes down the calls on inner tensors; those on wrappers go to their classes."""

    def __init__(self, tracer: Tracer) -> None:
        super().__init__()
        self.tracer = tracer

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        if any(wrappers.is_wrapper(cls) for cls in types):
            self._refuse_random(func, (args, kwargs))
            return NotImplemented
        if TORCH.dispatch_mode(TORCH.fake_mode_key) is not None:
            return func(*args, **(kwargs or {}))  # the class works out types for itself: where a DTensor's parts lie
        if str(func) == _ASYNC:
            func = torch.ops._c10d_functional.wait_tensor.default
        if not isinstance(func, TORCH.op_overload):
            raise errors.UnsupportedCall(f"{func} in a __torch_dispatch__")
        tracer = self.tracer
        given, named = map_leaves((args, kwargs or {}), self._inside)
        return tracer.evaluate.record_operator(tracer, func, given, named)

    def _refuse_random(self, func: Any, given: Any) -> None:
        """Torch sets the random stream of a GPU, and back again, as it calls one of these operators on DTensors."""
        for tensor in _tensors(given):
            if is_distributed(tensor) and tensor.device.type != "cpu" and func in tensor._op_dispatcher._random_ops:
                raise errors.UnsupportedCall(
                    f"{func} of a DTensor on a GPU, whose random numbers differ between processes"
                )

    def _inside(self, value: Any) -> Any:
        """An argument, or the abstract tensor for a real one that the class brings along."""
        if isinstance(value, torch.Tensor) and not isinstance(value, AbstractTensor):
            return self.tracer.objects.wrap(value, None).abstract  # type: ignore[attr-defined]
        return value


def call_wrapper(tracer: Tracer, function: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """A call of torch, or of a wrapper class, that is given wrappers or makes one."""
    return _Call(tracer, function, args, kwargs).run()


class _Call:
    def __init__(self, tracer: Tracer, function: Any, args: list[Value], kwargs: dict[str, Value]) -> None:
        self.tracer = tracer
        self.function = function
        owner = getattr(function, "__self__", None)
        is_applied = isinstance(owner, type) and issubclass(owner, torch.autograd.Function)
        self.name = getattr(owner if is_applied else function, "__name__", str(function))
        self.outer = tracer.graph
        if self.outer.is_transformed:
            raise self._refusal(" of a wrapper under a transform of torch.func")
        to_host = tracer.evaluate.to_host
        self.args = tuple(to_host(tracer, arg) for arg in args)
        self.kwargs = {key: to_host(tracer, value) for key, value in kwargs.items()}
        given = {id(tensor): tensor for tensor in _tensors((self.args, self.kwargs))}
        if any(map(is_distributed, leaves((self.args, self.kwargs)))):
            inner = [part for tensor in given.values() for part in wrappers.inner_tensors(tensor)]
            refuse_sizes(tracer, self.name, (self.args, self.kwargs, inner))
        # Each of them without its history: what the call adds to that is differentiated by itself.
        instead = {at: self._leaf(tensor) if self._needs_gradient(tensor) else tensor for at, tensor in given.items()}
        self.known = {id(leaf): given[at] for at, leaf in instead.items()}
        self.given = list(instead.values())
        self.inputs = list(filter(self._needs_gradient, self.given))
        self.args, self.kwargs = map_leaves((self.args, self.kwargs), lambda leaf: instead.get(id(leaf), leaf))
        self.tangents: dict[int, Any] = {}
        self.instead: dict[str, str] = {}
        self.written: WrapperValue | None = None

    def _refusal(self, why: str) -> errors.UnsupportedCall:
        return errors.UnsupportedCall(f"{self.name}{why}")

    def _needs_gradient(self, tensor: Any) -> bool:
        return torch.is_grad_enabled() and bool(tensor.requires_grad)

    def _leaf(self, tensor: Any) -> Any:
        if isinstance(tensor, AbstractTensor):
            leaf = AbstractTensor(tensor.meta, tensor.storage_record, requires_grad=True)
            self.tracer.inputs.tensors[id(leaf)] = self.tracer.inputs.tensors[id(tensor)]
            return leaf
        return self._like(tensor, wrappers.inner_tensors(tensor)).requires_grad_()

    def _like(self, tensor: Any, inner: Iterator[Any]) -> Any:
        """Another one of the class and layout, around these inner tensors."""
        with self.tracer.mode, torch.no_grad():
            return wrappers.join(wrappers.structure_of(tensor, lambda size: size), inner)

    def run(self) -> Value:
        before = [self._state(tensor) for tensor in self.given]
        writes = len(self.tracer.mode.written)
        with self._body() as forward:
            self._write_into_copy()
            with self._copies():
                result = self._natively(self.function, self.args, self.kwargs)
            made = [tensor for tensor in _tensors(result) if not any(tensor is given for given in self.given)]
            self._set_apart(made)
            for tensor in made:
                give_own_masks(tensor, end=True)
        if [self._state(tensor) for tensor in self.given] != before:
            raise errors.UnsupportedMutation(f"{self.name} changes what a wrapper holds, or its requires_grad")
        if len(self.tracer.mode.written) > writes:
            refuse_writes(self.tracer, writes)
            self._count_versions()
        differentiable = [tensor for tensor in made if tensor.requires_grad]
        written = {id(memory) for memory in self.tracer.mode.written[writes:]}
        if not differentiable:
            self._without_gradients(forward)
        elif written.intersection(place for _, place in _memories(*self.given)) or any(
            tensor.is_leaf for tensor in differentiable
        ):
            raise self._refusal(", which writes a wrapper that requires grad, or makes one of such tensors")
        else:
            self._as_function(forward, made, differentiable)
        return self._value(result) if self.written is None else self._write_back(result)

    def _write_into_copy(self) -> None:
        """A write in place into a wrapper that the program made, and that requires grad: into a copy, which the graph
        writes back into what the wrapper holds."""
        first = self.args[0] if self.args and _is_in_place(self.function, self.args, self.kwargs) else None
        if (
            not isinstance(first, torch.Tensor)
            or not wrappers.is_wrapper(type(first))
            or not self._needs_gradient(first)
        ):
            return
        value = self._operand(first)
        if value.real is None:
            self.written = value
            self.args = (self._natively(torch.clone, (first,), {}), *self.args[1:])

    def _write_back(self, result: Any) -> Value:
        """The wrapper that the call has written: what it holds has the history of the copy from now on."""
        value, inputs = self.written, self.tracer.inputs
        assert value is not None
        is_whole = result is self.args[0] and result.requires_grad
        if not is_whole or wrappers.structure_of(result) != wrappers.structure_of(value.abstract):
            raise errors.UnsupportedMutation(f"{self.name} changes more than the content of a wrapper")
        for pair in zip(wrappers.inner_tensors(value.abstract), wrappers.inner_tensors(result), strict=True):
            call_torch, tensors = self.tracer.evaluate.call_torch, [inputs.value_of(each) for each in pair]
            with torch.no_grad():  # here; in the graph it has gradients
                call_torch(self.tracer, torch.Tensor.copy_, tensors, {})
        value.producer, value.stand_ins = None, []
        return value

    @contextlib.contextmanager
    def _copies(self) -> Iterator[None]:
        """Torch writes what a mask says into the tensor that has it, whose value is that of the graph: into a copy."""
        masked = [(tensor, tensor._local_tensor) for tensor in self.given if masks_of(tensor)]
        for tensor, inner in masked:
            with Recorder(self.tracer), torch.no_grad():
                tensor._local_tensor = torch.ops.aten.clone.default(inner)
        try:
            yield
        finally:
            for tensor, inner in masked:
                tensor._local_tensor = inner

    def _set_apart(self, made: list[Any]) -> None:
        """Have results hold aliases of what the call was given to be differentiated: their gradients are others."""
        operands = {id(inner) for tensor in self.given for inner in wrappers.inner_tensors(tensor)}
        for tensor in made:
            if not wrappers.is_wrapper(type(tensor)) or not tensor.requires_grad:
                continue
            asked = list(wrappers.differentiated(tensor))
            names = [name for name, _ in wrappers.parts_of(tensor)]
            for name, is_asked in zip(names, asked, strict=len(names) == len(asked)):
                if is_asked and id(getattr(tensor, name)) in operands:
                    with Recorder(self.tracer), torch.no_grad():
                        setattr(tensor, name, torch.ops.aten.alias.default(getattr(tensor, name)))

    def _count_versions(self) -> None:
        """Wrappers from outside that were written count that, as the inner tensors do in the graph."""
        for value in self.tracer.inputs.wrappers.values():
            while value.real is not None and value.version < value.writes:
                value.version += 1
                self.tracer.effects.append(CallEffect(torch.autograd.graph.increment_version, [value], {}))

    def _state(self, tensor: Any) -> Any:
        context = tensor.__tensor_flatten__()[1] if is_distributed(tensor) else None
        return tensor.requires_grad, [id(inner) for inner in wrappers.inner_tensors(tensor)], context

    def _natively(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The call by torch itself, down to what the classes of its tensors make of it."""
        off = TORCH.no_subclass_function() if self.tracer.unseen else contextlib.nullcontext()
        try:
            with Recorder(self.tracer), off:
                return function(*args, **kwargs)
        except errors.DataDependent as error:
            raise errors.DataDependent(f"{self.name} of a wrapper: {error.message}", fix=error.fix) from None
        except (errors.CannotCapture, PythonRaise, errors.StageError):
            raise
        except Exception as error:
            raise self._refusal(f" of a wrapper raised {type(error).__name__}: {error}") from error

    def _body(self) -> contextlib.AbstractContextManager[GraphBuilder]:
        return recording(self.tracer, GraphBuilder(self.outer))

    def _inner(self, tensors: list[Any], *, asked: bool = False) -> list[TensorValue]:
        """The values of the graph inside of these tensors, each once. asked: those that gradients are of."""
        found = [
            self.tracer.inputs.value_of(inner)
            for tensor in tensors
            for inner, is_asked in zip(wrappers.inner_tensors(tensor), wrappers.differentiated(tensor), strict=True)
            if is_asked or not asked
        ]
        if not all(isinstance(value, TensorValue) for value in found):
            raise errors.UnsupportedValue(f"{self.name} of a wrapper that holds a tensor from elsewhere")
        return list({value.name: value for value in found}.values())  # type: ignore[union-attr, misc]

    def _value(self, result: Any) -> Value:
        """What the call gave, as the program sees it."""
        inputs = self.tracer.inputs
        if isinstance(result, torch.Tensor):
            known = inputs.value_of(self.known.get(id(result), result))
            if known is None and wrappers.is_wrapper(type(result)):
                if self.outer.inference.is_on:
                    raise errors.UnsupportedValue(f"{self.name} that makes a wrapper in torch.inference_mode")
                tangent = self.tangents.get(id(result))
                known = inputs.wrappers[id(result)] = WrapperValue(result, tangent=tangent, producer=self)
            if known is None:
                raise errors.UnsupportedValue(f"{self.name} of a wrapper that gives a tensor from elsewhere")
            return known
        if type(result) in (tuple, list) or (isinstance(result, tuple) and _tensors(result)):
            items = [self._value(item) for item in result]
            return ListValue(items) if isinstance(result, list) else TupleValue(items, cls=type(result))
        return self.tracer.objects.fresh(result)

    # -- without gradients

    def _without_gradients(self, forward: GraphBuilder) -> None:
        linked = self.tracer.inputs.linked
        used = {name for node in forward.nodes for name in node_references(node)}
        is_off = torch.is_grad_enabled() and any(
            value.name in used and (value.name in linked or value.abstract.requires_grad)
            for value in self._inner(self.given)
        )
        line = self.tracer.line()
        off, on = (Node(_GRAD_MODE, (enabled,), {}, (), line) for enabled in (False, True))
        for node in ([off] if is_off else []) + forward.nodes + ([on] if is_off else []):
            self.outer.append(node)

    # -- with gradients

    def _as_function(self, forward: GraphBuilder, made: list[Any], differentiable: list[Any]) -> None:
        masks = [mask for tensor in made for mask in masks_of(tensor)]
        results = self._inner([*made, *masks])
        defined = forward.defined
        order = [value.name for value in self._inner(differentiable, asked=True)]
        if not defined.keys() >= set(order):
            raise self._refusal(" of a wrapper with a result that shares an inner tensor with an operand")
        results = [result for result in results if result.name in defined]
        tangents = [self._empty_like(self._like_gradients(tensor)) for tensor in differentiable]
        pairs = zip(differentiable, tangents, strict=True)
        self.tangents = {id(of): wrappers.structure_of(tangent) for of, tangent in pairs if hasattr(of, _COERCE)}
        if len(made) == len(differentiable):
            instead = self._way_back(forward, differentiable, tangents)
            if instead is not None:
                self._as_nodes(forward, order, instead)
                return
        backward, gradients = self._backward(differentiable, tangents)
        self._append(forward, results, order, tangents, backward, gradients)

    def _way_back(self, forward: GraphBuilder, results: list[Any], tangents: list[Any]) -> dict[str, str] | None:
        """Where the results are views, and the backward finds the operands where it is given the results' memory: the
        inputs that stand for operands whose gradients have another layout, by the names of these. Else None."""
        inputs = self.inputs
        if {place for _, place in _memories(*results)} - {place for _, place in _memories(*inputs)}:
            return None
        if any("detach" in node.target for node in forward.nodes) or _types(*results) != _types(*tangents):
            return None
        given = [self._like(*pair) for pair in zip(tangents, map(wrappers.inner_tensors, results), strict=True)]
        with self._body():
            found = self._differentiated(results, given)
        if [type(gradient) for gradient in found] != [type(tensor) for tensor in inputs]:
            return None
        if _memories(*found) != _memories(*inputs):
            return None
        instead: dict[str, str] = {}
        for tensor, gradient in zip(inputs, found, strict=True):
            plain = self._like(tensor, wrappers.inner_tensors(tensor))
            if wrappers.structure_of(gradient) != wrappers.structure_of(plain):
                outside = self._outside(tensor)
                if outside is None:
                    return None
                names = self.tracer.inputs.parts_of_wrapper(outside, gradient)
                instead.update(zip([value.name for value in self._inner([tensor], asked=True)], names, strict=True))
        return instead

    def _as_nodes(self, forward: GraphBuilder, order: list[str], instead: dict[str, str]) -> None:
        """The nodes of views, which the graph's own gradients go through."""
        linked = {instead.get(value.name, value.name) for value in self._inner(self.inputs, asked=True)}
        for node in forward.nodes:
            node = rename_node(node, instead)
            if not linked.isdisjoint(node_references(node)):
                types = [msgspec.structs.replace(value.type, requires_grad=True) for value in node.results]
                results = [WireValue(value.name, type_) for value, type_ in zip(node.results, types, strict=True)]
                linked.update(value.name for value in results)
                node = msgspec.structs.replace(node, results=tuple(results))
            self.outer.append(node)
        self.tracer.inputs.linked.update(order)

    def _backward(self, results: list[Any], tangents: list[Any]) -> tuple[GraphBuilder, dict[str, Arg]]:
        """What torch.autograd.grad of the call does, and the gradient of each inner tensor, by its name."""
        self.instead.clear()
        with self._body() as backward:
            gradients = self._differentiated(results, tangents)
            found = [self._as_expected(*pair) for pair in zip(self.inputs, gradients, strict=True)]
        return backward, self._gradients(found)

    def _differentiated(self, results: list[Any], tangents: list[Any]) -> Any:
        options = {"retain_graph": True, "allow_unused": True}
        return self._natively(torch.autograd.grad, (results, self.inputs, tangents), options)

    def _append(
        self,
        forward: GraphBuilder,
        results: list[TensorValue],
        order: list[str],
        tangents: list[Any],
        backward: GraphBuilder,
        gradients: dict[str, Arg],
    ) -> None:
        """The function. order: names of the results that have gradients, as these are in the tangents."""
        operands, linked, defined = self._inner(self.given), set(order), forward.defined
        self.tracer.inputs.linked |= linked
        # Gradients of what is no operand are those of plain ones that are wrappers.
        used = {name for node in forward.nodes for name in node_references(node)}
        names = list(dict.fromkeys([*(operand.name for operand in operands if operand.name in used), *gradients]))
        back: list[Arg] = [gradients.get(name) for name in names]
        arriving = {value.name: value for value in self._inner(tangents, asked=True)}
        kept = free_names(backward.nodes, back, arriving)
        outputs: list[Arg] = [Ref(name) for name in (*[result.name for result in results], *kept)]
        captured = free_names(forward.nodes, outputs, names)
        given = [self._wire(self.tracer.inputs.named(name)) for name in (*names, *captured)]
        types = {value.name: value for value in (*given, *defined.values())}
        # The backward is given a gradient for each result; those of what is no float are nobody's.
        places = dict(zip(order, arriving.values(), strict=True))
        tangent_values = [
            self._wire(places[name]) if name in places else WireValue(self.outer.name("unused"), types[name].type)
            for name in (result.name for result in results)
        ]
        function = CustomFunction(
            name=self.outer.name(self.name),
            operands=len(names),
            results=len(results),
            forward=Graph(tuple(given), tuple(forward.nodes), tuple(outputs)),
            backward=Graph((*tangent_values, *[types[name] for name in kept]), tuple(backward.nodes), tuple(back)),
            saved=len(kept),
            non_differentiable=tuple(at for at, result in enumerate(results) if result.name not in linked),
            written=(),
            once=False,
        )
        wires = tuple(self._wire(result) for result in results)
        given_names = [self.instead.get(name, name) for name in names]
        self.outer.apply_custom(function, given_names, captured, wires, self.tracer.line(), defined)

    def _wire(self, value: TensorValue) -> WireValue:
        type_ = tensor_type(value.abstract)
        requires_grad = type_.requires_grad or value.name in self.tracer.inputs.linked
        return WireValue(value.name, msgspec.structs.replace(type_, requires_grad=requires_grad))

    def _like_gradients(self, tensor: Any) -> Any:
        """A tensor of the class and layout that gradients of this one have: its own, unless its class says otherwise
        (to a sum whose parts lie in several processes belongs a gradient that each of them has whole)."""
        if not hasattr(tensor, _COERCE):
            return tensor
        copied = self._like(tensor, wrappers.inner_tensors(tensor))
        give_own_masks(copied, end=False)
        with self._body():
            made = self._natively(copied.__coerce_tangent_metadata__, (), {})
        return self._like(made, wrappers.inner_tensors(made))

    def _as_expected(self, tensor: Any, gradient: Any) -> Any:
        """The gradient of an operand in a layout that its gradients may have: one from outside takes what there is, and
        so does a result of another call if that has parts like its own: its backward is traced for that."""
        if type(gradient) is not type(tensor) or not hasattr(tensor, _COERCE):
            return gradient
        if self._outside(tensor):
            return gradient
        value = self._operand(tensor)
        expected = value.tangent or wrappers.structure_of(self._like_gradients(tensor))
        with self._body() as conversion:
            converted = self._natively(wrappers.as_tangent, (gradient, expected), {})
        if conversion.nodes and _types(gradient) == _types(tensor) and value.producer is not None:
            names = self._in_layout(value, gradient, wrappers.structure_of(gradient))
            if names is not None:
                self.instead.update(zip([each.name for each in self._inner([tensor])], names, strict=True))
                return gradient
        for node in conversion.nodes:
            self.tracer.graph.append(node)
        return converted

    def _in_layout(self, value: WrapperValue, gradient: Any, layout: Any) -> list[str] | None:
        """What an operand holds, as results of another function, whose backward is given gradients of this layout: the
        backward of the call that made it, traced once more. None where that needs what only that call has."""
        for known, names in value.stand_ins:
            if known == layout:
                return names
        producer = value.producer
        if producer.outer is not self.outer:
            return None
        tangent = self._empty_like(gradient)
        backward, gradients = producer._backward([value.abstract], [tangent])
        arriving = {each.name: each for each in self._inner([tangent], asked=True)}
        if not self.outer.hidden.isdisjoint(free_names(backward.nodes, list(gradients.values()), arriving)):
            return None
        with self._body() as forward, Recorder(self.tracer), torch.no_grad():
            made = [torch.ops.aten.alias.default(inner) for inner in wrappers.inner_tensors(value.abstract)]
        results = self._inner(made)
        names = [result.name for result in results]
        producer._append(forward, results, names, [tangent], backward, gradients)
        value.stand_ins.append((layout, names))
        return names

    def _operand(self, tensor: Any) -> WrapperValue:
        return self.tracer.inputs.wrappers[id(self.known[id(tensor)])]

    def _outside(self, tensor: Any) -> WrapperValue | None:
        """The wrapper from outside that an operand is."""
        value = self._operand(tensor)
        return value if value.real is not None and value.source is not None else None

    def _empty_like(self, tensor: Any) -> Any:
        """A gradient that arrives."""
        inner = []
        for known, is_asked in zip(wrappers.inner_tensors(tensor), wrappers.differentiated(tensor), strict=True):
            if not is_asked:  # where sizes follow from it, the gradient that arrives has it, too
                if not tensor.is_nested:
                    raise errors.UnsupportedCall(f"a gradient with more than floats in a {type(tensor).__name__}")
                inner.append(known)
                continue
            with self.tracer.mode, torch.no_grad():
                made = torch.empty_like(known)
            self.tracer.inputs.tensors[id(made)] = TensorValue(made, self.outer.name("gradient"))
            inner.append(made)
        return self._like(tensor, iter(inner))

    def _gradients(self, found: list[Any]) -> dict[str, Arg]:
        """The gradient of each inner tensor, by its name."""
        known: dict[str, Arg] = {}
        for tensor, gradient in zip(self.inputs, found, strict=True):
            if gradient is None:
                continue
            if isinstance(tensor, AbstractTensor) and wrappers.is_wrapper(type(gradient)):
                known.update(self._of_plain(tensor, gradient))
                continue
            if type(gradient) is not type(tensor):
                kinds = f"a {type(tensor).__qualname__}, which is a {type(gradient).__qualname__}"
                raise self._refusal(f": the gradient of {kinds}")
            if not (tensor.is_nested or all(wrappers.differentiated(tensor))):
                raise self._refusal(f": a gradient with more than floats in a {type(tensor).__name__}")
            names = [value.name for value in self._inner([tensor], asked=True)]
            outside = self._outside(tensor) if hasattr(tensor, _COERCE) else None
            if outside is not None:
                names = self.tracer.inputs.parts_of_wrapper(outside, gradient) or names
            for name, given in zip(names, self._inner([gradient], asked=True), strict=True):
                if name in known:
                    raise self._refusal(": the gradients of wrappers that share an inner tensor")
                known[name] = Ref(given.name)
        return known

    def _of_plain(self, tensor: Any, gradient: Any) -> dict[str, Arg]:
        """The gradient of a plain tensor that is a wrapper."""
        names, context = gradient.__tensor_flatten__()
        parts = [self.tracer.inputs.value_of(part) for part in wrappers.inner_tensors(gradient)]
        known = self.tracer.inputs.value_of(tensor)
        fits = [isinstance(part, TensorValue) and part.abstract.meta == tensor.meta for part in parts]
        if not all(fits) or len(parts) != len(names) or not isinstance(known, TensorValue):
            raise self._refusal(f": a {type(gradient).__qualname__} as the gradient of another type")
        operands = self.tracer.inputs.parts(known, (type(gradient), context, tuple(names)))
        return {name: Ref(part.name) for name, part in zip(operands, parts, strict=True)}  # type: ignore[union-attr]


def is_distributed(value: Any) -> bool:
    """Whether it is a DTensor, or a mesh that makes one."""
    if isinstance(value, torch.Tensor):
        return wrappers.is_wrapper(type(value)) and bool(wrappers.objects_of(value))
    return is_constant_class(type(value))


def _is_in_place(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a function writes its first argument: `add_`, operator.iadd, F.relu(x, inplace=True)."""
    name = getattr(function, "__name__", "")
    if name.endswith("_") and not name.endswith("__") and name != "requires_grad_":
        return True
    plain = name.strip("_")
    if plain.startswith("i") and hasattr(operator, f"__{plain}__") and hasattr(torch.Tensor, f"__{plain[1:]}__"):
        return True
    try:
        return bool(inspect.signature(function).bind(*args, **kwargs).arguments.get("inplace"))
    except (TypeError, ValueError):  # of a function of C, or it does not take them
        return False


def _types(*tensors: Any) -> list[Any]:
    return [inner.meta for tensor in tensors for inner in wrappers.inner_tensors(tensor)]  # type: ignore[attr-defined]


def _memories(*tensors: Any) -> list[Any]:
    inner = [inner for tensor in tensors for inner in wrappers.inner_tensors(tensor)]
    return [(each.meta, id(each.storage_record)) for each in inner]  # type: ignore[attr-defined]


def _tensors(value: Any) -> list[Any]:
    """The tensors in containers, in order."""
    return [leaf for leaf in leaves(value) if isinstance(leaf, torch.Tensor)]
