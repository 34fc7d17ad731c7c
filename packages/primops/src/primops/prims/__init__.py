"""The prim set: `RECORDS` by name, one file a family."""

from __future__ import annotations

from primops.prims import casts, creation, elementwise, indexing, random, reductions, scans, shapes, windows
from primops.prims.record import Constraint, Record

FAMILIES = (elementwise, casts, shapes, creation, random, reductions, scans, indexing, windows)
RECORDS: dict[str, Record] = {record.name: record for family in FAMILIES for record in family.RECORDS}
CONSTRAINTS: dict[str, Constraint] = {c.label: c for record in RECORDS.values() for c in record.constraints}
OPSET = 6
"""The version of the prim set; it grows by one whenever a prim is added, taken away or given another meaning."""
