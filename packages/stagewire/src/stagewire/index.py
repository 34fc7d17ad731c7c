"""Index arithmetic on `stagewire.loop.Index`: sums, products, floor division and remainder, simplified by ranges; what
an index depends on, and how it moves along an axis.

What does arithmetic returns canonical indices: terms merged, sorted, without zeros; so equality is structural equality.
`sizes` gives the number of iterations of each axis (an axis runs from 0, and where an index is looked at there are
points: no size is 0). Sizes, coefficients and constants may be symbolic: what is simplified holds for all their values.

>>> i, j = axis("i"), axis("j")
>>> str_index(floor_div(add(scale(i, 8), j), 8, {"i": 4, "j": 8}))
'i'
>>> str_index(mod(add(scale(i, 8), j), 8, {"i": 4, "j": 8}))
'j'
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

from stagewire.bounds import Ranges
from stagewire.expr import Dim, Expr
from stagewire.loop import Atom, Axis, AxisAtom, FloorDivAtom, Index, ModAtom, Term, ValueAtom
from stagewire.sizes import at_least, divide, divides, estimate, lower_bounds
from stagewire.types import contiguous_stride

ZERO = Index()
Sizes = Mapping[str, Dim]
_NAMED = frozenset({AxisAtom, ValueAtom})


def constant(value: Dim) -> Index:
    """The index `value`."""
    return Index(value) if value != 0 else ZERO


def axis(name: str) -> Index:
    """The current value of a loop axis."""
    return Index(0, (Term(1, AxisAtom(name)),))


def value(name: str) -> Index:
    """An integer SSA value used as an index."""
    return Index(0, (Term(1, ValueAtom(name)),))


def add(a: Index, b: Index) -> Index:
    """a + b."""
    if not b.terms:
        return a if b.constant == 0 else Index(a.constant + b.constant, a.terms)
    if not a.terms:
        return b if a.constant == 0 else Index(a.constant + b.constant, b.terms)
    return _canonical(a.constant + b.constant, (*a.terms, *b.terms))


def shift(a: Index, offset: Dim) -> Index:
    """a + offset."""
    return Index(a.constant + offset, a.terms) if offset != 0 else a


def scale(a: Index, factor: Dim) -> Index:
    """a * factor."""
    if factor == 1:
        return a
    if factor == 0:
        return ZERO
    return Index(a.constant * factor, tuple([Term(t.coefficient * factor, t.atom) for t in a.terms]))


def total(parts: Iterable[Index]) -> Index:
    """The sum of several indices, with n//d and n%d recombined to n where both occur."""
    offset: Dim = 0
    terms: list[Term] = []
    for part in parts:
        offset = offset + part.constant
        terms.extend(part.terms)
    return _recombine(_canonical(offset, terms))


def linear(coordinates: Sequence[Index], stride: Sequence[Dim], offset: Dim = 0) -> Index:
    """The element at `coordinates` under `stride`."""
    return total([Index(offset), *[scale(one, step) for one, step in zip(coordinates, stride, strict=True)]])


def row_major(axes: Sequence[Axis]) -> Index:
    """How many points of a loop nest come before one."""
    long = [one for one in axes if one.size != 1]
    return linear([axis(one.name) for one in long], contiguous_stride(tuple([one.size for one in long])))


def floor_div(a: Index, divisor: Dim, sizes: Sizes) -> Index:
    """a // divisor (divisor > 0)."""
    if divisor == 1:
        return a
    whole, rest = _split(a, divisor)
    quotient = _one_quotient(rest, divisor, sizes)
    if quotient is not None:
        return shift(whole, quotient)
    rest, divisor = _drop_low_part(rest, divisor, sizes)
    if divisor == 1:
        return add(whole, rest)
    return add(whole, _floor_div_atom(rest, divisor, sizes))


def mod(a: Index, divisor: Dim, sizes: Sizes) -> Index:
    """a % divisor (divisor > 0; the result is not negative)."""
    if divisor == 1:
        return ZERO
    _, rest = _split(a, divisor)
    quotient = _one_quotient(rest, divisor, sizes)
    if quotient is not None:
        return shift(rest, -quotient * divisor)
    high, small = _drop_low_part(rest, divisor, sizes)
    if small != divisor:  # rest = factor * high + low with 0 <= low < factor
        factor = divisor // small
        low = add(rest, scale(high, -factor))
        return add(scale(mod(high, small, sizes), factor), low)
    match rest:
        case Index(0, (Term(1, ModAtom(inner, outer)),)) if divides(divisor, outer):
            return mod(inner, divisor, sizes)
    return Index(0, (Term(1, ModAtom(rest, divisor)),))


