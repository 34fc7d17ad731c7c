"""Prims that may be computed by calls, and the operators of the same arguments that are called."""

from __future__ import annotations

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
