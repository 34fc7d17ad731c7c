"""G1 to G8: graphs of Capture, Grad and Prim; V1 to V5: calls of ops that a vocabulary has (`stagewire.vocabulary`).

The constraints of an op are reported under the namespace and their label: `prims.E1`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from stagewire.errors import StageError, UnknownOp
from stagewire.flex_attention import functions_of, read_function
from stagewire.graph import Graph, Node, is_keyword_name, node_references, opens_files, references
from stagewire.symbols import symbol_places
from stagewire.types import TensorType, ValueType
from stagewire.verify.fault import Fault, Faults, Path, duplicates
from stagewire.verify.types import check_parts
from stagewire.vocabulary import Op, Rule, find, seen


def check_graph(graph: Graph, path: Path, target: re.Pattern[str] | None = None) -> Faults:
    yield from _check_names(graph, path)
    known = {value.name for value in graph.inputs}
    for position, node in enumerate(graph.nodes):
        where = (*path, "nodes", position)
        for name in node_references(node):
            if name not in known:
                yield Fault("G2", f"%{name} is used before it is defined", where)
        if not node.target:
            yield Fault("G4", "the target is empty", where)
        elif target is not None and not target.fullmatch(node.target):
            yield Fault("G5", f"the target {node.target!r} is none of this document ({target.pattern})", where)
        for message in call_faults(node.target, node.kwargs):
            yield Fault("G7", message, where)
        for text in filter(None, functions_of(node)):
            yield from _check_function(text, where)
        known.update(value.name for value in node.results)
    for name in (name for output in graph.outputs for name in references(output)):
        if name not in known:
            yield Fault("G3", f"the output %{name} is not defined", (*path, "outputs"))


def _check_function(text: str, where: Path) -> Faults:
    try:
        graph, applied = read_function(text)
    except StageError as error:
        yield Fault("G8", f"a function does not read: {error.message}", where)
        return
    for body in (graph, *(body for function in applied for body in function.graphs.values())):
        symbols = frozenset(symbol_places(body.inputs))
        for fault in (*check_parts(body, symbols), *check_graph(body, where)):
            yield Fault("G8", f"in a function: {fault.label}: {fault.message}", where)


def call_faults(target: str, keywords: Iterable[str]) -> Iterator[str]:
    """What is wrong with a call, in every kind of document."""
    if opens_files(target):
        yield f"{target} opens files"
    for name in keywords:
        if not is_keyword_name(name):
            yield f"{name!r} is no name of an argument"


def _check_names(graph: Graph, path: Path) -> Faults:
    owners: list[Path] = [(*path, "inputs", position) for position in range(len(graph.inputs))]
    names = [value.name for value in graph.inputs]
    for position, node in enumerate(graph.nodes):
        names += [value.name for value in node.results]
        owners += [(*path, "nodes", position)] * len(node.results)
    for position, name in duplicates(names):
        message = f"%{name} is defined twice" if name else "a value has an empty name"
        yield Fault("G1", message, owners[position])


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
