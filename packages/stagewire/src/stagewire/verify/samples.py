"""Sizes at which a document of symbolic sizes is looked at as well: what is asked of numbers has an answer there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

from stagewire.capture import Relation, Symbol, holds
from stagewire.errors import ExprError
from stagewire.expr import evaluate, symbols_of
from stagewire.grad import Binding
from stagewire.substitution import map_sizes

Part = TypeVar("Part")
Numbers = dict[str, int]

_PRIMES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31)
_EVEN = (8, 16, 32, 64, 4, 128)
_MOST_TRIES = 2000


def at_sizes(part: Part, sizes: Mapping[str, int]) -> Part:
    """A document, or a part of one, with these values for its symbols; raises `ExprError` where a size has none."""
    return map_sizes(part, lambda size: evaluate(size, sizes)) if sizes else part


def sample_sizes(binding: Binding) -> Iterator[Numbers]:
    """A few values of all symbols, within their bounds, for which every fact and assumption holds: the hints, the
    least, and small primes, alike and different ones. None where there are no symbols."""
    conditions = (*binding.facts, *binding.assumptions)
    found: list[Numbers] = []
    for choices in _choices(binding.symbols):
        sizes = _first(binding.symbols, choices, conditions)
        if sizes and sizes not in found:
            found.append(sizes)
            yield sizes


def _choices(symbols: Sequence[Symbol]) -> Iterator[tuple[tuple[int, ...], ...]]:
    """For each sample, the values to try for each symbol, the best first."""
    if all(one.hint is not None for one in symbols):
        yield tuple((one.hint,) for one in symbols)  # type: ignore[misc]
    small = [_small(one) for one in symbols]
    yield tuple(small)
    yield tuple((*values[1 + number :], *values[: 1 + number]) for number, values in enumerate(small))


def _small(symbol: Symbol) -> tuple[int, ...]:
    least = 1 if symbol.lower is None else max(symbol.lower, 1)
    hint = () if symbol.hint is None else (symbol.hint,)
    values = (least, *_PRIMES, *(least + prime for prime in _PRIMES), *hint, *_EVEN)
    most = symbol.upper
    return tuple(dict.fromkeys(one for one in values if one >= least and (most is None or one <= most)))


def _first(
    symbols: Sequence[Symbol], choices: Sequence[tuple[int, ...]], conditions: Sequence[Relation]
) -> Numbers | None:
    """The first values for which the conditions hold, each asked as soon as its symbols have values; None where there
    are none among the choices, as far as that is tried."""
    ready: list[list[Relation]] = [[] for _ in symbols]
    places = {one.name: number for number, one in enumerate(symbols)}
    for one in conditions:
        names = symbols_of(one.left) | symbols_of(one.right)
        if names and names <= places.keys():
            ready[max(places[name] for name in names)].append(one)
    tries = _MOST_TRIES

    def extended(sizes: Numbers) -> Numbers | None:
        nonlocal tries
        if len(sizes) == len(symbols):
            return sizes
        number = len(sizes)
        for value in choices[number]:
            tries -= 1
            if tries < 0:
                return None
            more = {**sizes, symbols[number].name: value}
            if all(_holds(one, more) for one in ready[number]) and (found := extended(more)) is not None:
                return found
        return None

    return extended({})


def _holds(relation: Relation, sizes: Numbers) -> bool:
    try:
        return holds(relation, sizes)
    except ExprError:
        return False
