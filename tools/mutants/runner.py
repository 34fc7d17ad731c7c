"""Runs property tests on mutants, in a process forked for each of them: a plugin of pytest.

The tests are collected once. A first run of each, with a probe in the place of each mutant's edit, says how long it
takes and which edits it evaluates; a test that fails there is left out. For a mutant, a forked process puts the changed
code into the functions that are alive and runs the tests that evaluate the edit until one fails, the quickest and those
that evaluate the fewest others first; the failure counts if it comes again in a process of its own. Nothing is written
to the tree.
"""

from __future__ import annotations

import builtins
import gc
import hashlib
import importlib
import json
import os
import select
import signal
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, NamedTuple

import pytest
from _pytest.runner import runtestprotocol
from hypothesis import HealthCheck, Phase, is_hypothesis_test, settings

from absint.rules import RULES
from absint.testing.drawn_calls import PARTS, recorded_calls, refused_calls
from absint.testing.schema_samples import schema_samples
from tools.mutants.edits import PROBE, ROOT, Mutant, planted, probed, source_code

FACTOR, LEAST_SECONDS = 10, 20
"""A test is stopped, which kills the mutant, after so many times its own seconds, and not before the least."""

Tests = dict[pytest.Item, tuple[float, set[str]]]
Changed = list[tuple[FunctionType, CodeType]]
Codes = dict[CodeType, list[FunctionType]]
Tell = Callable[[dict[str, Any]], None]


class Limits(NamedTuple):
    """times: as many times an ordinary run's examples. examples: of each property, at most. seconds: of CPU for each
    mutant; what is not run by then is counted as survived, and said. longest: tests that take more are left out."""

    times: int
    examples: int
    seconds: float
    longest: float


class Runner:
    """What pytest does with the collected tests in place of running them.

    chosen: the mutants for which the tests are tried.
    state: a file of results, one JSON object a line, to which is added; mutants in it are not run again.
    judged: those of `chosen` that are run.
    shard: which tests are tried, every `shard[1]`-th of them, from the `shard[0]`-th on.
    """

    def __init__(
        self, chosen: list[Mutant], state: Path, limits: Limits, judged: list[Mutant], shard: tuple[int, int] = (0, 1)
    ) -> None:
        self.chosen, self.state, self.judged, self.shard = chosen, state, judged, shard
        self.times, self.examples, self.seconds, self.longest = limits

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if is_hypothesis_test(getattr(item, "obj", None))]
        for item in items:
            test = item.obj  # type: ignore[attr-defined]
            own = getattr(test, "_hypothesis_internal_use_settings", settings.default)
            test._hypothesis_internal_use_settings = settings(
                own, max_examples=min(own.max_examples * self.times, self.examples), derandomize=True, database=None,
                deadline=None, phases=(Phase.explicit, Phase.generate), suppress_health_check=list(HealthCheck),
            )  # fmt: skip

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        known = read(self.state)
        for mutant in self.chosen:  # some are imported when they are first used, which would be in a fork
            importlib.import_module(mutant.module)
        codes = codes_of({ROOT / mutant.file for mutant in self.chosen})
        if any(hasattr(item.module, "recorded_calls") for item in session.items):  # type: ignore[attr-defined]
            read_database()
        tests = self._tests(session.items[self.shard[0] :: self.shard[1]], known, codes)
        for number, mutant in enumerate(self.judged, 1):
            if mutant.name in known:
                continue
            found = self._judge(mutant, tests, codes)
            write(self.state, {"mutant": mutant.name, "area": mutant.area, "line": mutant.line, **found})
            print(f"{number}/{len(self.judged)} {mutant.name} {found['outcome']} {found.get('test', '')}", flush=True)
        return True

    def _tests(self, items: list[pytest.Item], known: dict[str, Any], codes: Codes) -> Tests:
        """Of each test that passes: its seconds and the mutants whose edits it evaluates."""
        files = {mutant.file: [m for m in self.chosen if m.file == mutant.file] for mutant in self.chosen}
        changed = [change for file, each in files.items() for change in alive(file, probed(file, each), codes)]
        version = hashlib.sha256("\n".join(sorted(mutant.name for mutant in self.chosen)).encode()).hexdigest()
        found: Tests = {}
        for item in items:
            row = known.get(item.nodeid)
            if row is None or row["probes"] != version:
                row = in_fork(lambda _, item=item: _trial(item, changed), self.longest * 3)
                row = {"test": item.nodeid, "probes": version, "passed": False, **row}
                write(self.state, row)
                print(f"without a mutant: {item.nodeid} {row.get('seconds', 0):.1f} s {row.get('fault')}", flush=True)
            if row["passed"] and row["seconds"] <= self.longest:
                found[item] = row["seconds"], set(row["hits"])
        return found

    def _judge(self, mutant: Mutant, tests: Tests, codes: Codes) -> dict[str, Any]:
        changed = alive(mutant.file, planted(mutant), codes)
        if not changed:
            return {"outcome": "not planted"}
        costs = {item: seconds * len(hits) for item, (seconds, hits) in tests.items() if mutant.name in hits}
        left = [(item, tests[item][0]) for item in sorted(costs, key=costs.__getitem__)]
        if not left:
            return {"outcome": "unreached"}
        total, spent = len(left), 0.0
        while left and spent < self.seconds:
            found = in_fork(lambda tell: _hunt(changed, left, self.seconds - spent, tell), self.longest)  # noqa: B023
            if "outcome" not in found:
                return {"outcome": "not planted", **found}
            spent += found.get("seconds", 0.0)
            if found["outcome"] == "survived":
                return {**found, "ran": total - len(left) + found["ran"], "of": total}
            position = next(at for at, (item, _) in enumerate(left) if item.nodeid == found["test"])
            again = in_fork(lambda tell: _hunt(changed, left[position:][:1], self.seconds, tell), self.longest)  # noqa: B023
            if again["outcome"] == "killed":
                return found
            left = left[position + 1 :]
        return {"outcome": "survived", "ran": total - len(left), "of": total}


