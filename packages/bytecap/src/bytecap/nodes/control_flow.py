"""Control flow as ops: the functions are evaluated once each, and become one custom function of the capture.

    torch.cond(predicate, true_fn, false_fn, operands)  ->  results = custom.cond(predicate, captured)
    while_loop(cond_fn, body_fn, carried)               ->  results = custom.while_loop(*carried, captured)
    scan(combine_fn, init, xs), map(f, xs, *args)       ->  results = custom.scan(*carried, *xs, captured)

A function sees the tensors round it; arguments that differ from step to step are values of its own. Its results are
new tensors, unlike in torch, which refuses to give back an operand. What it changes outside of it is refused, but that
it may write tensors where no gradients are recorded, as in torch. A while_loop that carries numbers and is told by them
how long to run is no op: its steps stand one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from types import CodeType
from typing import Any

import torch

from absint import AbstractTensor
from absint.control_flow import is_differentiable
from absint.meta import contiguous
from absint.symbolic import dim_of
from bytecap.context_types import Tracer
from bytecap.errors import DataDependent, UnsupportedCall
from bytecap.graph.builder import GraphBuilder, Outside, tensor_type
from bytecap.nodes.autograd_functions import Results
from bytecap.nodes.bodies import all_tensors, as_functions, recording, states_of_effects
from bytecap.nodes.torch_calls import call_torch
from bytecap.nodes.transforms import leaves_of, map_leaves, with_tensors
from bytecap.objects.arrays.tensors import TensorValue
from bytecap.objects.base import Constant, Value
from bytecap.objects.containers.mappings import DictValue
from bytecap.objects.containers.sequences import ListValue, TupleValue
from bytecap.torch_capabilities import TORCH
from stagewire.capture import CustomFunction, Transform
from stagewire.graph import Node
from stagewire.graph import Value as WireValue

_NOTHING, _ZERO, _FALSE = TupleValue([]), Constant(0), Constant(False)
_MOST_STEPS = 100
_TENSORS = "Carry tensors without dimensions in place of numbers."
_FIX = "Have the functions return what they compute; torch refuses the same."


class Body:
    """One of the functions, evaluated once.

    own: what stands among `args` for other tensors at each step. outputs: its tensors, each in memory of its own.
    tree: what it returns.
    """

    def __init__(
        self, tracer: Tracer, kind: str, function: Value, args: Sequence[Value], own: Sequence[TensorValue] = ()
    ) -> None:
        self.tracer, self.kind = tracer, kind
        outer = tracer.graph
        if outer.is_transformed:
            raise UnsupportedCall(f"{kind} under a transform of torch.func")
        self.builder = GraphBuilder(outer, gradient_order=outer.gradient_order)
        self.builder.is_branch = outer.is_branch or not outer.is_body
        memories = [tensor.abstract.storage_record for tensor in tracer.inputs.tensors.values()]
        known = set(map(id, memories))
        with_content = {id(memory) for memory in memories if memory.constant is not None}
        writes, effects = len(tracer.mode.written), states_of_effects(tracer)
        numbers = set(tracer.sizes.env.unbacked)
        enabled = torch.is_grad_enabled()
        with recording(tracer, self.builder):
            self.tree = function.call(tracer, list(args), {})
            if torch.is_grad_enabled() != enabled:
                raise UnsupportedCall(f"a function of {kind} changes whether gradients are recorded", fix=_FIX)
        if states_of_effects(tracer) != effects:
            raise UnsupportedCall(f"a function of {kind} changes an object outside of it", fix=_FIX)
        known.update(id(x.abstract.storage_record) for x in tracer.inputs.tensors.values() if x.real is not None)
        written = {id(memory) for memory in tracer.mode.written[writes:]}
        final = known if torch.is_grad_enabled() else {id(x.abstract.storage_record) for x in own} | with_content
        if not written.isdisjoint(final):
            raise UnsupportedCall(f"a function of {kind} writes a tensor that it did not make", fix=_FIX)
        if set(tracer.sizes.env.unbacked) != numbers:
            raise DataDependent(f"a function of {kind} in which data decides a size")
        self.outputs = [leaf for leaf in leaves_of(tracer, self.tree) if isinstance(leaf, TensorValue)]
        for number, output in enumerate(self.outputs):
            memory = id(output.abstract.storage_record)
            if memory in known or output.abstract.storage_offset():
                self.copy(number)
            known.add(memory)

    def copy(self, number: int, layout: torch.memory_format = torch.preserve_format) -> None:
        """Give a copy of an output instead."""
        with recording(self.tracer, self.builder):
            options: dict[str, Value] = {"memory_format": Constant(layout)}
            made = call_torch(self.tracer, torch.clone, [self.outputs[number]], options)
        self.outputs[number] = made

    @property
    def recorded(self) -> tuple[list[Node], list[TensorValue]]:
        """Its nodes and outputs."""
        return self.builder.nodes, self.outputs


class _Call:
    """One call of an op: the functions that it runs, and the node."""

    def __init__(self, tracer: Tracer, kind: str) -> None:
        self.tracer, self.kind = tracer, kind
        self.arguments: list[TensorValue] = []

    def argument(self, like: AbstractTensor, *, is_carried: bool) -> TensorValue:
        """A value of the functions' own. One that is carried may require grad from the second step on."""
        grad = like.requires_grad or (is_carried and torch.is_grad_enabled() and is_differentiable(like))
        abstract = AbstractTensor(like.meta, requires_grad=grad)
        if grad:
            with torch.enable_grad():
                abstract = super(torch.autograd.Function, Outside).apply(abstract)
        self.arguments.append(self.tracer.inputs.tensor_of(abstract, self.tracer.graph.name("argument")))
        return self.arguments[-1]

    def record(
        self, operands: Sequence[TensorValue], bodies: Sequence[Body], types: Sequence[AbstractTensor], **options: Any
    ) -> Iterator[TensorValue]:
        """Add the node; its results. bodies: one function or two. types: what the results are like."""
        tracer, graph, arguments = self.tracer, self.tracer.graph, self.arguments
        graphs, captured = as_functions(tracer, arguments, *[body.recorded for body in bodies])
        function = CustomFunction(
            name=graph.name(self.kind),
            operands=len(operands),
            results=len(types),
            forward=graphs[0],
            second=graphs[1] if len(graphs) > 1 else None,
            transform=Transform(kind=self.kind, arguments=len(arguments), outputs=len(types), **options),  # type: ignore[arg-type]
        )
        own = [argument.name for argument in arguments]
        own += [value.name for body in graphs for node in body.nodes for value in node.results]
        sources = [value.abstract for value in (*operands, *captured)]
        with tracer.mode:
            results = Results.apply([AbstractTensor(each.meta) for each in types], [], [], *sources)
        made = tuple([WireValue(graph.name(self.kind), tensor_type(result)) for result in results])
        given = [[tensor.name for tensor in tensors] for tensors in (operands, captured)]
        graph.apply_custom(function, *given, made, tracer.line(), own)
        return iter([tracer.inputs.tensor_of(x, wire.name) for x, wire in zip(results, made, strict=True)])


