"""C1 to C12: what a Capture adds to its graph; C8 and C9 are of its custom functions and the nodes that apply them."""

from __future__ import annotations

from collections.abc import Iterator

from stagewire import capture
from stagewire.capture import CONTROL_FLOW, CUSTOM, Capture, CustomFunction, Guard, InputRole, Source, Symbol, Transform
from stagewire.expr import is_symbol_name
from stagewire.graph import Arg, Graph, HandleRef, Node, Ref, Tuple, leaves, references
from stagewire.types import TensorType, ValueType
from stagewire.verify.fault import Fault, Faults, Path, duplicates
from stagewire.verify.graphs import check_graph

_MOST_STEPS = 64


def check_capture(document: Capture) -> Faults:
    yield from check_graph(document.graph, ("graph",))
    yield from _check_inputs(document)
    yield from check_symbols(document.symbols, ("symbols",))
    yield from check_functions(document)
    yield from _check_checks(document)
    yield from _check_checkpoints(document)
    for position, symbol in enumerate(document.symbols):
        yield from _check_source(symbol.source, ("symbols", position))
    for position, guard in enumerate(document.guards):
        yield from _check_guard(guard, ("guards", position))
    if document.portable:
        yield from _check_portable(document)


def _check_checks(document: Capture) -> Faults:
    types = {value.name: value.type for node in document.graph.nodes for value in node.results}
    outputs = document.graph.outputs
    for position, check in enumerate(document.checks):
        output = outputs[check.output] if 0 <= check.output < len(outputs) else None
        type_ = types.get(output.name) if isinstance(output, Ref) else None
        if not isinstance(type_, TensorType) or type_.dtype != "bool" or type_.shape:
            yield Fault("C10", f"output {check.output} is no computed bool without dimensions", ("checks", position))


def _check_checkpoints(document: Capture) -> Faults:
    for position, part in enumerate(document.checkpoints):
        if not 0 <= part.first <= part.last <= len(document.graph.nodes):
            yield Fault("C11", f"there are no nodes {part.first} to {part.last}", ("checkpoints", position))


def _check_inputs(document: Capture) -> Faults:
    if len(document.inputs) != len(document.graph.inputs):
        message = f"{len(document.inputs)} inputs, but the graph takes {len(document.graph.inputs)}"
        yield Fault("C1", message, ("inputs",))
    for position, (item, value) in enumerate(zip(document.inputs, document.graph.inputs, strict=False)):
        path: Path = ("inputs", position)
        if item.value != value:
            yield Fault("C1", f"input {position} is %{item.value.name}, the graph's is another value", path)
        if not _fits(item.role, item.value.type):
            yield Fault("C2", f"an input of role {item.role!r} has type {item.value.type}", path)
        yield from _check_source(item.source, path)


def _fits(role: InputRole, type_: ValueType) -> bool:
    if not isinstance(type_, TensorType):
        return role == "symbol"
    return role != "symbol" and (role != "number" or (type_.dtype == "float64" and not type_.shape))


def check_symbols(symbols: tuple[Symbol, ...], path: Path) -> Faults:
    """C4."""
    for position, name in duplicates(symbol.name for symbol in symbols):
        yield Fault("C4", f"the symbol {name!r} is declared twice or has no name", (*path, position))
    for position, symbol in enumerate(symbols):
        if symbol.name and not is_symbol_name(symbol.name):
            yield Fault("C4", f"{symbol.name!r} is no name of a symbol", (*path, position))
        low, high = symbol.lower, symbol.upper
        ends = [end for end in (low, symbol.hint, high) if end is not None]
        if ends != sorted(ends):
            message = f"{symbol.name}: lower {low}, hint {symbol.hint}, upper {high} are out of order"
            yield Fault("C4", message, (*path, position))


def _steps(source: Source) -> Iterator[Source]:
    """The source, then what it is read from, down to its root."""
    current: Source | None = source
    while current is not None:
        yield current
        match current:
            case capture.Cell(function=function):
                current = function
            case _:
                current = getattr(current, "base", None)


def _check_source(source: Source | None, path: Path) -> Faults:
    if source is None:
        return
    for number, step in enumerate(_steps(source)):
        if number > _MOST_STEPS:
            yield Fault("C3", f"the source has more than {_MOST_STEPS} steps", path)
            return
        if isinstance(step, capture.DictKey | capture.DictValue) and step.index < 0:
            yield Fault("C6", f"position {step.index} is negative", path)


def _sources(guard: Guard) -> tuple[Source, ...]:
    match guard:
        case capture.SameObject(first, second):
            return (first, second)
        case capture.Distinct(sources, others):
            return (*sources, *others)
        case capture.GlobalState() | capture.Relation():
            return ()
        case _:
            return (guard.source,)


def _check_guard(guard: Guard, path: Path) -> Faults:
    for source in _sources(guard):
        yield from _check_source(source, path)
    match guard:
        case capture.Equals() | capture.KeysAre():
            for literal in (guard.value,) if isinstance(guard, capture.Equals) else guard.keys:
                for name in references(literal):
                    yield Fault("C5", f"the literal refers to %{name}", path)
        case capture.Distinct(sources, others):
            count, different = len(sources) + len(others), len({*sources, *others})
            if count < 2 or different < count:
                yield Fault("C12", f"{count} sources, {different} different ones, are to be distinct", path)
        case capture.LengthIs(length=length) if length < 0:
            yield Fault("C6", f"the length {length} is negative", path)
        case _:
            return


def _check_portable(document: Capture) -> Faults:
    args: list[tuple[Path, Arg]] = []
    for place, graph in all_graphs(document):
        for position, node in enumerate(graph.nodes):
            args += [((*place, "nodes", position), arg) for arg in (*node.args, *node.kwargs.values())]
        args += [((*place, "outputs"), arg) for arg in graph.outputs]
    for path, arg in args:
        for leaf in leaves(arg):
            if isinstance(leaf, HandleRef):
                yield Fault("C7", f"portable, but the handle {leaf.name!r} is held by a process", path)
    for position, item in enumerate(document.inputs):
        for step in _steps(item.source):
            if isinstance(step, capture.HandleSource):
                yield Fault("C7", f"portable, but {step.name!r} is held by a process", ("inputs", position))


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
