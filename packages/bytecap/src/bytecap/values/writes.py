"""Changes of outside objects that no dictionary holds: class attributes and slots, replayed after the graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bytecap.values.base import Value

if TYPE_CHECKING:
    from bytecap.values.objects import ObjectValue


class ClassWrites:
    """What the code stored in a class, by name; None: deleted."""

    __slots__ = ("cls", "names")

    def __init__(self, cls: type) -> None:
        self.cls = cls
        self.names: dict[str, Value | None] = {}


class SlotWrites:
    """The names of slots of an outside object that the code stored in or deleted; the object has the values."""

    __slots__ = ("names", "object")

    def __init__(self, object: ObjectValue) -> None:
        self.object = object
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
