"""`cut(capture)`: the parts of a capture, each a capture of its own whose sizes are known when it starts.

    plain part    ::= node+     nodes that give numbers (`.item()`, `.size()`), that take a float which data decides, or
                                whose results have sizes that no earlier value has; nodes about streams of a GPU; few
                                nodes between such ones
    control part  ::= node      control flow (`cond`, `while_loop`, a long `scan`), whose functions are parts in turn
    compiled part ::= node+     all others

Values go from part to part by name. A part gets every symbol that it mentions as an int among its inputs.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from dataclasses import replace as replace_fields
from typing import Any

import torch
from msgspec.structs import replace

from absint.streams import is_about_streams, mentions_streams
from stagefold.torch_capabilities import TORCH
from stagewire import capture as captures
from stagewire.expr import symbols_of
from stagewire.graph import DTypeArg, Graph, Node, Ref, Value, leaves, node_references
from stagewire.graph_passes import output_names
from stagewire.substitution import map_sizes, symbols_in
from stagewire.types import ScalarType, TensorType

# A scan of so few calls is compiled as they stand, one after the other.
_UNROLLED = 64
# A kernel of one call is no faster than the call.
_FEWEST_CALLS = 2
_VIEWS = frozenset(
    f"torch.Tensor.{name}"
    for name in ("view", "reshape", "t", "transpose", "permute", "unsqueeze", "squeeze", "flatten", "expand", "detach",
                 "view_as", "unbind", "chunk", "split")
)  # fmt: skip
# With a mask, they take those elements for which it is true.
_SELECTIONS = frozenset({"torch.Tensor.__getitem__", "operator.getitem", "torch.Tensor.masked_select"})


@dataclass(frozen=True)
class Subgraph:
    """Consecutive nodes as a program of their own; `capture.state` has the modes that they start in.

    compiled: worth it. inputs, outputs: names of values of the whole program; the name of a symbol is its value.
    symbols: the program's own that are among the inputs. unknown: those that data decides. bodies: what the node of
    control flow that it consists of runs, in the order of the function's graphs.
    """

    capture: captures.Capture
    compiled: bool
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    symbols: tuple[captures.Symbol, ...]
    unknown: tuple[str, ...]
    bodies: tuple[Subgraph, ...] = ()


def runs_in_subgraphs(capture: captures.Capture) -> bool:
    """Whether the program is one for `cut`: data decides sizes (each such size is read by a node of its own), or what
    runs; or it says on which stream of a GPU it runs."""
    return bool(_numbers_of_data(capture) or _controls(capture)) or mentions_streams(capture.graph.nodes)


def _controls(capture: captures.Capture) -> dict[str, captures.CustomFunction]:
    """The control flow that no stage takes, by targets."""
    return {captures.CUSTOM + each.name: each for each in capture.functions if _is_control(each)}


def _is_control(function: captures.CustomFunction) -> bool:
    transform, calls = function.transform, len(function.forward.nodes)
    if transform is None or transform.kind not in captures.CONTROL_FLOW:
        return False
    return transform.kind != "scan" or not isinstance(transform.length, int) or transform.length * calls > _UNROLLED


def _numbers_of_data(capture: captures.Capture) -> set[str]:
    """What nodes give that read a tensor as a number, or compute with such numbers; others are computed of sizes."""
    tensors = {item.value.name for item in capture.inputs if item.role not in ("symbol", "number")}
    found: set[str] = set()
    for node in capture.graph.nodes:
        numbers = {value.name for value in node.results if isinstance(value.type, ScalarType)}
        if numbers and any(name in tensors or name in found for name in _names_in(node)):
            found |= numbers
        tensors.update(value.name for value in node.results if value.name not in numbers)
    return found


def cut(capture: captures.Capture) -> tuple[Subgraph, ...]:
    """The parts in the order of the program; the last one, without nodes, gives the program's outputs."""
    scope = _Scope.of(capture)
    stretches = list(_stretches(capture))
    parts, state, first = [], capture.state, 0
    for (nodes, compiled), later in zip(stretches, _used_behind(capture, stretches), strict=True):
        outputs = tuple([value.name for node in nodes for value in node.results if value.name in later])
        parts.append(scope.part(nodes, outputs, first, state, compiled))
        state, first = state_behind(state, nodes), first + len(nodes)
    return (*parts, scope.last_part(first))


# -- which nodes go together


