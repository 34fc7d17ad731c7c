"""A class of values declares its fields: slots and parameters follow from them."""

from __future__ import annotations

import inspect
from dataclasses import field
from typing import Any

import pytest

from bytecap.objects.base import Value, state


class Base(Value):
    first: Any
    named: str = "base"


class Derived(Base):
    second: Any
    _pin: Any = None
    parts: list[int] = field(default_factory=list)
    total: int = state()
    changed: bool = state(default=False)

    def __post_init__(self) -> None:
        self.total = self.first + self.second


class Computed(Base):
    @property
    def first(self) -> int:  # type: ignore[override]
        return 7


def names(cls: type) -> list[str]:
    return list(inspect.signature(cls).parameters)


def test_required_parameters_come_first_then_the_class_s_own_optional_ones() -> None:
    assert names(Base) == ["first", "named", "source"]
    assert names(Derived) == ["first", "second", "pin", "parts", "named", "source"]


def test_what_is_declared_is_a_slot_and_has_its_value() -> None:
    made = Derived(1, 2, "pinned", named="other")
    assert (made.first, made.second, made._pin, made.named, made.source) == (1, 2, "pinned", "other", None)
    assert (made.total, made.changed, made.parts) == (3, False, [])
    assert not hasattr(made, "__dict__")
    with pytest.raises(AttributeError):
        made.elsewhere = 1  # type: ignore[attr-defined]


def test_a_default_that_is_made_is_made_for_each() -> None:
    assert Derived(1, 2).parts is not Derived(1, 2).parts
    given = [3]
    assert Derived(1, 2, parts=given).parts is given


def test_what_a_property_computes_is_no_parameter() -> None:
    assert names(Computed) == ["named", "source"]
    assert Computed().first == 7
