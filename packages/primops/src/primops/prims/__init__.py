"""The prim set: `RECORDS` by name, one file a family."""

from __future__ import annotations

from primops.prims import casts, creation, elementwise, indexing, reductions, shapes
from primops.prims.record import Constraint, Record

FAMILIES = (elementwise, casts, shapes, creation, reductions, indexing)
RECORDS: dict[str, Record] = {record.name: record for family in FAMILIES for record in family.RECORDS}
CONSTRAINTS: dict[str, Constraint] = {c.label: c for record in RECORDS.values() for c in record.constraints}
OPSET = 1
"""The version of the prim set; it grows by one whenever a prim is added or changes its meaning."""
