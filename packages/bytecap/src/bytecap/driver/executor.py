"""`executor(capture)`: the captured graph as a Python function that makes its torch calls. This is `backend="eager"`.

    def run(*inputs):
        sizes = {}
        v0, v1, = inputs
        before = modes()
        try:
            v2 = f0(v0, v1)
            if v2.__class__ is not Tensor: v2, = tensors(v2, 0)
            del v0
            ...
            return (v2,)
        finally: set_modes(before)      # of gradients, and of autocast where the graph changes that

Values are let go of after their last use, so that no more memory is held than in eager.
"""

from __future__ import annotations

import keyword
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch

from absint.functions import custom_functions, function_of, read_sizes, run_graph, tensor_leaves
from absint.wire import from_arg
from bytecap.errors import FixedSizesNeeded, InterpretError
from bytecap.guards.process_state import set_torch_modes, torch_modes
from bytecap.objects.numbers.symbols import as_tensor
from bytecap.torch_capabilities import TORCH
from stagewire.capture import Capture, CustomFunction
from stagewire.errors import StageError
from stagewire.expr import Expr, evaluator
from stagewire.graph import Arg, Dict, List, Node, Ref, Slice, Tuple, last_uses, leaves
from stagewire.substitution import map_sizes
from stagewire.symbols import size_reader
from stagewire.types import ScalarType


def executor(capture: Capture) -> Callable[..., tuple[Any, ...]]:
    """A callable(*tensors) -> tuple of the graph's outputs; the grad mode is as the caller's, and is put back.

    Raises `InterpretError` at once when a target does not exist, and at the call when the number of inputs is wrong.
    """
    if capture.symbols and (capture.functions or capture.checks or capture.checkpoints):
        raise FixedSizesNeeded(f"{capture.code.name}: custom functions, checks and checkpoints take no symbolic sizes")
    if _names_sizes(capture.functions):
        return partial(_interpret, capture)
    writer = _Writer(capture)
    exec(compile(writer.source(), f"<graph of {capture.code.name}>", "exec"), writer.names)
    return writer.names.pop("run")  # type: ignore[no-any-return]  # no cycle: dropped, it goes at once


def _names_sizes(functions: tuple[CustomFunction, ...]) -> bool:
    found: list[Expr] = []
    map_sizes(functions, lambda size: found.append(size) or size)
    return bool(found)


def _interpret(capture: Capture, *inputs: Any) -> tuple[Any, ...]:
    return interpret(capture, inputs)


