"""Where objects of modules are found again by name, so that guards on them are plain data.

place ::= sys.modules["pkg.mod"] | module-level name (.attribute)* | handle (held by this process)
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from bytecap.guards.guard_set import Names, is_watched
from stagewire.capture import Attribute, Global, HandleSource, Item, Reading, Source


class Places:
    """The place of each object, looked up once; `held` says whether any is a handle."""

    def __init__(self, names: Names) -> None:
        self.names = names
        self.held = False
        self._known: dict[int, Source] = {}
        self._alive: list[Any] = []

    def of(self, real: Any) -> Source:
        """The place of a module, a module's dictionary, a class or a function; a handle for anything else."""
        known = self._known.get(id(real))
        if known is None:
            known = self._known[id(real)] = _find(real) or self.handle(real)
            self._alive.append(real)
        return known

    def handle(self, real: Any) -> HandleSource:
        """A source for an object that the process holds."""
        self.held = True
        return self.guarded(real)

    def guarded(self, real: Any) -> HandleSource:
        """The same for an object that a guard alone refers to: what is compiled does not depend on it."""
        return HandleSource(self.names.of(real))

    def attribute(self, source: Source | None, name: Any) -> Source | None:
        """Where attribute `name` of the object at `source` is read."""
        return None if source is None or not isinstance(name, str) else Attribute(source, name)

    def class_attribute(self, owner: type, name: str) -> Source | None:
        """Where a class attribute is read; None for library classes, which are taken to stay as they are."""
        return Attribute(self.of(owner), name) if is_watched(owner.__module__) else None

    def reading(self, function: Any, base: Source | None) -> Source | None:
        """Where what a C function without side effects returns for the object at `base` is read."""
        return None if base is None else Reading(self.names.of(function), base)


def _find(real: Any) -> Source | None:
    if isinstance(real, ModuleType):
        return module_place(real)
    if isinstance(real, dict):
        module = sys.modules.get(str(real.get("__name__")))
        is_namespace = module is not None and getattr(module, "__dict__", None) is real
        return Attribute(module_place(module), "__dict__") if is_namespace else None  # type: ignore[arg-type]
    path, module_name = getattr(real, "__qualname__", None), getattr(real, "__module__", None)
    if isinstance(path, str) and isinstance(module_name, str):
        return _by_path(real, module_name, path.split("."))
    return None


def module_place(module: ModuleType) -> Source | None:
    """A loaded module; None when it is not the one that is loaded under its name."""
    if sys.modules.get(module.__name__) is not module:
        return None
    return Item(Global("modules", "sys"), module.__name__)


def _by_path(real: Any, module_name: str, path: list[str]) -> Source | None:
    module = sys.modules.get(module_name)
    if module is None:
        return None
    found = vars(module).get(path[0])
    for name in path[1:]:
        if not isinstance(found, type):
            return None
        found = found.__dict__.get(name)
    if found is not real:
        return None
    source: Source = Global(path[0], module_name)
    for name in path[1:]:
        source = Attribute(source, name)
    return source
