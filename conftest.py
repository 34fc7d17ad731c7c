"""Property tests draw the same examples on every run, so that a run of the tests says something about the commit alone.

An ordinary run draws half of the examples that a test states, where these are many. Hypothesis also draws constants of
imported modules outside of site-packages. It is kept from that: what is imported from where differs between machines.

With HYPOTHESIS_PROFILE=fuzz (`nox -s fuzz`) only property tests run, on new examples, and on many more of them. Such a
session says its seed (`--hypothesis-seed` repeats it) and keeps what it found in `.fuzz`: the report of each failure,
and the smallest documents that fail.
"""

from __future__ import annotations

import os
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, is_hypothesis_test, settings
from hypothesis.internal.conjecture import providers

FUZZING = os.environ.get("HYPOTHESIS_PROFILE") == "fuzz"
TIMES = float(os.environ.get("FUZZ_TIMES", "34")) if FUZZING else 0.5
"""How many times the examples that a test states."""
FEWEST = 20
"""Examples of which an ordinary run draws all."""

# How long it takes to draw says something about what else the machine does, not about the commit.
slow = (HealthCheck.too_slow,)
settings.register_profile("steady", derandomize=True, deadline=None, database=None, suppress_health_check=slow)
settings.load_profile("steady")
if not FUZZING:
    assert callable(providers.is_local_module_file), "hypothesis names it otherwise: see _get_local_constants there"
    providers.is_local_module_file = lambda path: False


FOUND = Path(__file__).parent / ".fuzz"


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    if FUZZING and config.getoption("hypothesis_seed", None) is None:
        config.option.hypothesis_seed = str(random.SystemRandom().randrange(10**9))


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if FUZZING:
        failed = len(terminalreporter.stats.get("failed", ()))
        kept = f"; {failed} failures are in {FOUND}" if failed else ""
        terminalreporter.write_line(f"fuzzed with --hypothesis-seed={config.option.hypothesis_seed}{kept}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report: Any = yield
    if FUZZING and report.failed and call.excinfo is not None:
        seed = item.config.option.hypothesis_seed
        path = FOUND / f"{re.sub('[^A-Za-z0-9_.-]+', '_', item.nodeid)[-150:]}-{seed}.txt"
        FOUND.mkdir(exist_ok=True)
        command = f"HYPOTHESIS_PROFILE=fuzz FUZZ_TIMES={TIMES} pytest --hypothesis-seed={seed} {item.nodeid}\n\n"
        path.write_text(command + report.longreprtext)
        _save_documents(call.excinfo, path)
    return report


def _save_documents(found: pytest.ExceptionInfo[BaseException], path: Path) -> None:
    """Each document that the frames of a failure hold: hypothesis ends with the smallest example."""
    from stagewire.codec import Document, save

    frames = [entry.frame.f_locals.values() for entry in found.traceback]
    values = [value for row in frames for local in row for value in (local if type(local) is tuple else (local,))]
    documents = {id(value): value for value in values if isinstance(value, Document)}
    for number, document in enumerate(documents.values()):
        save(document, path.with_suffix(f".{number}.{type(document).__name__.lower()}.json"))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    drawn = [item for item in items if is_hypothesis_test(getattr(item, "obj", None))]
    if FUZZING:
        config.hook.pytest_deselected(items=[item for item in items if item not in drawn])
        items[:] = drawn
    for test in {getattr(item.obj, "__func__", item.obj) for item in drawn}:  # type: ignore[attr-defined]
        chosen = getattr(test, "_hypothesis_internal_use_settings", settings.default)
        count = max(int(chosen.max_examples * TIMES), min(chosen.max_examples, FEWEST))
        changed = {"derandomize": False, "suppress_health_check": list(HealthCheck)} if FUZZING else {}
        test._hypothesis_internal_use_settings = settings(chosen, max_examples=count, **changed)
