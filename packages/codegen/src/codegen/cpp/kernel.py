"""The loops of one kernel."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import NamedTuple

from codegen.cpp.operations import conversion
from codegen.cpp.plan import BEFORE, BETWEEN, INSIDE, Plan, is_turned, lane_of, levels
from codegen.cpp.reductions import Accumulator, Reducer, partial_block, reducer
from codegen.cpp.statements import Scope, range_guard, write_statement
from codegen.cpp.tuning import TUNED
from codegen.cpp.types import c_type
from stagewire.expr import Dim
from stagewire.index import coefficient, has_values, mentions
from stagewire.loop import Axis, Index, Kernel, Load, Reduce, Section, Statement, Store, Term
from stagewire.statements import makers, select, used_values


class Written(NamedTuple):
    """A statement of a loop of lanes: the numbers of its lines, and its range guard if it has one."""

    statement: Statement
    lines: range
    guard: tuple[str, str] | None


class LaneLoop(NamedTuple):
    """The lines from `start`, a pragma, to `stop`."""

    start: int
    stop: int
    body: tuple[Written, ...]


class Text:
    """Lines of blocks: `lines` grows, `depth` is the indentation."""

    def __init__(self, depth: int) -> None:
        self.lines: list[str] = []
        self.depth = depth

    def line(self, text: str) -> None:
        self.lines.append("  " * self.depth + text)

    def open(self, text: str) -> None:
        self.line(text + " {")
        self.depth += 1

    def close(self, count: int = 1) -> None:
        for _ in range(count):
            self.depth -= 1
            self.line("}")


class KernelWriter(Text):
    """Writes the loops of one kernel.

    inside: whether the threads are there already, all of them running this text; else it starts them where it has work.
    """

    def __init__(self, scope: Scope, kernel: Kernel, plan: Plan, *, inside: bool = False) -> None:
        super().__init__(depth=2 if inside else 1)
        self.scope, self.kernel, self.plan, self.inside = scope, kernel, plan, inside
        self._marks: list[tuple[int, str, int]] = []
        self._written: list[Written] = []
        self._lane_loops: list[LaneLoop] = []

    def write(self) -> list[str]:
        if self.plan.lane is None:
            self._rows()
        else:
            self._columns(self.plan.lane)
        self._fill_marks()
        for loop in reversed(self._lane_loops):
            if any(one.guard is not None for one in loop.body):
                self.lines[loop.start : loop.stop] = self._versions(loop)
        return self.lines

    # ---- text

    def pragma(self, text: str) -> None:
        """A pragma that gains the status word's reduction clause, once it is known whether the kernel reports."""
        self._marks.append((len(self.lines), text, self.depth))
        self.lines.append("")

    def _fill_marks(self) -> None:
        for position, text, depth in self._marks:
            clause = " reduction(|:bad)" if self.scope.reports and not text.startswith("for") else ""
            self.lines[position] = "  " * depth + f"#pragma omp {text}{clause}"

    def begin_lanes(
        self, head: str, section: Section, level: Sequence[int], lane: str, simd: bool, clauses: str = ""
    ) -> None:
        """Open a loop of lanes along an axis, which will have those statements of a section that are inside of it."""
        body = [one for one, at in zip(section.statements, level, strict=True) if at == INSIDE]
        self._row_pointers([one for one in body if isinstance(one, Load | Store)], lane)
        self._written.clear()
        if simd:
            self.pragma(f"simd{clauses}")
        self.open(head)

    def _row_pointers(self, accesses: Sequence[Load | Store], lane: str) -> None:
        """Declare pointers to the rows in which a loop of many accesses finds its elements.

        gcc gives each access of a vectorised loop a pointer, and compares the starts of all of these (ivopts, in cubic
        time) unless they differ by constants from few.
        """
        if len(accesses) < TUNED.row_pointers:
            return
        scope, pointers = self.scope, dict[tuple[str, tuple[Term, ...]], str]()
        for buffer, index in dict.fromkeys((one.buffer, one.index) for one in accesses):
            row = tuple(term for term in index.terms if not mentions(Index(0, (term,)), (lane,)))
            if not row or has_values(index) or 0 in scope.buffers[buffer].shape or (buffer, index) in scope.tiles:
                continue
            pointer = pointers.get((buffer, row))
            if pointer is None:
                pointer = pointers[buffer, row] = f"row_{scope.fresh()}"
                self.line(f"auto *{pointer} = {scope.parameter(buffer)} + ({scope.index(Index(0, row))});")
            rest = Index(index.constant, tuple(term for term in index.terms if term not in row))
            scope.rows[buffer, index] = f"{pointer}[{scope.index(rest)}]"

    def end_lanes(self, simd: bool) -> None:
        self.close()
        self.scope.rows.clear()
        if simd:
            start = self._marks[-1][0]
            self._lane_loops.append(LaneLoop(start, len(self.lines), tuple(self._written)))

    def _versions(self, loop: LaneLoop) -> list[str]:
        """A loop of lanes with functions that are exact for every argument, and one with cheaper ones, for when none of
        these is too large: lanes cannot branch, so that one loop would pay for the largest argument at each point."""
        lines, guards = self.lines, {one.statement: one.guard for one in loop.body if one.guard is not None}
        pragma, head, *_ = exact = lines[loop.start : loop.stop]
        indent = pragma[: -len(pragma.lstrip())]
        needed = makers([one.statement for one in loop.body], {name for s in guards for name in used_values(s)})
        made = [n for one in loop.body if one.statement in needed for n in one.lines]
        fast = list(exact)
        for one in loop.body:
            if one.guard is not None:
                fast[one.lines[-1] - loop.start] = _indented(one.guard[1], lines[one.lines[-1]])
        looks = [
            f"{indent}#pragma omp simd reduction(|:far)",
            head,
            *(lines[n] for n in made if not lines[n].lstrip().startswith("bad |=")),
            *(f"{indent}  far |= {condition};" for condition in dict.fromkeys(test for test, _ in guards.values())),
            f"{indent}}}",
        ]
        inner = [f"{indent}i32 far = 0;", *looks, f"{indent}if (far) {{", *_deeper(exact), f"{indent}}} else {{",
                 *_deeper(fast), f"{indent}}}"]  # fmt: skip
        return [f"{indent}{{", *_deeper(inner), f"{indent}}}"]

    def loop(self, axis: Axis) -> None:
        name = self.scope.axes[axis.name]
        self.open(f"for (i64 {name} = 0; {name} < {self.scope.dim(axis.size)}; {name}++)")

    def share(self, depth: int, clauses: str = "") -> None:
        """The pragma that shares the next `depth` perfectly nested loops out to the threads."""
        collapse = f" collapse({depth})" if depth > 1 else ""
        if self.inside:
            self.pragma(f"for{collapse} schedule(static) nowait")
        else:
            self.pragma(f"parallel for{collapse} num_threads(threads) schedule(static){clauses}")

    # ---- row plans

    def _rows(self) -> None:
        if self.plan.threads == "outer":
            self.share(len(self.kernel.axes))
        for axis in self.kernel.axes:
            self.loop(axis)
        for section in self.kernel.sections:
            self._row_section(section)
        self.close(len(self.kernel.axes))

    def _row_section(self, section: Section) -> None:
        if not section.axes:
            self._points(section, {}, "", [INSIDE] * len(section.statements), INSIDE)
            return
        reducers = self._reducers(section)
        lane = lane_of(section)
        rest = [axis for axis in section.axes if axis.name != lane.name]
        for _, recipe in reducers:
            self._declare(recipe.accumulators)
        shared, simd = self.plan.threads == "inner", self.plan.vector
        outer_scope = dict(self.scope.values)
        level = levels(section, lane.name, {})
        self._points(section, {}, "", level, BEFORE)
        if shared and rest:
            self.share(1, _clauses(reducers))
        for axis in rest:
            self.loop(axis)
        self._points(section, {}, "", level, BETWEEN)
        narrow, partial = _narrowed(reducers, simd)
        # The lanes run in chunks where the threads share them, or where there are partial sums, of each chunk.
        name, size = self.scope.axes[lane.name], self.scope.dim(lane.size)
        start, end = "0", size
        chunk = TUNED.partial if partial else TUNED.row_chunk
        shared = shared and not rest
        chunked = shared or (bool(partial) and not (isinstance(lane.size, int) and lane.size <= chunk))
        if shared:
            self.share(1, _clauses(reducers))
        if chunked:
            self._blocks(name, size, chunk)
            start, end = f"{name}c", f"{name}e"
        self._declare([part for _, part in partial])
        head = f"for (i64 {name} = {start}; {name} < {end}; {name}++)"
        self.begin_lanes(head, section, level, lane.name, simd, _clauses(narrow))
        self._points(section, dict(narrow), "", level, INSIDE)
        self.end_lanes(simd)
        for whole, part in partial:
            self.line(f"{whole.name} += {part.name};")
        self.close(chunked + len(rest))
        self.scope.values = outer_scope
        for statement, recipe in reducers:
            self._results(section, statement, recipe)

    # ---- column plans

    def _columns(self, lane: Axis) -> None:
        plan = self.plan
        rest = [axis for axis in self.kernel.axes if axis.name != lane.name]
        crossed = plan.crossed
        if crossed is not None:
            rest = [axis for axis in rest if axis.name != crossed.name]
        depth = self._tile_loops(rest, crossed, lane)
        for number, section in enumerate(self.kernel.sections):
            self._column_section(number, section, lane)
        self.close(depth)

    def _tile_loops(self, rest: list[Axis], crossed: Axis | None, lane: Axis) -> int:
        """Open the loops over everything but the points of one tile; returns how many."""
        plan = self.plan
        before: list[Axis] = [] if plan.exclusive else rest
        tiled = [axis for axis in (crossed, lane) if axis is not None]
        step = self._tile_step(rest, lane)
        if plan.threads == "outer":
            self.share(len(before) + len(tiled))
        for axis in before:
            self.loop(axis)
        texts = [(axis, self.scope.axes[axis.name], self.scope.dim(axis.size)) for axis in tiled]
        for _, name, size in texts:
            self.open(f"for (i64 {name}c = 0; {name}c < {size}; {name}c += {step})")
        for axis, name, size in texts:
            whole = isinstance(axis.size, int) and isinstance(step, int) and axis.size % step == 0
            self.line(f"const i64 {name}e = {f'{name}c + {step}' if whole else _end(name, size, step)};")
        after = rest if plan.exclusive else []
        for axis in after:
            self.loop(axis)
        if crossed is not None:
            self._turn_tiles(crossed, lane)
            name = self.scope.axes[crossed.name]
            self.open(f"for (i64 {name} = {name}c; {name} < {name}e; {name}++)")
        return len(before) + len(tiled) + len(after) + (crossed is not None)

    def _tile_step(self, others: Sequence[Axis], lane: Axis) -> Dim | str:
        """How wide the tiles are; where the threads are many, narrow enough that each has some."""
        plan, name = self.plan, self.scope.axes[lane.name]
        if not plan.narrowest or plan.threads != "outer":
            return plan.tile
        count = max(prod(axis.size for axis in others if isinstance(axis.size, int)), 1)
        self.line(f"const i64 {name}m = {plan.narrowest} * ((threads + {count - 1}) / {count});")
        self.line(f"i64 {name}w = ({lane.size} + {name}m - 1) / {name}m * {plan.narrowest};")
        self.line(f"if ({name}w > {plan.tile}) {name}w = {plan.tile};")
        return f"{name}w"

    def _tile_width(self) -> Dim | str:
        """How many lanes of the arrays of a tile are to be written."""
        assert self.plan.lane is not None
        name = self.scope.axes[self.plan.lane.name]
        is_fixed = isinstance(self.plan.lane.size, int) and not self.plan.narrowest
        return self.plan.tile if is_fixed else f"{name}e - {name}c"

    def _turn_tiles(self, crossed: Axis, lane: Axis) -> None:
        """Copy what lies along the crossed axis into tiles that lie along the lanes."""
        scope = self.scope
        (section,) = self.kernel.sections
        stored = {s.buffer for s in section.statements if isinstance(s, Store)}
        texts = {axis: scope.axes[axis] for axis in (crossed.name, lane.name)}
        c, r = texts.values()
        for load in section.statements:
            if not isinstance(load, Load) or load.buffer in stored or not is_turned(load, crossed, lane):
                continue
            name, kind = f"t{len(scope.tiles)}", c_type(scope.buffers[load.buffer].dtype).storage
            scope.axes |= {axis: f"{text}c" for axis, text in texts.items()}
            start = f"{scope.parameter(load.buffer)} + {scope.index(load.index)}"
            scope.axes |= texts
            step = scope.dim(coefficient(load.index, lane.name) or 0)
            self.line(f"{kind} {name}[{self.plan.tile} * {self.plan.tile}] __attribute__((aligned(64)));")
            self.line(f"sf_tile<{kind}>({start}, {step}, {r}e - {r}c, {c}e - {c}c, {name}, {self.plan.tile});")
            scope.tiles[load.buffer, load.index] = f"{name}[({c} - {c}c) * {self.plan.tile} + {r} - {r}c]"

    def _column_section(self, number: int, section: Section, lane: Axis) -> None:
        name = self.scope.axes[lane.name]
        reducers = self._reducers(section)
        for _, recipe in reducers:
            self._declare(recipe.accumulators, self._tile_width())
        kept = self._kept(number, section)
        for place, (_, dtype) in enumerate(kept):
            self.line(f"{c_type(dtype).local} k_{number}_{place}[{self.plan.tile}];")
        shared = self.plan.threads == "inner"
        outer_scope = dict(self.scope.values)
        level = levels(section, lane.name, dict.fromkeys(outer_scope, INSIDE))
        self._points(section, {}, "", level, BEFORE)
        if shared and section.axes:
            self.share(1, _clauses(reducers, f"[:{self.plan.tile}]"))
        subscript = f"[{name} - {name}c]"
        position, length = partial_block(section.axes)
        narrow, partial = _narrowed(reducers, length > 0)
        if not partial:
            position = len(section.axes)
        for axis in section.axes[:position]:
            self.loop(axis)
        if partial:  # the axis at `position` runs in blocks, each with sums of its own
            block = section.axes[position]
            run = self.scope.axes[block.name]
            self._blocks(run, self.scope.dim(block.size), length)
            self._declare([part for _, part in partial], self._tile_width())
            self.open(f"for (i64 {run} = {run}c; {run} < {run}e; {run}++)")
            for axis in section.axes[position + 1 :]:
                self.loop(axis)
        self._points(section, {}, "", level, BETWEEN)
        head = f"for (i64 {name} = {name}c; {name} < {name}e; {name}++)"
        self.begin_lanes(head, section, level, lane.name, self.plan.vector)
        self._points(section, dict(narrow), subscript, level, INSIDE)
        for place, (value, _) in enumerate(kept):
            self.line(f"k_{number}_{place}{subscript} = {self.scope.values[value]};")
        self.end_lanes(self.plan.vector)
        self.close(len(section.axes) - position)
        for whole, part in partial:
            self.line(f"for (i64 j = 0; j < {self._tile_width()}; j++) {whole.name}[j] += {part.name}[j];")
        self.close(position + bool(partial))
        self.scope.values = outer_scope
        for place, (value, _) in enumerate(kept):
            self.scope.values[value] = f"k_{number}_{place}{subscript}"
        self._column_results(section, reducers, name)

    def _column_results(self, section: Section, reducers: Reducers, lane: str) -> None:
        """Compute the results once for each lane: later sections read them at each of their points."""
        count = self._count_text(section)
        for statement, recipe in reducers:
            local = c_type(statement.dtype).local
            for result, text in zip(statement.results, recipe.results, strict=True):
                array = f"r_{self.scope.fresh()}"
                self.line(f"{local} {array}[{self.plan.tile}];")
                value = text.format(j="[j]", n=count)
                self.line(f"for (i64 j = 0; j < {lane}e - {lane}c; j++) {array}[j] = {value};")
                self.scope.values[result] = f"{array}[{lane} - {lane}c]"
                self.scope.dtypes[result] = statement.dtype

    def _kept(self, number: int, section: Section) -> list[tuple[str, str]]:
        """Values of a section without inner axes that later sections read, and their dtypes."""
        later = {name for s in self.kernel.sections[number + 1 :] for one in s.statements for name in used_values(one)}
        defined = [s for s in section.statements if not isinstance(s, Store | Reduce) and not section.axes]
        return [(s.result, s.dtype) for s in defined if s.result in later]

    # ---- both

    def _reducers(self, section: Section) -> Reducers:
        """The reductions of a section's loops."""
        return [(s, reducer(s, self.scope.fresh())) for s in select((section,), Reduce) if section.axes]

    def _points(
        self, section: Section, recipes: Mapping[Reduce, Reducer], lane: str, level: Sequence[int], wanted: int
    ) -> None:
        """The statements of one level."""
        unsure = [axis for axis in section.axes if not isinstance(axis.size, int)] if wanted != INSIDE else []
        self.scope.guard = " && ".join(f"{self.scope.dim(axis.size)} > 0" for axis in unsure)
        for statement in (s for s, at in zip(section.statements, level, strict=True) if at == wanted):
            if not isinstance(statement, Reduce):
                self._put(statement)
            elif section.axes:
                self._accumulate(statement, recipes[statement], lane)
            else:  # over one point
                recipe = reducer(statement, self.scope.fresh())
                self._declare(recipe.accumulators)
                self._accumulate(statement, recipe, "")
                self._results(section, statement, recipe)
        self.scope.guard = ""

    def _put(self, statement: Statement) -> None:
        start = len(self.lines)
        for text in write_statement(self.scope, statement):
            self.line(text)
        self._written.append(Written(statement, range(start, len(self.lines)), range_guard(self.scope, statement)))

    def _accumulate(self, statement: Reduce, recipe: Reducer, lane: str) -> None:
        source = self.scope.dtype(statement.operand, statement.dtype)
        if statement.reduction in ("any", "all"):
            value = self.scope.operand(statement.operand, source)
        else:
            value = conversion(source, statement.dtype, self.scope.operand(statement.operand, statement.dtype))
        self.line(recipe.update.format(x=value, j=lane))

    def _declare(self, accumulators: Iterable[Accumulator], lanes: Dim | str = "") -> None:
        """Declare accumulators at their starts; of a column plan one for each lane, of which so many are used."""
        for a in accumulators:
            self.line(f"{a.type} {a.name}[{self.plan.tile}];" if lanes else f"{a.type} {a.name} = {a.start};")
            if lanes:
                self.line(f"for (i64 j = 0; j < {lanes}; j++) {a.name}[j] = {a.start};")

    def _results(self, section: Section, statement: Reduce, recipe: Reducer) -> None:
        """Compute the results of a reduction that has one set of accumulators."""
        for result, text in zip(statement.results, recipe.results, strict=True):
            name = self.scope.define(result, statement.dtype)
            value = text.format(j="", n=self._count_text(section))
            self.line(f"const {c_type(statement.dtype).local} {name} = {value};")

    def _blocks(self, name: str, size: str, length: int) -> None:
        """Open the loop over blocks of an axis, from `c` to `e`."""
        self.open(f"for (i64 {name}c = 0; {name}c < {size}; {name}c += {length})")
        self.line(f"const i64 {name}e = {_end(name, size, length)};")

    def _count_text(self, section: Section) -> str:
        return "(" + (" * ".join(self.scope.dim(axis.size) for axis in section.axes) or "1") + ")"


