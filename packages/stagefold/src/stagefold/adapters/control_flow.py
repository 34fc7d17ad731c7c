"""torch's operators of control flow in a GraphModule, whose functions are graphs, as functions of the capture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from absint import AbstractTensor, to_wire
from absint.control_flow import History, is_differentiable
from absint.symbolic import dim_of
from stagewire.capture import CUSTOM, CustomFunction, Transform
from stagewire.graph import Graph, Node, Ref, Tuple, Value, free_names

if TYPE_CHECKING:
    from stagefold.adapters.from_fx import Recording

Function = Callable[..., Any]


def cond(recording: Recording, pred: Any, true_fn: Function, false_fn: Function, operands: Any = ()) -> Any:
    """`torch.ops.higher_order.cond`; what is known of sizes is decided, and guarded."""
    if not isinstance(pred, torch.Tensor):
        return (true_fn if pred else false_fn)(*operands)
    bodies = [_run(recording, function, operands) for function in (true_fn, false_fn)]
    return _record(recording, "cond", [pred], [], bodies)


def while_loop(recording: Recording, cond_fn: Function, body_fn: Function, carried: Any, more: Any = ()) -> Any:
    """`torch.ops.higher_order.while_loop`."""
    own = [_argument(recording, x, is_carried=True) for x in carried]
    bodies = [_run(recording, function, (*own, *more)) for function in (body_fn, cond_fn)]
    return _record(recording, "while_loop", carried, own, bodies)


def scan(recording: Recording, combine_fn: Function, init: Any, xs: Any, additional_inputs: Any = ()) -> Any:
    """`torch.ops.higher_order.scan`."""
    own = [_argument(recording, x, is_carried=True) for x in init]
    own += [_argument(recording, x.select(0, 0), is_carried=False) for x in xs]
    body = _run(recording, combine_fn, (*own, *additional_inputs))
    return _record(recording, "scan", [*init, *xs], own, [body], len(init), xs[0].shape[0])


def map_rows(recording: Recording, f: Function, xs: Any, pos_args: Any = ()) -> Any:
    """`torch.ops.higher_order.map_impl`."""
    return scan(recording, f, (), xs, pos_args)


_Body = tuple[tuple[Node, ...], list[AbstractTensor]]


def _argument(recording: Recording, like: Any, *, is_carried: bool) -> AbstractTensor:
    if not isinstance(like, AbstractTensor):
        raise recording.unsupported(f"control flow that carries a {type(like).__name__}")
    grad = is_carried and torch.is_grad_enabled() and is_differentiable(like)
    kind = to_wire(like.meta, requires_grad=like.requires_grad or grad)
    return recording.twin(Value(recording.new_name("argument"), kind))


def _run(recording: Recording, function: Function, args: Sequence[Any]) -> _Body:
    """The nodes of a function, and its outputs."""
    outer, recording.nodes = recording.nodes, []
    try:
        with recording:
            found = function(*args)
        outputs = [found] if isinstance(found, torch.Tensor) else list(found)
        if not all(isinstance(output, torch.Tensor) for output in outputs):
            raise recording.unsupported("control flow over functions that give something else than tensors")
        return tuple(recording.nodes), outputs
    finally:
        recording.nodes = outer


def _value(name: str, tensor: AbstractTensor) -> Value:
    return Value(name, to_wire(tensor.meta, requires_grad=tensor.requires_grad))


def _record(
    recording: Recording,
    kind: Any,
    operands: Sequence[Any],
    own: Sequence[AbstractTensor],
    bodies: Sequence[_Body],
    carried: int = 0,
    length: Any = 0,
) -> Any:
    arguments = [recording.encode(x).name for x in own]
    outputs = [[recording.encode(x) for x in found] for _, found in bodies]
    nodes = [node for body, _ in bodies for node in body]
    captured = free_names(nodes, [ref for refs in outputs for ref in refs], arguments)
    known = recording.tensors_by_name
    inputs = tuple([_value(name, known[name]) for name in (*arguments, *captured)])
    graphs = [Graph(inputs, nodes, tuple(refs)) for (nodes, _), refs in zip(bodies, outputs, strict=True)]
    types, count = bodies[0][1], carried if kind == "scan" else len(bodies[0][1])
    results = [torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device) for x in types[:count]]
    results += [torch.empty((length, *x.shape), dtype=x.dtype, device=x.device) for x in types[count:]]
    sources = [x for x in (*operands, *[known[name] for name in captured]) if x.requires_grad]
    if sources and torch.is_grad_enabled():
        results = History.apply(len(results), *results, *sources)
    options: dict[str, Any] = {"carried": carried, "length": dim_of(length)}
    function = CustomFunction(
        name=recording.new_name(kind),
        operands=len(operands),
        results=len(results),
        forward=graphs[0],
        second=graphs[1] if len(graphs) > 1 else None,
        transform=Transform(kind=kind, arguments=len(own), outputs=len(results), **options),
    )
    recording.functions.append(function)
    args = (*map(recording.encode, operands), Tuple(tuple(map(Ref, captured))))
    recording.add(CUSTOM + function.name, args, {}, results)
    return tuple(results)