class _Writer:
    """Source of the function, and the objects that it refers to by name."""

    def __init__(self, capture: Capture) -> None:
        self.graph = capture.graph
        self._functions = custom_functions(capture.functions)
        values = [*self.graph.inputs, *(value for node in self.graph.nodes for value in node.results)]
        self._variables = {value.name: f"v{index}" for index, value in enumerate(values)}
        self._read_sizes = size_reader(self.graph.inputs)
        self.names: dict[str, Any] = {
            "Tensor": torch.Tensor,
            "modes": torch.is_grad_enabled,
            "set_modes": TORCH.set_grad_enabled,
            "read_sizes": self._read_sizes,
            "refuse": partial(_refuse, len(self.graph.inputs)),
            "tensors": partial(_tensors, self.graph.nodes),
        }
        if any("autocast" in node.target for node in self.graph.nodes):
            self.names |= {"modes": torch_modes, "set_modes": set_torch_modes}

    def source(self) -> str:
        """The text of `run`."""
        count, drops = len(self.graph.inputs), last_uses(self.graph)
        lines = ["def run(*inputs):", f"    if len(inputs) != {count}: refuse(inputs)"]
        lines.append(f"    sizes = {'{}' if self._read_sizes is None else 'read_sizes(inputs)'}")
        if count:
            lines.append(f"    {' '.join(f'{self._variables[value.name]},' for value in self.graph.inputs)} = inputs")
        lines += ["    del inputs", "    before = modes()", "    try:"]
        for index, (node, dead) in enumerate(zip(self.graph.nodes, drops, strict=True)):
            lines += [f"        {line}" for line in self._step(index, node)]
            if dead:
                lines.append(f"        del {', '.join(self._variables[name] for name in dead)}")
        outputs = "".join(f"{self._text(output)}," for output in self.graph.outputs)
        return "\n".join([*lines, f"        return ({outputs})", "    finally: set_modes(before)"])

    def _step(self, index: int, node: Node) -> Iterator[str]:
        try:
            self.names[f"f{index}"] = function_of(node, self._functions)
        except StageError as error:
            raise InterpretError(error.message, where=str(node.line)) from None
        arguments = [self._text(arg) for arg in node.args]
        for key, arg in node.kwargs.items():
            is_name = key.isidentifier() and not keyword.iskeyword(key)
            arguments.append(f"{key}={self._text(arg)}" if is_name else f"**{{{key!r}: {self._text(arg)}}}")
        call, results = f"f{index}({', '.join(arguments)})", [self._variables[value.name] for value in node.results]
        match results:
            case [result] if isinstance(node.results[0].type, ScalarType):  # sizes may be written by it from then on
                yield f"{result} = sizes[{node.results[0].name!r}] = {call}"
            case [result]:
                yield f"{result} = {call}"
                yield f"if {result}.__class__ is not Tensor: {result}, = tensors({result}, {index})"
            case []:
                yield f"tensors({call}, {index})"
            case _:
                yield f"{', '.join(results)} = tensors({call}, {index})"

    def _text(self, arg: Arg) -> str:
        """An expression for an argument; what does not vary is made once."""
        match arg:
            case Ref(name):
                if name not in self._variables:
                    raise InterpretError(f"the graph refers to {name}, which nothing defines")
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
        return self._constant(from_arg(arg, _undefined))

    def _constant(self, value: Any) -> str:
        if value is None or type(value) in (int, bool):
            return repr(value)
        name = f"c{len(self.names)}"
        self.names[name] = value
        return name


def _refuse(count: int, inputs: tuple[Any, ...]) -> None:
    raise InterpretError(f"the graph has {count} inputs, {len(inputs)} were given")


def _tensors(nodes: tuple[Node, ...], made: Any, index: int) -> list[torch.Tensor]:
    """The tensors that a call gave, as many as its node says."""
    found, node = list(tensor_leaves(made)), nodes[index]
    if len(found) != len(node.results):
        raise InterpretError(
            f"{node.target} gave {len(found)} tensors where the graph has {len(node.results)}", where=str(node.line)
        )
    return found


def _varies(arg: Arg) -> bool:
    return any(isinstance(leaf, (Ref, Expr)) for leaf in leaves(arg))


def _undefined(ref: Any) -> Any:
    raise InterpretError(f"the graph refers to {ref}, which nothing defines")


def interpret(capture: Capture, inputs: Sequence[torch.Tensor]) -> tuple[Any, ...]:
    """The graph's outputs for these inputs, in order; the grad mode is as the caller's, and is put back.

    Raises `InterpretError` when the number of inputs is wrong, `absint.errors.UnknownTarget` for a target that does not
    exist.
    """
    if len(inputs) != len(capture.inputs):
        raise InterpretError(f"the graph has {len(capture.inputs)} inputs, {len(inputs)} were given")
    values: dict[str, Any] = {}
    size_of = read_sizes(capture.graph, inputs, values)
    enabled = torch.is_grad_enabled()
    try:
        return run_graph(capture.graph, inputs, custom_functions(capture.functions, size_of), size_of, values=values)
    finally:
        TORCH.set_grad_enabled(enabled)


def with_tensors(capture: Capture, compiled: Callable[..., Any]) -> Callable[..., Any]:
    """The callable, given floats where the graph takes them as tensors."""
    places = tuple(number for number, item in enumerate(capture.inputs) if item.role == "number")
    if not places:
        return compiled

    def call(*inputs: Any) -> Any:
        given = list(inputs)
        for place in places:
            given[place] = as_tensor(given[place])
        return compiled(*given)

    return call
