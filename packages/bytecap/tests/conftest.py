"""Each test also looks at the code that it makes: CPython would not say that a stack overflows, it would crash."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bytecap.testing.stack_depth import watched_stacks


@pytest.fixture(autouse=True)
def code_keeps_to_its_stack() -> Iterator[None]:
    with watched_stacks() as faults:
        yield
    assert not faults
