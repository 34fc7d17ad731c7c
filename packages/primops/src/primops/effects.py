"""What calls do besides computing, and which of them ATen computes."""

from __future__ import annotations

from functools import cache

from absint import schema
from primops.prims import RECORDS
from stagewire.graph import Effect


def is_call(target: str) -> bool:
    """Whether ATen computes it, or may: an extern, or a prim that not always becomes loops. Its operands keep their
    layouts.

    >>> is_call("aten.mm.default"), is_call("prims.max_pool2d"), is_call("prims.add")
    (True, True, False)
    """
    if not target.startswith("prims."):
        return True
    record = RECORDS.get(target.removeprefix("prims."))
    return record is not None and record.call is not None


@cache
def effect_of(target: str) -> Effect | None:
    """What nodes that call `target` state as their effect: the record says so of a prim, ATen's schema of others.

    >>> effect_of("prims.philox_state"), effect_of("aten.bernoulli.p"), effect_of("aten.mm.default")
    ('draws', 'draws', None)
    """
    if target.startswith("prims."):
        record = RECORDS.get(target.removeprefix("prims."))
        return "draws" if record is not None and record.draws else None
    return schema.effect_of(target)
