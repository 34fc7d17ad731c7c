"""Literals of a document as the Python objects that ATen takes, calls of operators as functions of what is no literal,
and values of symbolic sizes, read from the inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from absint.cpu_kernels import LSTM_LAYER, WORK_SPACE, with_workspace
from absint.meta import leaves
from absint.targets import find
from absint.wire import from_arg
from codegen.errors import UnknownExtern
from codegen.runtime.cpu_products import PackedConvolution, PackedProduct
from codegen.runtime.philox import philox_state
from codegen.torch_capabilities import TORCH
from stagewire import graph
from stagewire.expr import Dim, Expr, evaluate
from stagewire.program import CallExtern, Unit
from stagewire.symbols import size_reader

Environment = dict[str, Any]
Symbols = dict[str, int]


def resolve(arg: graph.Arg, environment: Environment, symbols: Symbols) -> Any:
    """The value of `arg`: buffers from `environment`, sizes from `symbols`."""
    if isinstance(arg, graph.Ref):
        return environment[arg.name]
    for leaf in graph.leaves(arg):
        if isinstance(leaf, graph.Callee | graph.HandleRef):
            raise UnknownExtern(f"an argument of kind {type(leaf).__name__} cannot be passed to an operator")
    return from_arg(arg, lambda leaf: evaluate(leaf, symbols) if isinstance(leaf, Expr) else environment[leaf.name])


def operator_of(call: CallExtern) -> Callable[..., Any]:
    """The operator of a call. oneDNN's LSTM hands its workspace on in grad mode alone, and no unit runs in it. The
    gradients of collectives are Python, which costs 15 us a call where none is asked for, too."""
    function = operator(call.target)
    if call.target.startswith("_c10d_functional.") and not TORCH.lacks("below_autograd"):
        return partial(_below_autograd, function)
    returns = function._schema.returns if hasattr(function, "_schema") else ()  # the project's own return one tensor
    if len(returns) > 1 and any(one.type.kind() == "ListType" for one in returns):
        return partial(_flattened, function)
    wants_workspace = call.target == LSTM_LAYER and any(call.results[WORK_SPACE : WORK_SPACE + 1])
    return with_workspace(function) if wants_workspace else function


def _below_autograd(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with TORCH.below_autograd():
        return function(*args, **kwargs)


def _flattened(function: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[Any, ...]:
    """The results of a custom operator that returns lists beside others, as a call names them: one after the other."""
    return tuple(leaves(function(*args, **kwargs)))


def closure(call: CallExtern, operator: Callable[..., Any]) -> tuple[Callable[..., Any], list[str], tuple[Dim, ...]]:
    """The operator of a call as a function of its tensors and symbolic sizes alone, the tensors' buffers, and these
    sizes. No name of the document becomes part of Python text."""
    every = (*call.args, *call.kwargs.values())
    names = list(dict.fromkeys(name for arg in every for name in graph.references(arg)))
    constants: dict[str, Any] = {"operator": operator}
    dims: dict[Expr, str] = {}

    def constant(value: Any) -> str:
        constants[f"c{len(constants)}"] = value
        return f"c{len(constants) - 1}"

    def text(arg: graph.Arg) -> str:
        if isinstance(arg, graph.Ref):
            return f"t{names.index(arg.name)}"
        if isinstance(arg, Expr):
            return dims.setdefault(arg, f"n{len(dims)}")
        if isinstance(arg, graph.List | graph.Tuple) and not _is_constant(arg):
            items = ", ".join(text(item) for item in arg.items)
            return f"[{items}]"
        return constant(resolve(arg, {}, {}))

    fixed = {key: resolve(arg, {}, {}) for key, arg in call.kwargs.items() if _is_constant(arg)}
    if fixed:
        constants["operator"] = partial(operator, **fixed)
    given = [text(arg) for arg in call.args]
    for key, arg in call.kwargs.items():
        if key not in fixed:
            given.append(f"**{{{constant(key)}: {text(arg)}}}")
    parameters = ", ".join([*(f"t{number}" for number in range(len(names))), *dims.values()])
    called = f"operator({', '.join(given)})"
    value = called if call.results else f"({called}, ())[1]"  # an assertion gives None
    return eval(f"lambda {parameters}: {value}", constants), names, tuple(dims)


def _is_constant(arg: graph.Arg) -> bool:
    return not any(isinstance(leaf, graph.Ref | Expr) for leaf in graph.leaves(arg))


NAMESPACE = "stagefold"
CALL_SITES: dict[str, Callable[[], Callable[..., Any]]] = {
    "convolution.default": PackedConvolution,
    "product.default": PackedProduct,
    "philox_state.default": lambda: philox_state,
}
"""What makes the callable of a call site of the project's own calls, by the name behind their namespace."""


def operator(target: str) -> Callable[..., Any]:
    """The overload that `target` ("aten.mm.default") names; for the project's own calls, a new call site."""
    namespace, _, rest = target.partition(".")
    if namespace == NAMESPACE and rest in CALL_SITES:
        return CALL_SITES[rest]()
    if graph.opens_files(target):
        raise UnknownExtern(f"{target} opens files, which a document may not")
    found = find(target)
    if not isinstance(found, type(torch.ops.aten.add.Tensor)):
        raise UnknownExtern(f"torch {torch.__version__} has no operator {target!r}")
    return found


def inputs_of(unit: Unit) -> tuple[graph.Value, ...]:
    """The inputs of a unit, with their types."""
    return tuple(graph.Value(name, type_) for name, type_ in zip(unit.inputs, unit.input_types, strict=True))


def symbol_reader(unit: Unit) -> Callable[[Sequence[Any]], Symbols]:
    """A function from the inputs to the values of the symbols that their types name."""
    return size_reader(inputs_of(unit)) or (lambda inputs: {})


def sizes(dims: Sequence[Dim], symbols: Symbols) -> tuple[int, ...]:
    """Numbers for sizes."""
    return tuple(evaluate(dim, symbols) for dim in dims)
