"""What passes ask about an op, by its name in a document ("aten.add.Tensor", or "prims.add" in a decomposed graph); and
what a program makes from literals alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache

from absint.schema import record_of
from absint.targets import resolve
from stagewire.expr import Expr
from stagewire.graph import LASTING, Graph, Node, Ref, leaves
from stagewire.graph_passes import live_nodes
from stagewire.types import ValueType
from stagewire.vocabulary import find, is_prim


@cache
def packet_of(target: str) -> str:
    """An op without its overload.

    >>> packet_of("aten.add.Tensor"), packet_of("prims.add")
    ('aten.add', 'prims.add')
    """
    return target if is_prim(target) else target.rpartition(".")[0]


@cache
def is_view(target: str) -> bool:
    """Are the elements of its result those of its first argument, at other places."""
    op = find(target)
    if op is not None:
        return op.is_view
    return not is_prim(target) and record_of(resolve(target)).is_view


def is_random(node: Node) -> bool:
    """Does it draw random numbers."""
    return node.effect == "draws"


def is_repeatable(node: Node) -> bool:
    """Do two calls on equal arguments give equal results, and nothing else."""
    if node.effect in LASTING:
        return False
    return not node.target.startswith("aten.") or not record_of(resolve(node.target)).is_unwritten


def is_pure(node: Node) -> bool:
    """Is it ATen's, gives the same results each time, and does nothing else."""
    return node.target.startswith("aten.") and is_repeatable(node)


def memory_roots(nodes: Iterable[Node]) -> dict[str, str]:
    """For each value that the nodes make the value whose memory it looks at."""
    roots: dict[str, str] = {}
    for node in nodes:
        source = node.args[0] if node.args else None
        shares = node.target in _MAY_SHARE or is_view(node.target)
        for value in node.results:
            is_window = shares and isinstance(source, Ref)
            roots[value.name] = roots.get(source.name, source.name) if is_window else value.name  # type: ignore[union-attr]
    return roots


# Not views by their schema, but they may return their argument's memory.
_MAY_SHARE = frozenset(("aten._unsafe_view.default", "aten.lift.default"))


def literal_values(
    nodes: Iterable[Node], fits: Callable[[ValueType], bool], given: Mapping[str, ValueType]
) -> dict[str, ValueType]:
    """The types by name of what literals and the constants `given` alone decide, these among them; each one `fits`."""
    found = dict(given)
    for node in nodes:
        used = [leaf for arg in (*node.args, *node.kwargs.values()) for leaf in leaves(arg)]
        if any(isinstance(leaf, Expr) or (isinstance(leaf, Ref) and leaf.name not in found) for leaf in used):
            continue
        if is_pure(node) and all(fits(value.type) for value in node.results):
            found.update((value.name, value.type) for value in node.results)
    return found


def literal_nodes(nodes: Iterable[Node], known: Mapping[str, ValueType], names: Iterable[str]) -> tuple[Node, ...]:
    """The nodes that make these values of known ones, in order."""
    made = tuple(node for node in nodes if node.results and all(value.name in known for value in node.results))
    return live_nodes(Graph((), made, tuple(map(Ref, names))))
