"""What an index does along one axis, and axes that can be walked as one."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from codegen.uses import values_of
from stagewire.expr import Dim
from stagewire.loop import AxisAtom, FloorDivAtom, Index, ModAtom, Term, ValueAtom


def coefficient(index: Index, axis: str) -> Dim | None:
    """By how many elements a step along `axis` moves; None if that is not constant.

    >>> coefficient(Index(0, (Term(12, AxisAtom("i")), Term(1, AxisAtom("j")))), "i")
    12
    """
    total: Dim = 0
    for term in index.terms:
        match term.atom:
            case AxisAtom(name) if name == axis:
                total = total + term.coefficient
            case FloorDivAtom(numerator) | ModAtom(numerator) if mentions(numerator, axis):
                return None
    return total


def mentions(index: Index, axis: str) -> bool:
    """Whether `axis` occurs anywhere in the index."""
    for term in index.terms:
        match term.atom:
            case AxisAtom(name) if name == axis:
                return True
            case FloorDivAtom(numerator) | ModAtom(numerator) if mentions(numerator, axis):
                return True
    return False


def has_value(index: Index) -> bool:
    """Whether a loaded or computed value takes part (an indirect access)."""
    return any(True for _ in values_of(index))


def can_merge(index: Index, outer: str, inner: str, inner_size: Dim) -> bool:
    """Whether (outer, inner) move through this index as one axis of size outer_size * inner_size would."""
    step, whole = 0, 0
    for term in index.terms:
        match term.atom:
            case AxisAtom(name) if name == outer:
                whole = whole + term.coefficient
            case AxisAtom(name) if name == inner:
                step = step + term.coefficient
            case FloorDivAtom(numerator) | ModAtom(numerator):
                if not can_merge(numerator, outer, inner, inner_size):
                    return False
    return whole == step * inner_size


def merge(index: Index, outer: str, inner: str, merged: str) -> Index:
    """The index over `merged` in place of the two axes (where `can_merge` holds)."""

    def rename(term: Term) -> Iterator[Term]:
        match term.atom:
            case AxisAtom(name) if name == outer:
                return
            case AxisAtom(name) if name == inner:
                yield Term(term.coefficient, AxisAtom(merged))
            case FloorDivAtom(numerator, divisor):
                yield Term(term.coefficient, FloorDivAtom(merge(numerator, outer, inner, merged), divisor))
            case ModAtom(numerator, divisor):
                yield Term(term.coefficient, ModAtom(merge(numerator, outer, inner, merged), divisor))
            case _:
                yield term

    return Index(index.constant, tuple(new for term in index.terms for new in rename(term)))


def bounds(index: Index, sizes: dict[str, Dim]) -> tuple[int, int] | None:
    """Least and greatest value over all points, where sizes are numbers and no value takes part."""
    if not isinstance(index.constant, int):
        return None
    low = high = index.constant
    for term in index.terms:
        span = _atom_bounds(term.atom, sizes)
        if span is None or not isinstance(term.coefficient, int):
            return None
        ends = (term.coefficient * span[0], term.coefficient * span[1])
        low, high = low + min(ends), high + max(ends)
    return low, high


def _atom_bounds(atom: object, sizes: dict[str, Dim]) -> tuple[int, int] | None:
    match atom:
        case AxisAtom(name):
            size = sizes.get(name)
            return (0, max(size - 1, 0)) if isinstance(size, int) else None
        case ModAtom(_, divisor):
            return (0, divisor - 1) if isinstance(divisor, int) else None
        case FloorDivAtom(numerator, divisor):
            inner = bounds(numerator, sizes)
            if inner is None or not isinstance(divisor, int):
                return None
            return inner[0] // divisor, inner[1] // divisor
    return None


def index_text(
    index: Index,
    axis_text: Callable[[str], str],
    value_text: Callable[[str], str],
    dim_text: Callable[[Dim], str],
    sizes: dict[str, Dim],
) -> str:
    """The index as a C++ expression of type i64."""

    def of(part: Index) -> str:
        texts = [_scaled(dim_text(term.coefficient), atom(term.atom)) for term in part.terms if term.coefficient != 0]
        if part.constant != 0 or not texts:
            texts.append(dim_text(part.constant))
        return " + ".join(texts)

    def atom(one: object) -> str:
        match one:
            case AxisAtom(name):
                return axis_text(name)
            case ValueAtom(name):
                return f"(i64){value_text(name)}"
            case FloorDivAtom(numerator, divisor):
                return division(numerator, divisor, "/", "sf_floor_div_i64")
            case ModAtom(numerator, divisor):
                return division(numerator, divisor, "%", "sf_remainder_i64")
        raise AssertionError(one)

    def division(numerator: Index, divisor: Dim, operator: str, general: str) -> str:
        span = bounds(numerator, sizes)
        if span is not None and isinstance(divisor, int) and span[0] >= 0 and divisor > 0 and span[1] < 2**31:
            # 32-bit unsigned division by a constant vectorises, 64-bit does not
            return f"(i64)((u32)({of(numerator)}) {operator} {divisor}u)"
        return f"{general}({of(numerator)}, {dim_text(divisor)})"

    return of(index)


def _scaled(factor: str, text: str) -> str:
    return text if factor == "1" else f"{factor} * {text}"
