"""Functions that are recorded in graphs of their own: bodies of custom functions, of transforms, of control flow."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from bytecap.context_types import Tracer
from bytecap.errors import UnsupportedCall
from bytecap.graph.builder import GraphBuilder, tensor_type
from bytecap.objects.arrays.tensors import TensorValue
from bytecap.objects.base import Value
from bytecap.objects.containers.host_containers import SetValue
from bytecap.objects.containers.mappings import DictValue
from bytecap.objects.containers.sequences import ListValue
from bytecap.torch_capabilities import TORCH
from stagewire.graph import Graph, Node, Ref, free_names
from stagewire.graph import Value as WireValue


@contextlib.contextmanager
def recording(tracer: Tracer, body: GraphBuilder, *, grad: bool | None = None) -> Iterator[GraphBuilder]:
    """Record in `body` what is evaluated inside. grad: whether grad mode is on there, as now by default."""
    enabled = torch.is_grad_enabled()
    tracer.graphs.append(body)
    TORCH.set_grad_enabled(enabled if grad is None else grad)
    try:
        yield body
    finally:
        tracer.graphs.pop()
        TORCH.set_grad_enabled(enabled)


def wires(tensors: Iterable[TensorValue]) -> tuple[WireValue, ...]:
    """The tensors as inputs of a body."""
    return tuple([WireValue(tensor.name, tensor_type(tensor.abstract)) for tensor in tensors])


def as_functions(
    tracer: Tracer, arguments: Sequence[TensorValue], *bodies: tuple[Iterable[Node], Iterable[Any]]
) -> tuple[list[Graph], list[TensorValue]]:
    """Recorded bodies (nodes, outputs) as functions of `arguments` and of what any of them uses from outside."""
    own = [argument.name for argument in arguments]
    recorded = [(tuple(nodes), tuple([Ref(output.name) for output in outputs])) for nodes, outputs in bodies]
    names = dict.fromkeys(name for body in recorded for name in free_names(*body, own))
    captured = [tracer.inputs.named(name) for name in names]
    return [Graph(wires((*arguments, *captured)), *body) for body in recorded], captured


def all_tensors(leaves: list[Value], what: str) -> list[TensorValue]:
    """The leaves, where all of them are tensors."""
    tensors = [leaf for leaf in leaves if isinstance(leaf, TensorValue)]
    if len(tensors) != len(leaves):
        raise UnsupportedCall(f"{what} of something else than tensors")
    return tensors


def states_of_effects(tracer: Tracer) -> list[Any]:
    """What the changed objects hold now, to see whether they change again."""
    return [_state_of(effect) for effect in tracer.effects]


def _state_of(effect: Any) -> Any:
    match effect:
        case ListValue():
            return effect, list(effect.added if effect.is_unseen else effect.items)
        case DictValue():
            return effect, dict(effect.new), dict(effect.written), list(effect.unsettled)
        case SetValue():
            return effect, list(effect.keys)
        case _:
            return effect, getattr(effect, "content", None)