def delinear(position: Index, shape: Sequence[Dim], sizes: Sizes) -> tuple[Index, ...]:
    """The coordinates of the row-major `position` in a tensor of `shape`."""
    if 0 in shape:
        return (ZERO,) * len(shape)
    coordinates: list[Index] = []
    for size in reversed(shape[1:]):
        coordinates.append(mod(position, size, sizes) if size != 1 else ZERO)
        position = floor_div(position, size, sizes)
    if shape:
        coordinates.append(position if shape[0] != 1 else ZERO)
    return tuple(reversed(coordinates))


def reshape(
    indices: tuple[Index, ...], shape: tuple[Dim, ...], target: tuple[Dim, ...], sizes: Sizes
) -> tuple[Index, ...]:
    """Coordinates in `target` of the element at `indices` of `shape`, by groups of dimensions of equal product."""
    result: list[Index] = []
    i = j = 0
    while i < len(shape) or j < len(target):
        first_i, first_j = i, j
        left: Dim = 1
        right: Dim = 1
        while True:
            if i < len(shape) and (j == len(target) or _take_left(left, right)):
                left, i = left * shape[i], i + 1
            elif j < len(target):
                right, j = right * target[j], j + 1
            if left == right and i > first_i and (j > first_j or j == len(target)):
                break
            if left == right and i == len(shape) and j > first_j:
                break
            if i == len(shape) and j == len(target):
                break
        group = indices[first_i:i]
        if shape[first_i:i] == target[first_j:j]:
            result.extend(group)
            continue
        position = linear(group, contiguous_stride(shape[first_i:i]))
        result.extend(delinear(position, target[first_j:j], sizes))
    return tuple(result)


def _take_left(left: Dim, right: Dim) -> bool:
    if isinstance(left, int) and isinstance(right, int):
        return left <= right
    return divides(left, right)


def substitute(a: Index, mapping: Mapping[str, Index], sizes: Sizes) -> Index:
    """Replace axes and values by indices; `sizes` are those of the axes in the replacements."""
    terms = a.terms
    if not mapping or not terms or not mentions(a, mapping):
        return a
    parts = [Index(a.constant)] if a.constant != 0 else []
    for term in terms:
        parts.append(scale(_substitute_atom(term.atom, mapping, sizes), term.coefficient))
    return parts[0] if len(parts) == 1 else total(parts)


def mentions(a: Index, names: Container[str]) -> bool:
    """Whether an axis or a value of one of the names occurs anywhere in the index."""
    for term in a.terms:
        atom = term.atom
        if atom.__class__ in _NAMED:
            if atom.name in names:
                return True
        elif mentions(atom.numerator, names):  # type: ignore[union-attr]
            return True
    return False


def rename(a: Index, names: Mapping[str, str]) -> Index:
    """The same index over other names of axes and values (terms keep their order)."""
    return Index(a.constant, tuple([Term(t.coefficient, _rename_atom(t.atom, names)) for t in a.terms]))


def _rename_atom(atom: Atom, names: Mapping[str, str]) -> Atom:
    if isinstance(atom, AxisAtom | ValueAtom):
        return atom.__class__(names.get(atom.name, atom.name))
    return atom.__class__(rename(atom.numerator, names), atom.divisor)


def inline(a: Index, mapping: Mapping[str, Index]) -> Index:
    """Replace axes and values by indices and simplify nothing: terms keep their order."""
    constant, terms = a.constant, []
    for term in a.terms:
        atom = term.atom
        if atom.__class__ not in _NAMED:
            inner = inline(atom.numerator, mapping)  # type: ignore[union-attr]
            terms.append(Term(term.coefficient, atom.__class__(inner, atom.divisor)))  # type: ignore[union-attr,call-arg,arg-type]
        elif (other := mapping.get(atom.name)) is None:
            terms.append(term)
        else:
            constant = constant + term.coefficient * other.constant
            terms.extend([Term(term.coefficient * one.coefficient, one.atom) for one in other.terms])
    return Index(constant, tuple(terms))


