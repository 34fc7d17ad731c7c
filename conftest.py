"""Property tests draw the same examples on every run, so that a run of the tests says something about the commit alone.

With HYPOTHESIS_PROFILE=fuzz (`nox -s fuzz`) only property tests run, on new examples, and on many more of them.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, is_hypothesis_test, settings

FUZZING = os.environ.get("HYPOTHESIS_PROFILE") == "fuzz"
TIMES = int(os.environ.get("FUZZ_TIMES", "34"))
"""How many times the examples of an ordinary run."""

# How long it takes to draw says something about what else the machine does, not about the commit.
slow = (HealthCheck.too_slow,)
settings.register_profile("steady", derandomize=True, deadline=None, database=None, suppress_health_check=slow)
settings.load_profile("steady")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not FUZZING:
        return
    drawn = [item for item in items if is_hypothesis_test(getattr(item, "obj", None))]
    config.hook.pytest_deselected(items=[item for item in items if item not in drawn])
    items[:] = drawn
    for item in drawn:
        test = item.obj  # type: ignore[attr-defined]
        chosen = getattr(test, "_hypothesis_internal_use_settings", settings.default)
        test._hypothesis_internal_use_settings = settings(
            chosen,
            max_examples=chosen.max_examples * TIMES,
            derandomize=False,
            suppress_health_check=list(HealthCheck),
        )