def cond(tracer: Tracer, pred: Value, true_fn: Value, false_fn: Value, operands: Value = _NOTHING) -> Value:
    """`torch.cond`. What is known now is no op: a bool, or a condition on sizes, which is guarded then."""
    args = operands.values(tracer)  # type: ignore[attr-defined]
    if not isinstance(pred, TensorValue):
        return (true_fn if pred.truth(tracer) else false_fn).call(tracer, list(args), {})
    if pred.abstract.numel() != 1:
        raise UnsupportedCall("torch.cond of a predicate of more than one element")
    call = _Call(tracer, "cond")
    bodies = first, second = Body(tracer, "cond", true_fn, args), Body(tracer, "cond", false_fn, args)
    _refuse_other_form(tracer, "the functions of cond return", first.tree, second.tree)
    for number in range(len(first.outputs)):
        _refuse_other_type("the functions of cond return", first.outputs[number], second.outputs[number])
        if first.outputs[number].abstract.stride() != second.outputs[number].abstract.stride():
            for body in bodies:
                body.copy(number, torch.contiguous_format)
    results = call.record([pred], bodies, [output.abstract for output in first.outputs])
    return with_tensors(tracer, first.tree, results)


def scan(
    tracer: Tracer, combine_fn: Value, init: Value, xs: Value, *, dim: Value = _ZERO, reverse: Value = _FALSE
) -> Value:
    """`scan` of torch._higher_order_ops: `carry, y = combine_fn(carry, x)` for each slice `x` of xs along `dim`."""
    if not leaves_of(tracer, xs):
        return TupleValue([init, ListValue([])])
    where, backwards = dim.concrete(), reverse.truth(tracer)
    sequences = all_tensors(leaves_of(tracer, xs), "xs of scan")
    if where < 0:
        where += sequences[0].abstract.dim()
    if not 0 <= where < min(each.abstract.dim() for each in sequences):
        raise UnsupportedCall("scan along a dimension that xs have not")

    def moved(leaf: Value) -> Value:
        leaf = call_torch(tracer, torch.movedim, [leaf, Constant(where), Constant(0)], {}) if where else leaf
        return call_torch(tracer, torch.flip, [leaf, TupleValue([Constant(0)])], {}) if backwards else leaf

    def moved_back(leaf: Value) -> Value:
        leaf = call_torch(tracer, torch.flip, [leaf, TupleValue([Constant(0)])], {}) if backwards else leaf
        is_moved = where and _stacks_along_dim() and where < leaf.abstract.dim()  # type: ignore[attr-defined]
        return call_torch(tracer, torch.movedim, [leaf, Constant(0), Constant(where)], {}) if is_moved else leaf

    carry, rows = _scan(tracer, combine_fn, init, map_leaves(tracer, xs, moved))
    return TupleValue([carry, map_leaves(tracer, rows, moved_back)])


