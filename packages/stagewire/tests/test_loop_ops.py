"""The loop ops: each takes its example, each constraint refuses its own; the verifier reports that under its label."""

from __future__ import annotations

from importlib.metadata import entry_points
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagewire.errors import VerifyError
from stagewire.graph import Graph, Ref
from stagewire.loop import Compute
from stagewire.loop_ops import OPS, VOCABULARY, may_raise
from stagewire.parser import parse_document
from stagewire.testing.ops import calls, example
from stagewire.verify import verify, verify_graph
from stagewire.vocabulary import GROUP

LOOP = (Path(__file__).parent / "data" / "documents" / "loop.txt").read_text()


def test_the_vocabulary_is_found() -> None:
    (point,) = (point for point in entry_points(group=GROUP) if point.name == "loop")
    assert point.load() is VOCABULARY


@pytest.mark.parametrize("op", OPS)
def test_each_op_takes_its_own_example(op: str) -> None:
    verify_graph(example(f"loop.{op}"))


@given(st.sampled_from(sorted(OPS)).flatmap(lambda op: calls(f"loop.{op}")))
def test_drawn_calls_verify(graph: Graph) -> None:
    verify_graph(graph)


@pytest.mark.parametrize("label", VOCABULARY.constraints)
def test_each_constraint_refuses_its_example(label: str) -> None:
    op, arguments = VOCABULARY.constraints[label].refused
    found = OPS[op].refusal(arguments)
    assert found is not None
    assert found[0] == label


@pytest.mark.parametrize(
    ("op", "second", "dtype", "raises"),
    [
        ("floor_div", Ref("b"), "int64", True),
        ("floor_div", 0, "int64", True),
        ("floor_div", 3, "int64", False),
        ("floor_div", Ref("b"), "float32", False),
        ("add", Ref("b"), "int64", False),
        ("check_index", 3, "int64", True),
    ],
)
def test_what_may_raise(op: str, second: Ref | int, dtype: str, raises: bool) -> None:
    assert may_raise(Compute("r", op, (Ref("a"), second), dtype)) == raises  # type: ignore[arg-type]


def test_the_verifier_reports_the_label() -> None:
    with pytest.raises(VerifyError, match=r"\[loop\.S6\] shift_left: float32 operands"):
        verify(parse_document(LOOP.replace("mul(%a, 2.0)", "shift_left(%a, 2)")))
