"""Positions of extrema as two reductions without an order, so that lanes and threads may share the points.

    k = argmax v   becomes   m = max v;   k = min over the points of (position if v == m or v is nan, else beyond)

The second section computes v again. If any v is nan then so is m, and no v equals it: the first nan is found.
"""

from __future__ import annotations

import msgspec

from codegen.cpp.types import is_floating
from stagewire.graph import Ref
from stagewire.loop import (
    Axis,
    AxisAtom,
    Compute,
    Index,
    IndexValue,
    Kernel,
    Load,
    Reduce,
    Section,
    Statement,
    Store,
    Term,
)
from stagewire.statements import makers, select
from stagewire.types import DType, numel

WHICH = {"argmax": "max", "argmin": "min"}
BEYOND = {"int32": 2**31 - 1, "int64": 2**62}
"""Positions are counted in 32 bits where there are few enough of them."""


def split_positions(kernel: Kernel) -> Kernel:
    """The kernel with each argmax and argmin split, where the operand may be computed again."""
    sections = [part for section in kernel.sections for part in _split(section)]
    return (
        kernel if len(sections) == len(kernel.sections) else msgspec.structs.replace(kernel, sections=tuple(sections))
    )


def _split(section: Section) -> list[Section]:
    found = [s for s in section.statements if isinstance(s, Reduce) and s.reduction in WHICH]
    count = numel(tuple(axis.size for axis in section.axes))
    dtype: DType = "int32" if isinstance(count, int) and count < BEYOND["int32"] else "int64"
    slices = {s.results[0]: _slice(section, s) for s in found}
    found = [s for s in found if slices[s.results[0]]]
    if not found or not section.axes or count == 0:
        return [section]
    dtypes = {s.results[0]: slices[s.results[0]][-1].dtype for s in found}
    first = tuple(_extremum(s, dtypes) if s in found else s for s in section.statements)
    searches = tuple(t for s in found for t in _search(s, slices[s.results[0]], dtypes, section.axes, dtype))
    results = tuple(Compute(s.results[0], "convert", (Ref(f"{s.results[0]}.at"),), s.dtype) for s in found)
    return [Section(section.axes, first), Section(section.axes, searches), Section((), results)]


def _slice(section: Section, reduce: Reduce) -> tuple[Statement, ...]:
    """The statements that compute the operand; none where they read what the section stores."""
    if not isinstance(reduce.operand, Ref):
        return ()
    stored = {s.buffer for s in select((section,), Store)}
    found = makers(section.statements, {reduce.operand.name})
    return () if any(s.buffer in stored for s in found if isinstance(s, Load)) else tuple(found)


def _extremum(reduce: Reduce, dtypes: dict[str, DType]) -> Reduce:
    (name,) = reduce.results
    return Reduce((f"{name}.best",), WHICH[reduce.reduction], reduce.operand, dtypes[name])


def _search(
    reduce: Reduce, slice_: tuple[Statement, ...], dtypes: dict[str, DType], axes: tuple[Axis, ...], dtype: DType
) -> tuple[Statement, ...]:
    """The first point whose value is the best one, or nan."""
    (name,) = reduce.results
    value = reduce.operand
    position = Index(0)
    for axis in axes:
        scaled = tuple(Term(term.coefficient * axis.size, term.atom) for term in position.terms)
        position = Index(0, (*scaled, Term(1, AxisAtom(axis.name))))
    hit = [Compute(f"{name}.equal", "eq", (value, Ref(f"{name}.best")), "bool")]
    if is_floating(dtypes[name]):
        hit += [
            Compute(f"{name}.nan", "isnan", (value,), "bool"),
            Compute(f"{name}.hit", "logical_or", (Ref(f"{name}.equal"), Ref(f"{name}.nan")), "bool"),
        ]
    found = Ref(hit[-1].result)
    return (
        *slice_,
        *hit,
        IndexValue(f"{name}.point", position, dtype),
        Compute(f"{name}.first", "where", (found, Ref(f"{name}.point"), BEYOND[dtype]), dtype),
        Reduce((f"{name}.at",), "min", Ref(f"{name}.first"), dtype),
    )
