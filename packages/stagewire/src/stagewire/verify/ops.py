"""V1 to V5: calls of ops that a vocabulary has (`stagewire.vocabulary`), and the constraints of each op.

V1 the vocabulary has the op       V2 a call has one positional argument for each parameter, and no keyword arguments
V3 each argument is of its kind    V4 the results are as many as the rule gives, of its dtypes and shapes
V5 a call states the op's effect

Constraints are reported under the namespace and their label: `prims.E1`.
"""

from __future__ import annotations

from stagewire.errors import UnknownOp
from stagewire.graph import Graph, Node
from stagewire.types import TensorType, ValueType
from stagewire.verify.fault import Fault, Faults, Path
from stagewire.vocabulary import Op, arguments_of, find


def check_ops(graph: Graph, path: Path) -> Faults:
    """Every call of the graph; references to nothing and what depends on them are passed over (G2)."""
    types: dict[str, ValueType] = {value.name: value.type for value in graph.inputs}
    for position, node in enumerate(graph.nodes):
        where = (*path, "nodes", position)
        try:
            op = find(node.target)
        except UnknownOp as unknown:
            yield Fault("V1", unknown.message, where)
            op = None
        if op is not None:
            yield from _check_call(op, node, types, where)
        types.update((value.name, value.type) for value in node.results)


def _check_call(op: Op, node: Node, types: dict[str, ValueType], where: Path) -> Faults:
    if node.kwargs or len(node.args) != len(op.parameters):
        yield Fault(
            "V2", f"{node.target} with {len(node.args)} arguments and {len(node.kwargs)} keyword arguments", where
        )
        return
    if node.effect != op.effect:
        yield Fault("V5", f"{node.target} states the effect {node.effect}, the op's is {op.effect}", where)
    try:
        arguments = arguments_of(node, types)
    except KeyError:
        return
    wrong = [p for p, argument in zip(op.parameters, arguments, strict=True) if not p.takes(argument)]
    for parameter in wrong:
        given = node.args[op.parameters.index(parameter)]
        yield Fault("V3", f"{node.target}: {parameter.name} is {given!r}, not of kind {parameter.kind}", where)
    if wrong:
        return
    refused = op.refusal(arguments)
    if refused is not None:
        label, message = refused
        yield Fault(f"{node.target.partition('.')[0]}.{label}", message, where)
        return
    expected = [(t.dtype, t.shape) for t in op.rule(*arguments)]
    stated = [(t.dtype, t.shape) if isinstance(t, TensorType) else None for t in (r.type for r in node.results)]
    if expected != stated:
        yield Fault("V4", f"{node.target}: the rule gives {expected}, the node states {stated}", where)
