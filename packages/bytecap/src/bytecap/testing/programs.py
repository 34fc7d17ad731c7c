"""A list of test programs with the arguments to call them with.

PROGRAMS = Programs()

@PROGRAMS.add(lambda: torch.ones(3))
def doubles(x): return x * 2

@pytest.mark.parametrize("program", PROGRAMS, ids=str)
def test_same_as_plain(program): program.check()
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bytecap.testing.oracle import Arguments, Report, check

Maker = Callable[[], Any]


@dataclass(frozen=True)
class Program:
    """A function, what makes its arguments, and the code of the refusal that is expected (None: captured whole)."""

    function: Callable[..., Any]
    makers: tuple[Maker, ...]
    named_makers: dict[str, Maker]
    refusal: str | None

    def make(self) -> tuple[Callable[..., Any], Arguments]:
        """The function and new arguments."""
        named = {name: maker() for name, maker in self.named_makers.items()}
        return self.function, (tuple(maker() for maker in self.makers), named)

    def check(self) -> Report:
        """Assert that it behaves as plain, and is captured or refused as expected."""
        report = check(self.make, whole=self.refusal is None)
        if self.refusal is not None:
            assert report.codes[:1] == (self.refusal,), report.events
        return report

    def __str__(self) -> str:
        return self.function.__name__


@dataclass
class Programs(Collection[Program]):
    """Programs in the order of their definition."""

    programs: list[Program] = field(default_factory=list)

    def add(
        self, *makers: Maker, refusal: str | None = None, **named_makers: Maker
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """A decorator; each maker makes one argument, named ones keyword arguments."""

        def register(function: Callable[..., Any]) -> Callable[..., Any]:
            self.programs.append(Program(function, makers, named_makers, refusal))
            return function

        return register

    def __iter__(self) -> Iterator[Program]:
        return iter(self.programs)

    def __len__(self) -> int:
        return len(self.programs)

    def __contains__(self, program: object) -> bool:
        return program in self.programs


def programs_below(directory: Path) -> tuple[Program, ...]:
    """The programs in the `PROGRAMS` of all test files below a directory."""
    found: list[Program] = []
    for path in sorted(directory.rglob("test_*.py")):
        if "PROGRAMS = Programs()" in path.read_text():
            found.extend(_load(path).PROGRAMS)
    return tuple(found)


def _load(path: Path) -> Any:
    """A test file as a module of another name than pytest gives it."""
    name = f"programs_of_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