def _stretches(capture: captures.Capture) -> Iterator[tuple[tuple[Node, ...], bool]]:
    """The nodes of each part, and whether it is compiled."""
    controls = _controls(capture)
    around = {
        captures.CUSTOM + each.name
        for each in capture.functions
        for graph in each.graphs.values()
        if any(captures.CUSTOM + inner.name in controls for inner in captures.functions_of(capture.functions, graph))
    }  # functions that have control flow inside
    nodes = capture.graph.nodes
    own = [number if node.target in controls else None for number, node in enumerate(nodes)]
    of_data = [
        has or node.target in around or is_about_streams(node)
        for has, node in zip(_needs_data(capture), nodes, strict=True)
    ]
    keys = zip(of_data, _recording(capture), own, strict=True)
    runs = itertools.groupby(zip(nodes, keys, strict=True), key=lambda pair: pair[1])
    plain: tuple[Node, ...] = ()
    for (needs_data, _, control), pairs in runs:
        nodes = tuple([node for node, _ in pairs])
        if control is None and (needs_data or not _is_worth_it(nodes)):
            plain += nodes
            continue
        if plain:
            yield plain, False
        plain = ()
        yield nodes, control is None
    if plain:
        yield plain, False


def _recording(capture: captures.Capture) -> Iterator[int]:
    """For each node, how often gradients were switched on before it: what starts without them ends without them."""
    count = 0
    for node in capture.graph.nodes:
        yield count
        count += node.target == _GRADIENTS and node.args == (True,)


def _is_worth_it(nodes: tuple[Node, ...]) -> bool:
    return sum(bool(node.results) and node.target not in _VIEWS for node in nodes) >= _FEWEST_CALLS


def _needs_data(capture: captures.Capture) -> Iterator[bool]:
    """For each node: does it give or take a number of data, or have a result whose size only data knows?

    Such a size is none of its arguments' own: what a mask selects twice has the same symbol, and is to be found twice.
    """
    graph = capture.graph
    values = {value.name: value for value in graph.inputs}
    numbers = _numbers_of_data(capture)
    for node in graph.nodes:
        given = [values[name] for name in node_references(node)]
        known = _names_in(node)
        known.update(name for value in given for name in _symbols(value))
        is_number = any(value.name in numbers for value in (*given, *node.results))
        sizes = {name for value in node.results if isinstance(value.type, TensorType) for name in _symbols(value)}
        masks = [one for one in given if isinstance(one.type, TensorType) and one.type.dtype in ("bool", "uint8")]
        yield is_number or bool(masks and node.target in _SELECTIONS) or bool(sizes - known)
        values.update({value.name: value for value in node.results})


def _symbols(value: Value) -> Iterator[str]:
    """The symbols that a value gives a meaning to."""
    if isinstance(value.type, TensorType):
        for size in (*value.type.shape, *value.type.stride):
            yield from symbols_of(size)
    elif isinstance(value.type, ScalarType):
        yield value.name


def _used_behind(capture: captures.Capture, stretches: list[tuple[tuple[Node, ...], bool]]) -> list[set[str]]:
    """For each part: the names that something behind it uses, a symbol being used where it is in a type."""
    types = {value.name: value for node in capture.graph.nodes for value in node.results}
    used = output_names(capture.graph) | symbols_in(capture.graph.outputs)
    behind: list[set[str]] = []
    for nodes, _ in reversed(stretches):
        behind.append(set(used))
        for node in nodes:
            used.update(_names_in(node))
            values = (*node.results, *(types[name] for name in node_references(node) if name in types))
            used.update(name for value in values for name in _symbols(value))
        used |= symbols_in(captures.functions_of(capture.functions, Graph((), nodes, ())))
    return behind[::-1]


def _names_in(node: Node) -> set[str]:
    """The names of values and symbols in the arguments of a node."""
    return {*node_references(node), *symbols_in((node.args, node.kwargs))}


# -- what a part takes


