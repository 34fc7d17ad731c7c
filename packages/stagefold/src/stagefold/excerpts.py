"""Documents cut down: some steps of a graph as a document of its own, and the fewest steps that still do something.

excerpt ::= steps, whose other operands are inputs and whose results that anybody reads are results
            a size symbol that is the size of none of these is an input as well

And documents with less in them, which `stagefold.reduction` tries. None of these need be valid.

shrunk ::= one size, wherever it stands, with a smaller number in its place
         | a kernel without some statements (a number stands where one of these was read)
         | a kernel without axes of one point
         | a call without an argument that is given by name, or with a plainer number among its arguments
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from stagewire import index as ix
from stagewire import loop
from stagewire.capture import Capture, Input, InputRole, Local, Symbol
from stagewire.codec import Document
from stagewire.grad import Binding, BoundInput, Fresh, Grad
from stagewire.graph import Graph, List, Node, Ref, Tuple, Value, leaves, map_arg, node_references, references
from stagewire.prim import Prim
from stagewire.statements import buffers_of, map_indices, map_operands, results, writes_of
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


def part_of(document: Document, graph: Graph | loop.LoopGraph) -> Part:
    """A graph of a document."""
    if isinstance(graph, loop.LoopGraph):
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


def _alone(document: Grad | Prim | loop.Loop, inputs: Sequence[Value], graph: Graph | loop.LoopGraph) -> Binding:
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


def apart(graph: loop.LoopGraph) -> loop.LoopGraph:
    """The same loops, no buffer in the memory of another."""
    steps = tuple(step for step in graph.steps if not isinstance(step, loop.Free))
    return replace(graph, buffers=tuple(replace(buffer, reuse=None) for buffer in graph.buffers), steps=steps)


def _kernels(document: Any, graph: loop.LoopGraph) -> Part:
    whole = apart(graph)
    steps: Any = whole.steps
    buffers = {buffer.name: buffer for buffer in whole.buffers}
    roots = {name: buffer.base or name for name, buffer in buffers.items()}
    owners = [name for name, root in roots.items() if name == root]
    writes = [{roots[name] for name in writes_of(step)} for step in steps]
    names = [step.target if isinstance(step, loop.Extern) else step.name for step in steps]

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
        part = loop.LoopGraph(buffers=tuple(kept), inputs=(), outputs=tuple(map(Ref, made)), steps=own)
        numbers = _numbers(given, symbols_in(part))
        names = tuple(value.name for value in (*numbers, *given))
        part = replace(part, inputs=names, symbols=tuple(value.name for value in numbers))
        binding = _alone(document, (*numbers, *given), part)
        return loop.Loop(binding=binding, forward=part), names

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


Graphs = Graph | loop.LoopGraph
_SMALL = (1, 2, 3)
_SIZED: dict[type, tuple[str, ...]] = {
    TensorType: ("shape", "stride", "storage_offset"), loop.Axis: ("size",), loop.Index: ("constant", "terms"),
    loop.Term: ("coefficient", "atom"), **dict.fromkeys((loop.FloorDivAtom, loop.ModAtom), ("numerator", "divisor")),
}  # fmt: skip
"""The fields that are numbers of elements, or have such in them."""


def graphs_of(document: Document) -> dict[str, Any]:
    """The graphs of a document, by field."""
    fields = ("graph", "joint", "forward", "backward")
    return {
        name: graph for name in fields if isinstance(graph := getattr(document, name, None), Graph | loop.LoopGraph)
    }


def smaller_sizes(document: Document) -> Iterator[Document]:
    """With a smaller number for a size, the largest first, or for a prime factor of sizes, also where it is a factor
    of others and of strides.

    So the product of two sizes stays the product of both. Numbers in lists of arguments are sizes, or else they stay.
    """
    sizes = sorted(_sizes_in(document), reverse=True)
    primes = sorted({factor for size in sizes for factor in _prime_factors(size)}, reverse=True)
    for old in dict.fromkeys((*sizes, *primes)):
        for new in (small for small in _SMALL if small < old):
            yield _with_size(document, old, new, True)
            yield _with_size(document, old, new, False)


def _sizes_in(value: Any) -> set[int]:
    """The sizes of dimensions and axes, above 1."""
    match value:
        case TensorType():
            return {size for size in value.shape if type(size) is int and size > 1}
        case loop.Axis(size=int() as size):
            return {size} - {0, 1}
        case msgspec.Struct():
            return _sizes_in(tuple([getattr(value, name) for name in value.__struct_fields__]))
        case tuple() | dict():
            return set().union(*map(_sizes_in, value.values() if isinstance(value, dict) else value))
    return set()


def _prime_factors(number: int) -> set[int]:
    found, factor = set(), 2
    while factor * factor <= number:
        while number % factor == 0:
            found.add(factor)
            number //= factor
        factor += 1
    return found | ({number} - {1})


def _with_size(value: Any, old: int, new: int, in_arguments: bool) -> Any:
    def scaled(number: Any) -> Any:
        if type(number) is not int or number == 0 or number % old:
            return number
        return scaled(number // old) * new

    def visit(part: Any) -> Any:
        match part:
            case tuple():
                return tuple(map(visit, part))
            case dict():
                return {key: visit(one) for key, one in part.items()}
            case Node() if in_arguments:
                part = _map_arguments(part, lambda arg: map_arg(arg, scaled) if isinstance(arg, List | Tuple) else arg)
                return replace(part, results=visit(part.results))
            case loop.Index() | loop.Term() | loop.FloorDivAtom() | loop.ModAtom() | TensorType() | loop.Axis():
                return replace(part, **{name: sized(getattr(part, name)) for name in _SIZED[type(part)]})
            case msgspec.Struct():
                return replace(part, **{name: visit(getattr(part, name)) for name in part.__struct_fields__})
        return part

    def sized(part: Any) -> Any:
        return tuple(map(sized, part)) if isinstance(part, tuple) else scaled(visit(part))

    return visit(value)


def _map_arguments(node: Node, change: Callable[[Any], Any]) -> Node:
    return replace(
        node, args=tuple(map(change, node.args)), kwargs={key: change(arg) for key, arg in node.kwargs.items()}
    )


def statement_count(kernel: loop.Kernel) -> int:
    """How many statements its sections have."""
    return sum(len(section.statements) for section in kernel.sections)


def with_statements(kernel: loop.Kernel, chosen: Sequence[int]) -> loop.Kernel:
    """With some of its statements alone, by number; a number stands where the result of another one was read, and a
    mask that is none of theirs is left away."""
    kept = set(chosen)
    defined = set[str]()
    sections, number = [], 0
    for section in kernel.sections:
        own = []
        for statement in section.statements:
            if number in kept:
                own.append(_closed(statement, defined))
                defined.update(results(statement))
            number += 1
        if own:
            sections.append(loop.Section(section.axes, tuple(own)))
    return replace(kernel, sections=tuple(sections))


def _closed(statement: loop.Statement, defined: set[str]) -> loop.Statement:
    """It reads nothing else than what is defined."""
    mask = getattr(statement, "mask", None)
    if isinstance(statement, loop.Load | loop.Store) and isinstance(mask, Ref) and mask.name not in defined:
        statement = replace(statement, mask=None)
    return map_operands(statement, lambda one: 1 if isinstance(one, Ref) and one.name not in defined else one)


def without_single_points(kernel: loop.Kernel) -> loop.Kernel:
    """Without the axes of one point."""
    every = (*kernel.axes, *(axis for section in kernel.sections for axis in section.axes))
    names = {axis.name for axis in every if axis.size == 1} - {axis.name for axis in every if axis.size != 1}
    zeros = dict.fromkeys(names, ix.ZERO)

    def left(axes: tuple[loop.Axis, ...]) -> tuple[loop.Axis, ...]:
        return tuple(axis for axis in axes if axis.name not in names)

    def at_zero(statement: loop.Statement) -> loop.Statement:
        return map_indices(statement, lambda index: ix.inline(index, zeros))

    sections = tuple(loop.Section(left(one.axes), tuple(map(at_zero, one.statements))) for one in kernel.sections)
    return replace(kernel, axes=left(kernel.axes), sections=sections)


def plainer_calls(node: Node) -> Iterator[Node]:
    """With one argument less of those by name, or one plainer number."""
    for key in node.kwargs:
        yield replace(node, kwargs={name: arg for name, arg in node.kwargs.items() if name != key})
    for position, number in enumerate(_numbers_of(node)):
        plain = (False,) if number is True else () if number in (0, 1) else (0, 1)
        yield from (_with_number(node, position, type(number)(other)) for other in plain)


def _numbers_of(node: Node) -> list[Any]:
    arguments = (*node.args, *node.kwargs.values())
    return [leaf for arg in arguments for leaf in leaves(arg) if type(leaf) in (bool, int, float)]


def _with_number(node: Node, position: int, number: Any) -> Node:
    left = [position]

    def change(leaf: Any) -> Any:
        if type(leaf) not in (bool, int, float):
            return leaf
        left[0] -= 1
        return number if left[0] == -1 else leaf

    return _map_arguments(node, lambda arg: map_arg(arg, change))
