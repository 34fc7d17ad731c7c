"""Changes of outside objects that no dictionary holds (classes, tensors, slots), replayed after the graph."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from bytecap.context_types import ObjectValue, TensorValue
from bytecap.objects.base import Value


@dataclass(slots=True, eq=False)
class ClassWrites:
    """What the code stored in a class, by name; None: deleted."""

    cls: type
    names: dict[str, Value | None] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class SlotWrites:
    """The names of slots of an outside object that the code stored in or deleted; the object has the values."""

    object: ObjectValue
    names: dict[str, None] = field(default_factory=dict)


class TensorWrites:
    """The names of attributes of an outside tensor that the code stored; the tensor has the values."""

    __slots__ = ("names", "owner", "tensor")

    def __init__(self, tensor: TensorValue) -> None:
        self.tensor = tensor
        # What modules hold is where their registries have it: it is not compared with all the others.
        self.owner = tensor if tensor.role == "tensor" else None
        self.names: dict[str, None] = {}


def written_attribute(writes: dict[type, ClassWrites], classes: tuple[type, ...], name: str) -> Any:
    """(True, value or None if it was deleted) of a class attribute that the code wrote; None: look as ever."""
    if not writes:
        return None
    for cls in classes:
        written = writes.get(cls)
        if written is not None and name in written.names:
            return (True, written.names[name])
        if name in cls.__dict__:
            return None
    return None


@dataclass(slots=True, eq=False)
class RaiseEffect:
    """An outside exception was raised at a line of the captured frame: its traceback grew."""

    error: Value
    line: int
