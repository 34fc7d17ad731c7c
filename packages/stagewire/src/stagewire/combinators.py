"""How a value stands in a text: what writes it and what reads it, side by side; notations made of others."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from stagewire.scanner import LEAD, TOKEN, Fault, Scanner, bare

_SPELLING = re.compile(r"[A-Za-z_]\w*=?|\+?=")


class Notation(NamedTuple):
    """leads: the tokens (`Scanner.lead`) of which a text begins with one; none are stated if it may be any other."""

    write: Callable[[Any], str]
    read: Callable[[Scanner], Any]
    leads: tuple[str, ...] = ()


def around(left: str, inner: Notation, right: str = "") -> Notation:
    """Text in front of a value and behind it."""
    before, behind = TOKEN.findall(left), TOKEN.findall(right)

    def read(scanner: Scanner) -> Any:
        for token in before:
            scanner.expect(token)
        found = inner.read(scanner)
        for token in behind:
            scanner.expect(token)
        return found

    return Notation(lambda value: left + inner.write(value) + right, read, tuple(LEAD.findall(left)[:1]) or inner.leads)


def mapped(inner: Notation, of: Callable[[Any], Any], to: Callable[[Any], Any]) -> Notation:
    """What is written as another value: that `of` it; `to` makes it again, or raises ValueError."""

    def read(scanner: Scanner) -> Any:
        start = scanner.position
        try:
            return to(inner.read(scanner))
        except ValueError as error:
            raise Fault(start, str(error)) from None

    return Notation(lambda value: inner.write(of(value)), read, inner.leads)


def either(first: Notation, other: Notation, is_first: Callable[[Any], bool]) -> Notation:
    """Two notations, of which the first has leads."""
    return Notation(
        lambda value: (first if is_first(value) else other).write(value),
        lambda scanner: (first if scanner.lead() in first.leads else other).read(scanner),
    )


def commas(item: Notation) -> Notation:
    """Items between commas, without brackets."""
    one = item.write
    return Notation(
        lambda items: ", ".join([one(each) for each in items]),
        lambda scanner: tuple([item.read(scanner) for _ in scanner.items()]),
        item.leads,
    )


def named(pattern: re.Pattern[str], what: str) -> Notation:
    """A name that matches the pattern, or a JSON string."""
    return Notation(lambda name: bare(name, pattern), lambda scanner: scanner.take_name(pattern, what))


def spelled(words: Mapping[Any, str], take: Callable[[Scanner], str] | None = None) -> Notation:
    """One of a few values, each in its spelling."""
    values = {word: value for value, word in words.items()}

    def read(scanner: Scanner) -> Any:
        start = scanner.position
        word = take(scanner) if take else scanner.take(_SPELLING, " or ".join(values))
        if word not in values:
            raise Fault(start, f"{word!r} is none of {', '.join(values)}")
        return values[word]

    return Notation(words.__getitem__, read, tuple(values))
