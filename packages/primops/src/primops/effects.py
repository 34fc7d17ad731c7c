"""What nodes state as their effect, and which of them ATen computes."""

from __future__ import annotations

from absint import schema
from stagewire.graph import Effect
from stagewire.vocabulary import find, is_prim


def keeps_layout(target: str) -> bool:
    """Whether a kernel that reads its operands by their strides computes it, or may.

    >>> keeps_layout("aten.mm.default"), keeps_layout("prims.max_pool2d"), keeps_layout("prims.add")
    (True, True, False)
    """
    if not is_prim(target):
        return True
    op = find(target)
    return op is not None and op.keeps_layout


def effect_of(target: str) -> Effect | None:
    """What nodes that call `target` state as their effect: its record says so of a prim, ATen's schema of others.

    >>> effect_of("prims.philox_state"), effect_of("aten.view.default"), effect_of("aten.mm.default")
    ('draws', 'aliases', None)
    """
    if is_prim(target):
        op = find(target)
        return None if op is None else op.effect
    return schema.effect_of(target)
