"""Index-set splitting and border peeling: pointwise kernels cut where a condition on an axis changes, or a clamp begins
to hold; each piece runs without it.

    y[i] = a[i] if i < 100 else b[i - 100]     becomes     y[i] = a[i] for i in 0..100;  y[100 + i] = b[i] for the rest
    y[i] = x[min(max(i - 1, 0), n - 1)]        becomes     y[i] = x[i - 1] for i in 1..n + 1;  what it was, for the rest

Concatenations, padding and slices that are written come as conditions: with them a loop loads from every source under a
mask, and chooses. Reflections and replications come as clamps, with which the lanes gather; their sizes may be symbols.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise

from msgspec.structs import replace

from codegen.cpp.tuning import TUNED
from stagewire import index as ix
from stagewire import loop
from stagewire.expr import Dim, greatest, least
from stagewire.graph import Ref
from stagewire.loop import Axis, Compute, Index, Kernel, Load, Statement, Store
from stagewire.loop_ops import may_raise
from stagewire.statements import live_statements, map_indices, merge_axes, select, settled

COMPARED: dict[str, tuple[int, int]] = {"lt": (-1, -1), "le": (-1, 0), "gt": (1, -1), "ge": (1, 0)}
"""(s, d) of a comparison of a and b, which says that s * (a - b) + d is at least 0."""


class Lines:
    """The lines among a section's values: indices that are a number, or grow along one axis in equal steps.

    conditions: by the result of a comparison, the line that is at least 0 where it is true
    clamped: integers that are lines where nothing is clamped; needs: the lines that have to be at least 0 for that
    """

    def __init__(self, statements: Sequence[Statement]) -> None:
        exact: dict[str, Index] = {}
        self.clamped: dict[str, Index] = {}
        self.conditions: dict[str, Index] = {}
        self.needs: dict[str, tuple[Index, ...]] = {}
        self._operands: dict[str, tuple[loop.Operand, ...]] = {}
        for statement in statements:
            match statement:
                case loop.IndexValue(result, index, dtype) if _is_line(index):
                    exact[result] = index
                    if dtype == "int64":
                        self.clamped[result] = index
                case Compute(result, op, operands) if op in COMPARED and (lines := _lines(operands, exact)):
                    sign, distance = COMPARED[op]
                    self.conditions[result] = ix.shift(ix.scale(_minus(*lines), sign), distance)
                case Compute(result, op, operands, "int64") if op in _CLAMPS and (
                    lines := _lines(operands, self.clamped)
                ):
                    self._operands[result] = operands
                    line, needs = _CLAMPS[op](*lines)
                    if all(one.terms for one in needs):  # what does not change along an axis stays as it is
                        self.clamped[result], self.needs[result] = line, tuple(needs)

    def wanted(self, statements: Sequence[Statement]) -> dict[str, None]:
        """Values that positions of loads depend on."""
        open_ = [name for s in statements if isinstance(s, Load) for name in ix.values_of(s.index)]
        found: dict[str, None] = {}
        while open_:
            name = open_.pop()
            if name not in found:
                found[name] = None
                open_ += [one.name for one in self._operands.get(name, ()) if isinstance(one, Ref)]
        return found

    def unclamped(self, statement: Statement, axis: str, wanted: Container[str]) -> Statement:
        """With lines in the place of values that are clamped along an axis."""
        meaning = {name: line for name, line in self.clamped.items() if axis_of(line) in ("", axis)}
        match statement:
            case Compute(result, _, _, "int64") if result in meaning and result in wanted:
                return loop.IndexValue(result, meaning[result], "int64")
            case Load():
                return map_indices(statement, lambda index: ix.inline(index, meaning))
        return statement


def _is_line(index: Index) -> bool:
    match index.terms:
        case () | (loop.Term(int(), loop.AxisAtom()),):
            return True
    return False


def axis_of(line: Index) -> str:
    """The axis that a line grows along; "" for a number."""
    return line.terms[0].atom.name if line.terms else ""  # type: ignore[union-attr]


def holds(line: Index, point: int) -> bool:
    """Whether a line is at least 0 at a point of its axis."""
    return ix.evaluate(line, lambda _: point) >= 0  # type: ignore[no-any-return]


def change(line: Index) -> Dim:
    """The first point at which a line is at least 0 if it is not before, or no more if it is."""
    start, step = line.constant, line.terms[0].coefficient
    return -(start // step) if step > 0 else start // -step + 1  # type: ignore[operator]


def _lines(operands: Sequence[loop.Operand], known: dict[str, Index]) -> list[Index] | None:
    """The lines that operands are, of one axis at most."""
    found = [
        known.get(one.name) if isinstance(one, Ref) else Index(one) if type(one) is int else None for one in operands
    ]
    lines = [one for one in found if one is not None]
    return lines if len(lines) == len(found) and len({axis_of(one) for one in lines} - {""}) <= 1 else None


def _minus(a: Index, b: Index) -> Index:
    return ix.add(a, ix.scale(b, -1))


def _clamp(sign: int, a: Index, b: Index) -> tuple[Index, list[Index]]:
    moving, other = (a, b) if a.terms else (b, a)
    return moving, [ix.scale(_minus(moving, other), sign)]


def _inside(a: Index, size: Index) -> tuple[Index, list[Index]]:
    return a, [a, ix.shift(_minus(size, a), -1)]


_CLAMPS: dict[str, Callable[..., tuple[Index, list[Index]]]] = {
    "maximum": partial(_clamp, 1),
    "minimum": partial(_clamp, -1),
    "abs": lambda a: (a, [a]),
    "neg": lambda a: (ix.scale(a, -1), []),
    "add": lambda a, b: (ix.add(a, b), []),
    "sub": lambda a, b: (_minus(a, b), []),
    "check_index": _inside,
    "wrap_index": _inside,
}
"""(the line that it is, the lines that have to be at least 0 for that), by operation."""


def _bounds(lines: Iterable[Index], size: Dim) -> tuple[Dim, Dim]:
    """The first point of an axis at which all lines are at least 0, and the one behind the last."""
    first: Dim = 0
    last = size
    for line in lines:
        if line.terms[0].coefficient > 0:  # type: ignore[operator]
            first = greatest(first, change(line))
        else:
            last = least(last, change(line))
    return first, last


def split_pieces(kernel: Kernel) -> tuple[Kernel, ...]:
    """The kernel as kernels over parts of its points, in any order; itself if there is nothing to cut.

    Along the axis that memory is contiguous along, the parts are sections of one kernel: a row is written from its
    start to its end, as it lies in memory.
    """
    if not is_pointwise(kernel):
        return (kernel,)
    done = (kernel,)
    for axis in kernel.axes:
        if not _is_contiguous(kernel, axis):
            found = tuple(part for one in done for part in parts_along(one, axis, 1))
            done = found if len(found) <= TUNED.most_pieces else done
    for axis in kernel.axes:
        if _is_contiguous(kernel, axis):
            done = tuple(one for part in done for one in _in_sections(part, axis))
            break
    return done if len(done) == 1 and done[0] is kernel else tuple(map(_merged, done))


def _merged(kernel: Kernel) -> Kernel:
    """The kernel, neighbours among whose axes are one where memory goes on from one to the next."""
    axes, sections = merge_axes(kernel.axes, kernel.sections)
    return replace(kernel, axes=axes, sections=sections)


def is_pointwise(kernel: Kernel) -> bool:
    """Whether nothing is combined, and no point stores where another may."""
    if len(kernel.sections) != 1 or kernel.sections[0].axes:
        return False
    return all(not isinstance(s, Store) or s.mode == "set" for s in kernel.sections[0].statements)


def _is_contiguous(kernel: Kernel, axis: Axis) -> bool:
    return any(ix.coefficient(s.index, axis.name) == 1 for s in kernel.sections[0].statements if isinstance(s, Store))


def _in_sections(kernel: Kernel, axis: Axis) -> tuple[Kernel, ...]:
    """The parts along a contiguous axis: sections of one kernel, unless something is read across."""
    is_long = isinstance(axis.size, int) and axis.size >= TUNED.long_row
    parts = parts_along(kernel, axis, 1 if is_long else TUNED.shortest_piece)
    if len(parts) == 1:
        parts = _around_interior(kernel, axis)
    else:
        statements = [s for part in parts for s in part.sections[0].statements]
        if any(ix.coefficient(s.index, axis.name) not in (0, 1) for s in statements if isinstance(s, Load | Store)):
            return parts
    if len(parts) == 1 or len(parts) > TUNED.most_pieces:
        return parts if len(parts) == 1 else (kernel,)
    sections = tuple(_section(part, axis.name, number) for number, part in enumerate(parts))
    axes = tuple(one for one in kernel.axes if one.name != axis.name)
    return (replace(kernel, axes=axes, sections=sections),)


def _section(kernel: Kernel, name: str, number: int) -> loop.Section:
    """A pointwise kernel as a section along one axis, under a name of its own."""
    own = next(Axis(f"{name}.{number}", axis.size) for axis in kernel.axes if axis.name == name)
    statements = tuple(_moved(s, name, 0, own.name) for s in kernel.sections[0].statements)
    return loop.Section((own,), statements)


def _around_interior(kernel: Kernel, axis: Axis) -> tuple[Kernel, ...]:
    """The kernel along one axis: in front of what is not clamped, there, and behind it."""
    found = interior(kernel, axis)
    if found is None:
        return (kernel,)
    first, last, free = found
    if isinstance(first, int) and isinstance(last, int) and last - first < TUNED.shortest_piece:
        return (kernel,)
    spans = ((0, first, None), (first, last, without_unused(free)), (last, axis.size, None))
    return tuple(_span(kernel, axis, *span) for span in spans if span[1] - span[0] != 0)


def interior(kernel: Kernel, axis: Axis) -> tuple[Dim, Dim, list[Statement]] | None:
    """The points of an axis of a pointwise kernel, from a first to the one behind the last, at which nothing is
    clamped, and its statements there; None where nothing is gained. (Masks stay: lanes load under them as quickly.)"""
    statements = kernel.sections[0].statements
    lines = Lines(statements)
    wanted = lines.wanted(statements)
    needs = [one for name in wanted for one in lines.needs.get(name, ()) if axis_of(one) == axis.name]
    if not needs:
        return None
    first, last = _bounds(needs, axis.size)
    first = least(first, axis.size)
    made = [lines.unclamped(statement, axis.name, wanted) for statement in statements]
    steps = [ix.coefficient(s.index, axis.name) for s in made if isinstance(s, Load)]
    if not all(step in (-1, 0, 1) for step in steps):  # such rows gain little, and short ones lose
        return None
    return first, greatest(first, last), made


def _span(kernel: Kernel, axis: Axis, start: Dim, end: Dim, given: Sequence[Statement] | None) -> Kernel:
    statements = kernel.sections[0].statements if given is None else given
    moved = tuple(_moved(s, axis.name, start, axis.name) for s in statements)
    axes = tuple(Axis(axis.name, end - start) if one.name == axis.name else one for one in kernel.axes)
    return replace(kernel, axes=axes, sections=(loop.Section((), moved),))


def _settled_where(statements: Iterable[Statement], known: dict[str, bool]) -> list[Statement]:
    """What is left to do where the truth of some values is known."""
    return without_unused([one for s in statements if (one := settled(s, known)) is not None])


def parts_along(kernel: Kernel, given: Axis, shortest: int) -> tuple[Kernel, ...]:
    """The kernel cut along one axis, into parts of no fewer points than `shortest`."""
    axis = next(axis for axis in kernel.axes if axis.name == given.name)
    every = Lines(kernel.sections[0].statements).conditions
    every = {k: one for k, one in every.items() if isinstance(one.constant, int)}
    lines = {k: one for k, one in every.items() if axis_of(one) == axis.name}
    if not isinstance(axis.size, int):
        return (kernel,)
    cuts = [0]
    for cut in sorted({change(one) for one in lines.values()}):  # type: ignore[type-var]
        if 0 < cut < axis.size and min(cut - cuts[-1], axis.size - cut) >= shortest:  # type: ignore[operator]
            cuts.append(cut)  # type: ignore[arg-type]
    if len(cuts) == 1:
        return (kernel,)
    sizes = {one.name: (0, one.size - 1) for one in kernel.axes if isinstance(one.size, int) and one.size}
    parts = []
    for start, end in pairwise((*cuts, axis.size)):
        ends = sizes | {axis.name: (start, end - 1)}
        truths = {k: {holds(one, at) for at in ends.get(axis_of(one), ())} for k, one in every.items()}
        known = {name: found.pop() for name, found in truths.items() if len(found) == 1}
        parts.append(_span(kernel, axis, start, end, _settled_where(kernel.sections[0].statements, known)))
    return tuple(parts)


def narrowed(kernel: Kernel, condition: str) -> Kernel | None:
    """The pointwise kernel over those points alone at which a condition holds; sizes may be symbols. None where the
    condition is more than bounds of axes."""
    section = kernel.sections[0]
    computed = [s for s in section.statements if isinstance(s, Compute)]
    conjunctions = {s.result: s.operands for s in computed if s.op == "logical_and"}
    lines = Lines(section.statements).conditions
    known: dict[str, bool] = {}
    open_: list[loop.Operand] = [Ref(condition)]
    while open_:
        name = getattr(open_.pop(), "name", "")
        known[name] = True
        if name in conjunctions:
            open_ += conjunctions[name]
        elif name not in lines or not lines[name].terms:
            return None
    statements, axes = section.statements, list[Axis]()
    for axis in kernel.axes:
        own = [lines[name] for name in known if name in lines and axis_of(lines[name]) == axis.name]
        first, last = _bounds(own, axis.size)
        statements = tuple(_moved(s, axis.name, first, axis.name) for s in statements)
        axes.append(Axis(axis.name, greatest(last - first, 0)))
    return replace(kernel, axes=tuple(axes), sections=(loop.Section((), tuple(_settled_where(statements, known))),))


def _moved(statement: Statement, axis: str, start: Dim, name: str) -> Statement:
    """The statement with `name` + start for `axis`."""
    meaning = {axis: ix.shift(ix.axis(name), start)}
    return map_indices(statement, lambda index: ix.inline(index, meaning))


def without_unused(statements: Sequence[Statement]) -> list[Statement]:
    """Without values that nothing reads; what may report an error stays."""
    return live_statements(statements, lambda one: may_raise(one) or isinstance(one, Store), set())


def without_copies_in_place(graph: loop.LoopGraph) -> loop.LoopGraph:
    """The graph without the stores of an element where it lies already, and without kernels of nothing else; None in
    place of outputs that the caller finds in the inputs that they update.

    kernel i { store y[i] = load x[i] }, with `reuse` x of y: nothing; y begins as x
    kernel i in 100 { store y[i] = a[i - 5] if 5 <= i < 7 else load x[i] }: kernel i in 2 { store y[i + 5] = a[i] }
    """
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


def _needed(step: loop.Step, taken: Mapping[str, str]) -> Iterator[loop.Step]:
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
