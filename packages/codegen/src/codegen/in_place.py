"""Results in the memory of inputs: what writes a buffer onto itself is not run, and what only updates an input is not
handed out.

    kernel i { store y[i] = load x[i] }, with `reuse` x of y: nothing; y begins as x
    kernel i in 100 { store y[i] = a[i - 5] if 5 <= i < 7 else load x[i] }: kernel i in 2 { store y[i + 5] = a[i] }

`index_copy_` on an input is such a copy and a kernel that stores the rows, writing to a slice is such a choice: where
the result lies in the input's memory, only what changes is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec.structs import replace

from codegen.cpp.tuning import TUNED
from codegen.index_splitting import is_pointwise, narrowed, parts_along, without_unused
from stagewire.graph import Ref
from stagewire.loop import Compute, Index, Kernel, Load, LoopGraph, Statement, Step, Store
from stagewire.statements import select


def without_copies_in_place(graph: LoopGraph) -> LoopGraph:
    """The graph without the stores of an element where it lies already, and without kernels of nothing else; None in
    place of outputs that the caller finds in the inputs that they update."""
    taken = {b.name: b.reuse for b in graph.buffers if b.reuse is not None and b.reuse in graph.inputs}
    if not taken:
        return graph
    updates = {number for number, _ in graph.updates}
    outputs = tuple(
        [
            None if number in updates and isinstance(arg, Ref) and arg.name in taken else arg
            for number, arg in enumerate(graph.outputs)
        ]
    )
    return replace(graph, outputs=outputs, steps=tuple([s for one in graph.steps for s in _needed(one, taken)]))


def _needed(step: Step, taken: Mapping[str, str]) -> Iterator[Step]:
    if not isinstance(step, Kernel) or not is_pointwise(step) or not any(one.buffer in taken for one in _stores(step)):
        yield step
        return
    parts = (_window(step, taken) or step,)
    for axis in step.axes:
        parts = tuple(part for one in parts for part in parts_along(one, axis, 1))
    kept = [part for one in parts if _stores(part := _changing(one, taken))]
    if len(kept) > 1 and (len(kept) == len(parts) or len(kept) > TUNED.most_pieces):
        kept = [step]
    for number, part in enumerate(kept):
        yield replace(part, name=f"{step.name}_part{number}") if number else part


def _window(kernel: Kernel, taken: Mapping[str, str]) -> Kernel | None:
    """The kernel over the points at which its only store changes what lies there; None if it may everywhere."""
    loads = _loads(kernel)
    made = {one.result: one for one in kernel.sections[0].statements if isinstance(one, Compute)}
    match _stores(kernel):
        case [Store(buffer, index, Ref(name), "set", None)] if name in made:
            match made[name]:
                case Compute(_, "where", (Ref(condition), _, Ref(kept))) if kept in loads:
                    if _lies_there(buffer, index, loads[kept], taken):
                        return narrowed(kernel, condition)
    return None


def _stores(kernel: Kernel) -> list[Store]:
    return select(kernel.sections, Store)


def _loads(kernel: Kernel) -> dict[str, Load]:
    """What is loaded at every point, by the value."""
    return {one.result: one for one in kernel.sections[0].statements if isinstance(one, Load) and one.mask is None}


def _lies_there(buffer: str, index: Index, load: Load, taken: Mapping[str, str]) -> bool:
    """Whether what was loaded lies already where it would be stored."""
    return (taken.get(buffer), index) == (load.buffer, load.index)


def _changing(kernel: Kernel, taken: Mapping[str, str]) -> Kernel:
    """The kernel without stores of what was loaded from the same place of the same memory."""
    (section,), loads = kernel.sections, _loads(kernel)
    kept: list[Statement] = []
    for one in section.statements:
        match one:
            case Compute(result, "convert", (Ref(name),), dtype) if name in loads and loads[name].dtype == dtype:
                loads[result] = loads[name]
            case Store(buffer, index, Ref(name), "set") if name in loads:
                if _lies_there(buffer, index, loads[name], taken):
                    continue
        kept.append(one)
    return replace(kernel, sections=(replace(section, statements=tuple(without_unused(kept))),))
