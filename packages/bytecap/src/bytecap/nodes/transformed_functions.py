"""A function that torch.func transforms: evaluated once, then applied by nodes of the graph."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from absint import AbstractMode, AbstractTensor
from absint.functions import custom_functions, run_graph
from absint.symbolic import from_dim, make_size
from absint.tensor import tensors_in
from bytecap.context_types import Tracer
from bytecap.errors import UnsupportedCall
from bytecap.graph.builder import GraphBuilder
from bytecap.nodes.bodies import all_tensors, recording, wires
from bytecap.nodes.torch_calls import evaluate
from bytecap.objects.arrays.tensors import TensorValue
from bytecap.objects.base import Constant, Value
from bytecap.objects.containers.mappings import DictValue
from bytecap.objects.containers.sequences import ListValue, TupleValue
from bytecap.torch_capabilities import TORCH
from stagewire.capture import CUSTOM, CustomFunction, Transform, functions_of
from stagewire.expr import Expr
from stagewire.graph import Arg, Graph, Ref, Tuple, free_names

# -- trees of values: tuples, lists and dicts with other values as leaves, as `torch.utils._pytree` sees them


def leaves_of(tracer: Tracer, tree: Value) -> list[Value]:
    """The leaves in order."""
    found: list[Value] = []
    map_leaves(tracer, tree, lambda leaf: found.append(leaf) or leaf)
    return found


def map_leaves(tracer: Tracer, tree: Value, change: Callable[[Value], Value]) -> Value:
    """A tree of the same form with other leaves."""
    if type(tree) is TupleValue and (tree.cls is tuple or hasattr(tree.cls, "_fields")):
        return TupleValue([map_leaves(tracer, item, change) for item in tree.values(tracer)], cls=tree.cls)
    if type(tree) is ListValue:
        return ListValue([map_leaves(tracer, item, change) for item in tree.values(tracer)])
    if isinstance(tree, DictValue) and tree.cls in (dict, OrderedDict):
        made = DictValue(cls=tree.cls)
        for key, item in tree.pairs(tracer):
            made.set_item(tracer, key, map_leaves(tracer, item, change))
        return made
    TORCH.require("tree_nodes")
    if tree.python_type() in TORCH.tree_nodes:
        raise UnsupportedCall(f"a {tree.describe()} among the arguments or results of a function")
    return change(tree)


def spread(tracer: Tracer, prefix: Value, tree: Value) -> list[Value]:
    """For each leaf of `tree` the leaf of `prefix` above it: a prefix has a leaf where the tree may have more."""
    if isinstance(prefix, Constant):
        return [prefix for _ in leaves_of(tracer, tree)]
    if isinstance(prefix, DictValue) and isinstance(tree, DictValue):
        pairs = tree.pairs(tracer)
        above = [prefix.lookup(tracer, key) for key, _ in pairs]
        if None not in above and len(pairs) == prefix.length(tracer):
            return [leaf for up, (_, item) in zip(above, pairs, strict=True) for leaf in spread(tracer, up, item)]  # type: ignore[arg-type]
    if isinstance(prefix, (TupleValue, ListValue)) and isinstance(tree, (TupleValue, ListValue)):
        above, items = prefix.values(tracer), tree.values(tracer)
        if len(above) == len(items):
            return [leaf for up, item in zip(above, items, strict=True) for leaf in spread(tracer, up, item)]
    raise UnsupportedCall("dimensions of vmap that are not of the form of the arguments")


# -- the function


def with_tensors(tracer: Tracer, tree: Value, tensors: Iterator[TensorValue]) -> Value:
    """A tree of this form with the next of `tensors` for its own."""
    return map_leaves(tracer, tree, lambda leaf: next(tensors) if isinstance(leaf, TensorValue) else leaf)


class _Draws(AbstractMode):
    """Notes whether random numbers are drawn."""

    found = False

    def on_op(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.found = self.found or self.record(func).effect == "draws"
        return super().on_op(func, args, kwargs)


class TransformedFunction:
    """A function that is transformed: evaluated once, then applied by one node or several."""

    def __init__(self, tracer: Tracer, function: Value, args: Value, kwargs: Value) -> None:
        self.tracer = tracer
        self.function = function
        self.args = args
        self.kwargs = kwargs
        self.outer = tracer.graph
        if self.outer.is_body and not (self.outer.is_transformed or self.outer.is_branch):
            raise UnsupportedCall("a function transform inside of a torch.autograd.Function")
        leaves = [*leaves_of(tracer, args), *leaves_of(tracer, kwargs)]
        self.operands = [leaf for leaf in leaves if isinstance(leaf, TensorValue)]
        self.arguments: list[TensorValue] = []

    def evaluate(self, inside: Callable[[TensorValue, int], AbstractTensor], *, grad: bool = False) -> Value:
        """What the function returns. inside: what it sees of each operand. grad: whether grad mode is on there."""
        tracer = self.tracer
        if grad and self.outer.inference.is_on:
            raise UnsupportedCall("a derivative by torch.func in torch.inference_mode")
        known, writes = len(tracer.inputs.tensors), len(tracer.mode.written)
        seen = [inside(operand, number) for number, operand in enumerate(self.operands)]
        self.arguments = [tracer.inputs.tensor_of(each, self.outer.name("argument")) for each in seen]
        given = iter(self.arguments)
        args, kwargs = (with_tensors(tracer, tree, given) for tree in (self.args, self.kwargs))
        named = {str(key.concrete()): value for key, value in kwargs.pairs(tracer)}  # type: ignore[attr-defined]
        self.inside = GraphBuilder(self.outer, is_transformed=True)
        with recording(tracer, self.inside, grad=grad or None):
            returned = self.function.call(tracer, list(args.values(tracer)), named)  # type: ignore[attr-defined]
        written = {id(memory) for memory in tracer.mode.written[writes:]}
        # The memory of all tensors is looked at only where anything was written: programs map thousands of functions.
        outside = itertools.islice(tracer.inputs.tensors.values(), known + len(self.arguments)) if written else ()
        if any(id(tensor.abstract.storage_record) in written for tensor in outside):
            raise UnsupportedCall("a function that is transformed and writes a tensor that it did not make")
        return returned

    def draws(self) -> bool:
        """Whether the function draws random numbers."""
        graph, captured = self._graph([])
        given = [argument.abstract for argument in self.arguments] + [
            self.tracer.inputs.named(name).abstract for name in captured
        ]
        functions = custom_functions(functions_of(self.outer.functions, graph), self._size_of)
        with _Draws() as mode:
            run_graph(graph, tuple(given), functions, self._size_of)
        return mode.found

    # -- the node

    def apply(
        self, kind: str, outputs: Sequence[Value], count: int, *, more: Sequence[TensorValue] = (), **options: Any
    ) -> Iterator[TensorValue]:
        """Record the call; its results. outputs: of the function, `count` of them first. more: further operands."""
        tracer, operands = self.tracer, [*self.operands, *more]
        tensors = all_tensors(list(outputs[:count]), f"a function under {kind}, which gives something")
        tensors += [output for output in outputs[count:] if isinstance(output, TensorValue)]
        graph, captured = self._graph(tensors)
        function = CustomFunction(
            name=self.outer.name(kind),
            operands=len(operands),
            results=0,
            forward=graph,
            transform=Transform(kind=kind, arguments=len(self.operands), outputs=count, **options),  # type: ignore[arg-type]
        )
        known = functions_of(self.outer.functions, graph)
        apply = custom_functions((*known, function), self._size_of)[CUSTOM + function.name]
        held = tuple(self.tracer.inputs.named(name).abstract for name in captured)
        found = tensors_in(evaluate(tracer, apply, (*[operand.abstract for operand in operands], held), {}))
        self.outer.functions.append(msgspec.structs.replace(function, results=len(found)))
        self.outer.hidden.update(argument.name for argument in self.arguments)
        self.outer.hidden.update(self.inside.defined)
        args: tuple[Arg, ...] = tuple(Ref(operand.name) for operand in operands)
        args += (Tuple(tuple(Ref(name) for name in captured)),)
        names = self.outer.add_node(CUSTOM + function.name, args, {}, found, tracer.line())
        return iter([tracer.inputs.tensor_of(tensor, name) for tensor, name in zip(found, names, strict=True)])

    def take(self, results: Iterator[TensorValue], tree: Value) -> Value:
        """A tree of this form with the next results for its tensors."""
        return with_tensors(self.tracer, tree, results)

    def _size_of(self, size: Expr) -> Any:
        """What a size of the function's graph stands for now."""
        return make_size(self.tracer.sizes.env, from_dim(size))

    def _graph(self, outputs: list[TensorValue]) -> tuple[Graph, list[str]]:
        """What was recorded, and what of it comes from outside."""
        nodes = tuple(self.inside.nodes)
        own = [argument.name for argument in self.arguments]
        captured = free_names(nodes, [Ref(output.name) for output in outputs], own)
        inputs = [*self.arguments, *[self.tracer.inputs.named(name) for name in captured]]
        return Graph(wires(inputs), nodes, tuple(Ref(output.name) for output in outputs)), captured
