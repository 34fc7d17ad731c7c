"""ATen as a vocabulary: what its calls may be is read off the schemas."""

from __future__ import annotations

import pytest

from absint.aten_ops import VOCABULARY
from stagewire.errors import UnknownOp, VerifyError
from stagewire.parser import parse_graph
from stagewire.verify import verify_graph
from stagewire.vocabulary import find, vocabulary

TAKEN = """
    input %x: f32[2, 3]
    %a: f32[2, 3] = aten.add.Tensor(%x, 1)
    %b: f32[2, 3] = aten.add.Tensor(%x, other=%x, alpha=2)
    %c: f32[2] = aten.sum.dim_IntList(%x, [1])
    %d: f32[2, 3] = aten.bernoulli.default(%x) with effect="draws"
    %e: f32[2, 3] = mine.op.default(%x, whatever=3)
    return %a
"""
REFUSED = {
    "aten.ad.Tensor(%x, %x)": "V1",
    "aten.add.Tensr(%x, %x)": "V1",
    "aten.from_file.default(%x)": "G7",
    "aten.add.Tensor(%x)": "V2",
    "aten.add.Tensor(%x, %x, 2)": "V2",
    "aten.add.Tensor(%x, %x, beta=2)": "V2",
    "aten.add.Tensor(%x, %x, self=%x)": "V2",
    "aten.relu.default(dtype(float32))": "V3",
    "aten.bernoulli.default(%x)": "V5",
}


def test_it_is_found() -> None:
    assert vocabulary("aten") is VOCABULARY
    assert find("mine.op.default") is None


def test_calls_that_python_takes_are_taken() -> None:
    verify_graph(parse_graph(TAKEN))


@pytest.mark.parametrize("call", REFUSED)
def test_a_call_is_refused(call: str) -> None:
    with pytest.raises(VerifyError) as caught:
        verify_graph(parse_graph(f"input %x: f32[2]\n%y: f32[2] = {call}\nreturn %y"))
    assert caught.value.label == REFUSED[call]


def test_the_nearest_names_are_told() -> None:
    with pytest.raises(UnknownOp, match=r"Did you mean aten\.add\.Tensor"):
        VOCABULARY.op("aten.ad.Tensor")


def test_effects_and_views_are_those_of_the_schema() -> None:
    assert VOCABULARY.ops["view.default"].effect == "aliases"
    assert VOCABULARY.ops["add_.Tensor"].effect == "acts"
    assert VOCABULARY.ops["mm.default"].effect is None
    assert len(VOCABULARY.ops) > 1000
