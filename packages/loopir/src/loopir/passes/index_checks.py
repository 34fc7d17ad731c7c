"""Indices that the caller gives are looked at before anything else is done.

    kernel k { %i = load %at[0]; %w = wrap_index(%i, 8); ... }     kernel checked0 { ...; store checked0[0] = %w } ... k

`check_index` and `wrap_index` raise where an index is out of range. If it depends on inputs alone, a kernel of its own
computes it first, and the kernel that it comes from cannot raise any more: what is done before that one may be seen by
the caller.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from stagewire import index as ix
from stagewire.graph import Ref
from stagewire.loop import Axis, Buffer, Compute, IndexValue, Kernel, Load, LoopGraph, Section, Statement, Step, Store
from stagewire.loop_ops import INDEX_CHECKS, may_raise
from stagewire.statements import place_on, rename, used_axes, used_values
from stagewire.types import contiguous

Check = tuple[tuple[Axis, ...], tuple[Statement, ...]]
"""The axes that an index depends on, and the statements that compute it; values and axes are numbered."""


def hoist_index_checks(graph: LoopGraph, kernels: Sequence[Kernel]) -> tuple[LoopGraph, frozenset[str]]:
    """The graph with kernels on the CPU before all others that check indices, and the names of those among `kernels`
    that cannot raise then."""
    found: dict[Check, None] = {}
    done: list[str] = []
    for kernel in kernels:
        checks = _checks(kernel, frozenset(graph.inputs))
        if checks is not None:
            found.update(dict.fromkeys(checks))
            done.append(kernel.name)
    taken = {buffer.name for buffer in graph.buffers} | {step.name for step in graph.steps if isinstance(step, Kernel)}
    names = (name for number in range(len(taken) + len(found)) if (name := f"checked{number}") not in taken)
    buffers: list[Buffer] = []
    added: list[Step] = []
    for (axes, statements), name in zip(found, names, strict=False):
        type_ = contiguous("int64", tuple([axis.size for axis in axes]))
        place = ix.linear(place_on(axes), type_.stride)
        last = statements[-1]
        assert isinstance(last, Compute)
        kept = Store(name, place, Ref(last.result))
        buffers.append(Buffer(name, type_, "kernel"))
        added.append(Kernel(name, axes, (Section((), (*statements, kept)),), (name,)))
    graph = replace(graph, buffers=(*graph.buffers, *buffers), steps=(*added, *graph.steps))
    return graph, frozenset(done)


def _checks(kernel: Kernel, inputs: frozenset[str]) -> list[Check] | None:
    """The checks that stand for all that may raise; None where something else may."""
    found: list[Check] = []
    known: dict[str, Statement] = {}
    for section in kernel.sections:
        mine = dict(known)
        for statement in section.statements:
            if isinstance(statement, Load | Compute | IndexValue):
                mine[statement.result] = statement
            if may_raise(statement):
                assert isinstance(statement, Compute)
                needed = _needed(statement, mine, inputs)
                if statement.op not in INDEX_CHECKS or needed is None:
                    return None
                found.append(_numbered(needed, {axis.name: axis for axis in (*kernel.axes, *section.axes)}))
        if not section.axes:
            known = mine
    return found


def _needed(last: Statement, known: Mapping[str, Statement], inputs: frozenset[str]) -> list[Statement] | None:
    """The statements that a value depends on, in order, itself the last; None if that is more than inputs."""
    found: dict[str, Statement] = {}
    open_ = [last]
    while open_:
        one = open_.pop()
        if isinstance(one, Load) and one.buffer not in inputs:
            return None
        if one is not last and may_raise(one):
            return None
        for name in used_values(one):
            if name not in known:
                return None
            if name not in found:
                found[name] = known[name]
                open_.append(known[name])
    return [*[one for name, one in known.items() if name in found], last]


def _numbered(statements: list[Statement], axes: Mapping[str, Axis]) -> Check:
    """With names that equal checks have in common."""
    seen = set().union(*map(used_axes, statements))
    names = {name: f"i{number}" for number, name in enumerate(name for name in axes if name in seen)}
    values = {one.result: f"v{number}" for number, one in enumerate(statements)}  # type: ignore[union-attr]
    renamed = tuple([rename(one, {**names, **values}) for one in statements])
    return tuple([Axis(new, axes[name].size) for name, new in names.items()]), renamed
