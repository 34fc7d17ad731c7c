"""`executor(capture)`: a callable that makes the torch calls of the captured graph. This is `backend="eager"`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn

import torch

from absint.executor import executor as executor_of
from absint.functions import custom_functions, function_of, read_sizes, run_graph, tensor_leaves
from absint.streams import left_by_errors, mentions_streams
from bytecap.errors import InterpretError
from bytecap.guards.process_state import set_torch_modes, torch_modes
from bytecap.objects.numbers.symbols import as_tensor
from bytecap.torch_capabilities import TORCH
from stagewire.capture import Capture
from stagewire.errors import StageError
from stagewire.graph import Node
from stagewire.substitution import symbols_in


def executor(capture: Capture) -> Callable[..., tuple[Any, ...]]:
    """A callable(*tensors) -> tuple of the graph's outputs; the modes that the graph changes, of gradients and of
    autocast, are as the caller's, and are put back.

    Raises `InterpretError` at once when a target does not exist, and at the call when the number of inputs is wrong.
    """
    if symbols_in(capture.functions):
        return lambda *inputs: interpret(capture, inputs)
    count, functions = len(capture.graph.inputs), custom_functions(capture.functions)
    has_autocast = any("autocast" in node.target for node in capture.graph.nodes)
    modes = (torch_modes, set_torch_modes) if has_autocast else (torch.is_grad_enabled, TORCH.set_grad_enabled)
    run = executor_of(
        capture.graph, partial(_callee, functions), tensor_leaves, refuse=partial(_refuse, count), modes=modes
    )
    return left_by_errors()(run) if mentions_streams(capture.graph.nodes) else run


def _refuse(count: int, given: int) -> NoReturn:
    raise InterpretError(f"the graph has {count} inputs, {given} were given")


def _callee(functions: Mapping[str, Callable[..., Any]], node: Node) -> Callable[..., Any]:
    try:
        return function_of(node, functions)
    except StageError as error:
        raise InterpretError(error.message, where=str(node.line)) from None


def interpret(capture: Capture, inputs: Sequence[torch.Tensor]) -> tuple[Any, ...]:
    """The graph's outputs for these inputs, in order; the grad mode is as the caller's, and is put back.

    Raises `InterpretError` when the number of inputs is wrong, `absint.errors.UnknownTarget` for a target that does not
    exist.
    """
    if len(inputs) != len(capture.inputs):
        _refuse(len(capture.inputs), len(inputs))
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
