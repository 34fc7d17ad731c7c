"""Runs property tests on mutants, in a process forked for each of them: a plugin of pytest.

The tests are collected once. A first run of each, without a mutant, says how long it takes and which functions it
calls; a test that fails there is left out. For a mutant, a forked process puts the changed code into the functions that
are alive and runs the tests that call one of them, the quickest first, until one fails. Nothing is written to the tree.
"""

from __future__ import annotations

import ast
import gc
import json
import os
import signal
import sys
import time
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, is_hypothesis_test, settings

from tools.mutants.edits import ROOT, Mutant

FACTOR, LEAST_SECONDS = 10, 20
"""A test is stopped, which kills the mutant, after so many times its own seconds, and not before the least."""


class Runner:
    """What pytest does with the collected tests in place of running them.

    examples: of each property.
    seconds: for each mutant; what is not run by then is counted as survived, and said.
    longest: tests that take longer than so many seconds are left out.
    state: a file of results, one JSON object a line, to which is added; mutants in it are not run again.
    """

    def __init__(self, chosen: list[Mutant], state: Path, examples: int, seconds: float, longest: float) -> None:
        self.chosen, self.state = chosen, state
        self.examples, self.seconds, self.longest = examples, seconds, longest

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if is_hypothesis_test(getattr(item, "obj", None))]
        for item in items:
            test = item.obj  # type: ignore[attr-defined]
            own = getattr(test, "_hypothesis_internal_use_settings", settings.default)
            test._hypothesis_internal_use_settings = settings(
                own, max_examples=min(own.max_examples, self.examples), derandomize=True, database=None, deadline=None,
                phases=(Phase.explicit, Phase.generate), suppress_health_check=list(HealthCheck),
            )  # fmt: skip

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        known = _read(self.state)
        tests = self._tests(session.items, known)
        codes = _codes({ROOT / mutant.file for mutant in self.chosen})
        for number, mutant in enumerate(self.chosen, 1):
            if mutant.name in known:
                continue
            found = self._judge(mutant, tests, codes)
            _write(self.state, {"mutant": mutant.name, "area": mutant.area, "line": mutant.line, **found})
            print(f"{number}/{len(self.chosen)} {mutant.name} {found['outcome']} {found.get('test', '')}", flush=True)
        return True

    def _tests(self, items: list[pytest.Item], known: dict[str, Any]) -> dict[pytest.Item, tuple[float, set[str]]]:
        """Of each test that passes: its seconds and the functions that it calls."""
        found = {}
        for item in items:
            row = known.get(item.nodeid)
            if row is None:
                print(f"without a mutant: {item.nodeid}", flush=True)
                row = _in_fork(lambda item=item: _trial(item), self.longest * 3)
                _write(self.state, {"test": item.nodeid, **row})
            if row.get("passed") and row["seconds"] <= self.longest:
                found[item] = row["seconds"], set(row["calls"])
        return dict(sorted(found.items(), key=lambda pair: pair[1][0]))

    def _judge(self, mutant: Mutant, tests: dict[pytest.Item, tuple[float, set[str]]], codes: Any) -> dict[str, Any]:
        pairs = _changes(mutant)
        alive = [(function, new) for old, new in pairs for function in codes.get((mutant.file, old), ())]
        if not alive:
            return {"outcome": "not planted"}
        names = {f"{mutant.file}:{old.co_firstlineno}" for old, _ in pairs}
        reached = [(item, seconds) for item, (seconds, calls) in tests.items() if calls & names]
        if not reached:
            return {"outcome": "unreached"}
        return _in_fork(lambda: _hunt(alive, reached, self.seconds), self.seconds + 30)


def _hunt(alive: list[tuple[FunctionType, CodeType]], reached: list[Any], limit: float) -> dict[str, Any]:
    for function, code in alive:
        function.__code__ = code
    start = time.monotonic()
    for number, (item, seconds) in enumerate(reached):
        if time.monotonic() - start > limit:
            return {"outcome": "survived", "ran": number, "of": len(reached)}
        fault = _run(item, max(LEAST_SECONDS, FACTOR * seconds))
        if fault is not None:
            return {"outcome": "killed", "test": item.nodeid, "fault": fault, "seconds": time.monotonic() - start}
    return {"outcome": "survived", "ran": len(reached), "of": len(reached)}