@cache
def _stacks_along_dim() -> bool:
    """Whether this torch's scan gives results along `dim`; torch 2.11 leaves them along dimension 0."""
    inner = (part for part in TORCH.scan.__code__.co_consts if isinstance(part, CodeType))
    return any("movedim" in part.co_names for part in inner)


def map_rows(tracer: Tracer, f: Value, xs: Value, *args: Value) -> Value:
    """`map` of torch._higher_order_ops: `f(x, *args)` for each slice `x` of xs along dimension 0, stacked."""
    return _scan(tracer, f, TupleValue([]), xs, args)[1]


def _scan(
    tracer: Tracer, function: Value, init: Value, xs: Value, more: Sequence[Value] | None = None
) -> tuple[Value, Value]:
    """The last carry and the stacked rows. more: of a map, whose function has no carry, what it takes besides a row."""
    what = "scan" if more is None else "map"
    sequences = all_tensors(leaves_of(tracer, xs), f"xs of {what}")
    carried = all_tensors(leaves_of(tracer, init), "init of scan")
    count = sequences[0].abstract.shape[0] if sequences and sequences[0].abstract.dim() else 0
    if not count or any(not each.abstract.dim() or each.abstract.shape[0] != count for each in sequences):
        raise UnsupportedCall(f"{what} over xs of no rows, or of differing numbers of rows")
    with tracer.mode:
        rows = [each.abstract.select(0, 0) for each in sequences]

    def evaluate(call: _Call, carries: Sequence[TensorValue]) -> Body:
        arguments = [call.argument(carry.abstract, is_carried=True) for carry in carries]
        arguments += [call.argument(row, is_carried=False) for row in rows]
        given = iter(arguments)
        args = (
            [with_tensors(tracer, init, given), with_tensors(tracer, xs, given)]
            if more is None
            else [with_tensors(tracer, xs, given), *more]
        )
        return Body(tracer, what, function, args, call.arguments)

    call, carried, body = _with_carries("scan", tracer, carried, evaluate)
    tree: Value = body.tree
    if more is None:
        items = tree.values(tracer) if isinstance(tree, (TupleValue, ListValue)) else []
        if len(items) != 2:
            raise UnsupportedCall("scan of a function that returns no pair of a carry and a row")
        _refuse_other_form(tracer, "the carry of scan is", init, items[0])
        init, tree = items
    all_tensors(leaves_of(tracer, tree), f"what a function of {what} returns")
    outputs = [output.abstract for output in body.outputs]
    stacked = [AbstractTensor(contiguous((count, *x.shape), x.dtype, x.device)) for x in outputs[len(carried) :]]
    types = [*outputs[: len(carried)], *stacked]
    results = call.record([*carried, *sequences], [body], types, carried=len(carried), length=dim_of(count))
    return with_tensors(tracer, init, results), with_tensors(tracer, tree, results)


