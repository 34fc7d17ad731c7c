"""Runs a graph node by node with eager ATen: the reference for the halves, and what differentiates gradients again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import torch

from absint.cpu_kernels import workspace_call
from absint.targets import resolve
from absint.wire import from_arg
from stagewire.expr import Expr, evaluator
from stagewire.graph import Arg, Graph, List, Node, Ref, Tuple, last_uses, leaves
from stagewire.symbols import size_reader

Executor = Callable[..., Sequence[Any]]
Environment = list[Any]
Read = Callable[[Environment], Any]


def executor(graph: Graph) -> Executor:
    """A callable over the graph's inputs that returns its outputs as a tuple; sizes are read off the inputs.

    Values are dropped after their last use, so that no more memory is held than in eager. Given one list of the inputs
    instead, it empties the list, and drops those too.
    """
    slots = {value.name: index for index, value in enumerate(_values(graph))}
    steps = [_step(node, slots) for node in graph.nodes]
    drops = [tuple([slots[name] for name in dead]) for dead in last_uses(graph)]
    outputs = [_reader(arg, slots) for arg in graph.outputs]
    count, width = len(slots), len(graph.inputs)
    read_sizes = size_reader(graph.inputs)

    def run(*inputs: Any) -> tuple[Any, ...]:
        given = inputs[0] if len(inputs) == 1 and isinstance(inputs[0], list) else inputs
        sizes = None if read_sizes is None else read_sizes(given)
        environment: Environment = [*given, *([None] * (count - width)), sizes]
        if isinstance(given, list):
            given.clear()
        for step, dead in zip(steps, drops, strict=True):
            step.run(environment)
            for slot in dead:
                environment[slot] = None
        return tuple([read(environment) for read in outputs])

    return run


# Lazy conjugation and negation are bits on a tensor, which some kernels refuse; a graph means the numbers. The
# partition keeps what the program overwrites by a prim.
_MEANT = {
    "aten._conj.default": "aten._conj_physical.default",
    "aten._neg_view.default": "aten.neg.default",
    "prims.clone": "aten.clone.default",
}


class _Step(msgspec.Struct, frozen=True):
    """One node, ready to run."""

    func: Callable[..., Any]
    args: tuple[Read, ...]
    kwargs: dict[str, Read]
    results: tuple[int, ...]

    def run(self, environment: Environment) -> None:
        args = [read(environment) for read in self.args]
        result = self.func(*args, **{key: read(environment) for key, read in self.kwargs.items()})
        if len(self.results) == 1 and isinstance(result, torch.Tensor):
            environment[self.results[0]] = result
            return
        for slot, leaf in zip(self.results, _leaves(result), strict=True):
            environment[slot] = leaf


def _values(graph: Graph) -> Iterator[Any]:
    yield from graph.inputs
    for node in graph.nodes:
        yield from node.results


def _step(node: Node, slots: dict[str, int]) -> _Step:
    return _Step(
        workspace_call(node, resolve(_MEANT.get(node.target, node.target))),
        tuple(_reader(arg, slots) for arg in node.args),
        {key: _reader(arg, slots) for key, arg in node.kwargs.items()},
        tuple(slots[value.name] for value in node.results),
    )


def _reader(arg: Arg, slots: dict[str, int]) -> Read:
    """How to get the Python value of an argument from the environment."""
    match arg:
        case Ref(name):
            slot = slots[name]
            return lambda environment: environment[slot]
        case Expr():
            size = evaluator(arg)
            return lambda environment: size(environment[-1])
        case Tuple(items) | List(items) if any(isinstance(leaf, (Ref, Expr)) for leaf in leaves(arg)):
            readers = [_reader(item, slots) for item in items]
            return lambda environment: [read(environment) for read in readers]
        case _:
            constant = from_arg(arg, _no_symbols)
            return lambda environment: constant


def _no_symbols(leaf: Any) -> Any:
    raise NotImplementedError(f"a value for {leaf}")


def _leaves(result: Any) -> Iterator[Any]:
    if isinstance(result, (tuple, list)):
        for item in result:
            yield from _leaves(item)
    else:
        yield result