def steps(a: Index) -> dict[str, Dim]:
    """By axis, how far a step along it moves the index, quotients and remainders apart.

    >>> steps(add(scale(axis("i"), 12), axis("j")))
    {'i': 12, 'j': 1}
    """
    found: dict[str, Dim] = {}
    for term in a.terms:
        if term.atom.__class__ is AxisAtom:
            name = term.atom.name
            found[name] = found[name] + term.coefficient if name in found else term.coefficient
    return found


def coefficient(a: Index, axis: str) -> Dim | None:
    """How far a step along `axis` moves the index; None if that differs from point to point."""
    if any(term.atom.__class__ not in _NAMED and mentions(Index(0, (term,)), (axis,)) for term in a.terms):
        return None
    return steps(a).get(axis, 0)


def affine(a: Index) -> dict[str, Dim] | None:
    """`steps` of an index that is a sum of axes; None where it is more."""
    return steps(a) if all(term.atom.__class__ is AxisAtom for term in a.terms) else None


def may_merge(a: Index, outer: str, inner: str, inner_size: Dim) -> bool:
    """Whether (outer, inner) move the index as one axis of size outer_size * inner_size would."""
    found = steps(a)
    if found.get(outer, 0) != found.get(inner, 0) * inner_size:
        return False
    nested = [t.atom.numerator for t in a.terms if isinstance(t.atom, FloorDivAtom | ModAtom)]
    return all(may_merge(numerator, outer, inner, inner_size) for numerator in nested)


def evaluate(a: Index, named: Callable[[Any], Any], size: Callable[[Any], Any] = int) -> Any:
    """The value of an index where its axes and values are `named(atom)`: integers, or arrays of them."""
    total = size(a.constant)
    for term in a.terms:
        atom = term.atom
        if atom.__class__ in _NAMED:
            worth = named(atom)
        else:
            numerator, divisor = evaluate(atom.numerator, named, size), size(atom.divisor)  # type: ignore[union-attr]
            worth = numerator // divisor if atom.__class__ is FloorDivAtom else numerator % divisor
        total = total + worth * size(term.coefficient)
    return total


def range_of(a: Index, sizes: Sizes) -> tuple[int, int] | None:
    """`bounds_of` that are numbers; None where they are not."""
    bounds = bounds_of(a, sizes)
    if bounds is None or not isinstance(bounds[0], int) or not isinstance(bounds[1], int):
        return None
    return bounds[0], bounds[1]


def lies_within(a: Index, start: Dim, stop: Dim, sizes: Sizes) -> bool:
    """Whether start <= a < stop at every point, as far as that is seen.

    >>> from stagewire.expr import symbol
    >>> lies_within(add(scale(axis("i"), 8), axis("j")), 0, symbol("n") * 8, {"i": symbol("n"), "j": 8})
    True
    """
    bounds = bounds_of(a, sizes)
    if bounds is None:
        return False
    low, high = bounds
    lower = lower_bounds(sizes.values())
    return at_least(low - start, 0, lower) and at_least(stop - 1 - high, 0, lower)


def bounds_of(a: Index, sizes: Sizes) -> tuple[Dim, Dim] | None:
    """The least and greatest value, sizes being what they are; None for indirect indices, and where a sign is open."""
    low = high = a.constant
    lower: Ranges | None = None
    for term in a.terms:
        bounds = _atom_bounds(term.atom, sizes)
        if bounds is None:
            return None
        if lower is None and isinstance(term.coefficient, Expr):
            lower = lower_bounds(sizes.values())
        first, last = bounds[0] * term.coefficient, bounds[1] * term.coefficient
        if at_least(term.coefficient, 0, lower or ()):
            low, high = low + first, high + last
        elif at_least(-term.coefficient, 0, lower or ()):
            low, high = low + last, high + first
        else:
            return None
    return low, high


def _atom_bounds(atom: Atom, sizes: Sizes) -> tuple[Dim, Dim] | None:
    match atom:
        case AxisAtom(name):
            return (0, sizes[name] - 1) if name in sizes else None
        case ValueAtom():
            return None
        case ModAtom(_, divisor):
            return 0, divisor - 1
        case FloorDivAtom(numerator, divisor):
            inner = bounds_of(numerator, sizes)
            if inner is None:
                return None
            ends = [_floor(end, divisor) for end in inner]
            return None if ends[0] is None or ends[1] is None else (ends[0], ends[1])


