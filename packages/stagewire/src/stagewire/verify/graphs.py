"""G1 to G7: graphs of Capture, Grad and Prim.

G1 names are unique and not empty      G2 references are to values defined before      G3 outputs are defined
G4 targets are not empty               G5 a target has the form that its document asks for
G6 types and literals hold T1 to T4 (reported under those labels)
G7 a call names its arguments as Python can, and is of no operator that opens files
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from stagewire.calls import is_keyword_name, opens_files
from stagewire.graph import Graph, node_references, references
from stagewire.verify.fault import Fault, Faults, Path, duplicates
from stagewire.verify.types import Symbols, check_arg, check_type


def check_graph(graph: Graph, symbols: Symbols, path: Path, target: re.Pattern[str] | None = None) -> Faults:
    yield from _check_names(graph, path)
    known = {value.name for value in graph.inputs}
    for position, value in enumerate(graph.inputs):
        yield from check_type(value.type, symbols, (*path, "inputs", position))
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
        for arg in (*node.args, *node.kwargs.values()):
            yield from check_arg(arg, symbols, where)
        for value in node.results:
            yield from check_type(value.type, symbols, where)
            known.add(value.name)
    for output in graph.outputs:
        where = (*path, "outputs")
        for name in references(output):
            if name not in known:
                yield Fault("G3", f"the output %{name} is not defined", where)
        yield from check_arg(output, symbols, where)


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
