"""C1 to C12: what a Capture adds to its graph.

C1 the inputs are those of the graph, in order, with the same types
C2 an input of role "symbol" is a Python number, any other a tensor (of role "number": a float64 without dimensions)
C3 a source ends in a root within 64 steps
C4 symbols have unique names that are identifiers, and lower <= hint <= upper
C5 a literal of a guard holds no reference
C6 a length, a position or a first line is not negative
C7 a document that names a handle is not portable
C8 a custom function has a name of its own, and graphs with as many inputs and outputs as it says; the operands are the
   forward's first inputs; a second function is there for `cond` and `while_loop`, of the same inputs
C9 a node that applies a custom function names one, with its operands and a tuple, and has its results
C10 a check names an output of the graph that is a bool tensor without dimensions
C11 a checkpoint is a range of the graph's nodes
C12 objects that have to be distinct are at two sources at least, each named once
"""

from __future__ import annotations

from collections.abc import Iterator

from stagewire import capture
from stagewire.capture import Capture, Guard, InputRole, Source, Symbol
from stagewire.expr import Dim, is_symbol_name
from stagewire.graph import Arg, HandleRef, Ref, leaves, references
from stagewire.types import TensorType, ValueType
from stagewire.verify.fault import Fault, Faults, Path, duplicates
from stagewire.verify.functions import all_graphs, check_functions
from stagewire.verify.graphs import check_graph
from stagewire.verify.types import Symbols, check_arg, check_dim, check_type

_MOST_STEPS = 64


def check_capture(document: Capture) -> Faults:
    symbols = declared_symbols(document.symbols)
    yield from check_graph(document.graph, symbols, ("graph",))
    yield from _check_inputs(document)
    yield from check_symbols(document.symbols, ("symbols",))
    yield from check_functions(document, symbols)
    yield from _check_checks(document)
    yield from _check_checkpoints(document)
    for position, symbol in enumerate(document.symbols):
        yield from _check_source(symbol.source, ("symbols", position))
    for position, guard in enumerate(document.guards):
        yield from _check_guard(guard, symbols, ("guards", position))
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


def declared_symbols(symbols: tuple[Symbol, ...]) -> Symbols:
    return frozenset(symbol.name for symbol in symbols)


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


def _check_guard(guard: Guard, symbols: Symbols, path: Path) -> Faults:
    for source in _sources(guard):
        yield from _check_source(source, path)
    match guard:
        case capture.TensorIs():
            yield from check_type(guard.type, symbols, path)
        case capture.Relation(left, _, right):
            sides: tuple[Dim, Dim] = (left, right)
            for side in sides:
                yield from check_dim(side, symbols, path)
        case capture.Equals():
            yield from _check_literal(guard.value, path)
        case capture.KeysAre():
            for key in guard.keys:
                yield from _check_literal(key, path)
        case capture.Distinct(sources, others):
            count, different = len(sources) + len(others), len({*sources, *others})
            if count < 2 or different < count:
                yield Fault("C12", f"{count} sources, {different} different ones, are to be distinct", path)
        case capture.LengthIs(length=length) if length < 0:
            yield Fault("C6", f"the length {length} is negative", path)
        case _:
            return


def _check_literal(value: Arg, path: Path) -> Faults:
    for name in references(value):
        yield Fault("C5", f"the literal refers to %{name}", path)
    yield from check_arg(value, None, path)


def _check_portable(document: Capture) -> Faults:
    for place, graph in all_graphs(document):
        for position, node in enumerate(graph.nodes):
            for arg in (*node.args, *node.kwargs.values()):
                for name in _handles(arg):
                    message = f"portable, but the handle {name!r} is held by a process"
                    yield Fault("C7", message, (*place, "nodes", position))
        for output in graph.outputs:
            for name in _handles(output):
                yield Fault("C7", f"portable, but the handle {name!r} is held by a process", (*place, "outputs"))
    for position, item in enumerate(document.inputs):
        yield from _check_portable_source(item.source, ("inputs", position))
    for position, guard in enumerate(document.guards):
        for source in _sources(guard):
            yield from _check_portable_source(source, ("guards", position))


def _check_portable_source(source: Source, path: Path) -> Faults:
    for step in _steps(source):
        if isinstance(step, capture.HandleSource):
            yield Fault("C7", f"portable, but {step.name!r} is held by a process", path)


def _handles(arg: Arg) -> Iterator[str]:
    return (leaf.name for leaf in leaves(arg) if isinstance(leaf, HandleRef))
