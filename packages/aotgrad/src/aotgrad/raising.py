"""What the data of a call must satisfy, or ATen raises on the CPU: as data, by op.

    condition ::= low <= every element of an index < high | no element of a divisor is 0

A call whose result nobody uses is dropped; its conditions stay (`RemoveDeadCode`), as a check of the operand alone.
On a GPU an index out of range stops the device, and a division by zero raises nothing: nothing is checked there.
Sources: TensorAdvancedIndexing.cpp, IndexingUtils.h, Embedding.cpp and BinaryOpsKernel.cpp of ATen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from stagewire.expr import Dim
from stagewire.graph import Arg, List, Node, Ref, Value
from stagewire.types import TensorType, ValueType, numel

__all__ = ["Condition", "conditions_of"]


class Condition(NamedTuple):
    """low <= every element of the value `operand` < high; without bounds: none is 0."""

    operand: str
    low: Dim = 0
    high: Dim | None = None


Types = Mapping[str, Value]
_INTEGERS = frozenset(("int8", "int16", "int32", "int64"))


def conditions_of(node: Node, values: Mapping[str, Value]) -> tuple[Condition, ...]:
    """The conditions of a call on its operands on the CPU; none for what never raises because of its data."""
    packet = node.target.rpartition(".")[0]
    rule = _RULES.get(packet)
    if rule is None:
        return ()
    return tuple([one for one in rule(node, values) if _is_checked(values[one.operand].type)])


def _type(values: Types, name: str) -> TensorType:
    type_ = values[name].type
    assert isinstance(type_, TensorType)
    return type_


def _is_checked(type_: ValueType) -> bool:
    if not isinstance(type_, TensorType):
        return False
    return type_.device == "cpu" and type_.dtype in _INTEGERS and 0 not in type_.shape


def _size(type_: TensorType, dim: Arg) -> Dim:
    """The size of a dimension, which may be counted from the end; a tensor without any has one of size 1."""
    assert isinstance(dim, int)
    return type_.shape[dim] if type_.shape else 1


def _along(wraps: bool) -> Callable[[Node, Types], Iterator[Condition]]:
    """op(self, dim, index): wraps: whether negative indices count from the end."""

    def rule(node: Node, values: Types) -> Iterator[Condition]:
        match node.args:
            case (Ref(source), int() as dim, Ref(index), *_):
                size = _size(_type(values, source), dim)
                yield Condition(index, -size if wraps else 0, size)

    return rule


def _indexing(node: Node, values: Types) -> Iterator[Condition]:
    """op(self, indices): one index for each dimension, None for all of it; masks select by themselves."""
    match node.args:
        case (Ref(source), List(indices), *_):
            given = [_type(values, one.name) for one in indices if isinstance(one, Ref)]
            if any(type_.dtype in ("bool", "uint8") for type_ in given):
                return
            for dim, index in enumerate(indices):
                if isinstance(index, Ref):
                    size = _size(_type(values, source), dim)
                    yield Condition(index.name, -size, size)


def _embedding(node: Node, values: Types) -> Iterator[Condition]:
    match node.args:
        case (Ref(weight), Ref(index), *_):
            yield Condition(index, 0, _size(_type(values, weight), 0))


def _flat(node: Node, values: Types) -> Iterator[Condition]:
    """op(self, index): of all elements in a row."""
    match node.args:
        case (Ref(source), Ref(index), *_):
            size = numel(_type(values, source).shape)
            yield Condition(index, -size, size)


def _division(node: Node, values: Types) -> Iterator[Condition]:
    """op(self, divisor) on integers; a division that rounds to no integer is one of floats."""
    result = node.results[0].type
    match node.args:
        case (_, Ref(divisor), *_) if isinstance(result, TensorType) and result.dtype in _INTEGERS:
            yield Condition(divisor)


_RULES: Mapping[str, Callable[[Node, Types], Iterator[Condition]]] = {
    **{f"aten.{name}": _along(False) for name in ("index_select", "gather", "scatter", "scatter_add", "scatter_reduce",
                                                  "index_copy", "index_add", "index_reduce")},
    "aten.index_fill": _along(True),
    "aten.index": _indexing,
    "aten.index_put": _indexing,
    "aten.embedding": _embedding,
    "aten.take": _flat,
    "aten.put": _flat,
    **{f"aten.{name}": _division for name in ("div", "floor_divide", "remainder", "fmod")},
}  # fmt: skip
