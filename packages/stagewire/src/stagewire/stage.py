"""The protocol that every stage follows, and how stages, and whatever else distributions register, are found."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Protocol, runtime_checkable

from stagewire.codec import Document, form_of
from stagewire.errors import Misplaced, NameClash

GROUP = "stagefold.stages"


@runtime_checkable
class Stage(Protocol):
    """Documents in, documents out. `options` is the stage's own frozen options object, or None for its defaults.

    `name`: its own, by which it is registered; `version`: part of every cache key; `consumes` and `produces`: kinds of
    document.
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


def discover(group: str = GROUP) -> dict[str, EntryPoint]:
    """What installed distributions register in a group of entry points, by name, not loaded yet.

    A name with two owners is an error that names both.
    """
    found: dict[str, EntryPoint] = {}
    for point in entry_points(group=group):
        other = found.setdefault(point.name, point)
        if other.value != point.value:
            raise NameClash(
                f"two distributions register {point.name!r} in {group}: {_owner(other)} ({other.value}) "
                f"and {_owner(point)} ({point.value})"
            )
    return found


@cache
def registered(group: str) -> dict[str, Any]:
    """The mappings that distributions register in a group of entry points, as one; a key of two owners is an error."""
    found: dict[str, Any] = {}
    for point in discover(group).values():
        for key, value in point.load().items():
            if key in found:
                raise NameClash(f"{key!r} stands twice in {group}: once from {_owner(point)} ({point.value})")
            found[key] = value
    return found


@dataclass(frozen=True, eq=False)
class Table(Mapping[str, Any]):
    """What a stage does with ops, by their names: its own rows, and those that distributions register in a group.

    >>> Table("stagefold.nothing", {"prims.add": "+"})["prims.add"]
    '+'
    """

    group: str
    own: Mapping[str, Any]

    def __getitem__(self, key: str) -> Any:
        others = registered(self.group)
        if key not in others:
            return self.own[key]
        if key in self.own:
            raise NameClash(f"{key!r} is registered in {self.group}, and stands there already")
        return others[key]

    def __iter__(self) -> Iterator[str]:
        return iter({**self.own, **registered(self.group)})

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _owner(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else "unknown"
