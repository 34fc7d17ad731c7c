"""Writes a capsule while its process compiles.

The file grows by members and is never cut short: they are appended to a copy, which then takes its place.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import datetime
import functools
import itertools
import linecache
import os
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

import bytecap
from stagefold.archive import append_members
from stagefold.capsule.file_format import INDEX, Event, Later, PassRow, Run, StageRow, Step, member_name, new_index
from stagefold.capsule.inputs import SAVED_BYTES, described
from stagefold.capsule.replay import numbered
from stagefold.capsule.settings import as_data, given_options
from stagefold.errors import NotTraced
from stagefold.options import Options
from stagefold.pipeline import Pipeline, registered_name, stage_options
from stagewire.capture import Capture
from stagewire.codec import Document, encode
from stagewire.digest import digest
from stagewire.errors import StageError
from stagewire.passes import PassRun, watched_passes
from stagewire.stage import Stage


class Recorder:
    """The capsule of this process at `path`, or at a free name in the directory `path`.

    saved_bytes: as in `inputs.described`. A file that cannot be written costs a warning, once. A forked process writes
    a file of its own, with its number in the name; what its parent compiled is the parent's to write.
    """

    def __init__(self, path: Path, *, in_directory: bool = False, saved_bytes: int = SAVED_BYTES) -> None:
        self.path = path
        self.saved_bytes = saved_bytes
        self._directory = path if in_directory else None
        self._begin()
        atexit.register(self.flush)
        os.register_at_fork(after_in_child=self._begin_again)

    def _begin_again(self) -> None:
        if self._directory is None:
            self.path = self.path.with_stem(f"{self.path.stem}-{os.getpid()}")
        self._begin()

    def _begin(self) -> None:
        self._in_directory = self._directory is not None
        self.path = self._directory or self.path
        self._clock = time.perf_counter()
        self._lock = threading.RLock()
        self._pending: dict[str, bytes] = {}
        self._runs = self._events = 0
        self._asked: dict[int, Event] = {}
        self._threads: dict[int, int] = {}
        self._is_lost = self._is_written = False
        self._put(INDEX, new_index(datetime.datetime.now().astimezone().isoformat(timespec="seconds")))

    def now(self) -> float:
        """Seconds since the start of the capsule."""
        return time.perf_counter() - self._clock

    def thread(self) -> int:
        """The number of this thread: 1 for the first that compiles."""
        with self._lock:
            return self._threads.setdefault(threading.get_ident(), len(self._threads) + 1)

    @contextlib.contextmanager
    def run(
        self,
        capture: Capture,
        inputs: Sequence[Any] | None,
        pipeline: Pipeline,
        options: Options,
        ends: Mapping[str, Stage],
    ) -> Iterator[RunRecorder]:
        """Records one compilation, also where it fails. ends: stages in slots "capture" and "load"."""
        with self._lock:
            number, self._runs = self._runs, self._runs + 1
            asked = self._asked.pop(self.thread(), None)
        member = member_name(number, capture.code.name)
        if asked is not None:
            self._tell(replace(asked, run=member))
        one = RunRecorder(self, member, capture, inputs, pipeline, options, ends)
        try:
            with watched_passes(one.note_pass):
                yield one
        except BaseException as error:
            one.error = f"{type(error).__name__}: {error}"
            raise
        finally:
            one.write()

    def note(self, event: bytecap.Event) -> None:
        """What bytecap tells. A capture waits for the run that it leads to, in its thread."""
        thread = self.thread()
        row = replace(_row(event, self.now()), thread=thread)
        with self._lock:
            waiting = self._asked.pop(thread, None)
            if waiting is not None:
                self._tell(waiting)
            if row.kind == "captured" and not getattr(event, "reused", False):
                self._asked[thread] = row
            else:
                self._tell(row)

    def _tell(self, row: Event) -> None:
        with self._lock:
            self._put(f"events/{self._events:04d}.json", row)
            self._events += 1

    def _put(self, name: str, value: msgspec.Struct | bytes) -> None:
        with self._lock:
            self._pending[name] = value if isinstance(value, bytes) else msgspec.json.encode(value)

    def put_all(self, members: dict[str, msgspec.Struct | bytes]) -> None:
        for name, value in members.items():
            self._put(name, value)

    def flush(self, *, empty: bool = False) -> None:
        """Write all that is not yet in the file. empty: make one even if nothing was compiled."""
        with self._lock:
            for asked in self._asked.values():
                self._tell(asked)
            self._asked = {}
            self.save(empty=empty)

    def save(self, *, empty: bool = False) -> None:
        """Write what is not yet in the file, but the captures that wait for their run."""
        with self._lock:
            if not self._pending or self._is_lost or (list(self._pending) == [INDEX] and not empty):
                return
            try:
                if self._in_directory:
                    self.path, self._in_directory = _free_name(self.path), False
                append_members(self.path if self._is_written else None, self._pending, self.path)
                self._is_written = True
            except OSError as error:
                self._is_lost = True
                message = f"what is compiled is not recorded in {self.path}: {error.strerror or error}"
                warnings.warn(message, NotTraced, stacklevel=2)
            self._pending = {}


class RunRecorder:
    """One compilation, while it lasts."""

    def __init__(
        self,
        recorder: Recorder,
        member: str,
        capture: Capture,
        inputs: Sequence[Any] | None,
        pipeline: Pipeline,
        options: Options,
        ends: Mapping[str, Stage],
    ) -> None:
        self.error: str | None = None
        self._is_written, self._written_steps = False, 0
        self._recorder, self._member, self._capture, self._pipeline = recorder, member, capture, pipeline
        self._options, self._ends = options, ends
        self._start = self._last = recorder.now()
        self._slot_passes: list[PassRow] = []
        self._passes: list[PassRow] = []
        self._steps: list[Step] = []
        self._documents: dict[str, Document] = {}
        unknown = [None for _ in capture.inputs]
        self._rows, self._numbers = described(unknown if inputs is None else inputs, recorder.saved_bytes)
        self.add(capture)

    def add(self, document: Document) -> None:
        """A document, in the order of the stages."""
        self._documents[numbered(document, self._documents)] = document

    def note_step(self, name: str, seconds: float) -> None:
        """A slot has run, or the program was loaded."""
        self._last = self._recorder.now()
        began = self._last - seconds
        self._steps.append(Step(name, began, seconds))
        for row in self._slot_passes:
            start = max(began, row.start)
            seconds = max(0.0, row.start + row.seconds - start)
            self._passes.append(replace(row, slot=name, start=start, seconds=seconds))
        self._slot_passes = []

    def note_pass(self, run: PassRun[Any]) -> Any:
        """A pass has run; it began when the one before ended, or its slot."""
        start, self._last = self._last, self._recorder.now()
        changed = run.after is not run.before and run.after != run.before
        self._slot_passes.append(PassRow(run.stage, run.name, run.number, changed, start, self._last - start))
        self._last = self._recorder.now()
        return run.after

    def write(self) -> None:
        """Write all that is known; once that is done, what came after it, with whatever is written next."""
        if self._is_written:
            later = Later(tuple(self._steps[self._written_steps :]), self.error)
            self._recorder.put_all({f"{self._member}/later.json": later})
            if self.error is not None:
                self._recorder.save()
            return
        self._is_written, self._written_steps = True, len(self._steps)
        row = Run(
            member=self._member,
            name=self._capture.code.name,
            start=self._start,
            thread=self._recorder.thread(),
            options=given_options(self._options),
            stages=tuple(_stage_rows(self._pipeline, self._options, self._ends)),
            digests={form: digest(document) for form, document in self._documents.items()},
            steps=tuple(self._steps),
            passes=(*self._passes, *self._slot_passes),
            inputs=self._rows,
            lines=_lines(self._capture),
            error=self.error,
        )
        self._recorder.put_all({f"{self._member}/run.json": row})
        documents = {f"{self._member}/{form}.json": encode(one) for form, one in self._documents.items()}
        self._recorder.put_all({**documents, f"{self._member}/inputs.pt": self._numbers})
        self._recorder.save()


def _stage_rows(pipeline: Pipeline, options: Options, ends: Mapping[str, Stage]) -> Iterator[StageRow]:
    """told: what the pipeline of this program has set besides the user's options."""
    for slot, stage, chosen in pipeline.stages:
        fields = dataclasses.fields(chosen) if dataclasses.is_dataclass(chosen) else ()
        plain = stage_options(slot, stage, options)
        told = {one.name: getattr(chosen, one.name) for one in fields}
        told = {name: as_data(value) for name, value in told.items() if value != getattr(plain, name)}
        yield StageRow(slot, stage.name, stage.version, registered_name(slot, stage), told)
    for slot, stage in ends.items():
        yield StageRow(slot, stage.name, stage.version, registered_name(slot, stage))


