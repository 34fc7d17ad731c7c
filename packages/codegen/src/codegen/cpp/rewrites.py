"""Rewrites of a kernel before it is walked.

simplify_axes     axes are sorted by stride, and neighbours that move through memory as one are merged
split_positions   positions of extrema are two reductions without an order, whose points lanes and threads may share

    k = argmax v   becomes   m = max v;   k = min over the points of (position if v == m or v is nan, else beyond)

The second section computes v again. If any v is nan then so is m, and no v equals it: the first nan is found.
"""

from __future__ import annotations

from msgspec.structs import replace

from stagewire import index as ix
from stagewire import loop
from stagewire.graph import Ref
from stagewire.literals import FLOATS
from stagewire.statements import makers, merge_axes, points_of, select
from stagewire.types import DType


def simplify_axes(kernel: loop.Kernel) -> loop.Kernel:
    """The same kernel over fewer axes. Sums are taken in another order; positions of argmax and argmin are kept."""
    kernel = replace(kernel, axes=_sorted(kernel.axes, _first_access(kernel.sections, stores=True)))
    sections = list(kernel.sections)
    for number, section in enumerate(sections):
        axes = section.axes
        if not any(s.reduction in WHICH for s in select((section,), loop.Reduce)):
            axes = _sorted(axes, _first_access((section,)))
        axes, (merged_section,) = merge_axes(axes, (loop.Section(axes, section.statements),), _both)
        sections[number] = loop.Section(axes, merged_section.statements)
    axes, merged = merge_axes(kernel.axes, tuple(sections), _both)
    return replace(kernel, axes=axes, sections=merged)


def _first_access(sections: tuple[loop.Section, ...], stores: bool = False) -> loop.Index | None:
    """The access whose strides say how the axes are walked; where stores go to computed places, the first load."""
    accesses = select(sections, loop.Load | loop.Store)
    wanted = [s.index for s in accesses if isinstance(s, loop.Store)] if stores else [s.index for s in accesses]
    if stores and wanted and all(map(ix.has_values, wanted)):
        wanted = [s.index for s in accesses if isinstance(s, loop.Load) and not ix.has_values(s.index)] or wanted
    return wanted[0] if wanted else None


def _sorted(axes: tuple[loop.Axis, ...], index: loop.Index | None) -> tuple[loop.Axis, ...]:
    """By descending stride of the reference access, where that is known for every axis."""
    if index is None or len(axes) < 2:
        return axes
    steps = {axis.name: ix.coefficient(index, axis.name) for axis in axes}
    if not all(isinstance(step, int) for step in steps.values()):
        return axes
    moving = [a for a in axes if steps[a.name] != 0]
    still = [a for a in axes if steps[a.name] == 0]
    return tuple(still + sorted(moving, key=lambda a: -abs(steps[a.name])))  # type: ignore[arg-type]


def _both(outer: loop.Axis, inner: loop.Axis) -> str:
    return f"{outer.name}_{inner.name}"


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
