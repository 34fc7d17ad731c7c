"""A vocabulary of a third party: found by its entry point, verified, drawn from, and shown, without a line of ours."""

from __future__ import annotations

import re
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from hypothesis import given

from stagewire.__main__ import main
from stagewire.errors import NameClash, UnknownOp, VerifyError
from stagewire.graph import Graph
from stagewire.parser import parse_graph
from stagewire.testing.graphs import Calls, graphs
from stagewire.types import TensorType
from stagewire.verify import graphs as checks
from stagewire.verify import verify_graph
from stagewire.vocabulary import (
    GROUP,
    Op,
    Vocabulary,
    constraint,
    find,
    namespaces,
    of_dtypes,
    parameters,
    register,
)

F32 = TensorType("float32", (2,), (1,))


I64 = TensorType("int64", (2,), (1,))
M1 = of_dtypes("M1", frozenset({"float32", "float64"}), "The operand is a float.", ("halve", (I64,)))


@constraint("The operand has elements.", ("halve", (TensorType("float32", (0,), (1,)),)))
def M2(x: TensorType) -> str | None:
    return "it is empty" if 0 in x.shape else None


HALVE = Op(
    "halve", "small", parameters("x: tensor"), "Half of x.", lambda x: (x,), (M1, M2), "halve(x: f32[2]) -> f32[2]"
)
TOSS = Op(
    "toss", "small", parameters("x: tensor, n: int"), "x or n.", lambda x, n: (x,), (), "toss(x: f32[2], 3) -> f32[2]",
    effect="draws",
)  # fmt: skip
VOCABULARY = Vocabulary("mine", 3, {op.name: op for op in (HALVE, TOSS)}, {"small": "Small ops."})

REFUSED = (
    ("V1", "%y: f32[2] = mine.third(%x)"),
    ("V2", "%y: f32[2] = mine.halve(%x, %x)"),
    ("V2", "%y: f32[2] = mine.halve(x=%x)"),
    ("V3", "%y: f32[2] = mine.halve(2)"),
    ("V4", "%y: f32[3] = mine.halve(%x)"),
    ("V4", "%y: f64[2] = mine.halve(%x)"),
    ("V4", "%y: f32[2], %z: f32[2] = mine.halve(%x)"),
    ("V5", "%y: f32[2] = mine.toss(%x, 1)"),
    ("mine.M1", "%y: i64[2] = mine.halve(%n)"),
)


@pytest.fixture(autouse=True)
def mine(registered: list[EntryPoint]) -> None:
    registered.append(EntryPoint("mine", f"{__name__}:VOCABULARY", GROUP))


def test_constraints_have_their_labels_and_refuse_their_examples() -> None:
    for label, found in VOCABULARY.constraints.items():
        assert found.label == label
        refusal = HALVE.refusal(found.refused[1])
        assert refusal is not None
        assert refusal[0] == label
    assert M1.dtypes == {"float32", "float64"}
    assert HALVE.refusal((F32,)) is None


def test_an_op_is_found() -> None:
    op = find("mine.halve")
    assert op is not None
    assert op.signature == "halve(x: tensor) -> out"
    assert find("another_library.op.default") is None


def test_an_unknown_op_is_refused_with_the_nearest() -> None:
    with pytest.raises(UnknownOp, match=r"mine \(version 3\) has no op 'halves'\n  fix: Did you mean mine.halve\?"):
        find("mine.halves")


def test_two_of_one_namespace_are_an_error(registered: list[EntryPoint]) -> None:
    registered.append(EntryPoint("mine", "theirs:VOCABULARY", GROUP))
    with pytest.raises(NameClash, match="theirs:VOCABULARY"):
        find("mine.halve")


def test_one_is_registered_without_being_installed(registered: list[EntryPoint]) -> None:
    registered.clear()
    namespaces.cache_clear()
    assert register(VOCABULARY) is register(VOCABULARY)
    assert find("mine.halve") is HALVE
    with pytest.raises(NameClash, match="another vocabulary for the namespace 'mine'"):
        register(Vocabulary("mine", 4, {}, {}))


@pytest.mark.parametrize(("label", "call"), REFUSED)
def test_a_call_is_refused(label: str, call: str) -> None:
    graph = parse_graph(f"input %x: f32[2]\ninput %n: i64[2]\n{call}\nreturn %y")
    with pytest.raises(VerifyError) as caught:
        verify_graph(graph)
    assert caught.value.label == label


def test_every_label_is_shown() -> None:
    assert set(re.findall(r'Fault\(\s*"(V\d)"', Path(checks.__file__).read_text())) < {label for label, _ in REFUSED}


@given(graphs(Calls((("aten.neg.default", 1),), vocabularies=True), inputs=(F32,), most_nodes=8))
def test_drawn_graphs_call_its_ops(graph: Graph) -> None:
    verify_graph(graph)


def test_the_command_shows_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ops"]) == 0
    assert f"mine ({__name__}:VOCABULARY)" in capsys.readouterr().out
    assert main(["ops", "mine"]) == 0
    shown = capsys.readouterr().out
    assert "`toss(x: tensor, n: int) -> out`" in shown
    assert "Effect: draws." in shown
