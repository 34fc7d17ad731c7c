"""The reference meaning of `Capture`: run the graph's torch calls by name, eagerly.

>>> outputs = interpret(document, inputs)         # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from absint.functions import Functions, custom_functions, function_of
from absint.wire import from_arg
from bytecap.errors import InterpretError
from bytecap.torch_capabilities import TORCH
from stagewire.capture import Capture
from stagewire.errors import StageError
from stagewire.expr import Expr, evaluate
from stagewire.graph import Arg, Node, Ref
from stagewire.symbols import bind_sizes
from stagewire.types import ScalarType


def interpret(capture: Capture, inputs: Sequence[torch.Tensor]) -> tuple[Any, ...]:
    """The graph's outputs for these inputs, in order; the grad mode is as the caller's, and is put back.

    Raises `InterpretError` when the number of inputs is wrong or a target does not exist.
    """
    if len(inputs) != len(capture.inputs):
        raise InterpretError(f"the graph has {len(capture.inputs)} inputs, {len(inputs)} were given")
    values: dict[str, Any] = {item.value.name: given for item, given in zip(capture.inputs, inputs, strict=True)}
    values[SIZES] = bind_sizes(capture.graph.inputs, inputs)
    functions = custom_functions(capture.functions)
    enabled = torch.is_grad_enabled()
    try:
        for node in capture.graph.nodes:
            run_node(node, values, functions)
    finally:
        TORCH.set_grad_enabled(enabled)
    return tuple(from_arg(output, lambda ref: _lookup(values, ref)) for output in capture.graph.outputs)


def run_node(node: Node, values: dict[str, Any], functions: Functions) -> None:
    """Run one node, reading and writing `values` by name."""
    try:
        function = function_of(node, functions)
    except StageError as error:
        raise InterpretError(error.message, where=str(node.line)) from None

    def lookup(ref: Any) -> Any:
        return _lookup(values, ref)

    args = [from_arg(arg, lookup) for arg in node.args]
    kwargs = {key: from_arg(arg, lookup) for key, arg in node.kwargs.items()}
    made = function(*args, **kwargs)
    if node.results and isinstance(node.results[0].type, ScalarType):
        values[node.results[0].name] = values[SIZES][node.results[0].name] = made
        return
    tensors = flatten(made)
    if len(tensors) != len(node.results):
        raise InterpretError(
            f"{node.target} gave {len(tensors)} tensors where the graph has {len(node.results)}",
            where=str(node.line),
        )
    for value, tensor in zip(node.results, tensors, strict=True):
        values[value.name] = tensor


SIZES = "$sizes"
"""Under which name the values of the size symbols stand among those of a graph."""


def _lookup(values: dict[str, Any], ref: Arg) -> Any:
    if isinstance(ref, Expr):
        return evaluate(ref, values[SIZES])
    if not isinstance(ref, Ref) or ref.name not in values:
        raise InterpretError(f"the graph refers to {ref}, which nothing defines")
    return values[ref.name]


def flatten(result: Any) -> list[torch.Tensor]:
    """The tensors of a result, in order."""
    if isinstance(result, torch.Tensor):
        return [result]
    if isinstance(result, (tuple, list)):
        return [tensor for item in result for tensor in flatten(item)]
    if isinstance(result, dict):
        return [tensor for item in result.values() for tensor in flatten(item)]
    return []
