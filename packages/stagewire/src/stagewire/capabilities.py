"""Names that a package asks of a library beyond its documented interface, as data.

    capabilities ::= name: Capability(path, use, without) ...

Releases drop such names, or make another kind of object of them. A package states each of them once, in its module
`torch_capabilities`; all of its code takes them from there. What a release lacks is a placeholder: no object is an
instance of it, no table finds it, and calling it raises `MissingCapability`, so that the program runs plain.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, ClassVar

from stagewire.errors import StageError


def is_class(value: Any) -> bool:
    """Whether it is a class."""
    return isinstance(value, type)


def is_anything(value: Any) -> bool:
    """For names of which only the presence matters."""
    return True


class MissingCapability(StageError):
    """The installed release of a library lacks what a package needs of it here."""

    code = "SW008"
    refuses_program: ClassVar[bool] = True
    fix = "`stagefold doctor` lists what is missing; docs/versions.md has the releases of torch that are tested."


@dataclass(frozen=True)
class Capability:
    """One name of a library.

    path: the dotted name; a part may also be a key of a dictionary (`torch.func.vmap.__globals__.vmap_impl`).
    use: what the package does with it.
    without: what is lost where it is missing; "" where nothing is, for only programs that have it can call it.
    or_else: other names of the same meaning, asked for in this order.
    accepts: whether what has the name is of the kind that the package can use.
    given: the dotted name of what must be there, and true, for the name to be expected: `torch.version.cuda`.
    """

    path: str
    use: str
    without: str = ""
    or_else: tuple[str, ...] = ()
    accepts: Callable[[Any], bool] = callable
    given: str = ""


class Capabilities:
    """The capabilities of one package, each an attribute: what the library has, or a placeholder.

    >>> import math
    >>> names = Capabilities(
    ...     math, "example",
    ...     cube_root=Capability("math.cbrt", "cube roots", "cube roots are powers of 1/3"),
    ...     fifth_root=Capability("math.root5", "fifth roots", "no fifth roots"),
    ... )
    >>> names.cube_root(27.0), names.has("fifth_root"), [one.without for one in names.lacking()]
    (3.0, False, ['no fifth roots'])
    """

    def __init__(self, library: ModuleType, package: str, **rows: Capability) -> None:
        self._library = library
        self._package = package
        self.rows: Mapping[str, Capability] = rows
        self._missing: dict[str, Capability] = {}
        for name, row in rows.items():
            places = (find(library, path) for path in (row.path, *row.or_else))
            found = next((one for one in places if one is not MISSING and row.accepts(one)), MISSING)
            if found is MISSING:
                self._missing[name] = row
                found = _placeholder(row.path, self._complaint(row))
            setattr(self, name, found)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"{self._package} states no capability {name!r}")

    def has(self, name: str) -> bool:
        """Whether the library has it."""
        return name in self.rows and name not in self._missing

    def lacks(self, name: str) -> bool:
        """Whether the library misses it although it is to be expected there (see `Capability.given`)."""
        if self.has(name):
            return False
        given = self.rows[name].given
        return not given or ((there := find(self._library, given)) is not MISSING and bool(there))

    def require(self, *names: str) -> None:
        """Raise `MissingCapability` where the library lacks one of them: ahead of work that could not be finished."""
        for name in names:
            if not self.has(name):
                raise MissingCapability(self._complaint(self.rows[name]))

    def lacking(self) -> tuple[Capability, ...]:
        """The missing ones that cost something."""
        return tuple(row for name, row in self._missing.items() if row.without and self.lacks(name))

    def _complaint(self, row: Capability) -> str:
        library = self._library
        release = f"{library.__name__} {getattr(library, '__version__', '')}".strip()
        return f"{release} has no {row.path} of the kind that {self._package} uses for {row.use}"


class _Missing:
    """What `find` gives for a name that is not there."""


MISSING: Any = _Missing()


def find(library: ModuleType, path: str) -> Any:
    """What has a dotted name that starts with the library's own; `MISSING` where nothing has.

    >>> import json
    >>> find(json, "json.decoder.JSONDecoder.decode").__name__, find(json, "json.decoder.scan") is MISSING
    ('decode', True)
    """
    value: Any = library
    place = path.split(".")
    for number, part in enumerate(place[1:], 2):
        if isinstance(value, Mapping):
            value = value.get(part, MISSING)
        elif part == "__dict__":
            value = value.__dict__
        else:
            value = getattr(value, part, MISSING)
        if value is MISSING:
            value = _submodule(".".join(place[:number]))
        if value is MISSING:
            break
    return value


def _submodule(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        return MISSING


def _placeholder(path: str, complaint: str) -> type:
    def refuse(cls: type, *args: Any, **kwargs: Any) -> Any:
        raise MissingCapability(complaint)

    return type(path.rpartition(".")[2], (), {"__new__": refuse, "__doc__": f"{complaint}."})
