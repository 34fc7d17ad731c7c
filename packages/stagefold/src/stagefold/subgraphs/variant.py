"""A compiled part for one kind of sizes: which inputs it is for, as a capture and as a test.

capture_for(part, inputs)               the part's capture with the types that these inputs have, in its symbols
fits(capture, assumptions)(inputs)      whether a program made of it is right for other inputs
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace

from stagefold.subgraphs.cut import Subgraph
from stagewire.capture import Capture, Relation, Symbol
from stagewire.expr import Dim, Expr, evaluate
from stagewire.graph import Value
from stagewire.types import ScalarType, TensorType

LEAST = 2
"""The least value of a symbol: 0 and 1 decide how tensors broadcast and which strides they have."""


def capture_for(part: Subgraph, inputs: Sequence[Any]) -> Capture:
    """The capture of `part` as a program for inputs like these: layouts are what they are, sizes stay symbols."""
    graph = part.capture.graph
    numbers = {
        value.name: given for value, given in zip(graph.inputs, inputs, strict=True) if value.type == ScalarType("int")
    }
    values = tuple([_typed(value, given, numbers) for value, given in zip(graph.inputs, inputs, strict=True)])
    items = tuple([replace(item, value=value) for item, value in zip(part.capture.inputs, values, strict=True)])
    own = tuple([replace(symbol, hint=numbers[symbol.name]) for symbol in part.symbols])
    symbols = (*own, *(Symbol(name, None, numbers[name], LEAST) for name in part.unknown))
    return replace(part.capture, graph=replace(graph, inputs=values), inputs=items, symbols=symbols)


def _typed(value: Value, given: Any, numbers: dict[str, int]) -> Value:
    if not isinstance(value.type, TensorType):
        return value
    type_ = replace(
        value.type,
        shape=_as_declared(value.type.shape, given.shape, numbers),
        stride=_as_declared(value.type.stride, given.stride(), numbers),
        storage_offset=given.storage_offset(),
        requires_grad=given.requires_grad,
    )
    return replace(value, type=type_)


def _as_declared(declared: tuple[Dim, ...], actual: Sequence[int], numbers: dict[str, int]) -> tuple[Dim, ...]:
    """The declared expressions where they are worth what is there, else the numbers themselves."""
    return tuple(
        [size if evaluate(size, numbers) == number else number for size, number in zip(declared, actual, strict=True)]
    )


def fits(capture: Capture, assumptions: Sequence[Relation]) -> Callable[..., bool]:
    """A function of the inputs: have they the sizes and layouts of the capture, and does what was assumed hold?"""
    names = [f"_{number}" for number in range(len(capture.inputs))]
    conditions = [f"{symbol.name} >= {symbol.lower or 0}" for symbol in capture.symbols if symbol.source is None]
    declared = {symbol.name for symbol in capture.symbols}
    lines = []
    for name, item in zip(names, capture.inputs, strict=True):
        if isinstance(item.value.type, TensorType):
            conditions += _tensor_conditions(name, item.value.type, is_fixed=item.role == "parameter")
        elif item.value.name in declared:
            lines.append(f"    {item.value.name} = {name}")
    conditions += [f"{_text(each.left)} {each.operator} {_text(each.right)}" for each in assumptions]
    source = [f"def fits({', '.join(names)}):", *lines, f"    return {' and '.join(conditions) or 'True'}"]
    made: dict[str, Any] = {"Min": min, "Max": max}
    exec(compile("\n".join(source), f"<sizes of {capture.code.name}>", "exec"), made)
    return made["fits"]  # type: ignore[no-any-return]


def _tensor_conditions(name: str, type_: TensorType, *, is_fixed: bool) -> list[str]:
    if is_fixed:  # guarded
        return []
    gradient = f"{name}.requires_grad" if type_.requires_grad else f"not {name}.requires_grad"
    return [f"{name}.shape == {_tuple(type_.shape)}", f"{name}.stride() == {_tuple(type_.stride)}", gradient]


def _tuple(sizes: tuple[Dim, ...]) -> str:
    return f"({''.join(f'{_text(size)}, ' for size in sizes)})"


def _text(size: Dim) -> str:
    return f"({size.text})" if isinstance(size, Expr) else str(size)
