"""`without_waits(capture, is_kernels)`: control flow on a GPU that need not ask the GPU what to run.

    y = custom.cond(p, captured)            ->  a, b = custom.first(captured), custom.second(captured)
                                                y = where(p, a, b)

    x = custom.while_loop(*x, captured)     ->  the same with a function that takes STEPS steps:
                                                p, n = custom.second(*x, captured), custom.first(*x, captured)
                                                x = where(p, n, x)

To read a predicate, the host waits for all that the GPU was given; meanwhile kernels of a few microseconds have run
both branches. So it is done for functions that are kernels alone (`is_kernels`: no product, no call, nothing random,
written or raised) and make little. Where gradients are recorded it is not: what is not taken may have infinite ones,
and 0 times these is nan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from msgspec.structs import replace

from stagewire.capture import CUSTOM, Capture, CustomFunction, Input, Local, Transform, functions_of
from stagewire.expr import evaluate
from stagewire.graph import Graph, Node, Ref, Tuple, Value
from stagewire.graph_passes import unused_name
from stagewire.substitution import symbols_in
from stagewire.types import TensorType, bytes_of, contiguous_stride

DEVICE = "cuda"
"""Where reading a number waits for all that was launched."""
STEPS = 8
"""Steps of a loop after which the host asks whether it goes on."""
LARGEST = 8 << 20
"""Bytes of results that are computed without need at most: an H200 writes them in two microseconds."""


def without_waits(capture: Capture, is_kernels: Callable[[Capture], bool]) -> Capture:
    """The program with branches and steps of loops selected by data where that is worth it (see above); itself where
    there is no such control flow. is_kernels: of one function as a program of its own."""
    if not any(_takes(function) for function in capture.functions):
        return capture
    rewriter = _Rewriter(capture, is_kernels)
    for function in capture.functions:  # what a function applies stands before it
        rewriter.add(function)
    graph = rewriter.rewritten(capture.graph)
    functions = functions_of(rewriter.functions, graph)
    return capture if functions == capture.functions else replace(capture, graph=graph, functions=functions)


def _takes(function: CustomFunction) -> bool:
    return function.transform is not None and function.transform.kind in ("cond", "while_loop")


class _Rewriter:
    """functions: those of the program and the new ones, in order. chosen: by the target of a `cond` of kernels, the
    targets of its functions."""

    def __init__(self, capture: Capture, is_kernels: Callable[[Capture], bool]) -> None:
        self.capture, self.is_kernels = capture, is_kernels
        self.functions: list[CustomFunction] = []
        self.chosen: dict[str, tuple[str, str]] = {}
        self.names = {function.name for function in capture.functions}
        self.values = {value.name for graph in self._graphs() for value in graph.inputs}
        self.values |= {value.name for graph in self._graphs() for node in graph.nodes for value in node.results}
        self.sizes = {symbol.name: symbol.hint for symbol in capture.symbols if symbol.hint is not None}
        self.uses = {node.target: node for graph in self._graphs() for node in graph.nodes}

    def _graphs(self) -> Iterator[Graph]:
        yield self.capture.graph
        for function in self.capture.functions:
            yield from function.graphs.values()

    def add(self, function: CustomFunction) -> None:
        graphs = {name: self.rewritten(graph) for name, graph in function.graphs.items()}
        function = replace(function, **graphs)
        if _takes(function) and self._is_worth_it(function):
            assert function.transform is not None
            targets = self._call(function, "forward"), self._call(function, "second")
            if function.transform.kind == "cond":
                self.chosen[CUSTOM + function.name] = targets
            else:
                function = replace(function, forward=self._steps(function.forward, *targets))
        self.functions.append(function)

    def _is_worth_it(self, function: CustomFunction) -> bool:
        node = self.uses.get(CUSTOM + function.name)
        if node is None or not _can_be_selected(node, function, self.sizes):
            return False
        return all(self.is_kernels(self._program(graph)) for graph in function.graphs.values())

    def _program(self, graph: Graph) -> Capture:
        """A graph of a function as a program of its own, without gradients."""
        functions = functions_of(self.functions, graph)
        known = symbols_in((graph, functions))
        return replace(
            self.capture,
            inputs=tuple([Input(value, Local(f"%{value.name}")) for value in graph.inputs]),
            graph=graph,
            functions=functions,
            guards=(),
            symbols=tuple([symbol for symbol in self.capture.symbols if symbol.name in known]),
            state=replace(self.capture.state, grad_enabled=False),
            checks=(),
            checkpoints=(),
        )

    def _call(self, function: CustomFunction, which: str) -> str:
        """The target of a new function that is one of the two of a control flow; operands as this has them."""
        assert function.transform is not None
        graph, count = function.graphs[which], function.transform.arguments
        name = unused_name(f"{function.name}_{which}", self.names)
        self.names.add(name)
        transform = Transform(kind="call", arguments=count, outputs=len(graph.outputs))
        self.functions.append(
            CustomFunction(
                name=name, operands=count, results=len(graph.outputs), forward=graph, transform=transform
            )
        )  # fmt: skip
        return CUSTOM + name

    def rewritten(self, graph: Graph) -> Graph:
        """A graph whose branches are selected."""
        if not any(node.target in self.chosen for node in graph.nodes):
            return graph
        nodes: list[Node] = []
        types = {value.name: value.type for value in graph.inputs}
        for node in graph.nodes:
            types.update({value.name: value.type for value in node.results})
            if node.target not in self.chosen:
                nodes.append(node)
                continue
            predicate, captured = node.args
            assert isinstance(predicate, Ref)
            given = types[predicate.name]
            assert isinstance(given, TensorType)
            if given.shape:
                scalar = self._value(predicate.name, replace(given, shape=(), stride=(), storage_offset=0))
                nodes.append(replace(node, target="torch.reshape", args=(predicate, Tuple(())), results=(scalar,)))
                predicate = Ref(scalar.name)
            ways = [
                replace(node, target=target, args=(captured,), results=tuple(map(self._like, node.results)))
                for target in self.chosen[node.target]
            ]
            nodes += [*ways, *_selections(node, predicate, *[way.results for way in ways])]
        return replace(graph, nodes=tuple(nodes))

    def _steps(self, body: Graph, first: str, second: str) -> Graph:
        """The body of a loop so many times; the first time the condition is known to hold."""
        captured = Tuple(tuple([Ref(value.name) for value in body.inputs[len(body.outputs) :]]))
        carried: tuple[Value, ...] = body.inputs[: len(body.outputs)]
        nodes: list[Node] = []
        for number in range(STEPS):
            operands = (*[Ref(value.name) for value in carried], captured)
            step = Node(first, operands, {}, tuple(map(self._like, carried)))
            if number == 0:
                nodes.append(step)
                carried = step.results
                continue
            holds = self._value("holds", TensorType("bool", (), (), device=_device(carried)))
            selected = replace(step, results=tuple(map(self._like, carried)))
            nodes += [Node(second, operands, {}, (holds,)), step]
            nodes += _selections(selected, Ref(holds.name), step.results, carried)
            carried = selected.results
        return replace(body, nodes=tuple(nodes), outputs=tuple([Ref(value.name) for value in carried]))

    def _like(self, value: Value) -> Value:
        return self._value(value.name, value.type)  # type: ignore[arg-type]

    def _value(self, name: str, type_: TensorType) -> Value:
        name = unused_name(name, self.values)
        self.values.add(name)
        return Value(name, type_)


def _selections(node: Node, predicate: Ref, one: Sequence[Value], other: Sequence[Value]) -> Iterator[Node]:
    for result, a, b in zip(node.results, one, other, strict=True):
        yield replace(node, target="torch.where", args=(predicate, Ref(a.name), Ref(b.name)), results=(result,))


def _device(values: Sequence[Value]) -> str:
    (device,) = {value.type.device for value in values if isinstance(value.type, TensorType)}
    return device


def _can_be_selected(node: Node, function: CustomFunction, sizes: dict[str, int]) -> bool:
    """Whether what a node of control flow gives may be selected and is small: row-major tensors, all on one GPU."""
    graphs = [*function.graphs.values()]
    types = [value.type for value in (*node.results, *(value for graph in graphs for value in graph.inputs))]
    if not node.results or not all(isinstance(type_, TensorType) for type_ in types):
        return False
    results: list[TensorType] = [value.type for value in node.results]  # type: ignore[misc]
    if any(one.requires_grad or one.stride != contiguous_stride(one.shape) for one in results):
        return False
    devices = {one.device for one in types}  # type: ignore[union-attr]
    if len(devices) != 1 or not devices.pop().startswith(DEVICE):
        return False
    if symbols_in(results) - sizes.keys():
        return False
    return sum(evaluate(bytes_of(one), sizes) for one in results) <= LARGEST