def _floor(value: Dim, divisor: Dim) -> Dim | None:
    """value // divisor where that is a polynomial (divisor > 0)."""
    quotient, rest = _parts(value, divisor)
    if isinstance(rest, int) and isinstance(divisor, int):
        return quotient + rest // divisor
    return quotient + rest if rest in (0, -1) else None


def _one_quotient(a: Index, divisor: Dim, sizes: Sizes) -> int | None:
    """a // divisor where that is one number at all points."""
    bounds = range_of(a, sizes)
    if bounds is not None and isinstance(divisor, int):
        low, high = bounds[0] // divisor, bounds[1] // divisor
        return low if low == high else None
    return 0 if lies_within(a, 0, divisor, sizes) else None


def single_axis(a: Index) -> str | None:
    """The axis that `a` is exactly, or None."""
    if len(a.terms) == 1 and a.constant == 0:
        term = a.terms[0]
        if term.atom.__class__ is AxisAtom and term.coefficient == 1:
            return term.atom.name
    return None


def atoms_of(a: Index) -> Iterator[Atom]:
    """Every atom, nested ones too."""
    for term in a.terms:
        yield term.atom
        if isinstance(term.atom, FloorDivAtom | ModAtom):
            yield from atoms_of(term.atom.numerator)


def axes_of(a: Index) -> set[str]:
    """The names of the axes that `a` depends on directly."""
    return _collect(a.terms, AxisAtom, set())


def values_of(a: Index) -> set[str]:
    """The names of the SSA values that `a` depends on."""
    return _collect(a.terms, ValueAtom, set())


def add_values(a: Index, found: set[str]) -> None:
    """Put the names of the SSA values that `a` depends on into `found`."""
    _collect(a.terms, ValueAtom, found)


def is_plain(a: Index) -> bool:
    """Whether `a` is a sum of axes and values: no quotient, no remainder."""
    return all(term.atom.__class__ in _NAMED for term in a.terms)


def is_static(a: Index) -> bool:
    """Whether constant, coefficients and divisors are numbers, not symbolic sizes."""
    inner = [term.atom for term in a.terms if term.atom.__class__ not in _NAMED]
    dims = [a.constant, *[term.coefficient for term in a.terms], *[atom.divisor for atom in inner]]  # type: ignore[union-attr]
    return all(isinstance(dim, int) for dim in dims) and all(is_static(atom.numerator) for atom in inner)  # type: ignore[union-attr]


def has_values(a: Index) -> bool:
    """Whether `a` depends on an SSA value."""
    return any(atom.__class__ is ValueAtom for atom in atoms_of(a))


def _collect(terms: tuple[Term, ...], kind: type, found: set[str]) -> set[str]:
    for term in terms:
        atom = term.atom
        if atom.__class__ is kind:
            found.add(atom.name)  # type: ignore[union-attr]
        elif atom.__class__ not in _NAMED:
            _collect(atom.numerator.terms, kind, found)  # type: ignore[union-attr]
    return found


def str_index(a: Index) -> str:
    """Text such as "3*i + j//4 + 1"."""
    parts = [_str_term(term) for term in a.terms]
    if a.constant != 0 or not parts:
        parts.append(str(a.constant))
    return " + ".join(parts).replace("+ -", "- ")


def _str_term(term: Term) -> str:
    match term.atom:
        case AxisAtom(name) | ValueAtom(name):
            text = name
        case FloorDivAtom(numerator, divisor):
            text = f"{_bracket(numerator)}//{divisor}"
        case ModAtom(numerator, divisor):
            text = f"{_bracket(numerator)}%{divisor}"
    if term.coefficient == 1:
        return text
    return f"{term.coefficient}*{text if isinstance(term.atom, AxisAtom | ValueAtom) else f'({text})'}"


def _bracket(a: Index) -> str:
    text = str_index(a)
    return text if single_axis(a) is not None or text.isidentifier() else f"({text})"


def _key(atom: Atom) -> tuple[object, ...]:
    kind = atom.__class__
    if kind in _NAMED:
        name = atom.name  # type: ignore[union-attr]
        return (0 if kind is AxisAtom else 1, len(name), name)
    return (2 if kind is FloorDivAtom else 3, 0, str_index(Index(0, (Term(1, atom),))))


