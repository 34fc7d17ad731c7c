"""What is left of calls that nobody uses and that may raise because of their data: checks of their operands alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch

from aotgrad.executor import executor
from aotgrad.operands import operands
from aotgrad.ops import is_pure
from aotgrad.raising import Condition, conditions_of
from stagewire.expr import Expr
from stagewire.graph import Arg, Graph, Node, Ref, Value, definitions, leaves
from stagewire.types import TensorType, numel

__all__ = ["checks_of_dropped"]

ASSERTION = "aten._assert_async.default"
_LARGEST = 1 << 22
"""Elements of a value that is computed here because literals alone decide it."""


def checks_of_dropped(graph: Graph, kept: Iterable[Node]) -> dict[int, list[Node]]:
    """What stands in place of nodes of the forward that are not `kept`, by their ids.

    A condition that a node has which stays is checked there; one on what literals alone decide is looked at now.
    """
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
            if condition not in known and not _holds(condition, graph, values):
                known.add(condition)
                found.setdefault(id(node), []).extend(_check(condition, values, names, node))
    return found


def _holds(condition: Condition, graph: Graph, values: dict[str, Value]) -> bool:
    """Whether literals alone decide that it does."""
    nodes = _literal_nodes(condition.operand, graph, values)
    if nodes is None:
        return False
    with torch.no_grad():
        (value,) = executor(Graph((), nodes, (Ref(condition.operand),)))()
    if condition.high is None:
        return bool(value.all())
    return bool((value >= condition.low).all() and (value < condition.high).all())


def _literal_nodes(name: str, graph: Graph, values: dict[str, Value]) -> tuple[Node, ...] | None:
    """The nodes that compute a value of fixed size from literals alone, in order; None where something else does."""
    needed, found = {name}, []
    for node in reversed(graph.nodes):
        if needed.isdisjoint(value.name for value in node.results):
            continue
        given = [leaf for arg in (*node.args, *node.kwargs.values()) for leaf in leaves(arg)]
        if not is_pure(node) or any(isinstance(leaf, Expr) for leaf in given):
            return None
        needed.update(operands(node))
        found.append(node)
    is_given = any(value.name in needed for value in graph.inputs)
    if is_given or not all(_is_small(values[one].type) for one in needed):
        return None
    return tuple(reversed(found))


def _is_small(type_: object) -> bool:
    if not isinstance(type_, TensorType) or not type_.is_static or type_.device != "cpu":
        return False
    return numel(type_.shape) <= _LARGEST  # type: ignore[operator]


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
    yield Node(ASSERTION, (result(holds),), {}, (), node.line, effect="acts")
