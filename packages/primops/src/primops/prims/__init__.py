"""The prim set: `RECORDS` by name, one file a family."""

from __future__ import annotations

from primops.prims import (
    bags,
    casts,
    creation,
    elementwise,
    indexing,
    linalg,
    metrics,
    ordering,
    random,
    reductions,
    resampling,
    scans,
    shapes,
    special,
    spectra,
    windows,
)
from primops.prims.record import Constraint, Record

FAMILIES = (
    elementwise, special, casts, shapes, creation, random, reductions, scans, ordering, indexing, windows, resampling,
    spectra, linalg, bags, metrics,
)  # fmt: skip
RECORDS: dict[str, Record] = {record.name: record for family in FAMILIES for record in family.RECORDS}
CONSTRAINTS: dict[str, Constraint] = {c.label: c for record in RECORDS.values() for c in record.constraints}
OPSET = 5
"""The version of the prim set; it grows by one whenever a prim is added or changes its meaning."""
