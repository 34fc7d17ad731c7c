"""Documents cut down: some steps of a graph as a document of its own, and the fewest steps that still do something.

excerpt ::= steps, whose other operands are inputs and whose results that anybody reads are results
            a size symbol that is the size of none of these is an input as well
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from msgspec.structs import replace

from stagewire.capture import Capture, Input, InputRole, Local, Symbol
from stagewire.codec import Document
from stagewire.grad import Binding, BoundInput, Fresh, Grad
from stagewire.graph import Graph, Ref, Value, node_references, references
from stagewire.loop import Extern, Free, Loop, LoopGraph
from stagewire.prim import Prim
from stagewire.statements import buffers_of, writes_of
from stagewire.substitution import symbols_in
from stagewire.symbols import symbol_places
from stagewire.types import ScalarType, TensorType


class NotApart(Exception):
    """Steps that cannot be looked at without others."""


@dataclasses.dataclass(frozen=True)
class Part:
    """One graph of a document, of which any steps can be taken out.

    count: of its steps. excerpt: the document of some steps alone, and the names of its inputs in the graph; raises
    `NotApart`. callees: what some steps call, or the names of their kernels.
    """

    count: int
    excerpt: Callable[[tuple[int, ...]], tuple[Document, tuple[str, ...]]]
    callees: Callable[[tuple[int, ...]], tuple[str, ...]]


def parts_of(document: Document) -> Iterator[Part]:
    """The graphs of a document; none of a program, whose text is one."""
    return (part_of(document, graph) for graph in graphs_of(document).values())


def graphs_of(document: Document) -> dict[str, Any]:
    """The graphs of a document, by field."""
    fields = ("graph", "joint", "forward", "backward")
    return {name: graph for name in fields if isinstance(graph := getattr(document, name, None), Graph | LoopGraph)}


def part_of(document: Document, graph: Graph | LoopGraph) -> Part:
    """A graph of a document."""
    if isinstance(graph, LoopGraph):
        return _kernels(document, graph)
    if isinstance(document, Capture):
        return _calls(document, graph, lambda own: _capture(document, own))
    if not isinstance(document, (Grad, Prim)):
        raise NotApart
    kind, field = type(document), "forward" if document.joint is None else "joint"
    more = {"opset": document.opset} if isinstance(document, Prim) else {}
    return _calls(document, graph, lambda own: kind(binding=_alone(document, own.inputs, own), **{field: own}, **more))


def _capture(document: Capture, own: Graph) -> Capture:
    inputs = tuple(Input(value, Local(value.name), _role(value)) for value in own.inputs)
    symbols = _among(document.symbols, symbols_in(own))
    return replace(document, inputs=inputs, graph=own, symbols=symbols, guards=(), checks=(), checkpoints=())


def _alone(document: Grad | Prim | Loop, inputs: Sequence[Value], graph: Graph | LoopGraph) -> Binding:
    """How a graph meets a caller who gives each of its inputs and is given each of its results, without gradients."""
    used, whole = symbols_in(graph), document.binding
    facts = tuple(one for one in whole.facts if symbols_in(one) <= used)
    return Binding(
        inputs=tuple(BoundInput(value.name, value.type, _role(value)) for value in inputs),
        outputs=tuple(map(Fresh, range(len(graph.outputs)))), symbols=_among(whole.symbols, used), facts=facts,
    )  # fmt: skip


def _role(value: Value) -> InputRole:
    return "symbol" if isinstance(value.type, ScalarType) else "tensor"


def _among(symbols: tuple[Symbol, ...], used: set[str]) -> tuple[Symbol, ...]:
    return tuple(symbol for symbol in symbols if symbol.name in used)


def _numbers(taken: Sequence[Value], used: set[str]) -> list[Value]:
    """Inputs for the symbols that are the size of nothing that is taken."""
    sized = {name for name, place in symbol_places(taken).items() if place.what != "stride"}
    return [Value(name, ScalarType("int")) for name in sorted(used - sized)]


def _without_gradient(value: Value) -> Value:
    is_trained = isinstance(value.type, TensorType) and value.type.requires_grad
    return replace(value, type=replace(value.type, requires_grad=False)) if is_trained else value


def _calls(document: Document, graph: Graph, wrap: Callable[[Graph], Document]) -> Part:
    types = {value.name: value for value in (*graph.inputs, *(each for node in graph.nodes for each in node.results))}
    returned = {name for output in graph.outputs for name in references(output)}

    def excerpt(chosen: tuple[int, ...]) -> tuple[Document, tuple[str, ...]]:
        nodes = tuple(replace(graph.nodes[number], phase="forward") for number in chosen)
        others = (node for number, node in enumerate(graph.nodes) if number not in set(chosen))
        made = [value for node in nodes for value in node.results if isinstance(value.type, TensorType)]
        used = dict.fromkeys(name for node in nodes for name in node_references(node))
        elsewhere = returned.union(*(node_references(node) for node in others))
        wanted = [value for value in made if value.name in elsewhere or value.name not in used]
        taken = [types[name] for name in used if name not in {value.name for value in made}]
        taken = taken if isinstance(document, Capture) else [_without_gradient(value) for value in taken]
        own = Graph(tuple(taken), nodes, tuple(Ref(value.name) for value in wanted))
        own = replace(own, inputs=(*_numbers(taken, symbols_in(own)), *taken))
        return wrap(own), tuple(value.name for value in own.inputs)

    return Part(len(graph.nodes), excerpt, lambda chosen: tuple(graph.nodes[number].target for number in chosen))


def apart(graph: LoopGraph) -> LoopGraph:
    """The same loops, no buffer in the memory of another."""
    steps = tuple(step for step in graph.steps if not isinstance(step, Free))
    return replace(graph, buffers=tuple(replace(buffer, reuse=None) for buffer in graph.buffers), steps=steps)


def _kernels(document: Any, graph: LoopGraph) -> Part:
    whole = apart(graph)
    steps: Any = whole.steps
    buffers = {buffer.name: buffer for buffer in whole.buffers}
    roots = {name: buffer.base or name for name, buffer in buffers.items()}
    owners = [name for name, root in roots.items() if name == root]
    writes = [{roots[name] for name in writes_of(step)} for step in steps]
    names = [step.target if isinstance(step, Extern) else step.name for step in steps]

    def excerpt(chosen: tuple[int, ...]) -> tuple[Document, tuple[str, ...]]:
        own = tuple(steps[number] for number in chosen)
        made = [name for name in owners if any(name in writes[number] for number in chosen)]
        if any(name in made for number, names in enumerate(writes) if number not in set(chosen) for name in names):
            raise NotApart
        touched = {roots[name] for step in own for name in buffers_of(step)}
        taken = [buffers[name] for name in owners if name in touched and name not in made]
        kept = [replace(buffers[name], role="input") if buffers[name] in taken else buffers[name] for name in buffers]
        kept = [buffer for buffer in kept if roots[buffer.name] in touched]
        given = [_without_gradient(Value(buffer.name, buffer.type)) for buffer in taken]
        part = LoopGraph(buffers=tuple(kept), inputs=(), outputs=tuple(map(Ref, made)), steps=own)
        numbers = _numbers(given, symbols_in(part))
        names = tuple(value.name for value in (*numbers, *given))
        part = replace(part, inputs=names, symbols=tuple(value.name for value in numbers))
        binding = _alone(document, (*numbers, *given), part)
        return Loop(binding=binding, forward=part), names

    return Part(len(steps), excerpt, lambda chosen: tuple(names[number] for number in chosen))


def smallest(items: tuple[int, ...], wrong: Callable[[tuple[int, ...]], bool]) -> tuple[int, ...]:
    """A part of `items`, of which none can be left out; wrong(items) holds (Zeller's ddmin)."""
    pieces = 2
    while len(items) > 1:
        length = math.ceil(len(items) / pieces)
        chunks = [items[start : start + length] for start in range(0, len(items), length)]
        rests = [tuple(one for one in items if one not in chunk) for chunk in chunks] if len(chunks) > 2 else []
        found = next((part for part in (*chunks, *rests) if wrong(part)), None)
        if found is not None:
            pieces = 2 if len(found) <= length else max(pieces - 1, 2)
            items = found
        elif length == 1:
            break
        else:
            pieces = min(pieces * 2, len(items))
    return items
