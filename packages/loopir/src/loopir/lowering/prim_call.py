"""Prims that may stay calls: one extern of the same arguments each."""

from __future__ import annotations

from loopir.lowering.call import Call
from loopir.lowering.context import Lowering
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


PRIM_CALLS = {
    "philox_state": "stagefold.philox_state.default",
    **{f"max_pool{n}d": f"aten.max_pool{n}d_with_indices.default" for n in (2, 3)},
    **{f"max_pool{n}d_backward": f"aten.max_pool{n}d_with_indices_backward.default" for n in (2, 3)},
}


def is_call(target: str) -> bool:
    """Whether a node is a call of ATen (or of the user) rather than loops.

    >>> is_call("aten.mm.default"), is_call("prims.max_pool2d"), is_call("prims.add")
    (True, True, False)
    """
    namespace, _, name = target.partition(".")
    return namespace != "prims" or name in PRIM_CALLS
