"""Checks Prim graphs against the records: every node has a known prim, fitting arguments and the stated result types.

Labels: G1 to G6 here, the others with the prims (SPEC.md lists all).
"""

from __future__ import annotations

from typing import Any

from primops.builder import Value, type_of
from primops.effects import effect_of
from primops.errors import OpsetMismatch, PrimFault, UnknownPrim
from primops.prims import OPSET, RECORDS
from primops.prims.record import Kind, Record
from stagewire.expr import Expr
from stagewire.graph import DTypeArg, Graph, List, Node, NonFinite, Ref
from stagewire.prim import Prim
from stagewire.types import DTYPES, TensorType, ValueType

GRAPH_CONSTRAINTS = {
    "G1": "A prim node has one positional argument for each parameter and no keyword arguments.",
    "G2": "Every argument is of its parameter's kind.",
    "G3": "The results are as many as the rule gives, with its dtypes and shapes.",
    "G4": "Every reference is to an input or an earlier result; no name is defined twice.",
    "G5": "The stride of a result has one entry for each dimension.",
    "G6": "A prim states its effect: it draws random numbers if its record says so, and does nothing else.",
}


def verify(document: Prim) -> None:
    """Raise `PrimFault` (or `UnknownPrim`, `OpsetMismatch`) at the first node that breaks a constraint."""
    if document.opset != OPSET:
        raise OpsetMismatch(f"the document is for opset {document.opset}, this is opset {OPSET}")
    verify_graph(document.forward)
    if document.backward is not None:
        verify_graph(document.backward)


def verify_graph(graph: Graph) -> None:
    """The same for one graph."""
    types: dict[str, ValueType] = {}
    for value in graph.inputs:
        _define(types, value.name, value.type, "the inputs")
    for node in graph.nodes:
        where = _where(node)
        for argument in (*node.args, *node.kwargs.values()):
            for name in _names(argument):
                if name not in types:
                    raise PrimFault("G4", f"{node.target} uses {name!r}, which is not defined before it", where=where)
        if node.target.startswith("prims."):
            verify_node(node, types)
        for value in node.results:
            if isinstance(value.type, TensorType) and len(value.type.stride) != len(value.type.shape):
                raise PrimFault(
                    "G5", f"{value.name}: stride {value.type.stride} for shape {value.type.shape}", where=where
                )
            _define(types, value.name, value.type, where)


def verify_node(node: Node, types: dict[str, ValueType]) -> None:
    """One prim node; `types` are those of the values it may use."""
    name, where = node.target.removeprefix("prims."), _where(node)
    record = RECORDS.get(name)
    if record is None:
        raise UnknownPrim(f"the opset has no prim {name!r}", where=where)
    if node.kwargs or len(node.args) != len(record.parameters):
        raise PrimFault(
            "G1", f"{name} with {len(node.args)} arguments and {len(node.kwargs)} keyword arguments", where=where
        )
    if node.effect != effect_of(node.target):
        raise PrimFault(
            "G6", f"{name} states the effect {node.effect}, its record {effect_of(node.target)}", where=where
        )
    arguments = []
    for arg, parameter in zip(node.args, record.parameters, strict=True):
        argument = _typed(arg, types)
        if not KINDS[parameter.kind](argument):
            raise PrimFault("G2", f"{name}: {parameter.name} is {arg!r}, not of kind {parameter.kind}", where=where)
        arguments.append(argument)
    check_call(record, tuple(arguments), where)
    expected = [(t.dtype, t.shape) for t in record.rule(*arguments)]
    stated = [(t.dtype, t.shape) if isinstance(t, TensorType) else None for t in (r.type for r in node.results)]
    if expected != stated:
        raise PrimFault("G3", f"{name}: the rule gives {expected}, the node states {stated}", where=where)


def check_call(record: Record, arguments: tuple[Any, ...], where: str | None = None) -> None:
    """Raise `PrimFault` if the arguments (values, types or literals) break a constraint of the prim."""
    seen = tuple(map(type_of, arguments))
    for constraint in record.constraints:
        fault = constraint.check(*seen)
        if fault is not None:
            raise PrimFault(constraint.label, f"{record.name}: {fault}", where=where)


def _define(types: dict[str, ValueType], name: str, type: ValueType, where: str | None) -> None:
    if name in types:
        raise PrimFault("G4", f"{name!r} is defined twice", where=where)
    types[name] = type


def _where(node: Node) -> str:
    results = ", ".join(value.name for value in node.results)
    return f"{results} = {node.target}" + (f"  # {node.line}" if node.line else "")


def _names(arg: Any) -> list[str]:
    if isinstance(arg, Ref):
        return [arg.name]
    return [name for item in arg.items for name in _names(item)] if isinstance(arg, List) else []


def _typed(arg: Any, types: dict[str, ValueType]) -> Any:
    match arg:
        case Ref(name):
            return types[name]
        case List(items):
            return tuple(_typed(item, types) for item in items)
        case NonFinite(text):
            return float(text)
        case DTypeArg(name):
            return name
    return arg


def _is_tensor(x: Any) -> bool:
    return type(x) is TensorType


def _is_int(x: Any) -> bool:
    return type(x) is int


def _is_number(x: Any) -> bool:
    """A literal, or a size expression, which is an int."""
    return type(x) in (bool, int, float) or isinstance(x, Expr)


def _is_size(x: Any) -> bool:
    return type(x) is int or isinstance(x, Expr)


KINDS: dict[Kind, Any] = {
    "tensor": _is_tensor,
    "operand": lambda x: _is_tensor(x) or _is_number(x),
    "tensors": lambda x: isinstance(x, tuple) and all(map(_is_tensor, x)),
    "indices": lambda x: isinstance(x, tuple) and all(i is None or _is_tensor(i) for i in x),
    "dims": lambda x: isinstance(x, tuple) and all(map(_is_int, x)),
    "sizes": lambda x: isinstance(x, tuple) and all(map(_is_size, x)),
    "size": _is_size,
    "int": _is_int,
    "int?": lambda x: x is None or _is_int(x),
    "number": _is_number,
    "bool": lambda x: type(x) is bool,
    "word": lambda x: type(x) is str,
    "dtype": lambda x: x in DTYPES,
}

__all__ = ["GRAPH_CONSTRAINTS", "Value", "check_call", "verify", "verify_graph", "verify_node"]
