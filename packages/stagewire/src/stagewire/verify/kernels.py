"""K1 to K10: inside one kernel of a Loop. The constraints of an op are reported by their label: `loop.S1`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from stagewire import index as ix
from stagewire import loop
from stagewire.errors import UnknownOp
from stagewire.expr import Dim
from stagewire.graph import Ref
from stagewire.loop_ops import arity, loop_op, scalar
from stagewire.statements import indices, operands, results, used_values
from stagewire.types import extent, overlaps
from stagewire.verify.fault import Fault, Faults, Path, duplicates
from stagewire.vocabulary import seen

MOST_POINTS = 4096

Sizes = Mapping[str, Dim]


def index_range(index: loop.Index, sizes: Sizes) -> tuple[int, int] | None:
    """Least and greatest value; None for an index that depends on values or symbols, or whose axes have no points.

    An affine index is bounded exactly, one with // or % by the points that are looked at.
    """
    if ix.is_plain(index) and ix.is_static(index) and all(sizes.get(axis, 0) for axis in ix.axes_of(index)):
        return ix.range_of(index, sizes)
    if ix.has_values(index):
        return None
    values = values_at((index,), {axis: sizes.get(axis, 0) for axis in ix.axes_of(index)})
    return (min(values)[0], max(values)[0]) if values else None


def collision(index: loop.Index, deciding: Sequence[loop.Index], sizes: Sizes) -> int | None:
    """A value that the index has at two points that differ in a deciding one; None where there is none, or that is not
    known. Values in the deciding ones are decided by others of them.

    Steps each of which exceeds what all smaller ones reach meet nowhere. Else points that are apart along two axes are
    found by arithmetic, others among the points that are looked at.
    """
    if not all(map(ix.is_static, (index, *deciding))) or not all(isinstance(size, int) for size in sizes.values()):
        return None
    steps = _steps(index)
    if steps and not overlaps([sizes.get(axis, 1) for axis in steps], [abs(step) for step in steps.values()]):
        return None
    if (affine := _affine_collision(index, deciding, sizes)) is not None:
        return affine
    found: dict[int, tuple[int, ...]] = {}
    for value, *others in values_at((index, *deciding), sizes):
        if found.setdefault(value, tuple(others)) != tuple(others):
            return value
    return None


def _affine_collision(index: loop.Index, deciding: Sequence[loop.Index], sizes: Sizes) -> int | None:
    """The same along two axes alone: a*i + b*j does not change where i grows by b/g and j by -a/g (g divides both)."""
    others = [_steps(one) for one in deciding]
    for (i, a), (j, b) in itertools.combinations(sorted(_steps(index).items()), 2):
        common = math.gcd(a, b)
        if not common:
            continue
        apart = {i: b // common, j: -a // common}
        inside = all(abs(far) < sizes.get(axis, 1) for axis, far in apart.items())  # type: ignore[operator]
        if inside and any(sum(one.get(axis, 0) * far for axis, far in apart.items()) for one in others):
            start = {axis: max(0, -far) for axis, far in apart.items()}
            return int(index.constant) + a * start[i] + b * start[j]  # type: ignore[arg-type]
    return None


def _steps(index: loop.Index) -> dict[str, int]:
    """The steps of a static index; none of one that is more than a sum of axes."""
    return ix.affine(index) or {}  # type: ignore[return-value]


def values_at(indices: Sequence[loop.Index], sizes: Sizes) -> list[tuple[int, ...]]:
    """Their values at each point; of many points, at the first and the last of each axis. Nothing for symbolic sizes or
    no points."""
    counts = [size for size in sizes.values() if isinstance(size, int)]
    if len(counts) < len(sizes) or not all(map(ix.is_static, indices)):
        return []
    points = (dict(zip(sizes, point, strict=True)) for point in itertools.product(*_places(counts)))
    try:
        return [tuple([_value(index, point) for index in indices]) for point in points]
    except ZeroDivisionError:
        return []


def _places(counts: Sequence[int]) -> list[Sequence[int]]:
    """The places of each axis that are looked at: all of them where there are few points."""
    most = max(counts, default=1)
    while most > 2 and math.prod(min(count, most) for count in counts) > MOST_POINTS:
        most = most * 3 // 4
    places: list[Sequence[int]] = [
        range(count) if count <= most else (*range(most - most // 2), *range(count - most // 2, count))
        for count in counts
    ]
    return places if math.prod(map(len, places)) <= MOST_POINTS else [()]


def _value(index: loop.Index, point: Mapping[str, int]) -> int:
    return int(ix.evaluate(index, lambda atom: point.get(atom.name, 0)))


_INTEGERS = frozenset({"int64", "int32", "int16", "int8", "uint8", "uint16", "uint32", "uint64", "bool"})


class Scope(NamedTuple):
    """What a statement can see: sizes of axes, dtypes of values, buffers; of its own section, the `inner` axes and the
    statements before it, by the values that they define."""

    axes: dict[str, loop.Axis]
    values: dict[str, str]
    buffers: dict[str, loop.Buffer]
    inner: tuple[loop.Axis, ...] = ()
    section: dict[str, loop.Statement] = {}  # noqa: RUF012  (never written: the default of a tuple's field)


def check_kernel(kernel: loop.Kernel, buffers: dict[str, loop.Buffer], path: Path) -> Faults:
    yield from _check_axes(kernel, path)
    yield from _check_names(kernel, path)
    visible: dict[str, str] = {}
    for position, section in enumerate(kernel.sections):
        where = (*path, "sections", position)
        axes = {axis.name: axis for axis in (*kernel.axes, *section.axes)}
        local = dict(visible)
        reduced: dict[str, str] = {}
        made: dict[str, loop.Statement] = {}
        for number, statement in enumerate(section.statements):
            scope = Scope(axes, local, buffers, section.axes, made)
            yield from _check_statement(statement, scope, (*where, "statements", number))
            dtypes = dict.fromkeys(results(statement), getattr(statement, "dtype", ""))
            (reduced if isinstance(statement, loop.Reduce) else local).update(dtypes)
            made.update(dict.fromkeys(dtypes, statement))
        visible = {**(visible if section.axes else local), **reduced}


def _check_axes(kernel: loop.Kernel, path: Path) -> Faults:
    owners: list[tuple[Path, loop.Axis]] = [(path, axis) for axis in kernel.axes]
    for position, section in enumerate(kernel.sections):
        owners += [((*path, "sections", position), axis) for axis in section.axes]
    outer = {axis.name for axis in kernel.axes}
    for position, name in duplicates(axis.name for axis in kernel.axes):
        yield Fault("K1", f"the axis {name!r} is number {position} and an earlier one, or has no name", path)
    for position, section in enumerate(kernel.sections):
        where = (*path, "sections", position)
        names = [axis.name for axis in section.axes]
        for name in [name for _, name in duplicates(names)] + [name for name in names if name in outer]:
            yield Fault("K1", f"the axis {name!r} hides another", where)
    for where, axis in owners:
        if isinstance(axis.size, int) and axis.size < 0:
            yield Fault("K1", f"the axis {axis.name!r} has size {axis.size}", where)


def _check_names(kernel: loop.Kernel, path: Path) -> Faults:
    names: list[str] = []
    owners: list[Path] = []
    for position, section in enumerate(kernel.sections):
        for number, statement in enumerate(section.statements):
            defined = results(statement)
            names += defined
            owners += [(*path, "sections", position, "statements", number)] * len(defined)
    for position, name in duplicates(names):
        yield Fault("K2", f"the value {name!r} is defined twice, or has no name", owners[position])
    axes = {axis.name for axis in kernel.axes} | {axis.name for one in kernel.sections for axis in one.axes}
    for name, owner in zip(names, owners, strict=True):
        if name in axes:
            yield Fault("K2", f"the value {name!r} is called like an axis", owner)


def _check_statement(statement: loop.Statement, scope: Scope, path: Path) -> Faults:
    for operand in operands(statement):
        if isinstance(operand, Ref) and operand.name not in scope.values:
            yield Fault("K3", f"the value %{operand.name} is not defined here", path)
    for index in indices(statement):
        yield from _check_index(index, scope, path)
    match statement:
        case loop.Load() | loop.Store():
            yield from _check_access(statement, scope, path)
        case loop.Reduce():
            expected = 3 if statement.reduction == "welford" else 1
            if len(statement.results) != expected:
                message = f"{statement.reduction} has {expected} results, not {len(statement.results)}"
                yield Fault("K7", message, path)
        case loop.Scan(operand=operand, dtype=dtype):
            if not scope.inner:
                yield Fault("K8", f"a scan of %{statement.result} over no axes", path)
            if isinstance(operand, Ref) and scope.values.get(operand.name, dtype) != dtype:
                yield Fault("K8", f"a scan in {dtype} of %{operand.name}, {scope.values[operand.name]}", path)
        case loop.Compute():
            yield from _check_compute(statement, scope.values, path)
        case _:
            return


def _check_compute(statement: loop.Compute, values: dict[str, str], path: Path) -> Faults:
    try:
        op = loop_op(statement.op)
    except UnknownOp as unknown:
        yield Fault("K9", unknown.message, path)
        return
    if len(statement.operands) != arity(statement.op):
        yield Fault("K9", f"{op.name} takes {arity(statement.op)} operands, not {len(statement.operands)}", path)
        return
    known = {o.name: scalar(values[o.name]) for o in statement.operands if isinstance(o, Ref) and values.get(o.name)}
    if any(isinstance(operand, Ref) and operand.name not in known for operand in statement.operands):
        return  # K3 reports it
    arguments = tuple([seen(operand, known) for operand in statement.operands])
    for parameter, argument in zip(op.parameters, arguments, strict=False):  # the dtype of `convert` is the statement's
        if not parameter.takes(argument):
            yield Fault("K9", f"{op.name}: {parameter.name} is a {parameter.kind}, not {argument}", path)
            return
    refused = op.refusal(arguments)
    if refused is not None:
        yield Fault(f"{statement.op.rpartition('.')[0] or 'loop'}.{refused[0]}", refused[1], path)
    elif op.rule is not None:
        stated = () if "." in statement.op else (statement.dtype,)
        for result in op.rule(*arguments, *stated):
            if result.dtype != statement.dtype:
                yield Fault("K9", f"{op.name} gives {result.dtype}, the statement states {statement.dtype}", path)


def _check_index(index: loop.Index, scope: Scope, path: Path) -> Faults:
    for name in sorted(ix.axes_of(index)):
        if name not in scope.axes:
            yield Fault("K4", f"there is no axis {name!r} here", path)
    for name in sorted(ix.values_of(index)):
        if name not in scope.values:
            yield Fault("K3", f"the value %{name} is not defined here", path)
        elif scope.values[name] not in _INTEGERS:
            yield Fault("K6", f"the value %{name} of dtype {scope.values[name]} is no index", path)


def _check_access(statement: loop.Load | loop.Store, scope: Scope, path: Path) -> Faults:
    mask = statement.mask
    if mask is not None and scope.values.get(mask.name, "bool") != "bool":
        yield Fault("K6", f"the mask %{mask.name} has dtype {scope.values[mask.name]}", path)
    buffer = scope.buffers.get(statement.buffer)
    if buffer is None:
        return  # L3 reports it
    if isinstance(statement, loop.Load) and statement.dtype != buffer.type.dtype:
        yield Fault("K6", f"a load of {statement.dtype} from %{buffer.name} of dtype {buffer.type.dtype}", path)
    if mask is None:
        yield from _check_bounds(statement.index, buffer, scope, path)
        if isinstance(statement, loop.Store) and statement.mode == "set":
            yield from _check_points(statement, scope, path)


def _check_points(store: loop.Store, scope: Scope, path: Path) -> Faults:
    index, buffer = store.index, store.buffer
    sizes = {axis.name: axis.size for axis in scope.axes.values() if axis.size != 1}
    if ix.has_values(index) or any(size == 0 for size in sizes.values()):
        return
    deciding = _deciding(store.value, scope)
    for name in sorted(sizes.keys() - ix.axes_of(index)):
        if any(name in ix.axes_of(one) for one in deciding):
            yield Fault("K10", f"all points of the axis {name!r} set one element of %{buffer}", path)
            return
    twice = collision(index, deciding, sizes)
    if twice is not None:
        yield Fault("K10", f"two points set element {twice} of %{buffer}", path)


def _deciding(value: loop.Operand, scope: Scope) -> list[loop.Index]:
    """The indices that decide which value it is at a point: where they are equal, it is the same."""
    found: list[loop.Index] = []
    names, known = [value.name] if isinstance(value, Ref) else [], set[str]()
    while names:
        name = names.pop()
        if name in known:
            continue
        known.add(name)
        statement = scope.section.get(name)
        if statement is None or isinstance(statement, loop.Scan):  # of an earlier section, or of the points before
            owners = scope.axes if statement is not None else scope.axes.keys() - {axis.name for axis in scope.inner}
            found += [ix.axis(one) for one in owners]
        else:
            found += indices(statement)
            names += used_values(statement)
    return found


def _check_bounds(index: loop.Index, buffer: loop.Buffer, scope: Scope, path: Path) -> Faults:
    sizes = {axis.name: axis.size for axis in scope.axes.values() if isinstance(axis.size, int)}
    if any(size == 0 for size in sizes.values()):
        return  # no point is visited
    limit = extent(buffer.type) if len(buffer.type.shape) == len(buffer.type.stride) else None
    found = index_range(index, sizes)
    if isinstance(limit, int) and found is not None and not (found[0] >= 0 and found[1] < limit):
        message = f"the index runs from {found[0]} to {found[1]}, %{buffer.name} has elements 0 to {limit - 1}"
        yield Fault("K5", message, path)


def section_axes(kernel: loop.Kernel, section: loop.Section) -> dict[str, str]:
    """Axis names by their place: two sections that run over the same sizes compare equal after renaming."""
    outer = {axis.name: axis.name for axis in kernel.axes}
    inner = {axis.name: f"#{position}:{axis.size}" for position, axis in enumerate(section.axes)}
    return outer | inner