Reducers = list[tuple[Reduce, Reducer]]


def _narrowed(reducers: Reducers, wanted: bool) -> tuple[Reducers, list[tuple[Accumulator, Accumulator]]]:
    """The recipes of a chunk, in the operand's own type where the recipe allows that; and (whole, part) of these."""
    found: Reducers = []
    partial = []
    for statement, recipe in reducers:
        if wanted and recipe.partial:
            (whole,) = recipe.accumulators
            part = Accumulator(f"{whole.name}_p", recipe.partial, whole.start, whole.operator)
            partial.append((whole, part))
            recipe = Reducer((part,), f"{part.name}{{j}} {whole.operator}= {{x}};", ())
        found.append((statement, recipe))
    return found, partial


def _clauses(reducers: Sequence[tuple[Reduce, Reducer]], part: str = "") -> str:
    """OpenMP reduction clauses for the accumulators, grouped by operator."""
    groups: dict[str, list[str]] = {}
    for _, recipe in reducers:
        for a in recipe.accumulators:
            groups.setdefault(a.operator, []).append(a.name + part)
    return "".join(f" reduction({operator}:{', '.join(names)})" for operator, names in groups.items())


def _end(name: str, size: str, length: object) -> str:
    """The end of a block of an axis, which may be the last one."""
    return f"{name}c + {length} < {size} ? {name}c + {length} : {size}"


def _deeper(lines: Sequence[str]) -> Iterator[str]:
    return (f"  {line}" for line in lines)


def _indented(text: str, like: str) -> str:
    return like[: -len(like.lstrip())] + text
