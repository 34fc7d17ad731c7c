"""What an enum member says of itself is kept in attributes, which can be changed however the member was found."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

import pytest
import torch

from bytecap.testing.changes import check_change, patched

T = torch.arange(3.0)


class Kind(enum.Enum):
    LOW = 2
    HIGH = 3

    def __init__(self, number: int) -> None:
        self.rate = number * 10

    @property
    def twice(self) -> int:
        return self.value * 2


class Level(enum.IntEnum):
    ONE = 1


KINDS = {"low": Kind.LOW}
CASES: dict[str, tuple[Callable[..., Any], enum.Enum, str, Any]] = {
    "value": (lambda x: x * Kind.LOW.value, Kind.LOW, "_value_", 7),
    "name": (lambda x: (x + 1, Kind.LOW.name), Kind.LOW, "_name_", "OTHER"),
    "in a property": (lambda x: x * Kind.LOW.twice, Kind.LOW, "_value_", 7),
    "an attribute": (lambda x: x * Kind.LOW.rate, Kind.LOW, "rate", 7),
    "out of a dict": (lambda x: x * KINDS["low"].value, Kind.LOW, "_value_", 7),
    "of all members": (lambda x: x * sum(kind.value for kind in Kind), Kind.HIGH, "_value_", 7),
    "by name": (lambda x: x * Kind["LOW"].value, Kind.LOW, "_value_", 7),
    "by value": (lambda x: x * Kind(2).value, Kind.LOW, "_value_", 7),
    "of an int": (lambda x: x * Level.ONE.value + Level.ONE, Level.ONE, "_value_", 7),
    "as text": (lambda x: (x + 1, str(Kind.LOW), f"{Kind.LOW}"), Kind.LOW, "_name_", "OTHER"),
    "in repr()": (lambda x: (x + 1, repr(Kind.LOW)), Kind.LOW, "_value_", 7),
}


@pytest.mark.parametrize("name", CASES)
def test_change(name: str) -> None:
    program, member, attribute, value = CASES[name]
    check_change((program, (T,), lambda: patched(member, attribute, value)))


def test_as_argument() -> None:
    def program(x: torch.Tensor, kind: Kind) -> torch.Tensor:
        return x * kind.value

    check_change((program, (T, Kind.LOW), lambda: patched(Kind.LOW, "_value_", 7)))