class OutOfTimeError(BaseException):
    """A test that goes on for too long."""


def _run(item: pytest.Item, limit: float) -> str | None:
    """What is wrong, or None if the test passes."""

    def stop(*_: object) -> None:
        raise OutOfTimeError

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(int(limit) + 1)
    try:
        reports = pytest_runtestprotocol(item)
    except OutOfTimeError:
        return "out of time"
    finally:
        signal.alarm(0)
    failed = next((report for report in reports if report.failed), None)
    return None if failed is None else str(failed.longreprtext).strip().splitlines()[-1][:200]


def pytest_runtestprotocol(item: pytest.Item) -> list[pytest.TestReport]:
    from _pytest.runner import runtestprotocol

    return runtestprotocol(item, log=False, nextitem=None)


def _trial(item: pytest.Item) -> dict[str, Any]:
    """One run without a mutant: seconds of a run, and the functions of packages/ that another calls."""
    called: set[str] = set()
    prefix = f"{ROOT}/"

    def watch(frame: Any, event: str, _: Any) -> None:
        if event == "call":
            code = frame.f_code
            if code.co_filename.startswith(prefix):
                called.add(f"{code.co_filename.removeprefix(prefix)}:{code.co_firstlineno}")

    sys.setprofile(watch)
    start = time.monotonic()
    fault = _run(item, 600)
    sys.setprofile(None)
    seconds = time.monotonic() - start
    return {"passed": fault is None, "fault": fault, "seconds": seconds / 2, "calls": sorted(called)}


def _in_fork(work: Any, limit: float) -> dict[str, Any]:
    """The result of a function in a forked process, whose output is dropped."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nothing, stream)
        try:
            data = json.dumps(work()).encode()
        except BaseException as error:  # the outcome of a mutant, whatever it raises
            data = json.dumps({"outcome": "killed", "test": "", "fault": f"{type(error).__name__}: {error}"}).encode()
        with os.fdopen(writer, "wb") as out:
            out.write(data)
        os._exit(0)
    os.close(writer)
    data, late = b"", False
    deadline = time.monotonic() + limit
    os.set_blocking(reader, False)
    while True:
        try:
            block = os.read(reader, 1 << 16)
        except BlockingIOError:
            if time.monotonic() > deadline:
                late = True
                os.killpg(child, signal.SIGKILL)
                break
            time.sleep(0.02)
            continue
        if not block:
            break
        data += block
    os.close(reader)
    _, status = os.waitpid(child, 0)
    if data and not late:
        return dict(json.loads(data))
    ended = "out of time" if late else f"ended by {status}"
    return {"outcome": "killed", "test": "", "fault": ended, "passed": False, "seconds": limit, "calls": []}


def _codes(files: set[Path]) -> dict[tuple[str, CodeType], list[FunctionType]]:
    """The functions alive that these files define, by file and code."""
    names = {str(file): str(file.relative_to(ROOT)) for file in files}
    found: dict[tuple[str, CodeType], list[FunctionType]] = {}
    for function in gc.get_objects():
        if isinstance(function, FunctionType) and function.__code__.co_filename in names:
            found.setdefault((names[function.__code__.co_filename], function.__code__), []).append(function)
    return found


def _changes(mutant: Mutant) -> list[tuple[CodeType, CodeType]]:
    """The functions whose code differs with the mutant: before and after."""
    path = str(ROOT / mutant.file)
    before = compile(ast.parse(Path(path).read_text()), path, "exec", dont_inherit=True)
    after = compile(mutant.planted(), path, "exec", dont_inherit=True)
    pairs: list[tuple[CodeType, CodeType]] = []

    def walk(old: CodeType, new: CodeType) -> None:
        inner = [[c for c in code.co_consts if isinstance(c, CodeType)] for code in (old, new)]
        if len(inner[0]) == len(inner[1]):
            for one, other in zip(*inner, strict=True):
                if one != other and one.co_freevars == other.co_freevars:
                    pairs.append((one, other))
                    walk(one, other)

    walk(before, after)
    return pairs


def _read(state: Path) -> dict[str, Any]:
    rows = [json.loads(line) for line in state.read_text().splitlines()] if state.exists() else []
    return {row.get("mutant") or row["test"]: row for row in rows}


def _write(state: Path, row: dict[str, Any]) -> None:
    with state.open("a") as out:
        out.write(json.dumps(row) + "\n")
