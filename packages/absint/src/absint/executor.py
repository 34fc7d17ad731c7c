"""Runs a graph call by call, as a Python function that is written for it: eager torch for a Capture, eager ATen for the
halves of a gradient.

    def run(*inputs):
        given = inputs[0] if inputs and inputs[0].__class__ is list else inputs
        sizes = {}
        v0, v1, = given
        v2 = f0(v0, v1)
        if v2.__class__ is not Tensor: v2, = results(v2, 0)
        del v0
        ...
        return (v2,)
"""

from __future__ import annotations

import keyword
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from absint.functions import as_many, gives_number, no_symbols
from absint.streams import mentions_streams
from absint.wire import from_arg
from stagewire.expr import Expr, evaluator
from stagewire.graph import Arg, Dict, Graph, List, Node, Ref, Slice, Tuple, last_uses, leaves
from stagewire.symbols import size_reader

Executor = Callable[..., Sequence[Any]]
FunctionOf = Callable[[Node], Callable[..., Any]]
Leaves = Callable[[Any], Iterable[Any]]
Modes = tuple[Callable[[], Any], Callable[[Any], None]]


def executor(
    graph: Graph,
    function_of: FunctionOf,
    leaves_of: Leaves,
    *,
    refuse: Callable[[int], Any] | None = None,
    modes: Modes | None = None,
) -> Executor:
    """A callable over the graph's inputs that returns its outputs as a tuple; sizes are read off the inputs.

    Values are dropped after their last use, so that no more memory is held than in eager (at the end, where streams of
    a GPU are mentioned). Given one list of the inputs instead, it empties the list, and drops those too.

    function_of: what a node calls. leaves_of: from what a call gave to the results of its node, in order.
    refuse: called with the number of inputs where it is another one. modes: (get, set) of what is put back in the end.

    Errors: `WrongResults` at a call that gives another number of results than its node has.
    """
    writer = _Writer(graph, leaves_of)
    source = writer.source(function_of, refuse, modes)
    exec(compile(source, "<graph>", "exec"), writer.names)
    return writer.names.pop("run")  # type: ignore[no-any-return]  # no cycle: dropped, it goes at once


class _Writer:
    """Source of the function, and the objects that it refers to by name."""

    def __init__(self, graph: Graph, leaves_of: Leaves) -> None:
        self.graph = graph
        values = [*graph.inputs, *(value for node in graph.nodes for value in node.results)]
        self._variables = {value.name: f"v{index}" for index, value in enumerate(values)}
        nodes = graph.nodes

        def results(made: Any, index: int) -> list[Any]:
            return as_many(nodes[index], list(leaves_of(made)))

        self.names: dict[str, Any] = {"Tensor": torch.Tensor, "results": results}

    def source(
        self,
        function_of: FunctionOf,
        refuse: Callable[[int], Any] | None,
        modes: Modes | None,
    ) -> str:
        """The text of `run`."""
        inputs, read_sizes = self.graph.inputs, size_reader(self.graph.inputs)
        self.names |= {"refuse": refuse, "read_sizes": read_sizes}
        lines = ["given = inputs[0] if inputs and inputs[0].__class__ is list else inputs"]
        if refuse is not None:
            lines.append(f"if len(given) != {len(inputs)}: refuse(len(given))")
        lines.append(f"sizes = {'{}' if read_sizes is None else 'read_sizes(given)'}")
        if inputs:
            lines.append(f"{' '.join(f'{self._variables[value.name]},' for value in inputs)} = given")
        lines += ["if given is not inputs: given.clear()", "del inputs, given"]
        body = []
        uses = last_uses(self.graph)
        if mentions_streams(self.graph.nodes):  # another may still read the memory of a value
            uses = [()] * len(uses)
        for index, (node, dead) in enumerate(zip(self.graph.nodes, uses, strict=True)):
            self.names[f"f{index}"] = function_of(node)
            body += self._step(index, node)
            if dead:
                body.append(f"del {', '.join(self._variables[name] for name in dead)}")
        body.append(f"return ({''.join(f'{self._text(output)},' for output in self.graph.outputs)})")
        if modes is not None:
            self.names["modes"], self.names["set_modes"] = modes
            body = ["before = modes()", "try:", *[f"    {line}" for line in body], "finally: set_modes(before)"]
        return "\n    ".join(["def run(*inputs):", *lines, *body])

    def _step(self, index: int, node: Node) -> Iterator[str]:
        arguments = [self._text(arg) for arg in node.args]
        for key, arg in node.kwargs.items():
            is_name = key.isidentifier() and not keyword.iskeyword(key)
            arguments.append(f"{key}={self._text(arg)}" if is_name else f"**{{{key!r}: {self._text(arg)}}}")
        call, results = f"f{index}({', '.join(arguments)})", [self._variables[value.name] for value in node.results]
        match results:
            case [result] if gives_number(node):  # sizes may be written by it from then on
                yield f"{result} = sizes[{node.results[0].name!r}] = {call}"
            case [result]:
                yield f"{result} = {call}"
                yield f"if {result}.__class__ is not Tensor: {result}, = results({result}, {index})"
            case []:
                yield call  # may give None, which is no result
            case _:
                yield f"{', '.join(results)} = results({call}, {index})"

    def _text(self, arg: Arg) -> str:
        """An expression for an argument; what does not vary is made once."""
        match arg:
            case Ref(name):
                return self._variables[name]
            case Expr():
                return f"{self._constant(evaluator(arg))}(sizes)"
            case Tuple(items) if _varies(arg):
                return f"({''.join(f'{self._text(item)},' for item in items)})"
            case List(items):
                return f"[{', '.join(self._text(item) for item in items)}]"
            case Dict(items):
                return f"{{{', '.join(f'{self._constant(key)}: {self._text(item)}' for key, item in items)}}}"
            case Slice(start, stop, step) if _varies(arg):
                return f"slice({self._text(start)}, {self._text(stop)}, {self._text(step)})"
        return self._constant(from_arg(arg, no_symbols))

    def _constant(self, value: Any) -> str:
        if value is None or type(value) in (int, bool):
            return repr(value)
        name = f"c{len(self.names)}"
        self.names[name] = value
        return name


def _varies(arg: Arg) -> bool:
    return any(isinstance(leaf, (Ref, Expr)) for leaf in leaves(arg))