@dataclass(frozen=True)
class _Scope:
    """What all parts share. decided: the ints that nodes give. guards: each with the symbols that it is about."""

    whole: captures.Capture
    values: dict[str, Value]
    given: dict[str, captures.Input]
    symbols: frozenset[str]
    decided: frozenset[str]
    guards: tuple[tuple[captures.Guard, frozenset[str]], ...]
    controls: dict[str, captures.CustomFunction]

    @staticmethod
    def of(capture: captures.Capture) -> _Scope:
        graph = capture.graph
        results = [value for node in graph.nodes for value in node.results]
        return _Scope(
            capture,
            {value.name: value for value in (*graph.inputs, *results)},
            {item.value.name: item for item in capture.inputs},
            frozenset(symbol.name for symbol in capture.symbols),
            frozenset(value.name for value in results if value.type == ScalarType("int")),
            tuple([(guard, frozenset(symbols_in(guard))) for guard in capture.guards]),
            _controls(capture),
        )

    def part(
        self, nodes: tuple[Node, ...], outputs: tuple[str, ...], first: int, state: captures.GlobalState, compiled: bool
    ) -> Subgraph:
        """The part of `nodes`, the first of which is number `first`, that hands over the values `outputs`."""
        made = {value.name for node in nodes for value in node.results}
        used = dict.fromkeys(name for node in nodes for name in node_references(node) if name not in made)
        graph = Graph(tuple([self.values[name] for name in used]), nodes, tuple([Ref(name) for name in outputs]))
        part = self._part(graph, outputs, first, state, compiled)
        function = self.controls.get(nodes[0].target)
        return part if function is None else replace_fields(part, bodies=self._bodies(function, state))

    def _bodies(self, function: captures.CustomFunction, state: captures.GlobalState) -> tuple[Subgraph, ...]:
        """What control flow runs; no checkpoint of the program is inside."""
        end = len(self.whole.graph.nodes)
        graphs = function.graphs.values()
        return tuple([self._part(graph, (), end, state, _is_worth_it(graph.nodes)) for graph in graphs])

    def last_part(self, first: int) -> Subgraph:
        """The outputs of the program."""
        outputs = self.whole.graph.outputs
        used = dict.fromkeys(leaf.name for output in outputs for leaf in leaves(output) if isinstance(leaf, Ref))
        graph = Graph(tuple([self.values[name] for name in used]), (), outputs)
        return self._part(graph, (), first, self.whole.state, False)

    def _part(
        self, graph: Graph, outputs: tuple[str, ...], first: int, state: captures.GlobalState, compiled: bool
    ) -> Subgraph:
        functions = captures.functions_of(self.whole.functions, graph)
        mentioned = symbols_in((graph, functions))
        made = {value.name for node in graph.nodes for value in node.results}
        taken = {value.name for value in graph.inputs}
        numbers = sorted((mentioned & (self.symbols | self.decided)) - made - taken)
        # The place of a slice in its storage may be of no interest to the program, so that no node computes it.
        unread = mentioned - self.symbols - self.decided
        if unread:
            graph, functions = map_sizes((graph, functions), lambda size: 0 if symbols_of(size) & unread else size)
        inputs = (*graph.inputs, *(Value(name, ScalarType("int")) for name in numbers))
        items = tuple([self._input(value) for value in inputs])
        names = tuple([value.name for value in inputs])
        compiled &= not any(isinstance(value.type, ScalarType) and value.type.type != "int" for value in inputs)
        capture = replace(
            self.whole,
            graph=replace(graph, inputs=inputs),
            inputs=items,
            functions=functions,
            state=state,
            guards=tuple([guard for guard, symbols in self.guards if symbols <= set(names)]),
            symbols=(),
            checks=(),
            checkpoints=_within(self.whole.checkpoints, first, first + len(graph.nodes)),
        )
        symbols = tuple([symbol for symbol in self.whole.symbols if symbol.name in names])
        unknown = tuple([name for name in names if name in self.decided])
        return Subgraph(capture, compiled, names, outputs, symbols, unknown)

    def _input(self, value: Value) -> captures.Input:
        known = self.given.get(value.name)
        if known is not None:
            return replace(known, value=value)
        source = captures.Local(f"%{value.name}")  # no variable of the frame, and no guard, has such a name
        return captures.Input(value, source, "symbol" if isinstance(value.type, ScalarType) else "tensor")


def _within(checkpoints: tuple[captures.Checkpoint, ...], start: int, stop: int) -> tuple[captures.Checkpoint, ...]:
    """What of the checkpoints lies in the nodes from `start` to `stop`, counted from `start`."""
    cropped = [(max(part.first, start), min(part.last, stop)) for part in checkpoints]
    return tuple([captures.Checkpoint(first - start, last - start) for first, last in cropped if first < last])


_GRADIENTS = "torch._C._set_grad_enabled"
_AUTOCAST = "torch.set_autocast_enabled"
_DTYPE = "torch.set_autocast_dtype"


def changes_modes(nodes: Iterable[Node]) -> bool:
    """Whether some node changes a mode."""
    return any(node.target in (_GRADIENTS, _AUTOCAST, _DTYPE) for node in nodes)


def state_behind(state: captures.GlobalState, nodes: Iterable[Node]) -> captures.GlobalState:
    """The state after `nodes` have run in `state`."""
    gradients, autocast = state.grad_enabled, dict(state.autocast)
    for node in nodes:
        values: list[Any] = [*node.args, *node.kwargs.values()]
        match node.target, values:
            case (target, [bool() as enabled]) if target == _GRADIENTS:
                gradients = enabled
            case (target, [str() as device, True]) if target == _AUTOCAST:
                autocast.setdefault(device, str(torch.get_autocast_dtype(device)).removeprefix("torch."))
            case (target, [str() as device, False]) if target == _AUTOCAST:
                autocast.pop(device, None)
            case (target, [str() as device, DTypeArg(name)]) if target == _DTYPE and device in autocast:
                autocast[device] = name
    return replace(state, grad_enabled=gradients, autocast=tuple(sorted(autocast.items())))


def enter(state: captures.GlobalState) -> None:
    """Set torch's modes to those of `state`."""
    TORCH.set_grad_enabled(state.grad_enabled)
    wanted = dict(state.autocast)
    for device in ("cpu", "cuda"):
        torch.set_autocast_enabled(device, device in wanted)
        if device in wanted:
            torch.set_autocast_dtype(device, getattr(torch, wanted[device]))
