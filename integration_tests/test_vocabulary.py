"""loopir lowers every prim that primops has, under the records' own parameter names, and no other."""

from __future__ import annotations

import pytest

from loopir.lowering import LOWERINGS
from loopir.ops import OPS
from loopir.prim_calls import PRIM_CALLS
from loopir.testing.prim_meaning import PRIMS
from primops.prims import RECORDS

ELEMENTWISE = {name for name in RECORDS if name in OPS} - {"bitcast"}


@pytest.mark.parametrize("name", RECORDS)
def test_every_prim_has_a_lowering(name: str) -> None:
    parameters, _ = LOWERINGS[name]
    if name in ELEMENTWISE:
        assert len(parameters) == len(RECORDS[name].parameters) == OPS[name].arity
    else:
        assert list(parameters) == [parameter.name for parameter in RECORDS[name].parameters]


def test_every_prim_has_a_meaning_in_numpy() -> None:
    assert RECORDS.keys() - PRIMS.keys() - ELEMENTWISE - PRIM_CALLS.keys() == set()
    assert LOWERINGS.keys() == RECORDS.keys()


def test_the_prims_that_may_be_calls() -> None:
    assert {name: record.call for name, record in RECORDS.items() if record.call is not None} == PRIM_CALLS
