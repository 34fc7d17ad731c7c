"""Runs the calls of a Capture graph, one after the other, on the tensors given for its inputs.

Writes through a boolean mask whose gradient has a shape that data decides are made in a form where it has not:

x[mask] = row      the gradient of row is that of x[mask], summed: as many rows as the mask has true elements
x.copy_(where(mask, row, x))      the same values, and a gradient of static shape
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch

from absint.forms import set_item as write_item
from absint.functions import (
    Functions,
    SizeOf,
    ValueOf,
    call_node,
    custom_functions,
    function_of,
    gives_number,
    no_symbols,
    read_sizes,
    results_of,
    run_graph,
)
from aotgrad.errors import NoGraphForm, ReplayFailed, UnsupportedOutput
from stagewire.capture import Capture
from stagewire.errors import StageError
from stagewire.graph import Arg, Graph, Node, Ref

# Calls that work on a tensor object, not on its content: on an abstract tensor they would be lost.


def replay(
    capture: Capture,
    inputs: tuple[Any, ...],
    on_node: Callable[[Node], None],
    instead: Mapping[str, Callable[..., Any]] = MappingProxyType({}),
    values: dict[str, Any] | None = None,
    size_of: SizeOf | None = None,
    on_results: Callable[[Node, list[Any]], list[Any]] | None = None,
) -> tuple[Any, ...]:
    """The outputs of the captured graph on `inputs`; `on_node` hears of each call before it is made.

    Works on abstract tensors under a mode, and on real ones (it is then the meaning of the Capture). `instead` has
    functions to call for some targets. values: takes what every name of the graph stands for. size_of: the values of
    size expressions, read off the inputs by default. on_results: what the results of each call are replaced by.
    """
    graph = capture.graph
    values = {} if values is None else values
    if size_of is None:
        size_of = read_sizes(graph, inputs, values) if capture.symbols else no_symbols
    functions = custom_functions(capture.functions, size_of)

    def call(node: Node, value_of: ValueOf) -> Any:
        on_node(node)
        made = _call(node, value_of, functions, instead)
        if on_results is None or gives_number(node):
            return made
        return on_results(node, results_of(node, made))

    run_graph(graph, inputs, functions, size_of, call, values)
    return outputs_of(graph, values)


def outputs_of(graph: Graph, values: Mapping[str, Any]) -> tuple[Any, ...]:
    """The outputs of a captured graph, by what its names stand for."""
    return tuple(_output(arg, values) for arg in graph.outputs)


def _call(node: Node, value_of: ValueOf, functions: Functions, instead: Mapping[str, Callable[..., Any]]) -> Any:
    if node.target in NoGraphForm.hindering and node.target not in instead:
        raise NoGraphForm(f"{node.target} changes a tensor object", where=node.line)
    try:
        function = instead.get(node.target) or _FORMS.get(node.target) or function_of(node, functions)
        return call_node(node, value_of, function)
    except StageError as error:
        if error.where is None and node.line is not None:
            error.where = str(node.line)
        raise
    except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError) as error:
        raise ReplayFailed(f"{node.target}: {error}", where=node.line) from error


def _output(arg: Arg, values: Mapping[str, Any]) -> Any:
    if isinstance(arg, Ref):
        return values[arg.name]
    if arg is None or isinstance(arg, (bool, int, float, str)):
        return arg
    raise UnsupportedOutput(f"an output of kind {type(arg).__name__}")


def set_item(target: torch.Tensor, index: Any, value: Any) -> None:
    """`target[index] = value`; as a selection where a mask alone chooses, and one value with a gradient is for all."""
    chosen = _selected(target, index, value)
    if chosen is None:
        write_item(target, index, value)
    else:
        target.copy_(chosen)


def index_put_(
    target: torch.Tensor, indices: Any, values: torch.Tensor, accumulate: bool = False
) -> torch.Tensor:  # fmt: skip
    """`target.index_put_(indices, values)`, likewise."""
    added = None
    if values.dtype is target.dtype:  # torch refuses others
        added = _selected(target, tuple(indices), values, target if accumulate else None)
    if added is None:
        return torch.Tensor.index_put_(target, indices, values, accumulate)
    return target.copy_(added)


def index_put(
    target: torch.Tensor, indices: Any, values: torch.Tensor, accumulate: bool = False
) -> torch.Tensor:  # fmt: skip
    """`target.index_put(indices, values)`, likewise."""
    return index_put_(target.clone(), indices, values, accumulate)


def _selected(target: torch.Tensor, index: Any, value: Any, base: torch.Tensor | None = None) -> torch.Tensor | None:
    """What `target` holds afterwards: `value` (added to `base`) where the mask holds; None if it is another case."""
    mask = _mask(target, index)
    if mask is None or not isinstance(value, torch.Tensor) or not value.requires_grad:
        return None
    kept = target.dim() - mask.dim()
    if value.dim() > kept + 1 or (value.dim() == kept + 1 and value.shape[0] != 1):
        return None
    row = value.reshape(value.shape[1:]) if value.dim() == kept + 1 else value
    row = row.to(device=target.device, dtype=target.dtype).expand(target.shape[mask.dim() :])
    chosen = mask.to(target.device).reshape(*mask.shape, *[1] * kept)
    return torch.where(chosen, row if base is None else base + row, target)


def _mask(target: torch.Tensor, index: Any) -> torch.Tensor | None:
    """The mask over the first dimensions, if the index is that alone."""
    if isinstance(index, tuple) and len(index) == 1:
        (index,) = index
    if not isinstance(index, torch.Tensor) or index.dtype is not torch.bool or index.dim() == 0:
        return None
    return index if index.shape == target.shape[: index.dim()] else None


# Calls that are replayed in another form.
_FORMS: dict[str, Callable[..., Any]] = {
    "torch.Tensor.__setitem__": set_item, "operator.setitem": set_item, "torch.index_put": index_put,
    "torch.Tensor.index_put": index_put, "torch.index_put_": index_put_, "torch.Tensor.index_put_": index_put_,
}  # fmt: skip
