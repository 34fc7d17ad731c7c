"""`executor(capture)`: the captured graph as a callable that runs its torch calls one by one.

Targets and arguments are resolved once; a call only looks up tensors. This is `backend="eager"`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from absint.functions import Functions, custom_functions, function_of
from absint.symbolic import size_reader
from absint.wire import from_arg
from bytecap.errors import FixedSizesNeeded, InterpretError
from bytecap.interpret import SIZES, flatten
from stagewire.capture import Capture
from stagewire.errors import StageError
from stagewire.expr import Expr, evaluator
from stagewire.graph import Arg, Dict, List, Node, Ref, Slice, Tuple, leaves
from stagewire.types import ScalarType

Values = dict[str, Any]
Maker = Callable[[Values], Any]


def executor(capture: Capture) -> Callable[..., tuple[Any, ...]]:
    """A callable(*tensors) -> tuple of the graph's outputs; the grad mode is as the caller's, and is put back.

    Raises `InterpretError` at once when a target does not exist, and at the call when the number of inputs is wrong.
    """
    if capture.symbols and (capture.functions or capture.checks or capture.checkpoints):
        raise FixedSizesNeeded(f"{capture.code.name}: custom functions, checks and checkpoints take no symbolic sizes")
    names = tuple(item.value.name for item in capture.inputs)
    functions = custom_functions(capture.functions)
    steps = tuple(_step(node, functions) for node in capture.graph.nodes)
    outputs = tuple(_maker(output) for output in capture.graph.outputs)
    read_sizes = size_reader(capture.graph.inputs)

    def run(*tensors: torch.Tensor) -> tuple[Any, ...]:
        if len(tensors) != len(names):
            raise InterpretError(f"the graph has {len(names)} inputs, {len(tensors)} were given")
        values: Values = dict(zip(names, tensors, strict=True))
        values[SIZES] = {} if read_sizes is None else read_sizes(tensors)
        enabled = torch.is_grad_enabled()
        try:
            for step in steps:
                step(values)
        finally:
            torch._C._set_grad_enabled(enabled)
        return tuple(make(values) for make in outputs)

    return run


def _step(node: Node, functions: Functions) -> Callable[[Values], None]:
    try:
        function = function_of(node, functions)
    except StageError as error:
        raise InterpretError(error.message, where=str(node.line)) from None
    args = tuple(_maker(arg) for arg in node.args)
    kwargs = tuple((key, _maker(arg)) for key, arg in node.kwargs.items())
    results = tuple(value.name for value in node.results)
    if node.results and isinstance(node.results[0].type, ScalarType):
        return _number_step(function, args, results[0])

    def run(values: Values) -> None:
        made = function(*[make(values) for make in args], **{key: make(values) for key, make in kwargs})
        if len(results) == 1 and isinstance(made, torch.Tensor):
            values[results[0]] = made
            return
        tensors = flatten(made)
        if len(tensors) != len(results):
            raise InterpretError(
                f"{node.target} gave {len(tensors)} tensors where the graph has {len(results)}", where=str(node.line)
            )
        values.update(zip(results, tensors, strict=True))

    return run


def _number_step(function: Callable[..., Any], args: tuple[Maker, ...], name: str) -> Callable[[Values], None]:
    """A node that gives a Python number, by which sizes may be written from then on."""

    def run(values: Values) -> None:
        values[name] = values[SIZES][name] = function(*[make(values) for make in args])

    return run


def _maker(arg: Arg) -> Maker:
    """A function of the values so far that gives the argument; literals are made once."""
    match arg:
        case Ref(name):
            return lambda values: values[name]
        case Expr():
            size = evaluator(arg)
            return lambda values: size(values[SIZES])
        case Tuple(items) if _varies(arg):
            makers = [_maker(item) for item in items]
            return lambda values: tuple([make(values) for make in makers])
        case List(items):
            makers = [_maker(item) for item in items]
            return lambda values: [make(values) for make in makers]
        case Dict(items):
            pairs = [(key, _maker(item)) for key, item in items]
            return lambda values: {key: make(values) for key, make in pairs}
        case Slice(start, stop, step) if _varies(arg):
            bounds = [_maker(bound) for bound in (start, stop, step)]
            return lambda values: slice(*[make(values) for make in bounds])
    literal = from_arg(arg, _undefined)
    return lambda values: literal


def _varies(arg: Arg) -> bool:
    return any(isinstance(leaf, (Ref, Expr)) for leaf in leaves(arg))


def _undefined(ref: Any) -> Any:
    raise InterpretError(f"the graph refers to {ref}, which nothing defines")
