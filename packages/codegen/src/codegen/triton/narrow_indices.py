"""Places of elements in 32 bits where a function computes them in 64, as PyTorch's numbers of places are.

    %q: i64 = index i0        %k: i64 = index i1        %d: i64 = sub(%k, %q)        %f: f32 = convert(%d)

Narrow is what is known to fit, unless something computes on with it in 64 bits, or with what is not known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec.structs import replace

from stagewire.graph import Ref
from stagewire.index import range_of
from stagewire.loop import Compute, IndexValue, Load, Operand, Statement
from stagewire.statements import used_values

Interval = tuple[int, int]
_LEAST, _GREATEST = -(2**31), 2**31 - 1

_INTERVALS: dict[str, Callable[[Interval, Interval], Interval]] = {
    "add": lambda a, b: (a[0] + b[0], a[1] + b[1]),
    "sub": lambda a, b: (a[0] - b[1], a[1] - b[0]),
    "mul": lambda a, b: (min(x * y for x in a for y in b), max(x * y for x in a for y in b)),
    "minimum": lambda a, b: (min(a[0], b[0]), min(a[1], b[1])),
    "maximum": lambda a, b: (max(a[0], b[0]), max(a[1], b[1])),
    "wrap_index": lambda a, b: (0, b[1] - 1),
}
_COMPARISONS = frozenset({"lt", "le", "gt", "ge", "eq", "ne"})


def with_narrow_indices(statements: tuple[Statement, ...], sizes: Mapping[str, int]) -> tuple[Statement, ...]:
    """The statements, of which those in 32 bits that may be. sizes: of the axes."""
    known: dict[str, Interval] = {}
    for statement in statements:
        interval = _interval(statement, known, sizes)
        if interval is not None and interval[0] >= _LEAST and interval[1] <= _GREATEST:
            known[statement.result] = interval  # type: ignore[union-attr]
    narrow = set(known)
    for statement in reversed(statements):
        if not _takes_narrow(statement, narrow, known):
            narrow.difference_update(used_values(statement))
    return tuple(replace(s, dtype="int32") if getattr(s, "result", None) in narrow else s for s in statements)


def _interval(statement: Statement, known: Mapping[str, Interval], sizes: Mapping[str, int]) -> Interval | None:
    """Between which numbers a value is, if that is known."""
    match statement:
        case IndexValue(index=index, dtype="int64"):
            return range_of(index, sizes)
        case Compute(op=op, operands=(first, second), dtype="int64") if op in _INTERVALS:
            a, b = _of(first, known), _of(second, known)
            return None if a is None or b is None else _INTERVALS[op](a, b)
    return None


def _of(operand: Operand, known: Mapping[str, Interval]) -> Interval | None:
    if isinstance(operand, Ref):
        return known.get(operand.name)
    return (operand, operand) if type(operand) is int else None


def _takes_narrow(statement: Statement, narrow: set[str], known: Mapping[str, Interval]) -> bool:
    """Whether a statement means the same of numbers in 32 bits."""
    match statement:
        case Load() | IndexValue():
            return True
        case Compute(op="convert", dtype=dtype):
            return dtype.startswith(("float", "bfloat"))
        case Compute(op=op, operands=operands) if op in _COMPARISONS:
            return all(_of(one, known) is not None for one in operands)
        case Compute(result=result):
            return result in narrow
    return False
