"""Pass: a result that only updates an input is written where the input is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from loopir.layout import is_dense
from loopir.passes.plan_memory import Uses, may_share
from stagewire import index as ix
from stagewire import loop
from stagewire.graph import Ref
from stagewire.loop_ops import INDEX_CHECKS, may_raise
from stagewire.statements import (
    buffers_of,
    makers,
    place_on,
    rename,
    results,
    statements_of,
    used_axes,
    used_values,
    writes_of,
)
from stagewire.types import bytes_of, contiguous

NEVER_FAILS = frozenset(
    f"aten.{name}.default"
    for name in (
        "mm", "addmm", "bmm", "baddbmm", "convolution", "max_pool2d_with_indices", "avg_pool2d", "_adaptive_avg_pool2d",
        *(f"_scaled_dot_product_{kind}" for kind in ("flash_attention", "efficient_attention", "cudnn_attention")),
        "_scaled_dot_product_flash_attention_for_cpu",
    )
)  # fmt: skip
"""Calls whose operands were checked when the program was made."""


@dataclass(frozen=True)
class UpdateInputs:
    """Before: the caller copies the output of each update into its input. After: where nothing else reads that output,
    where nothing reads the input afterwards, and where nothing can fail from then on, the output takes the input's
    memory (`reuse`): each element is written at the point that reads it last. An optimizer's step needs no new memory,
    nor does a row of a cache. What counts up an input that others still read runs last, and indices that would stand in
    the way are checked first (`hoist_index_checks`).
    """

    name = "update_inputs"
    sees_whole_graph = True

    def run(self, graph: loop.LoopGraph) -> loop.LoopGraph:
        if not graph.updates:
            return graph
        before, updates = graph, _Updates(graph)
        graph = _counting_last(updates)
        updates = updates if graph is before else _Updates(graph)
        found = dict(updates.found())
        if updates.failing and len(found) < len(graph.updates):
            kernels = [step for step in updates.failing if isinstance(step, loop.Kernel)]
            checked = _Updates(*hoist_index_checks(graph, kernels))
            if len(more := dict(checked.found())) > len(found):
                graph, updates, found = checked.graph, checked, more
        if not found:
            return before
        buffers = tuple(
            replace(buffer, reuse=found[buffer.name]) if buffer.name in found else buffer for buffer in graph.buffers
        )
        made = tuple(
            loop.Decision("reused", (output, name), "an input that it updates", bytes_of(updates.buffers[name].type))
            for output, name in found.items()
        )
        return replace(graph, buffers=buffers, decisions=(*graph.decisions, *made))


class _Updates(Uses):
    """Who uses what when, by roots of buffers. checked: kernels that cannot raise."""

    def __init__(self, graph: loop.LoopGraph, checked: frozenset[str] = frozenset()) -> None:
        super().__init__(graph)
        self.checked = checked
        failing = [number for number, step in enumerate(graph.steps) if self.may_fail(step)]
        self.failing = [graph.steps[number] for number in failing]
        self.safe_from = failing[-1] + 1 if failing else 0

    def may_fail(self, step: loop.Step) -> bool:
        """Whether a step may raise: half of an update would then be done. (Kernels on a GPU cannot.)"""
        if isinstance(step, loop.Extern):
            return step.target not in NEVER_FAILS
        if not isinstance(step, loop.Kernel) or step.name in self.checked:
            return False
        on_cpu = all(self.buffers[name].type.device == "cpu" for name in buffers_of(step))
        return on_cpu and any(map(may_raise, statements_of(step)))

    def found(self) -> Iterator[tuple[str, str]]:
        """Outputs that take the memory of an input."""
        taken: set[str] = set()
        for number, name in self.graph.updates:
            output = self.graph.outputs[number]
            if isinstance(output, Ref) and name not in taken and self.may_update(output.name, name):
                taken.add(name)
                yield output.name, name

    def may_update(self, output: str, name: str) -> bool:
        new, old = self.buffers[output], self.buffers[name]
        if new.role != "kernel" or new.reuse is not None or not _alike(new, old):
            return False
        if self.outputs.count(output) != 1 or name in self.outputs or {output, name} & self.aliased:
            return False
        number = self.first.get(output)
        if number is None or number < self.safe_from or self.last.get(name, -1) > number:
            return False
        step = self.graph.steps[number]
        if not isinstance(step, loop.Kernel):
            return False
        seen = [other for other in buffers_of(step) if self.root(other) == name]
        return not seen or (set(seen) == {name} and may_share(step, name, output))


def _alike(new: loop.Buffer, old: loop.Buffer) -> bool:
    a, b = new.type, old.type
    same = (a.dtype, a.shape, a.stride, a.device) == (b.dtype, b.shape, b.stride, b.device)
    return same and is_dense(a) and bytes_of(a) != 0


def _counting_last(uses: Uses) -> loop.LoopGraph:
    """The graph with kernels at its end that read nothing but what they update, where others read that behind them."""
    graph = uses.graph
    pairs = [(graph.outputs[number], name) for number, name in graph.updates]
    updated = {output.name: name for output, name in pairs if isinstance(output, Ref)}
    steps = [*enumerate(zip(graph.steps, uses.uses, strict=True))]
    given_to_calls = {name for _, (step, names) in steps if isinstance(step, loop.Extern) for name in names}
    last: set[int] = set()
    for number, (step, names) in steps:
        made = set(writes_of(step))
        if not isinstance(step, loop.Kernel) or not made <= updated.keys():
            continue
        inputs = {updated[name] for name in made}
        is_alone = {*names} <= made | inputs and not given_to_calls & {*names}
        is_read = any(uses.last[name] > number for name in made)
        if is_alone and not is_read and any(uses.last.get(name, -1) > number for name in inputs):
            last.add(number)
    in_order = sorted(steps, key=lambda one: one[0] in last)
    return replace(graph, steps=tuple([step for _, (step, _) in in_order])) if last else graph


Check = tuple[tuple[loop.Axis, ...], tuple[loop.Statement, ...]]
"""The axes that an index depends on, and the statements that compute it; values and axes are numbered."""


def hoist_index_checks(graph: loop.LoopGraph, kernels: Sequence[loop.Kernel]) -> tuple[loop.LoopGraph, frozenset[str]]:
    """The graph with kernels on the CPU before all others that check indices, and the names of those among `kernels`
    that cannot raise then: what is done before these may be seen by the caller.

    kernel k { ...; %w = wrap_index(%i, 8); ... }   =>   kernel checked0 { ...; store checked0[0] = %w }, and then k
    """
    found: dict[Check, None] = {}
    done: list[str] = []
    for kernel in kernels:
        checks = _checks(kernel, frozenset(graph.inputs))
        if checks is not None:
            found.update(dict.fromkeys(checks))
            done.append(kernel.name)
    taken = {buffer.name for buffer in graph.buffers} | {
        step.name for step in graph.steps if isinstance(step, loop.Kernel)
    }
    names = (name for number in range(len(taken) + len(found)) if (name := f"checked{number}") not in taken)
    buffers: list[loop.Buffer] = []
    added: list[loop.Step] = []
    for (axes, statements), name in zip(found, names, strict=False):
        type_ = contiguous("int64", tuple([axis.size for axis in axes]))
        place = ix.linear(place_on(axes), type_.stride)
        last = statements[-1]
        assert isinstance(last, loop.Compute)
        kept = loop.Store(name, place, Ref(last.result))
        buffers.append(loop.Buffer(name, type_, "kernel"))
        added.append(loop.Kernel(name, axes, (loop.Section((), (*statements, kept)),), (name,)))
    graph = replace(graph, buffers=(*graph.buffers, *buffers), steps=(*added, *graph.steps))
    return graph, frozenset(done)


def _checks(kernel: loop.Kernel, inputs: frozenset[str]) -> list[Check] | None:
    """The checks that stand for all that may raise; None where something else may."""
    found: list[Check] = []
    outer: tuple[loop.Statement, ...] = ()
    for section in kernel.sections:
        axes = {axis.name: axis for axis in (*kernel.axes, *section.axes)}
        for number, statement in enumerate(section.statements):
            if may_raise(statement):
                before = makers((*outer, *section.statements[:number]), used_values(statement))
                if statement.op not in INDEX_CHECKS or not _is_made_of(inputs, before, statement):  # type: ignore
                    return None
                found.append(_numbered([*before, statement], axes))
        outer += section.statements if not section.axes else ()
    return found


def _is_made_of(inputs: frozenset[str], before: Sequence[loop.Statement], last: loop.Statement) -> bool:
    """Whether statements need nothing but inputs, and none but the last may raise."""
    made = {name for one in before for name in results(one)}
    return all(used_values(one) <= made for one in (*before, last)) and all(
        isinstance(one, loop.Load | loop.Compute | loop.IndexValue)
        and not may_raise(one)
        and getattr(one, "buffer", None) in (None, *inputs)
        for one in before
    )


def _numbered(statements: list[loop.Statement], axes: Mapping[str, loop.Axis]) -> Check:
    """With names that equal checks have in common."""
    seen = set().union(*map(used_axes, statements))
    names = {name: f"i{number}" for number, name in enumerate(name for name in axes if name in seen)}
    values = {one.result: f"v{number}" for number, one in enumerate(statements)}  # type: ignore[union-attr]
    renamed = tuple([rename(one, {**names, **values}) for one in statements])
    return tuple([loop.Axis(new, axes[name].size) for name, new in names.items()]), renamed
