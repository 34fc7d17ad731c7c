"""The reference meaning of Prim graphs: prims by `primops.meanings`, externs by ATen, one node after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from absint import from_tensor, to_wire
from absint.cpu_kernels import workspace_call
from absint.errors import UnknownTarget
from absint.meta import leaves
from absint.targets import resolve
from absint.wire import from_arg
from primops.errors import InterpretFault
from primops.meanings import BY_TARGET, NAMES
from stagewire.expr import Dim, Expr, evaluate
from stagewire.graph import Graph, Node, Ref, Value, last_uses
from stagewire.symbols import bind_sizes
from stagewire.types import TensorType, overlaps
from stagewire.vocabulary import find, is_prim

Symbols = Mapping[str, int]


def interpret(graph: Graph, inputs: Sequence[torch.Tensor]) -> tuple[Any, ...]:
    """The outputs of a graph of prims and ATen calls on real tensors.

    Every value gets the strides that its type states. Works on the graph of a Grad too, which is ATen calls only.
    """
    return Interpreter(graph)(*inputs)


class Interpreter:
    """An executor of one graph: `Interpreter(graph)(*inputs) -> tuple of outputs`. Holds no state between calls.

    Values are dropped after their last use.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._functions = [_function(node) for node in graph.nodes]
        self._drops = last_uses(graph)

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        """Raises `InterpretFault` where the inputs do not fit the types of the graph's, or a result its type."""
        graph = self.graph
        if len(inputs) != len(graph.inputs):
            raise InterpretFault(f"{len(inputs)} inputs for a graph of {len(graph.inputs)}")
        values = {value.name: x for value, x in zip(graph.inputs, inputs, strict=True)}
        symbols = bind_symbols(graph, inputs)

        def read(leaf: Any) -> Any:
            if isinstance(leaf, Ref):
                return values[leaf.name]
            if isinstance(leaf, Expr):
                return evaluate(leaf, symbols)
            raise InterpretFault(f"{type(leaf).__name__} has no value outside of its process")

        with torch.no_grad():
            for node, function, dead in zip(graph.nodes, self._functions, self._drops, strict=True):
                values.update(_results(node, function, read, symbols))
                for name in dead:
                    del values[name]
        return tuple([from_arg(output, read) for output in graph.outputs])


def _function(node: Node) -> Callable[..., Any]:
    """What a node calls: the meaning of a prim, or an operator of ATen."""
    if not is_prim(node.target):
        try:
            return workspace_call(node, resolve(node.target))
        except UnknownTarget as error:
            raise InterpretFault(error.message, where=_place(node)) from None
    op, meaning = find(node.target), BY_TARGET.get(node.target)
    if op is None or meaning is None:
        raise InterpretFault(f"nobody registers a meaning of {node.target}", where=_place(node))
    named = [p.kind == "dtype" for p in op.parameters]
    return lambda *args: meaning(*[NAMES[a] if is_dtype else a for a, is_dtype in zip(args, named, strict=True)])


def _results(node: Node, function: Callable[..., Any], read: Callable[[Any], Any], symbols: Symbols) -> dict[str, Any]:
    kwargs = {key: from_arg(arg, read) for key, arg in node.kwargs.items()}
    returned = function(*[from_arg(arg, read) for arg in node.args], **kwargs)
    made = list(leaves(returned)) if node.results else []
    if len(made) != len(node.results):
        raise InterpretFault(
            f"{node.target} gave {len(made)} results instead of {len(node.results)}", where=_place(node)
        )
    return {value.name: _stated(x, value, symbols) for value, x in zip(node.results, made, strict=True)}


def _place(node: Node) -> str:
    return f"{node.target} ({node.line})" if node.line else node.target


def tensor_type(tensor: torch.Tensor) -> TensorType:
    """The type of a real tensor."""
    return to_wire(from_tensor(tensor), requires_grad=tensor.requires_grad)


def bind_symbols(graph: Graph, inputs: Sequence[Any]) -> dict[str, int]:
    """The value of each size symbol, read off the inputs; raises where an input does not fit its type."""
    rows = [
        (f"input {value.name} is {tensor_type(x)}, not {value.type}", value.type, x)
        for value, x in zip(graph.inputs, inputs, strict=True)
        if isinstance(value.type, TensorType) and isinstance(x, torch.Tensor)
    ]
    for fault, kind, x in rows:
        if x.dim() != len(kind.shape) or NAMES[x.dtype] != kind.dtype:
            raise InterpretFault(fault)
    symbols = bind_sizes(graph.inputs, inputs)
    for fault, kind, x in rows:
        if _sizes(kind.shape, symbols) != tuple(x.shape):
            raise InterpretFault(fault)
    return symbols


def _sizes(dims: tuple[Dim, ...], symbols: Symbols) -> tuple[int, ...]:
    return tuple(evaluate(d, symbols) for d in dims)


def _stated(x: Any, value: Value, symbols: Symbols) -> Any:
    """A result in the layout and on the device that the graph states; of another type, it is refused."""
    type = value.type
    if not isinstance(type, TensorType) or not isinstance(x, torch.Tensor):
        return x
    shape, stride = _sizes(type.shape, symbols), _sizes(type.stride, symbols)
    if tuple(x.shape) != shape or NAMES[x.dtype] != type.dtype:
        raise InterpretFault(f"%{value.name} is {tensor_type(x)}, the graph states {type}")
    x = x.to(type.device)
    if x.stride() == stride or 0 in shape:
        return x
    # A stated stride of 0 repeats one element.
    single = tuple(1 if step == 0 and size > 1 else size for size, step in zip(shape, stride, strict=True))
    if overlaps(single, stride):
        return x
    out = torch.empty_strided(single, stride, dtype=x.dtype, device=x.device)
    out.copy_(x[tuple(slice(0, size) for size in single)])
    return out.as_strided(shape, stride) if single != shape else out
