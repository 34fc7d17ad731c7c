"""The members of a capsule, and `Capsule`, which reads them."""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Iterator
from importlib import metadata
from typing import Any

import msgspec
import torch
from msgspec.structs import replace

from stagefold.archive import Archive
from stagefold.errors import BadCapsule
from stagewire.codec import Document

FORMAT = 2
INDEX = "capsule.json"


class Machine(msgspec.Struct, frozen=True):
    """Where the process ran."""

    system: str
    python: str
    torch: str
    threads: int
    devices: tuple[str, ...] = ()


class Index(msgspec.Struct, frozen=True):
    """What the whole capsule is: format, version of stagefold, command line, ISO time of the start, machine."""

    format: int
    stagefold: str
    command: tuple[str, ...]
    started: str
    machine: Machine


class StageRow(msgspec.Struct, frozen=True):
    """What was in a slot.

    registered: the name by which it can be found again; None where it was an object of the program. told: the fields
    of its options that facts of the program or the machine set, as `settings.as_data` writes them.
    """

    slot: str
    name: str
    version: str
    registered: str | None
    told: dict[str, Any] = {}


class Step(msgspec.Struct, frozen=True):
    """A slot, "load" or "run", with its seconds and when it began, in seconds since the start of the capsule."""

    name: str
    start: float
    seconds: float


class PassRow(msgspec.Struct, frozen=True):
    """One run of a pass: whose, its position, whether the document is another one behind it, and when it ran."""

    slot: str
    name: str
    number: int
    changed: bool
    start: float
    seconds: float


class Input(msgspec.Struct, frozen=True):
    """One input of a run: how it lies in memory, and where its numbers are.

    kind: "saved" (in inputs.pt), "drawn" (of `seed`, between or around `statistics`), "number" or "missing".
    statistics: lowest and highest of integers, mean and deviation of floats.
    """

    kind: str
    value: int | float | bool | None = None
    dtype: str = ""
    shape: tuple[int, ...] = ()
    stride: tuple[int, ...] = ()
    offset: int = 0
    device: str = "cpu"
    requires_grad: bool = False
    seed: int = 0
    statistics: tuple[float, float] = (0.0, 1.0)


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One compilation.

    member: the folder of its documents in the archive. digests: of each document, by form. options: as the user gave
    them. stages: of the slots between the ends; "capture" and "load" have rows where bytecap and codegen were replaced.
    lines: the user's lines that the capture names, by file and number. error: what ended it. thread: the number of the
    thread, from 1 on.
    """

    member: str
    name: str
    start: float
    options: dict[str, Any]
    stages: tuple[StageRow, ...]
    digests: dict[str, str] = {}
    steps: tuple[Step, ...] = ()
    passes: tuple[PassRow, ...] = ()
    inputs: tuple[Input, ...] = ()
    lines: dict[str, dict[int, str]] = {}
    error: str | None = None
    thread: int = 1


class Later(msgspec.Struct, frozen=True):
    """What came after the documents of a run were written: more steps, the error that ended it."""

    steps: tuple[Step, ...] = ()
    error: str | None = None


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """What bytecap tells.

    kind: "captured", "broke", "refused" or "limit". function: of a capture. reason: why it was made although there were
    others of the same code. code, where, message, fix: of the error. run: the folder of its documents, if any.
    thread: as of a run.
    """

    kind: str
    start: float
    function: str = ""
    reason: str | None = None
    seconds: float = 0.0
    code: str = ""
    where: str | None = None
    message: str = ""
    fix: str = ""
    run: str | None = None
    thread: int = 1


def this_machine() -> Machine:
    devices = tuple(torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count()))
    return Machine(
        platform.platform(), platform.python_version(), str(torch.__version__), torch.get_num_threads(), devices
    )


def new_index(started: str) -> Index:
    return Index(FORMAT, metadata.version("stagefold"), tuple(sys.argv), started, this_machine())


class Capsule:
    """A capsule that was read: `index`, `runs`, `events`, and the documents of each run.

    Errors: `BadCapsule` for a file that is none, or of a later format, or that lacks what is asked for.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._archive = Archive(path, INDEX, FORMAT, BadCapsule)
        self.path = self._archive.path
        self._members = self._archive.names
        self.index = self._archive.decode(INDEX, Index)
        self.runs = tuple(self._run(name.partition("/")[0]) for name in sorted(self._named("run.json")))
        self.events = tuple(
            self._archive.decode(name, Event) for name in sorted(self._members) if name.startswith("events/")
        )

    def _named(self, file: str) -> list[str]:
        return [name for name in self._members if name.endswith(f"/{file}")]

    def _run(self, member: str) -> Run:
        run, later = self._archive.decode(f"{member}/run.json", Run), f"{member}/later.json"
        if later not in self._members:
            return run
        more = self._archive.decode(later, Later)
        return replace(run, steps=(*run.steps, *more.steps), error=more.error)

    def forms(self, run: Run) -> tuple[str, ...]:
        """The forms of the documents of a run, in the order of the stages."""
        return tuple(run.digests)

    def document(self, run: Run, form: str) -> Document:
        """A document of a run, as `form` says: "capture", "grad", "prim", "cut", "loop", "program"."""
        name = f"{run.member}/{form}.json"
        if name not in self._members:
            known = ", ".join(run.digests)
            raise BadCapsule(f"{run.member} in {self.path} has no document {form!r}", fix=f"It has: {known}.")
        return self._archive.document(name)

    def bytes_of(self, run: Run, file: str) -> bytes | None:
        """A member of a run; None where it has no such."""
        name = f"{run.member}/{file}"
        return self._archive.read(name) if name in self._members else None

    def chosen(self, word: str = "") -> Iterator[Run]:
        """The run of a number, or those with a word in their name; all for ""."""

        def fits(run: Run) -> bool:
            number = run.member.partition("_")[0]
            return int(number) == int(word) if word.isdecimal() else word in run.member or word in run.name

        found = [*filter(fits, self.runs)]
        if not found and (word or not self.runs):
            names = ", ".join(run.member for run in self.runs) or "nothing was compiled"
            raise BadCapsule(f"{self.path} has no run {word!r}".replace(" ''", ""), fix=f"It has: {names}.")
        yield from found


def member_name(number: int, name: str) -> str:
    """The folder of a run: its number, and what of its name any archive tool can write."""
    return f"{number:04d}_{re.sub(r'[^A-Za-z0-9_.-]', '', name)}"
