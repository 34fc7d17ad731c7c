"""hypothesis strategies: Prim graphs over the symbol n, with arrays for any value of it. See `strategies`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st
from msgspec.structs import replace

from loopir.numpy_ops import Array, rounded
from loopir.testing.externs import EXTERNS
from loopir.testing.graph_builder import SIZES, Draw, Scenario, repeated
from loopir.testing.irregular_steps import FAMILIES
from loopir.testing.prim_meaning import prim_meaning
from loopir.testing.steps import Step
from loopir.testing.strategies import prim_scenarios
from stagewire.capture import Symbol
from stagewire.expr import Dim
from stagewire.grad import Binding, BoundInput, Fresh
from stagewire.graph import Arg, Graph, Node, Ref, Value, map_arg
from stagewire.prim import Prim
from stagewire.testing.symbolic import BASE, N, instantiated, symbolised
from stagewire.types import ScalarType, TensorType

VALUES = (2, 5, 11)
"""Values of n at which a graph must fit together: sizes are polynomials of degree 2."""


@dataclass(frozen=True)
class SymbolicScenario:
    """A graph over n, whose inputs are the integer n (where no tensor has it as a size) and tensors.

    bounds: for inputs that are indices, the range that they are in. close: as in `Scenario`. refers: whether the
    document's nodes take n as the input that it is, rather than as a symbol.
    """

    graph: Graph
    bounds: dict[str, tuple[Dim, Dim]]
    close: frozenset[int] = frozenset()
    refers: bool = False

    def document(self) -> Prim:
        """The graph as a forward-only document."""
        bound = tuple(BoundInput(value.name, value.type) for value in self.graph.inputs)  # type: ignore[arg-type]
        outputs = tuple(Fresh(n) for n in range(len(self.graph.outputs)))
        symbols = (Symbol("n", None, BASE, 2),)
        graph = self.graph
        if self.refers:
            graph = Graph(graph.inputs, tuple(map(_referring, graph.nodes)), graph.outputs)
        return Prim(binding=Binding(inputs=bound, outputs=outputs, symbols=symbols), forward=graph)

    def at(self, n: int) -> Scenario:
        """The graph with a number for n, and arrays of its sizes; the integer n is no input of it."""
        inputs = tuple(value for value in self.graph.inputs if isinstance(value.type, TensorType))
        graph = instantiated(Graph(inputs, self.graph.nodes, self.graph.outputs), {"n": n})
        bounds = instantiated(self.bounds, {"n": n})
        return Scenario(graph, tuple(_array(value, bounds.get(value.name), k) for k, value in enumerate(graph.inputs)))

    def inputs_at(self, n: int) -> list[Array | int]:
        """What the graph over n takes, at one value."""
        arrays = iter(self.at(n).inputs)
        return [next(arrays) if isinstance(value.type, TensorType) else n for value in self.graph.inputs]


def _referring(node: Node) -> Node:
    def leaf(arg: Arg) -> Arg:
        return Ref("n") if arg == N else arg

    args = tuple(map_arg(arg, leaf) for arg in node.args)
    return replace(node, args=args, kwargs={key: map_arg(arg, leaf) for key, arg in node.kwargs.items()})


def _array(value: Value, bounds: tuple[int, int] | None, seed: int) -> Array:
    assert isinstance(value.type, TensorType)
    low, high = (-3, 4) if bounds is None else bounds
    shape = [max(size, 0) for size in value.type.shape]  # type: ignore[type-var]
    numbers = np.random.default_rng(seed).integers(low, max(high, low + 1), shape)
    return rounded(repeated(numbers, value.type), value.type.dtype)


@st.composite
def symbolic_scenarios(draw: Draw, steps: tuple[Step, ...] = FAMILIES["anything"], most: int = 6) -> SymbolicScenario:
    """A Prim graph of up to `most` drawn steps over sizes of which some are n, 2*n, n + 1, n*n..."""
    scenario: Scenario = draw(prim_scenarios(steps, most, (*SIZES[:5], BASE, BASE, BASE)))
    graph = symbolised(scenario.graph)
    bounds = symbolised(scenario.indexed)
    sizes = [size for value in graph.inputs for size in value.type.shape]  # type: ignore[union-attr]
    if Graph((), graph.nodes, graph.outputs) == Graph((), scenario.graph.nodes, scenario.graph.outputs):
        assume(any(not isinstance(size, int) for size in sizes))
    is_input = all(str(size) != "n" for size in sizes)
    if is_input:
        graph = Graph((Value("n", ScalarType("int")), *graph.inputs), graph.nodes, graph.outputs)
    made = SymbolicScenario(graph, bounds, scenario.close, is_input and draw(st.booleans()))
    assume(all(_fits(made.at(n)) for n in VALUES))
    return made


def _fits(scenario: Scenario) -> bool:
    """Whether every value of a graph has the shape that its type states, in a layout that may be."""
    values = (*scenario.graph.inputs, *(value for node in scenario.graph.nodes for value in node.results))
    if not all(_is_layout(value.type) for value in values):  # type: ignore[arg-type]
        return False
    everything = tuple(value for node in scenario.graph.nodes for value in node.results)
    graph = Graph(scenario.graph.inputs, scenario.graph.nodes, tuple(Ref(v.name) for v in everything))
    try:
        found = prim_meaning(graph, scenario.inputs, EXTERNS)
    except (ValueError, IndexError, OverflowError):
        return False
    return all(np.shape(array) == value.type.shape for array, value in zip(found, everything, strict=True))  # type: ignore[arg-type,union-attr]


def _is_layout(type: TensorType) -> bool:
    """Whether sizes and strides are not negative, and no two elements meet but along strides of 0."""
    steps = sorted((s, n) for n, s in zip(type.shape, type.stride, strict=True) if s != 0 and n != 1)  # type: ignore[type-var]
    reach = 0
    for step, size in steps:
        if size < 0 or step <= reach:  # type: ignore[operator]
            return False
        reach += (size - 1) * step  # type: ignore[operator]
    return min((*type.shape, *type.stride), default=0) >= 0  # type: ignore[type-var]
