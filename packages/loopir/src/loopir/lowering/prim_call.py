"""Prims that may stay calls: one extern of the same arguments each."""

from __future__ import annotations

from loopir.lowering.call import Call
from loopir.lowering.context import Lowering
from loopir.prim_calls import PRIM_CALLS
from stagewire.loop import Extern
from stagewire.types import TensorType


def lower_prim_call(lowering: Lowering, call: Call) -> None:
    """The call that `PRIM_CALLS` names."""
    for value in call.node.results:
        assert isinstance(value.type, TensorType), "every result of a prim is a tensor"
        lowering.declare(value.name, value.type, "extern")
    results = tuple([value.name for value in call.node.results])
    lowering.extern(Extern(PRIM_CALLS[call.name], call.node.args, {}, results, call.node.line, call.node.effect))


TABLE = {"philox_state": (("count", "device"), lower_prim_call)}
