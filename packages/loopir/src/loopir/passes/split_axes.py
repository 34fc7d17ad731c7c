"""Pass: split axes that are only seen through quotients and remainders, so that flattened indices become affine."""

from __future__ import annotations

from dataclasses import dataclass

from loopir.passes.split_nests import split_nests
from loopir.schedule import Names, Schedule, axis_sizes, substitute_axes
from stagewire import index as ix
from stagewire.expr import Dim
from stagewire.loop import Axis, FloorDivAtom, Index, Kernel, ModAtom
from stagewire.sizes import divides, estimate
from stagewire.statements import indices, statements_of


@dataclass(frozen=True)
class SplitAxes:
    """Before: i//8 and i%8 for an axis i of 32. After: axes a of 4 and b of 8, i = 8*a + b, no quotient left.

    Axes whose divisors do not divide one another and the size stay.
    """

    name = "split_axes"

    def run(self, schedule: Schedule) -> Schedule:
        return split_nests(schedule, lambda nest, state: (split_nest(nest, state.names),))


def split_nest(nest: Kernel, names: Names) -> Kernel:
    """The nest with every splittable axis split."""
    cuts = _cuts(nest)
    if not cuts:
        return nest
    sizes = axis_sizes(nest)
    mapping: dict[str, Index] = {}
    replacement: dict[str, tuple[Axis, ...]] = {}
    for name, found in cuts.items():
        digits = _digits(sizes[name], found)
        if digits is not None:
            axes = tuple(Axis(names("a"), size) for size, _ in digits)
            replacement[name] = axes
            mapping[name] = ix.total(ix.scale(ix.axis(a.name), w) for a, (_, w) in zip(axes, digits, strict=True))
    return substitute_axes(nest, mapping, replacement) if mapping else nest


def _cuts(nest: Kernel) -> dict[str, set[Dim]]:
    cuts: dict[str, set[Dim]] = {}
    for statement in statements_of(nest):
        for index in indices(statement):
            if ix.is_plain(index):
                continue
            for atom in ix.atoms_of(index):
                match atom:
                    case ModAtom(Index(0, (only,)), size) if only.coefficient == 1 and isinstance(
                        only.atom, FloorDivAtom
                    ):
                        inner = ix.single_axis(only.atom.numerator)
                        found = {only.atom.divisor, only.atom.divisor * size}
                    case ModAtom(numerator, divisor) | FloorDivAtom(numerator, divisor):
                        inner, found = ix.single_axis(numerator), {divisor}
                    case _:
                        continue
                if inner is not None:
                    cuts.setdefault(inner, set()).update(found)
    return cuts


def _digits(size: Dim, cuts: set[Dim]) -> list[tuple[Dim, Dim]] | None:
    """(size, weight) of the new axes, slowest first, or None if the cuts do not nest."""
    weights: list[Dim] = sorted(
        {1, *(cut for cut in cuts if _is_below(cut, size))}, key=lambda w: (estimate(w), str(w))
    )
    digits: list[tuple[Dim, Dim]] = []
    for weight, above in zip(weights, [*weights[1:], size], strict=True):
        if not divides(weight, above):
            return None
        digits.append((above // weight, weight))
    return digits[::-1] if len(digits) > 1 else None


def _is_below(cut: Dim, size: Dim) -> bool:
    if isinstance(cut, int) and isinstance(size, int):
        return cut < size
    return cut != size and estimate(cut) <= estimate(size)
