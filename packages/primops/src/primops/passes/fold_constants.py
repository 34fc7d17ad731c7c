"""Know at compile time what is the same number everywhere."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass

from primops.prims import OPS
from primops.prims.layouts import FLOATS, INTEGERS
from stagewire.expr import Expr
from stagewire.graph import Arg, DTypeArg, Graph, List, Node, NonFinite, Ref
from stagewire.graph_passes import recalled, with_nodes
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
                value = in_dtype(_number(node.args[1]), node.results[0].type.dtype)  # type: ignore[union-attr]
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
    args: tuple[Arg, ...] = (List(type_.shape), _literal(value), DTypeArg(type_.dtype))
    return recalled(node, "prims.full", args)


def _with_literals(node: Node, constants: dict[str, Number]) -> Node:
    """Constant operands as literals, as long as one operand stays a tensor."""
    fixed = 1 if node.target == "prims.where" else 0
    operands = node.args[fixed:]
    known = [type(a) is Ref and a.name in constants for a in operands]
    if not any(known) or not any(type(a) is Ref and not k for a, k in zip(operands, known, strict=True)):
        return node
    literals = [_literal(constants[a.name]) if k else a for a, k in zip(operands, known, strict=True)]  # type: ignore[union-attr]
    return recalled(node, node.target, (*node.args[:fixed], *literals))


def _number(arg: Arg) -> Number:
    return float(arg.text) if type(arg) is NonFinite else arg  # type: ignore[return-value]


def _literal(value: Number) -> Arg:
    if type(value) is float and not math.isfinite(value):
        return NonFinite("nan" if math.isnan(value) else "inf" if value > 0 else "-inf")
    return value


_RANGES = {"int64": (-(2**63), 2**63 - 1), "int32": (-(2**31), 2**31 - 1), "int16": (-(2**15), 2**15 - 1),
           "int8": (-128, 127), "uint8": (0, 255)}  # fmt: skip


def in_dtype(value: Number | Expr, dtype: str) -> Number | None:
    """The number as a tensor of `dtype` holds it; None where that depends on the machine (overflow, nan to integer) or
    is a size expression.

    >>> in_dtype(0.1, "bfloat16"), in_dtype(2.7, "int64"), in_dtype(300, "uint8")
    (0.10009765625, 2, None)
    """
    if isinstance(value, Expr):
        return None
    if dtype == "bool":
        return bool(value)
    if dtype in INTEGERS:
        if not math.isfinite(value):
            return None
        low, high = _RANGES[dtype]
        return int(value) if low <= int(value) <= high else None
    if dtype not in FLOATS:
        return None
    return _rounded(float(value), dtype) if abs(value) < 2**1000 or not math.isfinite(value) else None


def _rounded(value: float, dtype: str) -> float | None:
    if dtype == "float64" or not math.isfinite(value):
        return value
    try:
        single = struct.unpack("<f", struct.pack("<f", value))[0]
        if dtype == "float32":
            return single
        if dtype == "float16":
            return struct.unpack("<e", struct.pack("<e", single))[0]
    except OverflowError:
        return None
    bits = struct.unpack("<I", struct.pack("<f", single))[0]
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return struct.unpack("<f", struct.pack("<I", bits))[0]
