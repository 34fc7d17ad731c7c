"""Sizes that data decides, where a call needs two of them to be equal: `x[mask] + y[other]`.

Type rules take such sizes for different, and refuse. But torch would raise there, so that what goes on has them equal:
that is assumed from here on, and each call of the graph checks it (`data_checks`). Where it does not hold the
function runs plain, which raises, or broadcasts one row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from absint.errors import DimensionError, TypeRuleError
from absint.symbolic import dim_of
from absint.symbolic.size import make_size
from bytecap.objects.data_conditions import DataCondition
from stagewire.capture import Relation
from stagewire.polynomial import Polynomial

if TYPE_CHECKING:
    from bytecap.evaluator.tracer import Tracer

# So many equalities one call may need.
_MOST = 4


def with_equal_sizes(tracer: Tracer, call: Callable[[], Any]) -> Any:
    """What `call` gives, with sizes that it needs to be equal taken for that.

    Errors: those of `call`, where nothing that could be assumed would help.
    """
    env = tracer.sizes.env
    for _ in range(_MOST):
        env.taken_for_different.clear()
        try:
            return call()
        except DimensionError:
            raise
        except TypeRuleError:
            gap = next((gap for gap in reversed(env.taken_for_different) if not _is_about_ones(gap)), None)
            if gap is None or not _assume_zero(tracer, gap):
                raise
    return call()


def _is_about_ones(gap: Polynomial) -> bool:
    """Whether it is asked of one size whether it is 0 or 1, as broadcasting does."""
    return len(gap.symbols) == 1 and abs(gap.offset) < 2 and len(gap.terms) <= 1 + bool(gap.offset)


def _assume_zero(tracer: Tracer, gap: Polynomial) -> bool:
    generic = tracer.sizes.env.generic
    tracer.sizes.env.generic = False
    try:
        size = make_size(tracer.sizes.env, gap)
        return tracer.checks.assume(tracer, DataCondition(Relation(dim_of(size), "==", 0), size), True)
    finally:
        tracer.sizes.env.generic = generic
