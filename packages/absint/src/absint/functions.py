"""The custom functions of a Capture as callables: `torch.autograd.Function`s made from their graphs.

apply    ::= name(*operands, captured)          captured: a tuple, which autograd does not look into
forward  ::= run keep return                    the kept values are saved tensors, then plain ones
backward ::= run return

A function with a transform is torch's own transform of its graph (on real tensors, on abstract ones, and on those of a
tracer `torch.func` turns into ordinary operations), or what `absint.control_flow` makes of its graphs.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn

import torch
from torch.autograd.function import once_differentiable

from absint.control_flow import run_control_flow
from absint.errors import SymbolicSize, UnknownTarget, WrongResults
from absint.forms import symbolic_form
from absint.meta import leaves
from absint.targets import resolve
from absint.wire import from_arg
from stagewire.capture import CONTROL_FLOW, CUSTOM, CustomFunction, Transform
from stagewire.expr import Expr, evaluate
from stagewire.graph import Graph, Node
from stagewire.symbols import bind_sizes
from stagewire.types import ScalarType

Body = Callable[..., tuple[Any, ...]]


def _vmap(of: Transform, body: Body, operands: tuple[Any, ...]) -> tuple[Any, ...]:
    mapped = torch.func.vmap(body, of.in_dims, of.out_dims, of.randomness, chunk_size=of.chunk_size)
    return tuple(mapped(*operands))


def _split(transform: Transform, body: Body) -> Callable[..., tuple[Any, Any]]:
    """The function's outputs, and what it gives besides them."""

    def function(*arguments: Any) -> tuple[Any, Any]:
        found = body(*arguments)
        return found[: transform.outputs], found[transform.outputs :]

    return function


def _grad(transform: Transform, body: Body, operands: tuple[Any, ...]) -> tuple[Any, ...]:
    def function(*arguments: Any) -> tuple[Any, Any]:
        value, *rest = body(*arguments)
        return value, tuple(rest)

    gradients, (value, rest) = torch.func.grad_and_value(function, transform.wanted, has_aux=True)(*operands)
    return (*gradients, value, *rest)


def _jvp(transform: Transform, body: Body, operands: tuple[Any, ...]) -> tuple[Any, ...]:
    count = transform.arguments
    outputs, tangents, rest = torch.func.jvp(_split(transform, body), operands[:count], operands[count:], has_aux=True)
    return (*outputs, *tangents, *rest)


def _dual_level(transform: Transform, body: Body, operands: tuple[Any, ...]) -> tuple[Any, ...]:
    with torch.autograd.forward_ad.dual_level():
        return body(*operands)


def _vjp(transform: Transform, body: Body, operands: tuple[Any, ...]) -> tuple[Any, ...]:
    count = transform.arguments
    _, pull_back, _ = torch.func.vjp(_split(transform, body), *operands[:count], has_aux=True)
    return tuple(pull_back(operands[count:]))


def _jacobian(transform: Transform, body: Body, operands: tuple[Any, ...]) -> tuple[Any, ...]:
    if transform.kind == "jacrev":
        derive = partial(torch.func.jacrev, chunk_size=transform.chunk_size)
    else:
        derive = partial(torch.func.jacfwd, randomness=transform.randomness)
    rows, rest = derive(_split(transform, body), transform.wanted, has_aux=True)(*operands)
    return (*[entry for row in rows for entry in row], *rest)


_KINDS: dict[str, Callable[[Transform, Body, tuple[Any, ...]], tuple[Any, ...]]] = {
    "call": lambda transform, body, operands: body(*operands),
    "vmap": _vmap,
    "grad": _grad,
    "jvp": _jvp,
    "dual_level": _dual_level,
    "vjp": _vjp,
    "jacrev": _jacobian,
    "jacfwd": _jacobian,
}
"""By kind of transform, its results for a body that takes and gives flat tensors, flattened."""


Functions = Mapping[str, Callable[..., Any]]
SizeOf = Callable[[Expr], Any]
"""From a size expression to its value: a number where the sizes are known, else a symbolic size."""
ValueOf = Callable[[Any], Any]
"""From a reference or a size expression of a graph to what it stands for."""


def no_symbols(size: Expr) -> NoReturn:
    """The `SizeOf` of a graph without symbols."""
    raise SymbolicSize(f"the size {size} is symbolic")


def read_sizes(graph: Graph, inputs: Sequence[Any], values: Mapping[str, Any]) -> SizeOf:
    """Sizes as the inputs have them, and the numbers that nodes gave, which are among `values`."""
    return partial(evaluate, values=ChainMap(bind_sizes(graph.inputs, inputs), values))  # type: ignore[arg-type]


def custom_functions(
    functions: tuple[CustomFunction, ...], size_of: SizeOf = no_symbols, instead: Functions | None = None
) -> dict[str, Callable[..., Any]]:
    """What the targets `custom.<name>` call; a function may apply those that stand before it.

    instead: what their graphs call in place of these targets.
    """
    made: dict[str, Callable[..., Any]] = {}
    for function in functions:
        means = _differentiable if function.transform is None else _transformed
        made[CUSTOM + function.name] = means(function, {**(instead or {}), **made}, size_of)
    return made


