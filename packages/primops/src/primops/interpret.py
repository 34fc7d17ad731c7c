"""The reference meaning of Prim graphs: prims by `primops.meanings`, externs by ATen, one node after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from primops.aten import conform, operator_of, real_argument, tensor_type
from primops.errors import InterpretFault
from primops.meanings import MEANINGS, NAMES
from primops.prims import VOCABULARY
from stagewire.expr import Dim, evaluate
from stagewire.graph import Graph, Node, last_uses
from stagewire.symbols import bind_sizes
from stagewire.types import TensorType


def interpret(graph: Graph, inputs: Sequence[torch.Tensor]) -> tuple[Any, ...]:
    """The outputs of a graph of prims and ATen calls on real tensors.

    Every value gets the strides that its type states. Works on the graph of a Grad too, which is ATen calls only.
    """
    return Interpreter(graph)(*inputs)


class Interpreter:
    """An executor of one graph: `Interpreter(graph)(*inputs) -> tuple of outputs`. Holds no state between calls."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.dying = last_uses(graph)

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        graph = self.graph
        if len(inputs) != len(graph.inputs):
            raise InterpretFault(f"{len(inputs)} inputs for a graph of {len(graph.inputs)}")
        symbols = bind_symbols(graph, inputs)
        values: dict[str, Any] = {value.name: x for value, x in zip(graph.inputs, inputs, strict=True)}
        with torch.no_grad():
            for node, dying in zip(graph.nodes, self.dying, strict=True):
                _run_node(node, values, symbols)
                for name in dying:
                    del values[name]
        return tuple(real_argument(arg, values, symbols) for arg in graph.outputs)


def bind_symbols(graph: Graph, inputs: Sequence[Any]) -> dict[str, int]:
    """The value of each size symbol, read off the inputs; raises where an input does not fit its type."""
    rows = [(value.name, value.type, x) for value, x in zip(graph.inputs, inputs, strict=True)]
    tensors = [
        (name, kind, x) for name, kind, x in rows if isinstance(kind, TensorType) and isinstance(x, torch.Tensor)
    ]
    for name, kind, x in tensors:
        if x.dim() != len(kind.shape) or NAMES[x.dtype] != kind.dtype:
            raise InterpretFault(f"input {name} is {tensor_type(x)}, not {kind}")
    symbols = bind_sizes(graph.inputs, inputs)
    for name, kind, x in tensors:
        if _sizes(kind.shape, symbols) != tuple(x.shape):
            raise InterpretFault(f"input {name} is {tensor_type(x)}, not {kind}")
    return symbols


def _sizes(dims: tuple[Dim, ...], symbols: dict[str, int]) -> tuple[int, ...]:
    return tuple(d if isinstance(d, int) else evaluate(d, symbols) for d in dims)


def _run_node(node: Node, values: dict[str, Any], symbols: dict[str, int]) -> None:
    args = [real_argument(arg, values, symbols) for arg in node.args]
    where = f"{node.target}" + (f" ({node.line})" if node.line else "")
    if node.target.startswith("prims."):
        op = VOCABULARY.op(node.target, where)
        args = [NAMES[a] if p.kind == "dtype" else a for a, p in zip(args, op.parameters, strict=True)]
        made = MEANINGS[op.name](*args)
    else:
        kwargs = {key: real_argument(arg, values, symbols) for key, arg in node.kwargs.items()}
        made = operator_of(node)(*args, **kwargs)
    results = made if isinstance(made, (tuple, list)) else (made,) * bool(node.results)
    if len(results) != len(node.results):
        raise InterpretFault(f"{node.target} gave {len(results)} results instead of {len(node.results)}", where=where)
    for value, x in zip(node.results, results, strict=True):
        values[value.name] = _stated(x, value.type, symbols, where)


def _stated(x: Any, type: Any, symbols: dict[str, int], where: str) -> Any:
    if not isinstance(type, TensorType) or not isinstance(x, torch.Tensor):
        return x
    shape = _sizes(type.shape, symbols)
    if tuple(x.shape) != shape or NAMES[x.dtype] != type.dtype:
        raise InterpretFault(f"the result is {tensor_type(x)}, the graph states {type}", where=where)
    return conform(x, shape, _sizes(type.stride, symbols), type.device)
