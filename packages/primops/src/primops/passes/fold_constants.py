"""Know at compile time what is the same number everywhere."""

from __future__ import annotations

import math
from dataclasses import dataclass

from primops.prims import OPS
from primops.prims.layouts import INTEGERS, SUPPORTED
from stagewire.expr import Expr
from stagewire.graph import Arg, DTypeArg, Graph, List, Node, Ref
from stagewire.graph_passes import recalled, with_nodes
from stagewire.literals import held, literal, number
from stagewire.types import TensorType

Number = bool | int | float

_MOVES = frozenset(
    f"prims.{name}"
    for name in ("broadcast_in_dim", "reshape", "permute", "slice", "flip", "clone", "convert_element_type")
) | {"aten._to_copy.default"}  # between devices: a number is on all of them
_ELEMENTWISE = frozenset(
    f"prims.{name}" for name, op in OPS.items() if op.family == "elementwise" and len(op.parameters) > 1
)


@dataclass(frozen=True)
class FoldConstants:
    """After it, `full` moved or converted is `full` again, and a `full` beside a tensor, elementwise, is a literal."""

    def run(self, graph: Graph) -> Graph:
        constants: dict[str, Number] = {}
        nodes: list[Node] = []
        changed = False
        for node in graph.nodes:
            target = node.target
            if target == "prims.full":
                value = in_dtype(number(node.args[1]), node.results[0].type.dtype)  # type: ignore[union-attr]
                if value is not None:
                    constants[node.results[0].name] = value
            elif constants and (target in _MOVES or target in _ELEMENTWISE):
                folded = _moved(node, constants) if target in _MOVES else _with_literals(node, constants)
                changed = changed or folded is not node
                node = folded
            nodes.append(node)
        return with_nodes(graph, nodes) if changed else graph


def _moved(node: Node, constants: dict[str, Number]) -> Node:
    """A move of a constant as `full`."""
    source = node.args[0]
    value = constants.get(source.name) if type(source) is Ref else None
    if value is None:
        return node
    result = node.results[0]
    type_: TensorType = result.type  # type: ignore[assignment]
    value = in_dtype(value, type_.dtype)
    if value is None:
        return node
    constants[result.name] = value
    args: tuple[Arg, ...] = (List(type_.shape), literal(value), DTypeArg(type_.dtype))
    return recalled(node, "prims.full", args)


def _with_literals(node: Node, constants: dict[str, Number]) -> Node:
    """Constant operands as literals, as long as one operand stays a tensor."""
    fixed = 1 if node.target == "prims.where" else 0
    operands = node.args[fixed:]
    known = [type(a) is Ref and a.name in constants for a in operands]
    if not any(known) or not any(type(a) is Ref and not k for a, k in zip(operands, known, strict=True)):
        return node
    literals = [literal(constants[a.name]) if k else a for a, k in zip(operands, known, strict=True)]  # type: ignore[union-attr]
    return recalled(node, node.target, (*node.args[:fixed], *literals))


def in_dtype(value: Number | Expr, dtype: str) -> Number | None:
    """The number as a tensor of `dtype` holds it; None where that depends on the machine (overflow, nan to integer) or
    is a size expression.

    >>> in_dtype(0.1, "bfloat16"), in_dtype(2.7, "int64"), in_dtype(300, "uint8")
    (0.10009765625, 2, None)
    """
    if isinstance(value, Expr) or dtype not in SUPPORTED:
        return None
    try:
        found = held(value, dtype)
    except (OverflowError, ValueError):
        return None
    fits = found == int(value) if dtype in INTEGERS else math.isfinite(found) or not math.isfinite(value)
    return found if fits else None
