"""loopir lowers every prim that primops has, and no other; what it makes of drawn calls means what primops says."""

from __future__ import annotations

import pytest

from loopir.lowering import LOWERINGS
from loopir.lowering.windows import PRIM_CALLS
from loopir.testing.prim_meaning import PRIMS
from primops.prims import OPS
from stagewire.loop_ops import OPS as LOOP_OPS
from stagewire.loop_ops import arity

ELEMENTWISE = {name for name in OPS if name in LOOP_OPS} - {"bitcast"}


@pytest.mark.parametrize("name", OPS)
def test_every_prim_has_a_lowering(name: str) -> None:
    parameters, _ = LOWERINGS[name]
    if name in ELEMENTWISE:
        assert len(parameters) == len(OPS[name].parameters) == arity(name)
    else:
        assert list(parameters) == [parameter.name for parameter in OPS[name].parameters]


def test_every_prim_has_a_meaning_in_numpy() -> None:
    assert OPS.keys() - PRIMS.keys() - ELEMENTWISE - PRIM_CALLS.keys() == set()
    assert LOWERINGS.keys() == OPS.keys()


def test_operands_of_prims_that_may_be_calls_keep_their_layout() -> None:
    called = {name for name in PRIM_CALLS if any(p.kind == "tensor" for p in OPS[name].parameters)}
    assert called == {name for name, op in OPS.items() if op.keeps_layout}
