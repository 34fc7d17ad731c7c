"""Stacks of equal layers: the program of many layers from those of three and four.

    capture(n) ::= head layer^n tail

A capture that repeats its nodes is cut down to few layers, and the stages make programs of these. From one layer to the
next everything in a program stays as it is, or moves on: numbers and names are counted from its start or from its end,
and lists grow by what a layer adds. Where the programs of three and of four layers agree on that, the program of all
layers is what follows; where they do not, the stages carry the whole capture. So the time that the stages take for a
stack is that for seven layers, and the stages know nothing of it.

It is an induction. The layers are the same calls on inputs of the same types: `find_stack` compares all of them. What a
program does for one layer it does for the next, on what that one has at hand: it runs the same kernels, to the letter
of their sources, on what the layer before left, on inputs of the layer, and on what all layers read.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from stagefold.pipeline import Event, Pipeline
from stagewire import Capture, Program
from stagewire.graph import Node, node_references, references
from stagewire.graph_passes import rename_node, unused_name
from stagewire.repetition import repetitions
from stagewire.symbols import symbols_of_type

COUNTS = (3, 4, 5)
"""Of how many layers programs are made, until one agrees with the one before: the first and the last layer have other
neighbours than those between them, and it may take a layer more until buffers take each other's memory as they go on
to do."""

FEWEST = 16
"""Stacks of fewer layers are compiled whole, which takes little more than these twelve."""


def program_of(pipeline: Pipeline, capture: Capture, observe: Callable[[Event], None]) -> Program:
    """The program of a capture, by way of few layers where it is a stack of many that are equal."""
    stack = None if pipeline.is_foreign or pipeline.verify else find_stack(capture)
    few: Program | None = None
    for count in COUNTS if stack is not None else ():
        more = pipeline.run(cut_stack(capture, stack, count), observe=observe)
        grown = None if few is None else grown_program(few, more, capture, stack.count - count)
        if grown is not None:
            return grown
        few = more
    program: Program = pipeline.run(capture, observe=observe)
    return program


# -- the capture


class Stack(NamedTuple):
    """Equal layers in a capture; the first one, which may be special, is layer 0.

    start, period, count: the nodes from number `start` on are `count` layers of `period` nodes each.
    inputs, outputs: the number of the first that is of layer 1, and how many are of each layer.
    """

    start: int
    period: int
    count: int
    inputs: tuple[int, int] = (0, 0)
    outputs: tuple[int, int] = (0, 0)

    def nodes_of(self, layers: range) -> slice:
        """The numbers of the nodes of layers that follow each other."""
        return slice(self.start + self.period * layers.start, self.start + self.period * layers.stop)


def _of(places: tuple[int, int], layers: range) -> slice:
    """The numbers of the inputs or outputs of layers that follow each other, not of layer 0."""
    first, size = places
    return slice(first + size * (layers.start - 1), first + size * (layers.stop - 1))


def find_stack(capture: Capture) -> Stack | None:
    """The equal layers of a capture; None where there are fewer than `FEWEST`, or where they are not alike in what they
    use: what the layer made itself and what the one before it made, inputs of their own, and what all of them use."""
    graph = capture.graph
    if capture.checks or capture.checkpoints or len(graph.nodes) < FEWEST:
        return None
    types = {item.value.name: (item.value.type, item.role) for item in capture.inputs}
    seen: dict[bytes, int] = {}
    kinds = [seen.setdefault(_kind(node, types), len(seen)) for node in graph.nodes]
    found = next((one for one in repetitions(kinds) if one.copies >= FEWEST), None)
    return None if found is None else _with_places(capture, Stack(*found))


def _kind(node: Node, types: Mapping[str, Any]) -> bytes:
    """What a call has in common with that of another layer: all but the names and the line."""
    used = node_references(node)
    blank = rename_node(node, dict.fromkeys(used, ""))
    results, inputs = [value.type for value in node.results], [types.get(name) for name in used]
    return msgspec.json.encode((blank.target, blank.args, blank.kwargs, blank.effect, results, inputs))


_Use = tuple[str, int, int]
"""What is used: ("input", number, 0), or ("node", number of the node, number of its result)."""


def _with_places(capture: Capture, stack: Stack) -> Stack | None:
    """The stack with the places of its inputs and outputs; None where the layers are not alike."""
    graph, (start, period, count, *_) = capture.graph, stack
    known: dict[str, _Use] = {value.name: ("input", place, 0) for place, value in enumerate(graph.inputs)}
    for place, node in enumerate(graph.nodes):
        known.update({value.name: ("node", place, number) for number, value in enumerate(node.results)})
    nodes = [[known[name] for name in node_references(node)] for node in graph.nodes]
    outputs = [[known[name] for name in references(arg)] for arg in graph.outputs]
    inner = range(1, count - 1)
    first, second = (set().union(*nodes[stack.nodes_of(range(layer, layer + 1))]) for layer in (1, 2))
    own = sorted(place for kind, place, _ in first - second if kind == "input")
    mine = range(start + period, start + 2 * period)
    returned = [place for place, used in enumerate(outputs) if any(u[0] == "node" and u[1] in mine for u in used)]
    stack = stack._replace(inputs=(own[0], len(own)) if own else (0, 0))
    stack = stack._replace(outputs=(returned[0], len(returned)) if returned else (0, 0))

    def seen_from(use: _Use, layer: int) -> _Use:
        """A use as it is for all layers that are alike."""
        kind, place, number = use
        own, made = _of(stack.inputs, range(layer, layer + 1)), place - (start + period * layer)
        if kind == "input":
            return ("own", place - own.start, 0) if own.start <= place < own.stop else use
        return ("made", made, number) if place >= start else use

    def seen(layer: int, rows: list[list[_Use]]) -> list[list[_Use]]:
        return [[seen_from(use, layer) for use in used] for used in rows]

    layers = [seen(layer, nodes[stack.nodes_of(range(layer, layer + 1))]) for layer in range(1, count)]
    returns = [seen(layer, outputs[_of(stack.outputs, range(layer, layer + 1))]) for layer in inner]
    if any(layer != layers[0] for layer in layers) or any(row != returns[0] for row in returns):
        return None
    if any(kind == "made" and place < -period for used in layers[0] for kind, place, _ in used):
        return None
    hidden = stack.nodes_of(inner), _of(stack.inputs, inner), _of(stack.outputs, inner)
    behind = stack.nodes_of(range(count)).stop
    others = *nodes[: start + period], *nodes[behind:], *outputs[: hidden[2].start], *outputs[hidden[2].stop :]
    for kind, place, _ in itertools.chain.from_iterable(others):
        if hidden[kind == "input"].start <= place < hidden[kind == "input"].stop:
            return None
    fixed = not any(symbols_of_type(item.value.type) for item in capture.inputs[hidden[1]])
    return stack if fixed else None


def cut_stack(capture: Capture, stack: Stack, count: int) -> Capture:
    """The capture with `count` of the layers: the first ones, and the last one, which is given what the last of those
    left."""
    without = range(count - 1, stack.count - 1)
    nodes, outputs, graph = stack.nodes_of(without), _of(stack.outputs, without), capture.graph
    before, left = (stack.nodes_of(range(layer - 1, layer)) for layer in (without.stop, without.start))
    names = {
        old.name: new.name
        for gone, kept in zip(graph.nodes[before], graph.nodes[left], strict=True)
        for old, new in zip(gone.results, kept.results, strict=True)
    }
    inputs = _without(capture.inputs, _of(stack.inputs, without))
    behind = [rename_node(node, names) for node in graph.nodes[nodes.stop : nodes.stop + stack.period]]
    rest = (*graph.nodes[: nodes.start], *behind, *graph.nodes[nodes.stop + stack.period :])
    given = tuple(item.value for item in inputs)
    cut = replace(graph, inputs=given, nodes=rest, outputs=_without(graph.outputs, outputs))
    return replace(capture, inputs=inputs, graph=cut)


def _without(items: tuple[Any, ...], gone: slice) -> tuple[Any, ...]:
    return items[: gone.start] + items[gone.stop :]


# -- the programs


class _Irregular(Exception):
    """The programs of few layers do not say what that of more is."""


class _Given(int):
    """The number of an input of a unit."""


class _Made(int):
    """The number of another value of a unit, in the order in which they are made, above those of all inputs."""

    FIRST = 1 << 40


Tree = Any
"""Plain data, in which names of values are `_Given` or `_Made`."""

_NUMBERS = (int, _Given, _Made)

_UNITS = ("forward", "backward")
_NAMES = frozenset({"inputs", "written", "buffer", "base", "reuse", "buffers", "results", "parameters"})
"""Fields of a unit that hold names."""
_NAMELESS = frozenset({"type", "input_types", "result_types", "source", "host_source"})


def grown_program(few: Program, more: Program, capture: Capture, layers: int) -> Program | None:
    """The program of a stack of `layers` layers more than `more` has, which has one more than `few`; None where the two
    do not say what it is."""
    (fewer, made), (tree, made_more) = _numbered(few), _numbered(more)
    if (few.backward is None) != (more.backward is None):
        return None
    try:
        tree["binding"] = _Growth(layers, _steps_of_binding(few, more)).of(fewer["binding"], tree["binding"])
        for part, before, after in zip(_UNITS, made, made_more, strict=False):
            one, two = fewer[part], tree[part]
            instructions = len(two["instructions"]) - len(one["instructions"])
            steps = {
                _Given: {len(two["inputs"]) - len(one["inputs"])}, _Made: {after - before},
                "start": {instructions}, "stop": {instructions},
            }  # fmt: skip
            tree[part] = _Growth(layers, steps).of(one, two)
    except _Irregular:
        return None
    names = [item.value.name for item in capture.inputs]
    binding, forward, backward = (tree[part] for part in ("binding", *_UNITS))
    if len(binding["inputs"]) != len(names):
        return None
    given = [*names, *(f"constant_{number}" for number in range(len(binding["constants"])))]
    items = zip([*binding["inputs"], *binding["constants"]], given, strict=True)
    items = [{**item, "name": name} for item, name in items]
    tree["binding"] = {**binding, "inputs": items[: len(names)], "constants": items[len(names) :]}
    tree["forward"] = _named(forward, given)
    if backward is not None:
        tree["backward"] = _named(backward, [saved.get("symbol") for saved in binding["saved"]])
    program = msgspec.convert(tree, Program)
    same = [item.type for item in program.binding.inputs] == [item.value.type for item in capture.inputs]
    return program if same else None


def _steps_of_binding(few: Program, more: Program) -> dict[Any, set[int]]:
    """By how much the numbers in these fields of a binding grow with a layer, where they do."""
    one, two = few.binding, more.binding
    results = len(more.forward.outputs) - len(few.forward.outputs)
    inputs, outputs = len(two.inputs) - len(one.inputs), len(two.outputs) - len(one.outputs)
    tangents = len(two.tangents) - len(one.tangents)
    gradients = 0 if more.backward is None else len(more.backward.outputs) - len(few.backward.outputs)  # type: ignore[union-attr]
    return {
        "result": {results}, "input": {inputs}, "base": {results, inputs}, "same_as": {outputs},
        "gradient_inputs": {inputs}, "input_gradients": {gradients}, "gradient_tangents": {tangents},
        "closed_by": {tangents},
    }  # fmt: skip


def _numbered(program: Program) -> tuple[Tree, list[int]]:
    """A program as plain data without names, and how many values its units make."""
    tree = msgspec.to_builtins(program, builtin_types=(bytes,))
    for part in ("inputs", "constants"):
        for item in tree["binding"][part]:
            item["name"] = ""
    made = []
    for part in _UNITS:
        if tree[part] is not None:
            names: dict[str, int] = {name: _Given(number) for number, name in enumerate(tree[part]["inputs"])}
            # Names are numbered as they are made: the instructions come first.
            ordered = {key: tree[part][key] for key in dict.fromkeys(("instructions", *tree[part]))}
            tree[part] = _renamed(ordered, functools.partial(_number, names, given=len(names)))
            made.append(len(names) - len(tree[part]["inputs"]))
    return tree, made


def _number(names: dict[str, int], name: str, *, given: int) -> int:
    return names.setdefault(name, _Made(_Made.FIRST + len(names) - given))


def _named(unit: Tree, inputs: Sequence[str | None]) -> Tree:
    """The unit with names: of the first inputs as given, where they are."""
    names: dict[int, str] = {number: name for number, name in enumerate(inputs) if name is not None}
    taken = set(names.values())

    def name_of(number: int) -> str:
        if number not in names:
            new = f"value_{number - _Made.FIRST}" if isinstance(number, _Made) else f"input_{number}"
            names[number] = unused_name(new, taken)
        return names[number]

    return _renamed(unit, name_of)


def _renamed(tree: Tree, name_of: Callable[[Any], Any], field: str = "") -> Tree:
    match tree:
        case {"kind": "ref", "name": name}:
            return {"kind": "ref", "name": name_of(name)}
        case dict():
            return {
                key: part
                if key in _NAMELESS and field != "kwargs"
                else _renamed(part, name_of, "" if field == "kwargs" else key)
                for key, part in tree.items()
            }
        case list() | tuple():
            return [_renamed(part, name_of, field) for part in tree]
        case str() | _Given() | _Made() if field in _NAMES and tree != "":
            return name_of(tree)
    return tree


@dataclass(frozen=True)
class _Growth:
    """What follows from a program and the one of a layer more, both as plain data, for `layers` layers more.

    steps: by how much a number may grow with a layer, by its class, or by the field where it stands.
    """

    layers: int
    steps: Mapping[Any, Set[int]]

    def of(self, few: Tree, more: Tree, field: str = "") -> Tree:
        """What stands in the program where these stand in the two."""
        if few == more:
            return more
        kind = type(more)
        if type(few) is not kind:
            raise _Irregular
        if kind is dict and few.keys() == more.keys():
            return {key: self.of(few[key], part, key) for key, part in more.items()}
        if issubclass(kind, (list, tuple)):
            if len(few) == len(more):
                return [self.of(*parts, field) for parts in zip(few, more, strict=True)]
            return self._list(few, more, field)
        steps = self._steps(kind, field)
        if more - few in steps:
            return kind(more + (more - few) * self.layers)
        raise _Irregular

    def _steps(self, kind: type, field: str) -> Set[int]:
        if kind not in _NUMBERS:
            raise _Irregular
        return self.steps.get(field if kind is int else kind, frozenset())

    def _list(self, few: Sequence[Tree], more: Sequence[Tree], field: str) -> list[Tree]:
        """A list in which each layer has as many items; those of the second layer may begin in several places."""
        step = len(more) - len(few)
        of, layers = functools.partial(self.of, field=field), functools.partial(self._layers, field=field)
        head = list(_until_irregular(map(of, few, more)))
        tail = list(_until_irregular(map(of, few[::-1], more[::-1])))[::-1]
        rows: list[list[Tree]] = []
        for place in range(max(len(few) - step - len(tail), 0), len(few)):
            found = list(_until_irregular(map(layers, few[place:][:1], more[place:], more[place + step :])))
            rows = [*rows, *found] if found else []
            if len(rows) == step:
                break
        else:
            raise _Irregular
        start = place + 1 - step
        if start > len(head):
            raise _Irregular
        items = itertools.chain.from_iterable(zip(*rows, strict=True))
        return [*head[:start], *items, *tail[len(tail) - (len(few) - start - step) :]]

    def _layers(self, few: Tree, more: Tree, next_: Tree, field: str) -> list[Tree]:
        """An item of each layer from there on: given that of a layer in both programs, and that of the next one.

        Numbers are counted from the start (those of one layer are equal) or from the end.
        """
        count = 2 + self.layers
        if few == more == next_:
            return [more] * count
        kind = type(more)
        if type(few) is not kind or type(next_) is not kind:
            raise _Irregular
        if kind is dict and few.keys() == more.keys() == next_.keys():
            columns = [self._layers(few[key], part, next_[key], key) for key, part in more.items()]
            return [dict(zip(more, values, strict=True)) for values in zip(*columns, strict=True)]
        if issubclass(kind, (list, tuple)) and len(few) == len(more) == len(next_):
            columns = [self._layers(*items, field) for items in zip(few, more, next_, strict=True)]
            return [list(values) for values in zip(*columns, strict=True)]
        steps = self._steps(kind, field)
        if few == more and next_ - more in steps:
            return [kind(more + (next_ - more) * layer) for layer in range(count)]
        if few == next_ and more - next_ in steps:
            return [kind(next_ + (more - next_) * layer) for layer in reversed(range(count))]
        raise _Irregular


def _until_irregular(found: Iterator[Tree]) -> Iterator[Tree]:
    """What is found before it is irregular."""
    with contextlib.suppress(_Irregular):
        yield from found
