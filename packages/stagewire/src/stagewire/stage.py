"""The protocol that every stage follows, and how stages are found."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import Any, Protocol, runtime_checkable

from stagewire.codec import Document, form_of
from stagewire.errors import Misplaced, StageClash

GROUP = "stagefold.stages"


@runtime_checkable
class Stage(Protocol):
    """Documents in, documents out. `options` is the stage's own frozen options object, or None for its defaults.

    `name`: the slot it fills ("aotgrad", "primops", "partition", "loopir", "codegen"); `version`: part of every cache
    key; `consumes` and `produces`: kinds of document.
    """

    name: str
    version: str
    consumes: str
    produces: str

    def run(self, document: Document, options: Any = None) -> Document: ...


def expect(document: Document, form: str, reader: str) -> None:
    """Raise `Misplaced` for a document of another form (`stagewire.codec.form_of`) than `reader` reads."""
    if form_of(document) != form:
        raise Misplaced(f"{reader} reads a {form} document; this is a {form_of(document)}")


def discover() -> dict[str, EntryPoint]:
    """Installed stages by entry-point name, not loaded yet; a name with two owners is an error naming both."""
    found: dict[str, EntryPoint] = {}
    for point in entry_points(group=GROUP):
        other = found.get(point.name)
        if other is not None and other.value != point.value:
            raise StageClash(
                f"two distributions register the stage {point.name!r}: {_owner(other)} ({other.value}) "
                f"and {_owner(point)} ({point.value})"
            )
        found[point.name] = point
    return found


def _owner(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else "unknown"
