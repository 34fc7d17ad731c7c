"""What statements define and use, and how they are renamed: the same as a walk over all their fields finds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given

from stagewire import index as ix
from stagewire.graph import Ref
from stagewire.loop import Compute, IndexValue, Kernel, Load, Loop, Reduce, Scan, Statement, Store, ValueAtom
from stagewire.statements import (
    map_indices,
    map_operands,
    operands,
    rename,
    replace_values,
    results,
    statements_of,
    used_axes,
    used_values,
)
from stagewire.testing.strategies import loops

PLACE = ix.add(ix.scale(ix.axis("i"), 8), ix.floor_div(ix.value("at"), 2, {}))
EACH: list[Statement] = [
    Load("a", "x", PLACE, "float32", Ref("m"), 0.0),
    Store("x", PLACE, Ref("a"), "atomic_add", Ref("m")),
    Load("a", "x", (PLACE, ix.constant(1), ix.axis("i")), "float32"),  # type: ignore[arg-type]
    Compute("a", "where", (Ref("m"), Ref("b"), 1.0), "float32"),
    IndexValue("a", PLACE),
    Reduce(("a", "b", "c"), "welford", Ref("d"), "float32"),
    Scan("a", "sum", Ref("d"), "float32"),
]


def values_in(node: Any) -> Iterator[str]:
    """The names of all values that stand anywhere in a node, itself being no definition."""
    if isinstance(node, Ref | ValueAtom):
        yield node.name
    elif isinstance(node, msgspec.Struct):
        for field in node.__struct_fields__:
            yield from values_in(getattr(node, field))
    elif isinstance(node, tuple):
        for one in node:
            yield from values_in(one)


@given(loops())
def test_used_values_are_those_in_the_fields(document: Loop) -> None:
    for kernel in (step for step in document.forward.steps if isinstance(step, Kernel)):
        for statement in statements_of(kernel):
            assert used_values(statement) == set(values_in(statement))
            assert map_operands(statement, lambda one: one) == statement
            assert map_indices(statement, lambda one: one) is statement


@pytest.mark.parametrize("statement", EACH, ids=lambda one: type(one).__name__)
def test_a_statement_under_other_names(statement: Statement) -> None:
    names = {name: f"new {name}" for name in ("a", "b", "c", "d", "m", "at", "i")}
    found = rename(statement, names)
    assert results(found) == tuple(names[name] for name in results(statement))
    assert used_values(found) == {names[name] for name in used_values(statement)}
    assert used_axes(found) == {names[name] for name in used_axes(statement)}
    assert rename(found, {new: old for old, new in names.items()}) == statement


def test_a_literal_stands_for_an_operand_but_for_no_mask_and_in_no_index() -> None:
    assert operands(replace_values(EACH[3], {"b": 2.0})) == (Ref("m"), 2.0, 1.0)
    assert replace_values(EACH[1], {"m": True, "a": 3.0, "at": 1}) == Store("x", PLACE, 3.0, "atomic_add", Ref("m"))
