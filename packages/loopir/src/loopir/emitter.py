"""The emitter: appends statements to sections, sharing equal ones and folding literals. Used by builder and passes."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable

import msgspec

from loopir.errors import MalformedNest
from loopir.schedule import Names
from stagewire import loop
from stagewire.expr import Dim, Expr
from stagewire.graph import NonFinite, Ref
from stagewire.index import bounds_of, constant, lies_within, value
from stagewire.literals import FLOATS, INTEGERS, held, literal
from stagewire.loop import Operand
from stagewire.loop_ops import COMMUTATIVE, INDEX_CHECKS, PREDICATES
from stagewire.sizes import at_least, lower_bounds
from stagewire.statements import select
from stagewire.types import DType


def round_literal(operand: Operand, dtype: DType) -> Operand:
    """The literal as a value of `dtype` holds it: rounded, wrapped or truncated.

    >>> round_literal(0.1, "bfloat16")
    0.10009765625
    >>> round_literal(300, "uint8")
    44
    """
    if isinstance(operand, Ref):
        return operand
    if isinstance(operand, NonFinite):
        return True if dtype == "bool" else operand
    value = held(operand, dtype)
    return literal(value) if isinstance(value, float) else value


def fold(op: str, operands: tuple[Operand, ...], dtype: DType, source: DType | None) -> Operand | None:
    """What `op(operands)` is without computing it, or None. Only identities that hold for nan, inf and -0.0 too.

    `source` is the dtype of the first operand that is a value.
    """
    rule = RULES.get(op)
    return None if rule is None else rule(operands, dtype, source)


Rule = Callable[[tuple[Operand, ...], DType, "DType | None"], "Operand | None"]


def _fold_convert(operands: tuple[Operand, ...], dtype: DType, source: DType | None) -> Operand | None:
    (a,) = operands
    if isinstance(a, Ref):
        return a if source == dtype else None
    return None if isinstance(a, NonFinite) and dtype not in FLOATS else round_literal(a, dtype)


def _fold_where(operands: tuple[Operand, ...], dtype: DType, source: DType | None) -> Operand | None:
    condition, a, b = operands
    if isinstance(condition, bool):
        return a if condition else b
    return a if isinstance(a, Ref) and a == b else None


def _junction(deciding: bool) -> Rule:
    """and, which False decides, and or, which True decides."""

    def rule(operands: tuple[Operand, ...], dtype: DType, source: DType | None) -> Operand | None:
        literals = [o for o in operands if isinstance(o, bool)]
        if deciding in literals:
            return deciding
        return not deciding if len(literals) == 2 else _other(operands, not deciding) if source == "bool" else None

    return rule


def _compare(relation: Callable[[int, int], bool]) -> Rule:
    return lambda operands, *_: relation(*operands) if all(type(one) is int for one in operands) else None


def _neutral_right(number: int) -> Rule:
    """The first operand where the second is a number that changes nothing (-0.0 does)."""

    def rule(operands: tuple[Operand, ...], dtype: DType, source: DType | None) -> Operand | None:
        a, b = operands
        return a if isinstance(a, Ref) and b == number and not _is_negative_zero(b) else None

    return rule


def _other(operands: tuple[Operand, ...], neutral: int) -> Operand | None:
    """The operand beside a neutral literal."""
    a, b = operands
    if b == neutral and isinstance(a, Ref):
        return a
    return b if a == neutral and isinstance(b, Ref) else None


RULES: dict[str, Rule] = {
    "convert": _fold_convert,
    "where": _fold_where,
    "mul": lambda operands, dtype, source: _other(operands, 1) if dtype != "bool" else None,
    "add": lambda operands, dtype, source: _other(operands, 0) if dtype in INTEGERS else None,
    "div": _neutral_right(1),
    "sub": _neutral_right(0),
    "logical_and": _junction(False),
    "logical_or": _junction(True),
    **{name: _compare(getattr(operator, name)) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
}


def _is_negative_zero(operand: Operand) -> bool:
    return isinstance(operand, float) and math.copysign(1.0, operand) < 0


RESULT_COUNT: dict[str, int] = {"welford": 3}


class Typed(msgspec.Struct, frozen=True, gc=False):
    """A value at a point: a reference or a literal, and its dtype."""

    operand: loop.Operand
    dtype: DType


def literal_key(literal: loop.Operand) -> tuple[type, str]:
    """What tells literals apart: 1, 1.0 and True, and 0.0 and -0.0 are not the same."""
    return literal.__class__, repr(literal)


class Emitter:
    """Sections under construction.

    Values of a section without axes are visible to later sections; those of a section with axes (its `Reduce` results
    excepted) only inside. Equal statements in sight of each other are emitted once.
    """

    __slots__ = ("_axes", "_inner", "_outer", "_places", "_reduced", "_statements", "names", "sections", "sizes")

    def __init__(self, names: Names, sizes: dict[str, Dim] | None = None) -> None:
        self.names = names
        self.sizes: dict[str, Dim] = {} if sizes is None else sizes
        self.sections: list[loop.Section] = []
        self._axes: tuple[loop.Axis, ...] = ()
        self._statements: list[loop.Statement] = []
        self._outer: dict[object, Typed] = {}
        self._inner: dict[object, Typed] = {}
        self._reduced: dict[object, tuple[str, ...]] = {}
        self._places: dict[str, loop.Index] = {}

    def open(self, axes: tuple[loop.Axis, ...]) -> None:
        """Start a section over `axes` (none: the code between inner loops)."""
        self._close()
        self._axes = axes
        for axis in axes:
            self.sizes[axis.name] = axis.size

    def finish(self) -> tuple[loop.Section, ...]:
        """The sections so far."""
        self._close()
        self._axes = ()
        return tuple(self.sections)

    def read(
        self, buffer: str, coordinates: tuple[loop.Index, ...], dtype: DType, mask: loop.Operand | None = None,
        other: loop.Operand = 0,
    ) -> Typed:  # fmt: skip
        """One element of a buffer; a mask that is literally true is no mask, false is `other`."""
        if mask is False:
            return Typed(other, dtype)
        guard = mask if isinstance(mask, Ref) else None
        key: object = (buffer, coordinates) if guard is None else (buffer, coordinates, guard, literal_key(other))
        return self._shared(
            key, dtype, lambda name: loop.Load(name, buffer, coordinates, dtype, guard, other if guard else 0)
        )

    def write(self, buffer: str, coordinates: tuple[loop.Index, ...], value: loop.Operand, mode: str = "set",
              mask: Ref | None = None) -> None:  # fmt: skip
        """Set one element of a buffer (or add to it atomically)."""
        self._statements.append(loop.Store(buffer, coordinates, value, mode, mask))  # type: ignore[arg-type]

    def compute(self, op: str, *operands: Typed | loop.Operand | Expr, dtype: DType | None = None) -> Typed:
        """op(operands); literals and sizes take the dtype of the first operand that is a value. dtype: of the result of
        a cast, and of literals where nothing else is; else it follows from the op."""
        source, has_value = dtype, False
        for operand in operands[1:] if op == "where" else operands:
            if operand.__class__ is Typed:
                source = operand.dtype  # type: ignore[union-attr]
                has_value = operand.operand.__class__ is Ref  # type: ignore[union-attr]
                if has_value:
                    break
        if source is None:
            raise MalformedNest(f"{op}: one operand at least must be a value, not a literal")
        if op in PREDICATES:
            dtype = "bool"
        elif dtype is None:
            dtype = source
        known = [self.size(o, source) if isinstance(o, Expr) else o for o in operands]
        values = tuple([o.operand if o.__class__ is Typed else o for o in known])  # type: ignore[union-attr]
        folded = fold(op, values, dtype, source)
        if folded is not None:
            return Typed(folded, dtype)
        if op in INDEX_CHECKS and self._is_inside(values):
            return Typed(values[0], source)
        if not has_value and op != "convert" and op != "where":
            values = (self.raw_compute("convert", values[:1], source).operand, *values[1:])
        return self.raw_compute(op, values, dtype)

    def raw_compute(self, op: str, operands: tuple[loop.Operand, ...], dtype: DType) -> Typed:
        """Emit without folding (shared with an equal statement in sight)."""
        parts = [o.name if o.__class__ is Ref else literal_key(o) for o in operands]  # type: ignore[union-attr]
        if op in COMMUTATIVE and parts[0].__class__ is str and parts[1].__class__ is str:
            parts.sort()  # type: ignore[type-var]
        key = (op, dtype, *parts)
        return self._shared(key, dtype, lambda name: loop.Compute(name, op, operands, dtype))

    def index_value(self, index: loop.Index, dtype: DType = "int64") -> Typed:
        """The integer value of an index expression."""
        if not index.terms and isinstance(index.constant, int):
            return Typed(index.constant, dtype)
        found = self._shared(("index", index, dtype), dtype, lambda name: loop.IndexValue(name, index, dtype))
        self._places[found.operand.name] = index  # type: ignore[union-attr]
        return found

    def size(self, size: Expr, dtype: DType) -> Typed:
        """The value of a size."""
        return self.compute("convert", self.index_value(loop.Index(size)), dtype=dtype)

    def place(self, coordinate: Typed | loop.Index | int) -> loop.Index:
        """A coordinate as an index; a computed integer as what it was made from where that is an index, else as the
        value itself."""
        if isinstance(coordinate, loop.Index):
            return coordinate
        operand = coordinate.operand if isinstance(coordinate, Typed) else coordinate
        if isinstance(operand, Ref):
            return self._places.get(operand.name) or value(operand.name)
        if isinstance(operand, int):
            return constant(int(operand))
        raise MalformedNest(f"{operand!r} is no coordinate")

    def _is_inside(self, values: tuple[loop.Operand, ...]) -> bool:
        """Whether an index is known to lie in 0 <= index < size."""
        place, size = (self._places.get(v.name) if isinstance(v, Ref) else constant(int(v)) for v in values)  # type: ignore[arg-type]
        return (
            place is not None
            and size is not None
            and not size.terms
            and lies_within(place, 0, size.constant, self.sizes)
        )

    def within(self, index: loop.Index, start: Dim, stop: Dim) -> Typed | bool:
        """Whether start <= index < stop, as a test of what the sizes of axes do not tell."""
        bounds, needed = bounds_of(index, self.sizes), (True, True)
        if bounds is not None:
            lower = lower_bounds(self.sizes.values())
            if at_least(bounds[0] - stop, 0, lower) or at_least(start - 1 - bounds[1], 0, lower):
                return False
            needed = (not at_least(bounds[0] - start, 0, lower), not at_least(stop - 1 - bounds[1], 0, lower))
        mask: Typed | bool = True
        for is_needed, op, limit in zip(needed, ("ge", "lt"), (start, stop), strict=True):
            if is_needed:
                mask = self.both(mask, self.compute(op, self.index_value(index), self.index_value(constant(limit))))
        return mask

    def both(self, a: Typed | bool, b: Typed | bool) -> Typed | bool:
        """The conjunction of two masks."""
        if a is True or b is False:
            return b
        return a if b is True or a is False else self.compute("logical_and", a, b)

    def reduce(self, reduction: loop.ReduceKind, operand: loop.Operand, dtype: DType) -> tuple[Typed, ...]:
        """Combine over the axes of the open section; the results are values of the outer point."""
        key = (reduction, operand.name if isinstance(operand, Ref) else literal_key(operand), dtype)
        found = self._reduced.get(key)
        if found is None:
            found = tuple(self.names("v") for _ in range(RESULT_COUNT.get(reduction, 1)))
            self._reduced[key] = found
            self._statements.append(loop.Reduce(found, reduction, operand, dtype))
        return tuple(Typed(Ref(name), dtype) for name in found)

    def scan(self, scan: loop.ScanKind, operand: loop.Operand, dtype: DType) -> Typed:
        """Combine over this point of the open section and those before it; the result is a value of the point."""
        key = ("scan", scan, operand.name if isinstance(operand, Ref) else literal_key(operand), dtype)
        return self._shared(key, dtype, lambda name: loop.Scan(name, scan, operand, dtype))

    def append(self, statement: loop.Statement) -> None:
        """Add a statement as it is."""
        self._statements.append(statement)

    def _shared(self, key: object, dtype: DType, statement: Callable[[str], loop.Statement]) -> Typed:
        """The value of an equal statement in sight, or of this one, made for its result's name."""
        found = self._outer.get(key) or self._inner.get(key)
        if found is None:
            name = self.names("v")
            found = Typed(Ref(name), dtype)
            (self._inner if self._axes else self._outer)[key] = found
            self._statements.append(statement(name))
        return found

    def _close(self) -> None:
        if self._statements:
            last = self.sections[-1] if self.sections else None
            if last is not None and not self._axes and not last.axes and not _reads_back(self._statements, last):
                self.sections[-1] = loop.Section((), (*last.statements, *self._statements))
            else:
                self.sections.append(loop.Section(self._axes, tuple(self._statements)))
        self._statements = []
        self._inner = {}
        self._reduced = {}


def _reads_back(statements: list[loop.Statement], before: loop.Section) -> bool:
    """Whether any statement reads a buffer that the section before writes (that is seen from a later section only)."""
    written = {s.buffer for s in select((before,), loop.Store)}
    return any(isinstance(s, loop.Load) and s.buffer in written for s in statements)
