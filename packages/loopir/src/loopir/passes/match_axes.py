"""Correspondence between the axes of two nests, found from pairs of accesses that must name the same element."""

from __future__ import annotations

from loopir.schedule import Names
from stagewire import index as ix
from stagewire.expr import Dim
from stagewire.loop import Axis, AxisAtom, Index, Term
from stagewire.sizes import divides, estimate

Digit = tuple[str, Dim]


class Side:
    """The axes of one nest, split as the correspondence needs."""

    def __init__(self, sizes: dict[str, Dim]) -> None:
        self.sizes = sizes
        self.split: dict[str, tuple[Axis, Axis]] = {}

    def copy(self) -> Side:
        """An independent copy."""
        other = Side(dict(self.sizes))
        other.split = dict(self.split)
        return other

    def resolve(self, index: Index) -> Index:
        """The index over the axes as they are split now."""
        if not self.split:
            return index
        while index.terms:
            found = [name for name in ix.axes_of(index) if name in self.split]
            if not found:
                break
            index = ix.substitute(index, {name: self.index_of(name) for name in found}, self.sizes)
        return index

    def index_of(self, name: str) -> Index:
        """A split axis as an index over its two parts."""
        high, low = self.split[name]
        return ix.add(ix.scale(ix.axis(high.name), low.size), ix.axis(low.name))

    def cut(self, name: str, low_size: Dim, names: Names) -> tuple[Digit, Digit]:
        """Split an axis into (high, low) parts; `low_size` divides its size."""
        size = self.sizes[name]
        high, low = Axis(names("a"), size // low_size), Axis(names("a"), low_size)
        self.split[name] = (high, low)
        self.sizes[high.name] = high.size
        self.sizes[low.name] = low.size
        return (high.name, size // low_size), (low.name, low_size)

    def parts(self, axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
        """The axes as they are split now, in row-major order."""
        if not self.split:
            return axes
        result: list[Axis] = []
        for axis in axes:
            result.extend(self.parts(self.split[axis.name]) if axis.name in self.split else (axis,))
        return tuple(result)

    def mapping(self) -> dict[str, Index]:
        """Every split axis as an index over final axes."""
        return {name: self.resolve(ix.axis(name)) for name in self.split}


class Correspondence:
    """`bound` maps axes of the right nest to axes of the left one; both sides may get split on the way."""

    def __init__(self, left: Side, right: Side, names: Names) -> None:
        self.left = left
        self.right = right
        self.names = names
        self.bound: dict[str, str] = {}
        self.used: set[str] = set()

    def copy(self) -> Correspondence:
        """An independent copy, for a trial."""
        other = Correspondence(self.left.copy(), self.right.copy(), self.names)
        other.bound = dict(self.bound)
        other.used = set(self.used)
        return other

    def unify(self, left: tuple[Index, ...], right: tuple[Index, ...]) -> bool:
        """Bind axes so that the two places are the same element at corresponding points; False if that fails
        (the correspondence is then spoilt: try on a copy)."""
        return all(self._coordinate(a, b) for a, b in zip(left, right, strict=True))

    def _coordinate(self, left: Index, right: Index) -> bool:
        a, b = self.left.resolve(left), self.right.resolve(right)
        if a.constant != b.constant:
            return False
        if not a.terms or not b.terms:
            return not a.terms and not b.terms
        if len(a.terms) == len(b.terms) == 1 and self._one_axis(a.terms[0], b.terms[0]):
            return self.bind(a.terms[0].atom.name, b.terms[0].atom.name)  # type: ignore[union-attr]
        digits_a, digits_b = _digits(a, self.left.sizes), _digits(b, self.right.sizes)
        if digits_a is None or digits_b is None or digits_a[0] != digits_b[0]:
            return (
                all(x in self.bound for x in ix.axes_of(b))
                and ix.substitute(b, {x: ix.axis(self.bound[x]) for x in ix.axes_of(b)}, self.left.sizes) == a
            )
        return self._walk(digits_a[1], digits_b[1])

    def _one_axis(self, left: Term, right: Term) -> bool:
        """Whether both are an axis of one size, times one number."""
        a, b = left.atom, right.atom
        if a.__class__ is not AxisAtom or b.__class__ is not AxisAtom or left.coefficient != right.coefficient:
            return False
        return self.left.sizes[a.name] == self.right.sizes[b.name]  # type: ignore[union-attr]

    def _walk(self, a: list[Digit], b: list[Digit]) -> bool:
        """Bind digits from the fastest to the slowest, splitting the larger of two unequal ones."""
        while a and b:
            (left, m), (right, n) = a.pop(), b.pop()
            if m == n:
                if not self.bind(left, right):
                    return False
            elif m == 0 or n == 0:
                return False
            elif divides(m, n) and right not in self.bound:
                high, low = self.right.cut(right, m, self.names)
                b.append(high)
                if not self.bind(left, low[0]):
                    return False
            elif divides(n, m) and left not in self.used:
                high, low = self.left.cut(left, n, self.names)
                a.append(high)
                if not self.bind(low[0], right):
                    return False
            else:
                return False
        return not a and not b

    def bind(self, left: str, right: str) -> bool:
        """Let an axis of the right nest be one of the left; False where either is bound otherwise."""
        if right in self.bound:
            return self.bound[right] == left
        if left in self.used:
            return False
        self.bound[right] = left
        self.used.add(left)
        return True


def _digits(index: Index, sizes: dict[str, Dim]) -> tuple[Dim, list[Digit]] | None:
    """(unit, digits slowest first) of an index that counts in mixed radix: unit*(... + size2*(axis1) + axis2)."""
    steps = ix.affine(index)
    if steps is None:
        return None
    if len(steps) == 1:
        ((name, unit),) = steps.items()
        return unit, [(name, sizes[name])]
    if not all(estimate(step) > 0 for step in steps.values()):
        return None
    ways = sorted(steps.items(), key=lambda way: estimate(way[1]))
    unit = step = ways[0][1]
    digits: list[Digit] = []
    for name, moved in ways:
        if moved != step:
            return None
        digits.append((name, sizes[name]))
        step = step * sizes[name]
    return unit, digits[::-1]