def _transformed(function: CustomFunction, known: Functions, size_of: SizeOf) -> Callable[..., Any]:
    transform = function.transform
    assert transform is not None

    def apply(*arguments: Any) -> tuple[Any, ...]:
        *operands, captured = arguments

        def body(graph: Graph) -> Callable[..., tuple[Any, ...]]:
            return lambda *given: run_graph(graph, (*given, *captured), known, size_of)

        if transform.kind in CONTROL_FLOW:
            return run_control_flow(function, body, operands, captured)
        return _KINDS[transform.kind](transform, body(function.forward), tuple(operands))

    return apply


def _differentiable(function: CustomFunction, known: Functions, size_of: SizeOf) -> Callable[..., Any]:
    def forward(ctx: Any, *arguments: Any) -> tuple[Any, ...]:
        *operands, captured = arguments
        outputs = run_graph(function.forward, (*operands, *captured), known, size_of)
        results, kept = outputs[: function.results], outputs[function.results :]
        ctx.save_for_backward(*kept[: function.saved])
        ctx.kept = kept[function.saved :]
        if function.written:
            ctx.mark_dirty(*[results[number] for number in function.written])
        if function.non_differentiable:
            ctx.mark_non_differentiable(*[results[number] for number in function.non_differentiable])
        return results

    def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
        if function.backward is None:
            raise RuntimeError(
                f"{function.name} was captured without its backward: nothing required grad, or it could not be "
                "evaluated as part of the gradient of a gradient"
            )
        found = run_graph(function.backward, (*gradients, *ctx.saved_tensors, *ctx.kept), known, size_of)
        return (*found, None)

    members = {
        "forward": staticmethod(forward),
        "backward": staticmethod(once_differentiable(backward) if function.once else backward),
    }
    made = type(torch.autograd.Function)(function.name, (torch.autograd.Function,), members)
    # Function.apply itself is Python that looks for functorch wrappers in every argument; this is what it calls.
    return super(torch.autograd.Function, made).apply


def run_graph(
    graph: Graph,
    inputs: Sequence[Any],
    functions: Functions,
    size_of: SizeOf = no_symbols,
    call: Callable[[Node, ValueOf], Any] | None = None,
    values: dict[str, Any] | None = None,
) -> tuple[Any, ...]:
    """The outputs of a graph of torch calls on these inputs, call by call: the meaning of a Capture's graph.

    size_of: the values of size expressions (`read_sizes`).
    call: makes the call of a node, for one who does more than to call its function.
    values: takes what every name of the graph stands for.
    """
    values = {} if values is None else values
    values.update({value.name: given for value, given in zip(graph.inputs, inputs, strict=True)})

    def value_of(leaf: Any) -> Any:
        return size_of(leaf) if isinstance(leaf, Expr) else values[leaf.name]

    for node in graph.nodes:
        made = call_node(node, value_of, function_of(node, functions)) if call is None else call(node, value_of)
        found = results_of(node, made)
        values.update({value.name: x for value, x in zip(node.results, as_many(node, found), strict=True)})
    return tuple([from_arg(output, value_of) for output in graph.outputs])


def call_node(node: Node, value_of: ValueOf, function: Callable[..., Any]) -> Any:
    """What `function` gives for the arguments of a node."""
    kwargs = {key: from_arg(arg, value_of) for key, arg in node.kwargs.items()}
    return function(*[from_arg(arg, value_of) for arg in node.args], **kwargs)


def function_of(node: Node, functions: Functions) -> Callable[..., Any]:
    """What a node calls. Raises `UnknownTarget`."""
    if node.target in functions:
        return functions[node.target]
    if gives_number(node):
        return symbolic_form(resolve(node.target))
    if not node.target.startswith(CUSTOM):
        return resolve(node.target)
    known = ", ".join(name for name in functions if name.startswith(CUSTOM))
    raise UnknownTarget(f"{node.target} is no function of the document; it has {known or 'none'}")


def gives_number(node: Node) -> bool:
    """Whether the node's result is a Python number."""
    return bool(node.results) and isinstance(node.results[0].type, ScalarType)


def results_of(node: Node, made: Any) -> list[Any]:
    """What the call of a node gave, in the order of its results."""
    return [made] if gives_number(node) else list(tensor_leaves(made))


def as_many(node: Node, found: list[Any]) -> list[Any]:
    """What the call of a node gave, as many results as the node says."""
    if len(found) != len(node.results):
        message = f"{node.target} gave {len(found)} results where the graph has {len(node.results)}"
        raise WrongResults(message, where=node.line)
    return found


def tensor_leaves(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in a returned value, flattened in order: the results of a node."""
    return (leaf for leaf in leaves(value) if isinstance(leaf, torch.Tensor))
