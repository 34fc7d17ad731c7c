"""Drop nodes whose results nobody uses; what may raise of them stays as a check."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from aotgrad.joint import Joint
from aotgrad.operands import operands
from aotgrad.ops import has_effect
from aotgrad.raising import Condition, conditions_of
from stagewire.graph import Arg, Graph, Node, Ref, Value, definitions, references
from stagewire.types import TensorType, numel

__all__ = ["RemoveDeadCode", "live_nodes"]

ASSERTION = "aten._assert_async.default"


class RemoveDeadCode(msgspec.Struct, frozen=True):
    """After it, every node is used by a later node or an output, draws random numbers, or may raise on purpose.

    A node of the forward that is dropped and could raise because of its data (`aotgrad.raising`) leaves a check of its
    operand alone, where no node that stays has the same condition. (The backward computes again what the forward has
    checked.)
    """

    def __call__(self, joint: Joint) -> Joint:
        graph = joint.graph
        kept = live_nodes(graph)
        if len(kept) == len(graph.nodes):
            return joint
        checks = _checks(graph, kept)
        if checks:
            nodes = [one for node in graph.nodes for one in (*checks.get(id(node), ()), node)]
            kept = live_nodes(Graph(graph.inputs, tuple(nodes), graph.outputs))
        return joint.with_graph(Graph(graph.inputs, kept, graph.outputs))


def live_nodes(graph: Graph) -> tuple[Node, ...]:
    """The nodes that matter, in order."""
    needed = {name for arg in graph.outputs for name in references(arg)}
    kept = []
    for node in reversed(graph.nodes):
        if not needed.isdisjoint([value.name for value in node.results]) or has_effect(node.target):
            needed.update(operands(node))
            kept.append(node)
    return tuple(reversed(kept))


def _checks(graph: Graph, kept: Iterable[Node]) -> dict[int, list[Node]]:
    """What stands in place of dropped nodes, by their ids."""
    staying = {id(node) for node in kept}
    dropped = [node for node in graph.nodes if id(node) not in staying and node.phase == "forward"]
    values = definitions(graph)
    open_ = {id(node): conditions for node in dropped if (conditions := conditions_of(node, values))}
    if not open_:
        return {}
    known = {one for node in kept if node.phase == "forward" for one in conditions_of(node, values)}
    names = _Names(values)
    found: dict[int, list[Node]] = {}
    for node in dropped:
        for condition in open_.get(id(node), ()):
            if condition not in known:
                known.add(condition)
                found.setdefault(id(node), []).extend(_check(condition, values, names, node))
    return found


class _Names:
    """Fresh names of values."""

    def __init__(self, taken: Iterable[str]) -> None:
        self._taken = set(taken)
        self._count = 0

    def fresh(self) -> str:
        name = f"check_{self._count}"
        while name in self._taken:
            self._count += 1
            name = f"check_{self._count}"
        self._taken.add(name)
        return name


def _check(condition: Condition, values: dict[str, Value], names: _Names, node: Node) -> Iterator[Node]:
    """Nodes that raise where the condition does not hold."""
    type_ = values[condition.operand].type
    assert isinstance(type_, TensorType)

    def call(target: str, dtype: str, *args: Arg) -> Node:
        return Node(target, args, {}, (Value(names.fresh(), TensorType(dtype, (), ())),), node.line)  # type: ignore[arg-type]

    def result(made: Node) -> Ref:
        return Ref(made.results[0].name)

    operand = Ref(condition.operand)
    if condition.high is None:
        count = call("aten.count_nonzero.default", "int64", operand)
        holds = call("aten.eq.Scalar", "bool", result(count), numel(type_.shape))
        yield from (count, holds)
    else:
        least = call("aten.amin.default", type_.dtype, operand)
        greatest = call("aten.amax.default", type_.dtype, operand)
        above = call("aten.ge.Scalar", "bool", result(least), condition.low)
        below = call("aten.lt.Scalar", "bool", result(greatest), condition.high)
        holds = call("aten.logical_and.default", "bool", result(above), result(below))
        yield from (least, greatest, above, below, holds)
    yield Node(ASSERTION, (result(holds),), {}, (), node.line)