def _canonical(offset: Dim, terms: Sequence[Term]) -> Index:
    if len(terms) < 2:
        return Index(offset, tuple(terms))
    merged: dict[Atom, Dim] = {}
    for term in terms:
        atom = term.atom
        merged[atom] = merged[atom] + term.coefficient if atom in merged else term.coefficient
    if len(merged) == len(terms):
        kept = list(terms)
    else:
        kept = [Term(c, atom) for atom, c in merged.items() if c != 0]
    kept.sort(key=lambda term: _key(term.atom))
    return Index(offset, tuple(kept))


def _recombine(a: Index) -> Index:
    """k*m*(n//m) + k*(n%m) is k*n."""
    if len(a.terms) < 2 or is_plain(a):
        return a
    coefficients = {t.atom: t.coefficient for t in a.terms}
    for term in a.terms:
        if not isinstance(term.atom, ModAtom):
            continue
        quotient = floor_div(term.atom.numerator, term.atom.divisor, {})
        if quotient.constant != 0 or len(quotient.terms) != 1 or quotient.terms[0].coefficient != 1:
            continue
        partner = quotient.terms[0].atom
        if coefficients.get(partner) == term.coefficient * term.atom.divisor:
            rest = [t for t in a.terms if t.atom not in (term.atom, partner)]
            return total([Index(a.constant, tuple(rest)), scale(term.atom.numerator, term.coefficient)])
    return a


def _split(a: Index, divisor: Dim) -> tuple[Index, Index]:
    """a = divisor * whole + rest, whole taking every term whose coefficient is a multiple of the divisor."""
    whole, rest = [], []
    for term in a.terms:
        if divides(divisor, term.coefficient):
            whole.append(Term(term.coefficient // divisor, term.atom))
        else:
            rest.append(term)
    quotient, remainder = _parts(a.constant, divisor)
    return Index(quotient, tuple(whole)), Index(remainder, tuple(rest))


def _parts(value: Dim, divisor: Dim) -> tuple[Dim, Dim]:
    """(quotient, rest) of a size: `divmod` of numbers, else `divide`."""
    if isinstance(value, int) and isinstance(divisor, int):
        return divmod(value, divisor)
    return divide(value, divisor) if value != 0 else (0, 0)


def _drop_low_part(a: Index, divisor: Dim, sizes: Sizes) -> tuple[Index, Dim]:
    """(g*x + low) // (g*e) is x // e where 0 <= low < g: the x and e for the greatest such g, else a and divisor."""
    candidates = {abs(t.coefficient) if isinstance(t.coefficient, int) else t.coefficient for t in a.terms}
    for g in sorted(candidates, key=lambda dim: (-estimate(dim), str(dim))):
        if g in (0, 1) or not divides(g, divisor):
            continue
        high = tuple(Term(t.coefficient // g, t.atom) for t in a.terms if divides(g, t.coefficient))
        quotient, remainder = _parts(a.constant, g)
        low = Index(remainder, tuple(t for t in a.terms if not divides(g, t.coefficient)))
        if lies_within(low, 0, g, sizes):
            return Index(quotient, high), divisor // g
    return a, divisor


def _floor_div_atom(rest: Index, divisor: Dim, sizes: Sizes) -> Index:
    match rest:
        case Index(0, (Term(1, FloorDivAtom(inner, first)),)):
            return floor_div(inner, first * divisor, sizes)
        case Index(0, (Term(1, ModAtom(inner, outer)),)) if divides(divisor, outer):
            return mod(floor_div(inner, divisor, sizes), outer // divisor, sizes)
    return Index(0, (Term(1, FloorDivAtom(rest, divisor)),))


def _substitute_atom(atom: Atom, mapping: Mapping[str, Index], sizes: Sizes) -> Index:
    if atom.__class__ in _NAMED:
        found = mapping.get(atom.name)
        return found if found is not None else Index(0, (Term(1, atom),))
    numerator = substitute(atom.numerator, mapping, sizes)  # type: ignore[union-attr]
    if atom.__class__ is FloorDivAtom:
        return floor_div(numerator, atom.divisor, sizes)
    return mod(numerator, atom.divisor, sizes)  # type: ignore[union-attr]
