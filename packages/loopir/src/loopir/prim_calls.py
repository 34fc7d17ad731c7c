"""Prims that may be computed by calls, and the operators that are called.

primops' records say the same (`integration_tests/test_vocabulary.py`); loopir imports no other stage.
"""

from __future__ import annotations

PRIM_CALLS = {
    "philox_state": "stagefold.philox_state.default",
    **{f"max_pool{n}d": f"aten.max_pool{n}d_with_indices.default" for n in (2, 3)},
    **{f"max_pool{n}d_backward": f"aten.max_pool{n}d_with_indices_backward.default" for n in (2, 3)},
}
