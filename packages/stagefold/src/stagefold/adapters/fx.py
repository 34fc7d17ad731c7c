"""Between `Capture` and `torch.fx.GraphModule`, for foreign back ends."""

from __future__ import annotations

import operator
from typing import Any

import torch
import torch.fx

import absint.targets
import absint.wire
from stagewire.capture import Capture
from stagewire.graph import Arg, Node, Ref


def to_fx(capture: Capture) -> torch.fx.GraphModule:
    """The captured graph as a GraphModule whose placeholders are the capture's inputs, in order, and whose output is
    the tuple of the graph's outputs."""
    graph = torch.fx.Graph()
    nodes: dict[str, Any] = {value.name: graph.placeholder(value.name) for value in capture.graph.inputs}

    def lookup(ref: Ref) -> Any:
        return nodes[ref.name]

    for node in capture.graph.nodes:
        _add_call(graph, node, nodes, lookup)
    graph.output(tuple(_argument(arg, lookup) for arg in capture.graph.outputs))
    graph.lint()
    return torch.fx.GraphModule(torch.nn.Module(), graph, class_name=capture.code.name.replace(".", "_"))


def _argument(arg: Arg, lookup: Any) -> Any:
    return absint.wire.from_arg(arg, lookup)


def _add_call(graph: torch.fx.Graph, node: Node, nodes: dict[str, Any], lookup: Any) -> None:
    function = absint.targets.resolve(node.target)
    args = tuple(_argument(arg, lookup) for arg in node.args)
    kwargs = {key: _argument(arg, lookup) for key, arg in node.kwargs.items()}
    call = graph.call_function(function, args, kwargs)
    if node.line is not None:
        call.stack_trace = f'  File "{node.line.file}", line {node.line.line}, in {node.line.function}\n'
    if len(node.results) == 1 and not _returns_sequence(node):
        nodes[node.results[0].name] = call
        return
    leaves = graph.call_function(flatten_tensors, (call,))
    for position, result in enumerate(node.results):
        nodes[result.name] = graph.call_function(operator.getitem, (leaves, position))


def _returns_sequence(node: Node) -> bool:
    """True when even a single result comes inside a tuple or list (chunk of one, split of one)."""
    name = node.target.rsplit(".", 1)[-1]
    return name in ("split", "chunk", "unbind", "tensor_split", "split_with_sizes", "broadcast_tensors", "meshgrid")


def flatten_tensors(value: Any) -> tuple[Any, ...]:
    """The tensors inside a returned value, in order: the meaning of a Capture node's results.

    >>> flatten_tensors((1, [2, (3,)]))
    ()
    """
    if isinstance(value, torch.Tensor):
        return (value,)
    if isinstance(value, tuple | list):
        return tuple(leaf for item in value for leaf in flatten_tensors(item))
    if isinstance(value, dict):
        return tuple(leaf for item in value.values() for leaf in flatten_tensors(item))
    return ()
