"""Dead code goes; calls whose data nobody needs, and that may raise because of their own, stay for their errors.

(Equal calls become one, and views that change nothing go, where primops lowers the graph.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from operator import is_

import msgspec
import torch
from msgspec.structs import replace

from absint.data_errors import deciding_arguments, may_raise
from aotgrad.executor import executor
from aotgrad.joint import Joint
from aotgrad.ops import literal_nodes, literal_values, packet_of
from stagewire.expr import Expr
from stagewire.graph import LASTING, Arg, Graph, Node, Ref, Value, definitions, leaves, references
from stagewire.graph_passes import live_nodes, operands, with_nodes
from stagewire.types import TensorType, ValueType, numel

_LARGEST = 1 << 22
"""Elements of a value that is computed here because literals alone decide it."""

Known = Mapping[str, ValueType]
_ENCODE = msgspec.msgpack.Encoder().encode


class RemoveDeadCode(msgspec.Struct, frozen=True):
    """After it, every node is used by a later node or an output, or has an effect, and no vectors of singular values or
    eigenvalues are computed that nobody uses.

    A node of the forward that may raise because of its data (`absint.data_errors`) has the effect "acts" where no
    result of the forward needs it: it stays for its error.
    """

    def __call__(self, joint: Joint) -> Joint:
        graph = kept_for_their_errors(joint.graph, joint.results)
        kept = live_nodes(graph)
        if any(node.target in _VECTORS for node in kept):
            kept = _with_values_alone(kept, graph.outputs)
        if len(kept) == len(graph.nodes) and all(map(is_, kept, joint.graph.nodes)):
            return joint
        return joint.with_graph(with_nodes(graph, kept))


_VECTORS: dict[str, tuple[Arg, tuple[int, ...]]] = {
    "aten._linalg_svd.default": (False, (0, 2)),
    "aten._linalg_eigh.default": ("L", (1,)),
}
"""Calls whose third argument asks for vectors: the second argument where it is left out, the numbers of these results.

torch's `svdvals` and `eigvalsh` ask for them wherever a tensor is no plain one, as here."""


def _with_values_alone(nodes: Sequence[Node], outputs: Sequence[Arg]) -> list[Node]:
    """The nodes, with calls that ask for no vectors where nobody uses any."""
    used = {name for node in nodes for name in operands(node)} | {name for arg in outputs for name in references(arg)}
    found = []
    for node in nodes:
        second, vectors = _VECTORS.get(node.target, (None, ()))
        if vectors and len(node.args) < 3 and used.isdisjoint([node.results[number].name for number in vectors]):
            results = [_emptied(one) if n in vectors else one for n, one in enumerate(node.results)]
            args = *node.args, *(second,)[: 2 - len(node.args)], False
            node = replace(node, args=args, results=tuple(results))
        found.append(node)
    return found


def _emptied(value: Value) -> Value:
    assert isinstance(value.type, TensorType)
    return Value(value.name, TensorType(value.type.dtype, (0,), (1,), 0, value.type.device))


def kept_for_their_errors(graph: Graph, results: int) -> Graph:
    """The graph in which calls of the forward that may raise, and whose data its `results` do not need, have the effect
    "acts": they are made for their errors.

    One whose errors a node has that is made in any case is left alone, and so is one that cannot raise because literals
    alone decide whether it does: these are looked at now.
    """
    forward = [node for node in graph.nodes if node.phase == "forward" and may_raise(node.target)]
    values = definitions(graph) if forward else {}
    deciding = {id(node): found for node in forward if (found := deciding_arguments(node, values))}
    if not deciding:
        return graph
    computed = _computed(graph, results)
    calls = {_call(node) for node in forward if id(node) in computed}
    kept: set[int] = set()
    known = cache(lambda: literal_values(graph.nodes, _is_small, {}))
    for node in forward:
        arguments = deciding.get(id(node))
        if arguments and _call(node) not in calls and _may_raise(node, arguments, graph, values, known):
            calls.add(_call(node))
            kept.add(id(node))
    nodes = tuple([replace(node, effect="acts") if id(node) in kept else node for node in graph.nodes])
    return Graph(graph.inputs, nodes, graph.outputs) if kept else graph


def _computed(graph: Graph, results: int) -> set[int]:
    """The nodes on whose data the first outputs depend, or something whose effect is ordered, by their ids."""
    needed = {name for arg in graph.outputs[:results] for name in references(arg)}
    found = set()
    for node in reversed(graph.nodes):
        if node.effect not in LASTING and needed.isdisjoint([value.name for value in node.results]):
            continue
        found.add(id(node))
        if node.effect in LASTING or not _reads_types_alone(node):
            needed.update(operands(node))
    return found


def _reads_types_alone(node: Node) -> bool:
    """Whether the elements of its operands do not matter: it makes memory like theirs, or has no elements."""
    name = packet_of(node.target).partition(".")[2]
    is_like = name.startswith("new_") or name in _LIKE
    return is_like or all(isinstance(value.type, TensorType) and 0 in value.type.shape for value in node.results)


_LIKE = frozenset(("empty_like", "full_like", "ones_like", "zeros_like"))


def _call(node: Node) -> bytes:
    return _ENCODE((node.target, node.args, node.kwargs))


def _may_raise(
    node: Node, deciding: tuple[Arg, ...], graph: Graph, values: dict[str, Value], known: Callable[[], Known]
) -> bool:
    """known: what literals alone decide."""
    results = [value.type for value in node.results if isinstance(value.type, TensorType)]
    if all(0 in type_.shape for type_ in results) or not all(may_raise(node.target, type_.device) for type_ in results):
        return False
    names = [argument.name for argument in deciding if isinstance(argument, Ref)]
    if not names:  # then sizes do not matter: a division by a number
        return _raises_now(node, (), values, sized=False)
    if not known().keys() >= set(names) or not all(_is_small(value.type) for value in node.results):
        return True
    return _raises_now(node, literal_nodes(graph.nodes, known(), names), values, sized=True)


def _raises_now(node: Node, made: tuple[Node, ...], values: dict[str, Value], *, sized: bool) -> bool:
    """Whether a call raises that is given zeros for what `made` does not compute."""
    computed = {value.name for each in made for value in each.results}
    given = [values[name] for name in operands(node) if name not in computed]
    if any(isinstance(leaf, Expr) for arg in (*node.args, *node.kwargs.values()) for leaf in leaves(arg)):
        return True
    zeros = []
    for value in given:
        if not isinstance(value.type, TensorType) or (sized and not value.type.is_static):
            return True
        shape = value.type.shape if sized else (1,) * len(value.type.shape)
        zeros.append(torch.zeros((), dtype=getattr(torch, value.type.dtype)).expand(shape))  # type: ignore[arg-type]
    run = executor(Graph(tuple(given), (*made, node), ()))
    try:
        with torch.no_grad():
            run(*zeros)
    except Exception:
        return True
    return False


def _is_small(type_: object) -> bool:
    if not isinstance(type_, TensorType) or not type_.is_static or type_.device != "cpu":
        return False
    return numel(type_.shape) <= _LARGEST  # type: ignore[operator]
