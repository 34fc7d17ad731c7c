"""Rules of dense linear algebra; LAPACK results are column-major where eager makes them so."""

from __future__ import annotations

from absint.errors import TypeRuleError
from absint.meta import Meta, contiguous
from absint.rules.pointwise import broadcast
from absint.rules.table import RuleTable

__all__ = ["TABLE"]

TABLE = RuleTable()


@TABLE.rule("_cdist_forward")
def _cdist(x1: Meta, x2: Meta, p: float, compute_mode: int | None) -> Meta:
    if x1.shape[-1] != x2.shape[-1]:
        raise TypeRuleError("X1 and X2 must have the same number of columns")
    batch = broadcast(x1.shape[:-2], x2.shape[:-2])
    return contiguous((*batch, x1.shape[-2], x2.shape[-2]), x1.dtype, x1.device)