def while_loop(tracer: Tracer, cond_fn: Value, body_fn: Value, carried_inputs: Value) -> Value:
    """`torch.while_loop`: `carried = body_fn(*carried)` while `cond_fn(*carried)`."""
    if not all(isinstance(leaf, TensorValue) for leaf in leaves_of(tracer, carried_inputs)):
        return _known_steps(tracer, cond_fn, body_fn, carried_inputs)
    carried = all_tensors(leaves_of(tracer, carried_inputs), "what while_loop carries")
    arguments: Value = carried_inputs

    def evaluate(call: _Call, carries: Sequence[TensorValue]) -> Body:
        nonlocal arguments
        arguments = with_tensors(
            tracer, carried_inputs, iter([call.argument(x.abstract, is_carried=True) for x in carries])
        )
        body = Body(tracer, "while_loop", body_fn, arguments.values(tracer), call.arguments)  # type: ignore[attr-defined]
        _refuse_other_form(tracer, "the function of while_loop returns", carried_inputs, body.tree)
        return body

    call, carried, body = _with_carries("while_loop", tracer, carried, evaluate)
    condition = Body(tracer, "while_loop", cond_fn, arguments.values(tracer), call.arguments)  # type: ignore[attr-defined]
    holds = condition.tree.abstract if isinstance(condition.tree, TensorValue) else None
    if holds is None or holds.dtype != torch.bool or holds.dim():
        raise UnsupportedCall("while_loop whose condition is no bool tensor without dimensions")
    results = call.record(carried, [body, condition], [output.abstract for output in body.outputs])
    return with_tensors(tracer, body.tree, results)


def _known_steps(tracer: Tracer, cond_fn: Value, body_fn: Value, carried: Value) -> Value:
    """A loop whose conditions are known now; sizes among them are guarded."""
    for _ in range(_MOST_STEPS):
        holds = cond_fn.call(tracer, list(carried.values(tracer)), {})  # type: ignore[attr-defined]
        if isinstance(holds, TensorValue):
            raise UnsupportedCall("while_loop that carries numbers, and whose length depends on data", fix=_TENSORS)
        if not holds.truth(tracer):
            return carried
        carried = body_fn.call(tracer, list(carried.values(tracer)), {})  # type: ignore[attr-defined]
    raise UnsupportedCall(f"while_loop of more than {_MOST_STEPS} steps that carries numbers", fix=_TENSORS)


def _with_carries(
    kind: str, tracer: Tracer, carried: list[TensorValue], evaluate: Callable[[_Call, Sequence[TensorValue]], Body]
) -> tuple[_Call, list[TensorValue], Body]:
    """The function for carries whose layout it keeps: where it gives another one, all are in row-major order."""
    functions, carried = len(tracer.graph.functions), list(carried)
    row_major: dict[str, Value] = {"memory_format": Constant(torch.contiguous_format)}
    for is_last in (False, True):
        call = _Call(tracer, kind)
        body = evaluate(call, carried)
        pairs = list(zip(carried, body.outputs, strict=False))
        for before, after in pairs:
            _refuse_other_type(f"{kind} carries", before, after)
        others = [at for at, (before, after) in enumerate(pairs) if before.abstract.stride() != after.abstract.stride()]
        if is_last or not others:
            break
        del tracer.graph.functions[functions:]
        for number in others:
            carried[number] = call_torch(tracer, torch.clone, [carried[number]], row_major)  # type: ignore[call-overload]
    for number in others:
        body.copy(number, torch.contiguous_format)
    return call, carried, body


def _form_of(tracer: Tracer, tree: Value) -> Any:
    """What two trees have in common that differ in their tensors only, to be compared."""
    if isinstance(tree, (TupleValue, ListValue)):
        return tree.python_type(), tuple(_form_of(tracer, item) for item in tree.values(tracer))
    if isinstance(tree, DictValue):
        return tree.cls, tuple((key.concrete(), _form_of(tracer, item)) for key, item in tree.pairs(tracer))
    return torch.Tensor if isinstance(tree, TensorValue) else (tree.python_type(), tree.concrete())


def _refuse_other_form(tracer: Tracer, what: str, one: Value, other: Value) -> None:
    if _form_of(tracer, one) != _form_of(tracer, other):
        raise UnsupportedCall(f"{what} trees of another form, or other numbers", fix=_FIX)


def _refuse_other_type(what: str, one: TensorValue, other: TensorValue) -> None:
    first, second = one.abstract, other.abstract
    kinds = [(x.dtype, x.device, x.dim()) for x in (first, second)]
    if kinds[0] != kinds[1] or first.shape != second.shape:
        raise UnsupportedCall(f"{what} a {one.describe()}, and a {other.describe()}", fix=_FIX)


CONTROL_FLOW: dict[Any, Callable[..., Value]] = {
    torch.cond: cond,
    TORCH.while_loop: while_loop,
    TORCH.scan: scan,
    TORCH.map: map_rows,
}
