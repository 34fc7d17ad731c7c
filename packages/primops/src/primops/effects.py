"""Calls that must run even if nobody uses their results."""

from __future__ import annotations

from functools import lru_cache

import torch

from primops.aten import overload
from primops.errors import InterpretFault
from primops.prims import RECORDS


def is_call(target: str) -> bool:
    """Whether ATen computes it: an extern, or a prim that no stage turns into loops. Its operands keep their layouts.

    >>> is_call("aten.mm.default"), is_call("prims.sort"), is_call("prims.add")
    (True, True, False)
    """
    if not target.startswith("prims."):
        return True
    record = RECORDS.get(target.removeprefix("prims."))
    return record is not None and record.call is not None


_ASSERTIONS = frozenset(
    f"aten.{name}" for name in ("_assert_async", "_assert_scalar", "_assert_tensor_metadata", "_linalg_check_errors")
)


@lru_cache(maxsize=4096)
def has_effect(target: str) -> bool:
    """Does the call draw random numbers, write into an argument, or raise on purpose. Prims do the first at most.

    >>> has_effect("aten.bernoulli.p"), has_effect("aten.mm.default")
    (True, False)
    """
    if target.startswith("prims."):
        record = RECORDS.get(target.removeprefix("prims."))
        return record is not None and record.draws
    try:
        op = overload(target)
    except InterpretFault:
        # An op that this process does not know: nothing says that it may be left out.
        return True
    if torch.Tag.nondeterministic_seeded in op.tags or target.rpartition(".")[0] in _ASSERTIONS:
        return True
    return any(a.alias_info is not None and a.alias_info.is_write for a in op._schema.arguments)
