"""The passes of a stage, run in order, and what may watch them.

A pass is an object with a `name` and `run(value)`, or a function of the value; it returns another value of that type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from stagewire.errors import PassFault, VerifyError

T = TypeVar("T")


@dataclass(frozen=True)
class PassRun(Generic[T]):
    """One pass has run.

    stage: whose pass it is. name: the pass. number: its position in the stage's list. before, after: what it was given
    and what it returned. verify: see `run_passes`.
    """

    stage: str
    name: str
    number: int
    before: T
    after: T
    verify: Callable[..., None]


Watcher = Callable[[PassRun[Any]], Any]
_watcher: ContextVar[Watcher | None] = ContextVar("stagewire.passes", default=None)
_skips: ContextVar[Callable[[], bool] | None] = ContextVar("stagewire.passes.skips", default=None)


def name_of(step: object) -> str:
    """The name of a pass: its `name`, else that of the function or of the class.

    >>> name_of(name_of), name_of(object())
    ('name_of', 'object')
    """
    named = getattr(step, "name", None) or getattr(step, "__qualname__", None)
    return str(named or type(step).__qualname__)


def run_passes(stage: str, passes: Iterable[Any], value: T, verify: Callable[..., None]) -> T:
    """What is left of `value` after all passes.

    verify: (value, sizes) raises `VerifyError` for a value that breaks a constraint with these values of its symbols
    (by default with any); asked by `verified_passes` alone.
    Raises `PassFault` for a pass that returns another kind of value; what a pass itself raises gets a note that names
    the pass.
    """
    watcher, skips = _watcher.get(), _skips.get()
    for number, step in enumerate(passes):
        if not callable(getattr(step, "run", step)):
            message = f"number {number} of the passes of {stage!r} is {step!r}, neither a function nor has it a run()"
            raise PassFault(message, fix="Give the pass itself: an object with a name and run(value), or a function.")
        try:
            after = value if skips is not None and skips() else getattr(step, "run", step)(value)
        except Exception as error:
            error.add_note(f"in the pass {name_of(step)!r} (number {number}) of the stage {stage!r}")
            raise
        if type(after) is not type(value):
            wanted, found = type(value).__name__, type(after).__name__
            raise PassFault(f"the pass {name_of(step)!r} (number {number}) of {stage!r} returned {found}, not {wanted}")
        value = after if watcher is None else watcher(PassRun(stage, name_of(step), number, value, after, verify))
    return value


@contextmanager
def watched_passes(watcher: Watcher) -> Iterator[None]:
    """Meanwhile, in this thread, `watcher` is told of every pass; what it returns goes to the next pass."""
    token = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(token)


@contextmanager
def verified_passes(sizes: Mapping[str, int]) -> Iterator[None]:
    """Meanwhile, in this thread, each pass is verified, with these values of the symbols (none: with any): the first
    that breaks a constraint raises `PassFault`."""

    def check(run: PassRun[Any]) -> Any:
        try:
            run.verify(run.after, sizes)
        except VerifyError as error:
            message = f"the pass {run.name!r} (number {run.number}) of {run.stage!r} broke {error.message}"
            raise PassFault(message, where=error.where) from error
        return run.after

    with watched_passes(check):
        yield


@contextmanager
def first_passes(count: int) -> Iterator[list[PassRun[Any]]]:
    """Meanwhile, in this thread, only the first `count` passes run.

    What is left is a document, too: every pass keeps the meaning. Gives the list of the runs, to which each is added,
    those that are left out as well.
    """
    runs: list[PassRun[Any]] = []

    def noted(run: PassRun[Any]) -> Any:
        runs.append(run)
        return run.after

    token = _skips.set(lambda: len(runs) >= count)
    try:
        with watched_passes(noted):
            yield runs
    finally:
        _skips.reset(token)
