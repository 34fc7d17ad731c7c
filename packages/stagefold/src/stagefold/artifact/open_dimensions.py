"""The open sizes of an artifact: their ranges, what must be true of them, and whether the user asked for that."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from stagefold.artifact.arguments import in_words
from stagefold.artifact.dynamic_shapes import OpenSize
from stagefold.artifact.file_format import Header, Leaf, Range
from stagefold.errors import CannotExport
from stagefold.size_specialisation import holds
from stagewire.capture import Relation, Symbol
from stagewire.expr import Dim, Expr, symbols_of


def ranges_of(leaves: Sequence[Leaf], symbols: Sequence[Symbol]) -> tuple[Range, ...]:
    """The symbols in the sizes of the leaves, named by the first size that is one."""
    bounds = {one.name: (one.lower, one.upper) for one in symbols}
    found: dict[str, Range] = {}
    for leaf in leaves:
        for dimension, size in enumerate(leaf.type.shape if leaf.type is not None else ()):
            if isinstance(size, Expr) and size.text.isidentifier():
                label = f"{leaf.label}.size({dimension})"
                found.setdefault(size.text, Range(size.text, label, *bounds.get(size.text, (None, None))))
    return tuple(found.values())


def rules_of(
    leaves: Sequence[Any], described: Sequence[Leaf], opened: Sequence[OpenSize], assumed: Sequence[Relation]
) -> tuple[Relation, ...]:
    """What the program assumes of sizes, and that those of one name are equal."""
    named: dict[str, Dim] = {}
    rules = list(assumed)
    for size, dim in _dims(leaves, described, opened):
        first = named.setdefault(size.name, dim) if size.name else dim
        if first != dim:
            rules.append(Relation(dim, "==", first))
    for size, dim in _dims(leaves, described, opened):
        if size.derived is not None:
            root, function = size.derived
            if root not in named:
                raise CannotExport(f"no size is {root!r}, of which {size.name!r} is computed")
            rules.append(Relation(dim, "==", function(named[root])))
    return tuple(dict.fromkeys(rules))


def _dims(
    leaves: Sequence[Any], described: Sequence[Leaf], opened: Sequence[OpenSize]
) -> Iterator[tuple[OpenSize, Dim]]:
    """The open sizes, each with what it is in the program."""
    for size in opened:
        for leaf, known in zip(leaves, described, strict=True):
            if leaf is size.tensor:
                assert known.type is not None
                yield size, known.type.shape[size.dimension]


def check_promises(header: Header, leaves: Sequence[Any], opened: Sequence[OpenSize]) -> None:
    """Raise `CannotExport` where the program does not serve sizes that `dynamic_shapes` asks for: where it fixes one,
    or assumes what is not so near the lower ends of the ranges, sizes of other names being different."""
    promised: dict[str, str] = {}
    least: dict[str, int] = {}
    for size, dim in _dims(leaves, header.leaves, opened):
        if size.is_promised and isinstance(dim, int):
            raise CannotExport(f"the program fixes a size at {dim} that dynamic_shapes leaves open")
        if size.is_promised and size.derived is None:
            promised.update((name, size.name or name) for name in symbols_of(dim))
            least.update((name, size.lower) for name in symbols_of(dim) if size.lower is not None)
    labels = {one.symbol: one.label for one in header.ranges}
    order = {name: number for number, name in enumerate(dict.fromkeys(promised.values()))}
    for step in range(2):
        sizes: dict[str, int] = {}
        for one in header.ranges:
            lower = least.get(one.symbol, 2)
            sizes[one.symbol] = lower + step + order.get(promised.get(one.symbol, ""), 0)
            if one.upper is not None:
                sizes[one.symbol] = min(sizes[one.symbol], one.upper)
        for rule in header.rules:
            mentioned = {name for side in (rule.left, rule.right) for name in symbols_of(side)}
            if mentioned <= promised.keys() and not holds(rule, sizes):
                told = f"{in_words(rule.left, labels)} {rule.operator} {in_words(rule.right, labels)}"
                fix = "Say so in dynamic_shapes (one name for equal sizes, narrower ranges), or say Dim.AUTO."
                message = f"the program needs {told}, which dynamic_shapes does not say"
                raise CannotExport(message, where=rule.line, fix=fix)
