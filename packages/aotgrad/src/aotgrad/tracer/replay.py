"""Runs the calls of a Capture graph, one after the other, on the tensors given for its inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

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
from aotgrad.tracer.masked_writes import index_put, index_put_, set_item
from stagewire.capture import Capture
from stagewire.errors import StageError
from stagewire.graph import Arg, Graph, Node, Ref

# Calls that work on a tensor object, not on its content: on an abstract tensor they would be lost.
_OBJECT_CALLS = frozenset(
    f"torch.Tensor.{name}"
    for name in ("data.__set__", "grad.__set__", "_grad.__set__", "grad.__delete__", "retain_grad", "register_hook",
                 "register_post_accumulate_grad_hook", "backward", "set_data")
) | {"torch.autograd.backward"}  # fmt: skip

# Calls that are replayed in another form.
_FORMS: dict[str, Callable[..., Any]] = {
    "torch.Tensor.__setitem__": set_item, "operator.setitem": set_item, "torch.index_put": index_put,
    "torch.Tensor.index_put": index_put, "torch.index_put_": index_put_, "torch.Tensor.index_put_": index_put_,
}  # fmt: skip


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
    if node.target in _OBJECT_CALLS and node.target not in instead:
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
