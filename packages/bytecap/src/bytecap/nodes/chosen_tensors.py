"""min() and max() of tensors of one element, as `torch.where`.

Python gives one of its arguments, and so does the replacement, which calls `min` or `max` of the real tensors once
more where the result leaves the graph. What computes with the result inside of the graph computes with a new tensor.
Nobody can tell, if

C1  all have one type and no attributes of their own; if they require grad, they are computed, and nothing computes
    with the result: the gradient of `torch.where` is zeros for the others, where eager has none
C2  neither they nor the result are written afterwards
C3  if a view of the result leaves the graph, none of them does, nor has memory from outside
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
    """A tensor of the graph that stands for another, where nobody can tell.

    memories: (storage, its version then) of the result, and of the tensors of which it is one, or a view.
    """

    result: Value
    memories: tuple[tuple[Any, int], ...]
    what: str = "min() or max() of tensors"


def choose(tracer: Tracer, function: Callable[..., Any], items: list[Value]) -> Value | None:
    """`function(*items)`, which is min or max; None where it is not to be computed of tensors."""
    tensors = [item for item in items if isinstance(item, TensorValue) and item.cls is torch.Tensor]
    if len(tensors) < max(2, len(items)) or tracer.graph.is_body:
        return None
    abstract = [item.abstract for item in tensors]
    kinds = {(each.dtype, each.device, tuple(each.shape), each.requires_grad) for each in abstract}
    first = abstract[0]
    is_single = any(item.real is not None and vars(item.real) for item in tensors)
    is_single = is_single or (first.requires_grad and any(each.is_leaf for each in abstract))
    if len(kinds) > 1 or is_single or set(first.shape) - {1} or first.is_complex():
        return None
    if all(each.storage_record.constant is not None for each in abstract):
        return None
    for item in tensors:
        if item.source is not None:
            tracer.guards.length(Attribute(item.source, "__dict__"), 0)
    found = tensors[0]
    for other in tensors[1:]:
        is_better = tracer.evaluate.compare(tracer, "<" if function is min else ">", other, found)
        found = tracer.evaluate.call_torch(tracer, torch.where, [is_better, other, found], {})  # type: ignore[assignment]
    found.chosen = (function, *tensors)
    storages = [value.abstract.storage_record for value in (found, *tensors)]
    memories = tuple([(storage, storage.version) for storage in storages])
    tracer.choices.append(Choice(found, memories))
    if first.requires_grad:
        tracer.graph.hidden.add(found.name)
    return found


def check_choices(tracer: Tracer, outputs: Iterable[str]) -> None:
    """Refuse what could tell a choice from its result, now that the graph is whole and its outputs are known."""
    names = set(outputs)
    known = [(tensor, id(tensor.abstract.storage_record)) for tensor in tracer.inputs.tensors.values()]
    leaving = {storage for tensor, storage in known if tensor.name in names}
    outside = {storage for tensor, storage in known if tensor.real is not None}
    for choice in tracer.choices:
        if any(storage.version != version for storage, version in choice.memories):
            raise DataDependent(f"which tensor is written, {choice.what} that are written")
        made, *tensors = [id(storage) for storage, _ in choice.memories]
        if made in leaving and not (leaving | outside).isdisjoint(tensors):
            raise DataDependent(f"which tensor is given, {choice.what} that others have")