def _lines(capture: Capture) -> dict[str, dict[int, str]]:
    """The text of the lines that nodes name, with one before and behind."""
    found: dict[str, dict[int, str]] = {}
    for node in capture.graph.nodes:
        if node.line is not None:
            for number in range(max(1, node.line.line - 1), node.line.line + 2):
                text = linecache.getline(node.line.file, number)
                if text:
                    found.setdefault(node.line.file, {})[number] = text.rstrip()
    return found


def _row(event: bytecap.Event, now: float) -> Event:
    if isinstance(event, bytecap.Captured):
        code, seconds = event.capture.code, event.seconds
        kind, where = "reused" if event.reused else "captured", f"{code.file}:{code.first_line}"
        start = now - seconds
        return Event(kind=kind, start=start, function=code.name, reason=event.reason, seconds=seconds, where=where)
    kind = {bytecap.Broke: "broke", bytecap.Refused: "refused"}.get(type(event), "limit")
    error: StageError = event.error
    return Event(kind=kind, start=now, code=error.code, where=error.where, message=error.message, fix=error.fix)


def _free_name(directory: Path) -> Path:
    """A file of this process there: the script, the time and the process, and a number where that is taken."""
    directory.mkdir(parents=True, exist_ok=True)
    script = Path(sys.argv[0]).stem if sys.argv and sys.argv[0] not in ("", "-c") else "python"
    stem = f"{script}-{datetime.datetime.now():%Y%m%d-%H%M%S}-{os.getpid()}"
    for number in itertools.count():
        path = directory / f"{stem}{f'-{number}' if number else ''}.capsule"
        with contextlib.suppress(FileExistsError):
            path.open("x").close()  # nobody else takes it, on whatever machine that shares the directory
            return path
    raise AssertionError


_MAKING = threading.Lock()
os.register_at_fork(before=_MAKING.acquire, after_in_parent=_MAKING.release, after_in_child=_MAKING.release)


@functools.cache
def _recorder_of(directory: Path, process: int) -> Recorder:
    return Recorder(directory, in_directory=True)


def recorder_in(directory: Path) -> Recorder:
    """That of this process in a directory; a process that was forked has one of its own."""
    with _MAKING:
        return _recorder_of(directory.absolute(), os.getpid())
