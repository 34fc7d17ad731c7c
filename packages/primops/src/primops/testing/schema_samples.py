"""The operators that have a decomposition and samples off their schemas (`absint.testing.schema_samples`)."""

from __future__ import annotations

from functools import cache

from absint.testing.schema_samples import schema_samples
from primops.decompositions import TABLE

__all__ = ["schema_samples", "schema_targets"]


@cache
def schema_targets() -> tuple[str, ...]:
    """They are found when first asked for, in some seconds."""
    return tuple(filter(schema_samples, sorted(TABLE)))
