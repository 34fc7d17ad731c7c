"""Strategies for sources, guards and captures."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any

from hypothesis import strategies as st

from stagewire import capture
from stagewire.capture import Capture, Guard, Input, Source
from stagewire.expr import symbol
from stagewire.graph import Graph, Ref, Value, definitions
from stagewire.testing.basics import (
    FLOATS,
    INTEGERS,
    TEXT,
    args,
    names,
    plain_names,
    source_lines,
    symbol_tables,
    tensor_types,
)
from stagewire.testing.graphs import TORCH, Calls, graphs
from stagewire.types import ScalarType, TensorType, ValueType, contiguous

keys: st.SearchStrategy[int | str | bool | float | None] = st.one_of(st.none(), st.booleans(), INTEGERS, FLOATS, TEXT)


@cache
def sources(handles: bool = False) -> st.SearchStrategy[Source]:
    """Paths to Python values; through what a process holds only with `handles`."""
    roots: list[st.SearchStrategy[Source]] = [
        st.builds(capture.Local, st.one_of(plain_names, names)),
        st.builds(capture.Global, names, st.one_of(st.none(), names)),
        st.builds(capture.Builtin, plain_names),
        st.builds(capture.Cell, names),
    ]
    if handles:
        roots.append(st.builds(capture.HandleSource, names))
    return st.recursive(st.one_of(roots), _steps, max_leaves=4)


def _steps(base: st.SearchStrategy[Source]) -> st.SearchStrategy[Source]:
    positions = st.integers(0, 5)
    return st.one_of(
        st.builds(capture.Attribute, base, st.one_of(plain_names, names)),
        st.builds(capture.Item, base, keys),
        st.builds(capture.DictKey, base, positions),
        st.builds(capture.DictValue, base, positions),
        st.builds(capture.TypeOf, base),
        st.builds(capture.Reading, names, st.one_of(st.none(), base), st.tuples(keys)),
        st.builds(capture.Cell, names, base),
    )


def guards(symbols: Sequence[str] = ()) -> st.SearchStrategy[Guard]:
    """Guards of every kind."""
    return _guards(tuple(symbols))


@lru_cache(maxsize=64)
def _guards(symbols: tuple[str, ...]) -> st.SearchStrategy[Guard]:
    source = sources(handles=True)
    line = st.one_of(st.none(), source_lines)
    literal = args([], [], handles=False)
    choices: list[st.SearchStrategy[Guard]] = [
        st.builds(capture.TypeIs, source, TEXT, line),
        st.builds(capture.IdentityIs, source, TEXT, line),
        st.builds(capture.Equals, source, literal, line),
        st.builds(capture.TensorIs, source, tensor_types(symbols), TEXT, st.sampled_from([None, True, False]), line),
        st.builds(capture.LengthIs, source, st.integers(0, 9), line),
        st.builds(capture.KeysAre, source, st.lists(literal, max_size=2).map(tuple), line),
        st.builds(capture.HasKey, source, keys, st.booleans(), line),
        st.builds(capture.HasAttribute, source, names, st.booleans(), line),
        st.builds(capture.SameObject, source, source, st.booleans(), line),
        st.builds(_distinct, st.lists(source, min_size=2, max_size=4, unique=True), st.integers(1, 4)),
        global_states,
    ]
    if symbols:
        side = st.one_of(st.integers(0, 9), st.builds(symbol, st.sampled_from(symbols)))
        operator = st.sampled_from(["==", "!=", "<", "<=", ">", ">="])
        choices.append(st.builds(capture.Relation, side, operator, side, line))
    return st.one_of(choices)


def _distinct(sources: list[Source], apart: int) -> capture.Distinct:
    return capture.Distinct(tuple(sources[:apart]), tuple(sources[apart:]))


global_states: st.SearchStrategy[capture.GlobalState] = st.builds(
    capture.GlobalState,
    st.booleans(),
    st.booleans(),
    st.sampled_from(["float32", "bfloat16"]),
    st.lists(st.tuples(st.sampled_from(["cpu", "cuda"]), st.just("bfloat16")), max_size=1).map(tuple),
    st.booleans(),
)


@st.composite
def custom_functions(draw: st.DrawFn, name: str) -> capture.CustomFunction:
    """A function of elementwise ops with as many gradients as operands, none of which is more than passed on."""
    forward = draw(graphs(dataclasses.replace(TORCH, opaque=None, handles=False), phase="forward"))
    taken = [item for item in forward.outputs if isinstance(item, Ref)]
    forward = Graph(forward.inputs, forward.nodes, tuple(taken))
    known = definitions(forward)
    values = tuple(Value(f"{position}.{item.name}", known[item.name].type) for position, item in enumerate(taken))
    operands = draw(st.integers(0, len(forward.inputs)))
    results = draw(st.integers(0, len(taken)))
    backward = Graph(values, (), (None,) * operands) if draw(st.booleans()) else None
    return capture.CustomFunction(
        name=name,
        operands=operands,
        results=results,
        forward=forward,
        backward=backward,
        saved=draw(st.integers(0, len(taken) - results)),
        non_differentiable=tuple(range(draw(st.integers(0, results)))),
        once=draw(st.booleans()),
    )


@st.composite
def control_flow(draw: st.DrawFn, name: str) -> capture.CustomFunction:
    """`cond`, `while_loop` or `scan` over functions of elementwise ops."""
    kind: Any = draw(st.sampled_from(sorted(capture.CONTROL_FLOW)))
    calls = dataclasses.replace(TORCH, opaque=None, handles=False)
    first = draw(graphs(calls, phase="forward"))
    outputs = [Ref(value.name) for value in first.inputs] if kind == "while_loop" else first.outputs
    taken = tuple([item for item in outputs if isinstance(item, Ref)])
    first = Graph(first.inputs, first.nodes, taken)
    second = {"cond": first, "while_loop": Graph(first.inputs, (), (None,))}.get(kind)
    arguments = 0 if kind == "cond" else len(taken) if kind == "while_loop" else draw(st.integers(0, len(first.inputs)))
    carried = draw(st.integers(0, min(arguments, len(taken)))) if kind == "scan" else 0
    transform = capture.Transform(
        kind=kind, arguments=arguments, outputs=len(taken), carried=carried, length=draw(st.integers(0, 5))
    )
    operands = 1 if kind == "cond" else arguments
    return capture.CustomFunction(
        name=name, operands=operands, results=len(taken), forward=first, second=second, transform=transform
    )


_FUNCTIONS = st.one_of(
    st.just(()), st.one_of(custom_functions("first"), control_flow("first")).map(lambda function: (function,))
)


@st.composite
def captures(draw: st.DrawFn, vocabulary: Calls = TORCH, with_guards: bool = True) -> Capture:
    """A capture with inputs of every role; one in two refers to handles and is not portable."""
    portable = draw(st.booleans())
    vocabulary = dataclasses.replace(vocabulary, handles=vocabulary.handles and not portable)
    symbols = draw(symbol_tables())
    known = tuple(symbol.name for symbol in symbols)
    kinds: list[ValueType] = list(draw(st.lists(tensor_types(known), max_size=3)))
    if vocabulary.opaque is not None and draw(st.booleans()):
        kinds.append(ScalarType("int"))
    if draw(st.booleans()):
        kinds.append(contiguous("float64", ()))  # what a float is given as
    graph = draw(graphs(vocabulary, kinds, known, phase="forward"))
    guard = guards(known)
    return Capture(
        code=draw(st.builds(capture.Code, names, TEXT, st.integers(0, 999))),
        inputs=tuple(_input(draw, value, portable) for value in graph.inputs),
        graph=graph,
        guards=tuple(draw(st.lists(guard, max_size=3))) if with_guards else (),
        symbols=symbols,
        state=draw(global_states),
        portable=portable,
        functions=draw(_FUNCTIONS),
    )


def _input(draw: st.DrawFn, value: Value, portable: bool) -> Input:
    source = draw(sources(handles=not portable))
    if not isinstance(value.type, TensorType):
        return Input(value, source, "symbol")
    if value.type.dtype == "float64" and not value.type.shape and value.type.device == "cpu" and draw(st.booleans()):
        return Input(value, source, "number")
    return Input(value, source, draw(st.sampled_from(["parameter", "buffer", "tensor", "constant"])))
