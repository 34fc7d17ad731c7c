"""V1 to V5: calls of ops that a vocabulary has (`stagewire.vocabulary`), and the constraints of each op.

V1 the vocabulary has the op
V2 a call has the arguments that the op takes, by position alone if it is no `python_call`
V3 each argument is of its kind
V4 the results are as many as the rule gives, of its dtypes and shapes
V5 a call states the effect of its op

Constraints are reported under the namespace and their label: `prims.E1`.
"""

from __future__ import annotations

from typing import Any

from stagewire.errors import UnknownOp
from stagewire.graph import Graph, Node
from stagewire.types import TensorType, ValueType
from stagewire.verify.fault import Fault, Faults, Path
from stagewire.vocabulary import Op, Rule, find, seen


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
    bound = op.bind(node)
    if isinstance(bound, str):
        yield Fault("V2", f"{node.target} with {bound}", where)
        return
    if node.effect not in (op.effect, "acts"):
        yield Fault("V5", f"{node.target} states the effect {node.effect}, the op's is {op.effect}", where)
    try:
        arguments = [(parameter, arg, seen(arg, types)) for parameter, arg in bound]
    except KeyError:
        return
    wrong = [(parameter, arg) for parameter, arg, argument in arguments if not parameter.takes(argument)]
    for parameter, arg in wrong:
        yield Fault("V3", f"{node.target}: {parameter.name} is {arg!r}, not of kind {parameter.kind}", where)
    if not wrong and op.rule is not None:
        yield from _check_types(op, op.rule, node, tuple([argument for _, _, argument in arguments]), where)


def _check_types(op: Op, rule: Rule, node: Node, arguments: tuple[Any, ...], where: Path) -> Faults:
    refused = op.refusal(arguments)
    if refused is not None:
        label, message = refused
        yield Fault(f"{node.target.partition('.')[0]}.{label}", message, where)
        return
    expected = [(t.dtype, t.shape) for t in rule(*arguments)]
    stated = [(t.dtype, t.shape) if isinstance(t, TensorType) else None for t in (r.type for r in node.results)]
    if expected != stated:
        yield Fault("V4", f"{node.target}: the rule gives {expected}, the node states {stated}", where)
