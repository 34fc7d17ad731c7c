"""Guards as they are collected: each condition once, with the live objects that their names stand for."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import msgspec
import torch

from bytecap.hook import has_upcoming, upcoming
from stagewire import capture
from stagewire.capture import Attribute, Global, HandleSource, Item, Reading, Source
from stagewire.graph import SourceLine
from stagewire.types import TensorType

# Modules whose functions, classes and constants are taken to stay as they are.
# (Names of the standard library that users' own files often have are not among them.)
_OFTEN_USERS = frozenset({"test", "code", "cmd", "profile", "this", "trace", "symbol", "token", "site", "statistics"})
# The stages run below captured code: the backward of a compiled graph may run in the middle of a frame that broke.
_STAGES = frozenset({"bytecap", "aotgrad", "primops", "loopir", "codegen", "absint", "stagewire", "stagefold"})
EXEMPT = (frozenset(sys.stdlib_module_names) - _OFTEN_USERS) | {"torch", "numpy", "triton"} | _STAGES


def is_exempt(module: str | None) -> bool:
    """Whether names of this module are read without a guard.

    `__main__` is part of no library, though it is in `sys.stdlib_module_names` on some versions.
    """
    return module is not None and module != "__main__" and module.partition(".")[0] in EXEMPT


def is_watched(module: str | None) -> bool:
    """Whether the attributes of a class of this module are guarded: users' classes, and those of torch.nn."""
    return not is_exempt(module) or (module is not None and module.startswith("torch.nn."))


class Names:
    """Unique text names of live objects (classes, functions, handles)."""

    def __init__(self) -> None:
        self.objects: dict[str, Any] = {}
        self._names: dict[int, str] = {}

    def of(self, real: Any) -> str:
        """The name of an object: "module.qualname", made unique by a suffix."""
        known = self._names.get(id(real))
        if known is not None:
            return known
        stem = describe_object(real)
        name, count = stem, 1
        while name in self.objects:
            count += 1
            name = f"{stem}#{count}"
        self.objects[name] = real
        self._names[id(real)] = name
        return name


def describe_object(real: Any) -> str:
    """ "module.qualname" of classes, functions and modules; the type for other objects."""
    if real is None:
        return "None"
    if isinstance(real, type(sys)):
        return real.__name__
    name = getattr(real, "__qualname__", None) or getattr(real, "__name__", None)
    if isinstance(name, str):
        module = getattr(real, "__module__", None)
        return f"{module}.{name}" if module else name
    return f"{type(real).__module__}.{type(real).__qualname__} object"


UPCOMING, HAS_UPCOMING = describe_object(upcoming), describe_object(has_upcoming)
"""The functions by which an item of a started iterator is read, and whether there is one."""


class GuardSet:
    """The guards of one capture, in the order in which they were first needed."""

    def __init__(self, names: Names) -> None:
        self.names = names
        self._guards: dict[capture.Guard, capture.Guard] = {}  # by themselves without their lines
        self._classes: dict[capture.Source, capture.TypeIs] = {}
        self._valued: set[capture.Source] = set()

    def add(self, guard: capture.Guard, line: SourceLine | None = None) -> None:
        """Add a guard (without a line) unless it is there. line: what asks, if not the line that is evaluated."""
        if guard not in self._guards:
            has_line = hasattr(guard, "line")
            self._guards[guard] = msgspec.structs.replace(guard, line=line or self.here()) if has_line else guard

    def all(self) -> tuple[capture.Guard, ...]:
        """All guards in order, then the classes of what was read without its value."""
        return (*self._guards.values(), *self._classes.values())

    def here(self) -> SourceLine | None:
        """The line that asks, which a guard names unless another one is given."""
        return None

    def type_is(self, source: capture.Source | None, cls: type, line: SourceLine | None = None) -> None:
        """None: the object is no outside one, or part of something already guarded."""
        if source is not None:
            self.add(capture.TypeIs(source, self.names.of(cls)), line)

    def identity(self, source: capture.Source | None, real: Any, line: SourceLine | None = None) -> None:
        if source is not None:
            self.add(capture.IdentityIs(source, self.names.of(real)), line)

    def class_unless_value(self, source: capture.Source, cls: type, line: SourceLine | None) -> None:
        """The class of what is at `source`, unless its value is guarded too."""
        if source not in self._valued:
            self._classes.setdefault(source, capture.TypeIs(source, self.names.of(cls), line))

    def equals(self, source: capture.Source, value: Any, line: SourceLine | None = None) -> None:
        self._valued.add(source)
        self._classes.pop(source, None)
        self.add(capture.Equals(source, value), line)

    def length(self, source: capture.Source | None, size: int, line: SourceLine | None = None) -> None:
        if source is not None:
            self.add(capture.LengthIs(source, size), line)

    def has_key(self, source: capture.Source, key: Any, present: bool) -> None:
        self.add(capture.HasKey(source, key, present))

    def keys(self, source: capture.Source | None, keys: tuple[Any, ...], line: SourceLine | None = None) -> None:
        if source is not None:
            self.add(capture.KeysAre(source, keys), line)

    def same(self, first: capture.Source, second: capture.Source, same: bool, line: SourceLine | None = None) -> None:
        self.add(capture.SameObject(first, second, same), line)

    def distinct(self, sources: list[capture.Source], others: list[capture.Source]) -> None:
        """Each of `sources` is another object than the rest of them and than each of `others`."""
        others = list(dict.fromkeys(others))  # a place may give another object each time
        match [*sources, *others]:
            case [first, second] if sources:
                self.add(capture.SameObject(first, second, False))
            case [_, _, *_] if sources:
                self.add(capture.Distinct(tuple(sources), tuple(others)))

    def tensor(
        self, source: capture.Source, type_: TensorType, real: torch.Tensor, line: SourceLine | None = None
    ) -> None:
        name = "torch.Tensor" if type(real) is torch.Tensor else self.names.of(type(real))
        self.names.objects.setdefault(name, type(real))
        # What needs no gradient is a leaf, and parameters are; whether others are shows (is_leaf, in-place writes).
        is_leaf = real.is_leaf if real.requires_grad else None
        if isinstance(real, torch.nn.Parameter) and is_leaf:
            is_leaf = None
        self.add(capture.TensorIs(source, type_, name, is_leaf), line)


# -- where objects of modules are found again by name, so that guards on them are plain data
#
#     place ::= sys.modules["pkg.mod"] | module-level name (.attribute)* | handle (held by this process)


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
