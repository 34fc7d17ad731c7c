"""min() and max() of tensors of one element, as `torch.where`.

Python gives one of its arguments, the graph a new tensor. Nobody can tell, if

C1  all have one type and no attributes of their own, and none requires grad: a gradient would go to one of them alone
C2  neither they nor the result are written afterwards
C3  if the result leaves the graph, none of them does, nor has memory from outside
C4  nobody asks whether the result is one of them (`objects.arrays.tensors.refuse_chosen`)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from bytecap.context_types import Tracer, Value
from bytecap.errors import DataDependent
from bytecap.objects.arrays.tensors import TensorValue
from stagewire.capture import Attribute


@dataclass(frozen=True)
class Choice:
    """memories: (storage, its version then) of the result, and of the tensors of which it is one."""

    result: Value
    memories: tuple[tuple[Any, int], ...]


def choose(tracer: Tracer, function: Callable[..., Any], items: list[Value]) -> Value | None:
    """`function(*items)`, which is min or max; None where it is not to be computed of tensors."""
    tensors = [item for item in items if isinstance(item, TensorValue) and item.cls is torch.Tensor]
    if len(tensors) < max(2, len(items)) or tracer.graph.is_body:
        return None
    kinds = {(item.abstract.dtype, item.abstract.device, tuple(item.abstract.shape)) for item in tensors}
    first = tensors[0].abstract
    is_single = any(item.abstract.requires_grad or (item.real is not None and vars(item.real)) for item in tensors)
    if len(kinds) > 1 or is_single or set(first.shape) - {1} or first.is_complex():
        return None
    if all(item.abstract.storage_record.constant is not None for item in tensors):
        return None
    for item in tensors:
        if item.source is not None:
            tracer.guards.length(Attribute(item.source, "__dict__"), 0)
    found: Value = tensors[0]
    for other in tensors[1:]:
        is_better = tracer.evaluate.compare(tracer, "<" if function is min else ">", other, found)
        found = tracer.evaluate.call_torch(tracer, torch.where, [is_better, other, found], {})
    storages = [value.abstract.storage_record for value in (found, *tensors)]  # type: ignore[attr-defined]
    tracer.choices.append(Choice(found, tuple([(storage, storage.version) for storage in storages])))
    return found


def check_choices(tracer: Tracer, outputs: Iterable[str]) -> None:
    """Refuse what could tell a choice from its result, now that the graph is whole and its outputs are known."""
    names = set(outputs)
    known = [(tensor, id(tensor.abstract.storage_record)) for tensor in tracer.inputs.tensors.values()]
    leaving = {storage for tensor, storage in known if tensor.name in names}
    outside = {storage for tensor, storage in known if tensor.real is not None}
    for choice in tracer.choices:
        if any(storage.version != version for storage, version in choice.memories):
            raise DataDependent("which tensor is written, min() or max() of tensors that are written")
        made, *tensors = [id(storage) for storage, _ in choice.memories]
        if made in leaving and not (leaving | outside).isdisjoint(tensors):
            raise DataDependent("which tensor is given, min() or max() of tensors that others have")