def read_database() -> None:
    """Read torch's operator database once, for all forked processes: it evaluates none of the code that is edited."""
    for part in range(PARTS):
        recorded_calls(part, PARTS)
        refused_calls(part, PARTS)
    for target in RULES:
        schema_samples(target)


def _hunt(changed: Changed, reached: list[Any], limit: float, tell: Tell) -> dict[str, Any]:
    for function, code in changed:
        function.__code__ = code
    start = _seconds()
    for number, (item, seconds) in enumerate(reached):
        if _seconds() - start > limit:
            return {"outcome": "survived", "ran": number}
        most = max(LEAST_SECONDS, FACTOR * seconds)
        tell({"outcome": "killed", "test": item.nodeid, "limit": most})
        fault = _run(item, most)
        if fault is not None:
            return {"outcome": "killed", "test": item.nodeid, "fault": fault, "seconds": _seconds() - start}
    return {"outcome": "survived", "ran": len(reached), "seconds": _seconds() - start}


def _seconds() -> float:
    """CPU seconds of this process and of the compilers that it ran."""
    return sum(os.times()[:4])


class OutOfTimeError(BaseException):
    """A test that goes on for too long."""


def _run(item: pytest.Item, limit: float) -> str | None:
    """What is wrong, or None if the test passes."""

    def stop(*_: object) -> None:
        raise OutOfTimeError

    signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, limit)
    try:
        reports = runtestprotocol(item, log=False, nextitem=None)
    except OutOfTimeError:
        return "out of time"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    failed = next((report for report in reports if report.failed), None)
    if failed is None:
        return None
    lines = str(failed.longreprtext).strip().splitlines()
    return next((line for line in lines if line.startswith("E ")), lines[-1])[:400]


def _trial(item: pytest.Item, changed: Changed) -> dict[str, Any]:
    """One run without a mutant: its seconds, and the mutants whose edits it evaluates."""
    hits: set[str] = set()
    setattr(builtins, PROBE, hits.add)
    for function, code in changed:
        function.__code__ = code
    start = _seconds()
    fault = _run(item, 600)
    return {"passed": fault is None, "fault": fault, "seconds": _seconds() - start, "hits": sorted(hits)}


def in_fork(work: Callable[[Tell], dict[str, Any]], limit: float) -> dict[str, Any]:
    """The last of what a function tells or returns in a forked process, whose output is dropped.

    limit: CPU seconds between two rows, where a row names no other; in wall-clock time six times as many.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        _work(work, reader, writer)
    os.close(writer)
    row: dict[str, Any] = {}
    data, late = b"", False
    while True:
        if not select.select([reader], [], [], 60 + 6 * row.get("limit", limit))[0]:
            late = True
            break
        block = os.read(reader, 1 << 16)
        if not block:
            break
        *rows, data = (data + block).split(b"\n")
        row = json.loads(rows[-1]) if rows else row
    if late:
        os.killpg(child, signal.SIGKILL)
    os.close(reader)
    _, status = os.waitpid(child, 0)
    done = "limit" not in row and bool(row)
    return row if done else {**row, "fault": "out of time" if late else f"ended by {status}"}


def _work(work: Callable[[Tell], dict[str, Any]], reader: int, writer: int) -> None:
    os.setpgid(0, 0)
    os.close(reader)
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)

    def tell(row: dict[str, Any]) -> None:
        os.write(writer, json.dumps(row).encode() + b"\n")

    told: list[dict[str, Any]] = []
    try:
        tell(work(lambda row: (told.append(row), tell(row))[1]))
    except BaseException as error:  # the outcome of a mutant, whatever it raises
        last = {key: value for row in told[-1:] for key, value in row.items() if key != "limit"}
        tell({**last, "fault": f"{type(error).__name__}: {error}"[:200]})
    finally:
        os._exit(0)


def codes_of(files: set[Path]) -> Codes:
    """The functions alive that these files define, by code."""
    names = {str(file) for file in files}
    found: Codes = {}
    gc.unfreeze()
    for function in gc.get_objects():
        if isinstance(function, FunctionType) and function.__code__.co_filename in names:
            found.setdefault(function.__code__, []).append(function)
    return found


def alive(file: str, changed: CodeType, codes: Codes) -> Changed:
    """The functions alive whose code differs in the changed module, with the new code."""
    pairs: list[tuple[CodeType, CodeType]] = []

    def walk(old: CodeType, new: CodeType) -> None:
        inner = [[c for c in code.co_consts if isinstance(c, CodeType)] for code in (old, new)]
        if len(inner[0]) == len(inner[1]):
            for one, other in zip(*inner, strict=True):
                if one != other and one.co_freevars == other.co_freevars:
                    pairs.append((one, other))
                    walk(one, other)

    walk(source_code(file), changed)
    return [(function, new) for old, new in pairs for function in codes.get(old, ())]


def read(state: Path) -> dict[str, Any]:
    """The rows of a file of results, by mutant or test."""
    rows = [json.loads(line) for line in state.read_text().splitlines()] if state.exists() else []
    return {row.get("mutant") or row["test"]: row for row in rows}


def write(state: Path, row: dict[str, Any]) -> None:
    with state.open("a") as out:
        out.write(json.dumps(row) + "\n")
