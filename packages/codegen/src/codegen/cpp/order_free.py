"""Positions of extrema as two reductions without an order, whose points lanes and threads may share.

    k = argmax v   becomes   m = max v;   k = min over the points of (position if v == m or v is nan, else beyond)

The second section computes v again. If any v is nan then so is m, and no v equals it: the first nan is found.
"""

from __future__ import annotations

from msgspec.structs import replace

from stagewire import index as ix
from stagewire import loop
from stagewire.graph import Ref
from stagewire.literals import FLOATS
from stagewire.statements import makers, points_of, select
from stagewire.types import DType

WHICH = {"argmax": "max", "argmin": "min"}
BEYOND = {"int32": 2**31 - 1, "int64": 2**62}
"""Positions are counted in 32 bits where there are few enough of them."""


def split_positions(kernel: loop.Kernel) -> loop.Kernel:
    """The kernel with each argmax and argmin split, where the operand may be computed again."""
    sections = [part for section in kernel.sections for part in _split(section)]
    return kernel if len(sections) == len(kernel.sections) else replace(kernel, sections=tuple(sections))


def _split(section: loop.Section) -> list[loop.Section]:
    found = [s for s in section.statements if isinstance(s, loop.Reduce) and s.reduction in WHICH]
    count = points_of(section.axes)
    dtype: DType = "int32" if isinstance(count, int) and count < BEYOND["int32"] else "int64"
    slices = {s.results[0]: _slice(section, s) for s in found}
    found = [s for s in found if slices[s.results[0]]]
    if not found or not section.axes or count == 0:
        return [section]
    dtypes = {s.results[0]: slices[s.results[0]][-1].dtype for s in found}
    first = tuple(_extremum(s, dtypes) if s in found else s for s in section.statements)
    searches = tuple(t for s in found for t in _search(s, slices[s.results[0]], dtypes, section.axes, dtype))
    results = tuple(loop.Compute(s.results[0], "convert", (Ref(f"{s.results[0]}.at"),), s.dtype) for s in found)
    return [loop.Section(section.axes, first), loop.Section(section.axes, searches), loop.Section((), results)]


def _slice(section: loop.Section, reduce: loop.Reduce) -> tuple[loop.Statement, ...]:
    """The statements that compute the operand; none where they read what the section stores."""
    if not isinstance(reduce.operand, Ref):
        return ()
    stored = {s.buffer for s in select((section,), loop.Store)}
    found = makers(section.statements, {reduce.operand.name})
    return () if any(s.buffer in stored for s in found if isinstance(s, loop.Load)) else tuple(found)


def _extremum(reduce: loop.Reduce, dtypes: dict[str, DType]) -> loop.Reduce:
    (name,) = reduce.results
    return loop.Reduce((f"{name}.best",), WHICH[reduce.reduction], reduce.operand, dtypes[name])


def _search(
    reduce: loop.Reduce,
    slice_: tuple[loop.Statement, ...],
    dtypes: dict[str, DType],
    axes: tuple[loop.Axis, ...],
    dtype: DType,
) -> tuple[loop.Statement, ...]:
    """The first point whose value is the best one, or nan."""
    (name,) = reduce.results
    value = reduce.operand
    hit = [loop.Compute(f"{name}.equal", "eq", (value, Ref(f"{name}.best")), "bool")]
    if dtypes[name] in FLOATS:
        hit += [
            loop.Compute(f"{name}.nan", "isnan", (value,), "bool"),
            loop.Compute(f"{name}.hit", "logical_or", (Ref(f"{name}.equal"), Ref(f"{name}.nan")), "bool"),
        ]
    found = Ref(hit[-1].result)
    return (
        *slice_,
        *hit,
        loop.IndexValue(f"{name}.point", ix.row_major(axes), dtype),
        loop.Compute(f"{name}.first", "where", (found, Ref(f"{name}.point"), BEYOND[dtype]), dtype),
        loop.Reduce((f"{name}.at",), "min", Ref(f"{name}.first"), dtype),
    )
