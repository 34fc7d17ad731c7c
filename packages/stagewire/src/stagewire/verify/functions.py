"""C8 and C9: the custom functions of a Capture, and the nodes that apply them."""

from __future__ import annotations

from collections.abc import Iterator

from stagewire.capture import CONTROL_FLOW, CUSTOM, Capture, CustomFunction, Transform
from stagewire.graph import Graph, Node, Tuple
from stagewire.verify.fault import Fault, Faults, Path, duplicates
from stagewire.verify.graphs import check_graph

# Kinds whose node is given tangents behind the arguments, or a predicate.
_MORE = frozenset({"jvp", "vjp", "cond"})
# Kinds that take two functions.
_OF_TWO = frozenset({"cond", "while_loop"})


def check_functions(document: Capture) -> Faults:
    for position, name in duplicates(function.name for function in document.functions):
        yield Fault("C8", f"the function {name!r} is defined twice or has no name", ("functions", position))
    for position, function in enumerate(document.functions):
        path: Path = ("functions", position)
        for part, graph in function.graphs.items():
            yield from check_graph(graph, (*path, part))
        yield from _check_counts(function, path)
    known = {CUSTOM + function.name: function for function in document.functions}
    for place, graph in all_graphs(document):
        for number, node in enumerate(graph.nodes):
            if node.target.startswith(CUSTOM):
                yield from _check_node(node, known.get(node.target), (*place, "nodes", number))


def all_graphs(document: Capture) -> Iterator[tuple[Path, Graph]]:
    """Every graph of a capture with its place."""
    yield ("graph",), document.graph
    for position, function in enumerate(document.functions):
        for part, graph in function.graphs.items():
            yield ("functions", position, part), graph


def _check_transform(function: CustomFunction, transform: Transform, path: Path) -> Faults:
    arguments, outputs = transform.arguments, transform.outputs
    has_operands = function.operands >= arguments if transform.kind in _MORE else function.operands == arguments
    if not has_operands or arguments > len(function.forward.inputs) or outputs > len(function.forward.outputs):
        message = f"a transform of {arguments} arguments and {outputs} outputs"
        yield Fault("C8", f"{message}, which the function has not", path)
    yield from _check_second(function, transform, path)
    for number in transform.wanted:
        if not 0 <= number < arguments:
            yield Fault("C8", f"there is no argument {number}", path)


def _check_second(function: CustomFunction, transform: Transform, path: Path) -> Faults:
    second, kind = function.second, transform.kind
    if (second is not None) != (kind in _OF_TWO):
        yield Fault("C8", f"{kind} takes {'two functions' if kind in _OF_TWO else 'one function'}", path)
    elif second is not None:
        counts = len(second.inputs), len(second.outputs)
        right = len(function.forward.inputs), 1 if kind == "while_loop" else transform.outputs
        if counts != right:
            message = f"the second function takes {counts[0]} values and gives {counts[1]}"
            yield Fault("C8", f"{message}, not {right[0]} and {right[1]}", path)
    if kind in CONTROL_FLOW:
        carried = transform.outputs if kind == "while_loop" else transform.carried
        if not 0 <= carried <= transform.arguments or not carried <= transform.outputs == function.results:
            message = f"{kind} of {transform.arguments} arguments and {transform.outputs} outputs"
            yield Fault("C8", f"{message} has {function.results} results", path)


def _check_counts(function: CustomFunction, path: Path) -> Faults:
    if function.transform is not None:
        yield from _check_transform(function, function.transform, path)
        return
    kept = len(function.forward.outputs) - function.results
    if function.operands > len(function.forward.inputs) or not 0 <= function.saved <= max(kept, 0) or kept < 0:
        counts = f"{function.operands} operands, {function.results} results, {function.saved} saved"
        yield Fault("C8", f"{counts}, which the forward has not", path)
    backward = function.backward
    if backward is not None and (
        len(backward.inputs) != function.results + kept or len(backward.outputs) != function.operands
    ):
        message = f"the backward takes {len(backward.inputs)} values and gives {len(backward.outputs)}"
        yield Fault("C8", f"{message}, not {function.results + kept} and {function.operands}", path)
    for number in (*function.non_differentiable, *function.written):
        if not 0 <= number < function.results:
            yield Fault("C8", f"there is no result {number}", path)


def _check_node(node: Node, function: CustomFunction | None, path: Path) -> Faults:
    if function is None:
        yield Fault("C9", f"{node.target} is no function of this document", path)
        return
    taken = function.operands if function.transform is None else function.transform.arguments
    captured = len(function.forward.inputs) - taken
    last = node.args[-1] if node.args else None
    if len(node.args) != function.operands + 1 or not isinstance(last, Tuple) or len(last.items) != captured:
        message = f"{node.target} takes {function.operands} operands and a tuple of {captured}"
        yield Fault("C9", message, path)
    if len(node.results) != function.results:
        yield Fault("C9", f"{node.target} has {function.results} results, not {len(node.results)}", path)
