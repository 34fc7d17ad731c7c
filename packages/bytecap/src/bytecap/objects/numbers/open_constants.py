"""Numbers and texts from outside whose value nothing has asked for yet.

    open ::= a place outside | function of open and known constants

While it stays open, no guard fixes it: `self.count += 1`, or a message with a number in it, is done again by the
replacement code. The first use of the value itself (a comparison, a tensor operation, a key) fixes the places that it
comes from, and from then on it is like any other constant.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from bytecap.context_types import Emitter
from bytecap.errors import ChangingNumber
from bytecap.guards import print_source
from bytecap.guards.guard_set import UPCOMING
from bytecap.objects.base import Constant, Value, state
from bytecap.objects.numbers.symbolic import NestedInt, SymbolicNumber, is_symbolic
from stagewire.capture import Attribute, Cell, Global, HandleSource, Item, Local, Reading, Source
from stagewire.capture import DictValue as ValueAt

OPEN_KINDS = (int, float, str)
_NUMBERS = frozenset({int, float})
# Operators that raise nothing on numbers, and those that raise for a second operand of zero alone.
_TOTAL = frozenset({"+", "-", "*"})
_DIVISIONS = frozenset({"/", "//", "%"})
# How many operations may be left to the replacement code; a longer chain fixes what it comes from.
_DEPTH = 40


class OpenConstant(Constant):
    """A constant that is fixed by `pin` when its value is asked for; `parts` are what `function` makes it from.

    leaves: the constants with a place of their own that it is made from in the end.
    """

    _real: Any
    _pin: Callable[[], None] | None = None
    function: Callable[..., Any] | None = None
    parts: tuple[Constant, ...] = ()
    depth: int = state()
    leaves: tuple[OpenConstant, ...] = state()
    words = "{0._real.__class__.__name__} {0._real!r}"

    def __post_init__(self) -> None:
        inner = [part for part in self.parts if isinstance(part, OpenConstant)]
        self.depth = 1 + max((part.depth for part in inner), default=0)
        leaves = {id(leaf): leaf for part in inner for leaf in part.leaves}
        self.leaves = tuple(leaves.values()) if self.parts else (self,)

    @property
    def value(self) -> Any:  # type: ignore[override]
        """The value; what it comes from is fixed."""
        for leaf in self.leaves:
            if leaf._pin is not None:
                leaf._pin()
                leaf._pin = None
        return self._real

    @property
    def is_open(self) -> bool:
        """Whether nothing fixes the value yet."""
        return any(leaf._pin is not None for leaf in self.leaves)

    def python_type(self) -> type:
        return type(self._real)

    def stand_in(self) -> Any:
        return self._real

    def reconstruct(self, emitter: Emitter) -> None:
        emitter.call_with(self.function, *self.parts)

    def __repr__(self) -> str:
        return f"<OpenConstant {self._real!r}>"


class OpenSymbol(OpenConstant):
    """A symbol among the parts of an open constant: asking for the value fixes it."""

    __slots__ = ("symbol",)

    def __init__(self, symbol: SymbolicNumber) -> None:
        super().__init__(symbol.number.node.hint, pin=lambda: symbol.value)
        self.symbol = symbol

    def reconstruct(self, emitter: Emitter) -> None:
        emitter.load(self.symbol)


def is_readable(source: Source) -> bool:
    """Whether replacement code can read what is at `source`."""
    match source:
        case Local() | Global() | HandleSource():
            return True
        case Cell(_, inner):
            return inner is None or is_readable(inner)
        case Attribute(inner, _) | Item(inner, _) | ValueAt(inner, _):
            return is_readable(inner)
        case Reading(function, inner) if function == UPCOMING and inner is not None:
            return is_readable(inner)
    return False


def derive(function: Callable[..., Any], *parts: Constant) -> Constant | None:
    """`function(*parts)`, which raises for no values of these kinds; None where nothing is open, or too much."""
    if not any(part.is_open for part in parts):
        return None
    parts = tuple([OpenSymbol(part) if isinstance(part, SymbolicNumber) else part for part in parts])
    made = OpenConstant(function(*map(_peek, parts)), function=function, parts=parts)
    return made if made.depth <= _DEPTH else None


def open_binary(function: Callable[[Any, Any], Any], symbol: str, left: Constant, right: Constant) -> Constant | None:
    """`left symbol right` of plain numbers, and sums of texts; None: it takes the values."""
    kinds = {left.python_type(), right.python_type()}
    if kinds <= _NUMBERS:
        is_known = not right.is_open and not is_symbolic(right)
        divides = symbol in _DIVISIONS and is_known and right.value != 0
        return derive(function, left, right) if divides or symbol in _TOTAL else None
    return derive(function, left, right) if kinds == {str} and symbol == "+" else None


def as_open(value: Value) -> Constant | None:
    """The constant that a value is, a size as one that stays open; None for others, for what data decides and for
    the ragged size of a nested tensor, which has no number."""
    if isinstance(value, SymbolicNumber):
        return None if value.is_unbacked or isinstance(value, NestedInt) else OpenSymbol(value)
    return value if isinstance(value, Constant) else None


def open_format(value: Value, spec: str) -> Constant | None:
    """`format(value, spec)`; None: it takes the value. ("c" refuses some numbers.)"""
    value = as_open(value)
    if value is None or not value.is_open or spec.endswith("c"):
        return None
    try:
        format(_peek(value), spec)
    except ValueError:
        return None
    return derive(format, value, Constant(spec))


def open_join(parts: list[Value]) -> Constant | None:
    """The texts `parts` one behind the other; None: they take the values."""
    return derive(_joined, *parts) if all(isinstance(part, Constant) for part in parts) else None  # type: ignore[arg-type]


def _joined(*texts: str) -> str:
    return "".join(texts)


def _peek(value: Constant) -> Any:
    """The number or text of this call, which fixes nothing."""
    return value._real if isinstance(value, OpenConstant) else value.value


def refuse_changing(source: Source, real: Any, what: str = "") -> NoReturn:
    """Refuse to fix what is at `source`, or `what` of it."""
    now = "" if what else f" (now {real!r})"
    raise ChangingNumber(f"{what}{print_source(source)} differs from call to call{now}")
