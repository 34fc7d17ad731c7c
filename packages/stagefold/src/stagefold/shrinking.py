"""Documents with less in them than another one: what `stagefold.reduction` tries. None of them need be valid.

shrunk ::= one size, wherever it stands, with a smaller number in its place
         | a kernel without some statements (a number stands where one of these was read)
         | a kernel without axes of one point
         | a call without an argument that is given by name, or with a plainer number among its arguments
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from stagewire import index as ix
from stagewire.codec import Document
from stagewire.graph import List, Node, Ref, Tuple, leaves, map_arg
from stagewire.loop import Axis, FloorDivAtom, Index, Kernel, Load, ModAtom, Section, Statement, Store, Term
from stagewire.statements import map_indices, map_operands, results
from stagewire.types import TensorType

_SMALL = (1, 2, 3)
_SIZED: dict[type, tuple[str, ...]] = {
    TensorType: ("shape", "stride", "storage_offset"), Axis: ("size",), Index: ("constant", "terms"),
    Term: ("coefficient", "atom"), FloorDivAtom: ("numerator", "divisor"), ModAtom: ("numerator", "divisor"),
}  # fmt: skip
"""The fields that are numbers of elements, or have such in them."""


def smaller_sizes(document: Document) -> Iterator[Document]:
    """With a smaller number for a size, the largest first, or for a prime factor of sizes, also where it is a factor
    of others and of strides.

    So the product of two sizes stays the product of both. Numbers in lists of arguments are sizes, or else they stay.
    """
    sizes = sorted(_sizes_in(document), reverse=True)
    primes = sorted({factor for size in sizes for factor in _prime_factors(size)}, reverse=True)
    for old in dict.fromkeys((*sizes, *primes)):
        for new in (small for small in _SMALL if small < old):
            yield _with_size(document, old, new, True)
            yield _with_size(document, old, new, False)


def _sizes_in(value: Any) -> set[int]:
    """The sizes of dimensions and axes, above 1."""
    match value:
        case TensorType():
            return {size for size in value.shape if type(size) is int and size > 1}
        case Axis(size=int() as size):
            return {size} - {0, 1}
        case msgspec.Struct():
            return _sizes_in(tuple([getattr(value, name) for name in value.__struct_fields__]))
        case tuple() | dict():
            return set().union(*map(_sizes_in, value.values() if isinstance(value, dict) else value))
    return set()


def _prime_factors(number: int) -> set[int]:
    found, factor = set(), 2
    while factor * factor <= number:
        while number % factor == 0:
            found.add(factor)
            number //= factor
        factor += 1
    return found | ({number} - {1})


def _with_size(value: Any, old: int, new: int, in_arguments: bool) -> Any:
    def scaled(number: Any) -> Any:
        if type(number) is not int or number == 0 or number % old:
            return number
        return scaled(number // old) * new

    def visit(part: Any) -> Any:
        match part:
            case tuple():
                return tuple(map(visit, part))
            case dict():
                return {key: visit(one) for key, one in part.items()}
            case Node() if in_arguments:
                part = _map_arguments(part, lambda arg: map_arg(arg, scaled) if isinstance(arg, List | Tuple) else arg)
                return replace(part, results=visit(part.results))
            case Index() | Term() | FloorDivAtom() | ModAtom() | TensorType() | Axis():
                return replace(part, **{name: sized(getattr(part, name)) for name in _SIZED[type(part)]})
            case msgspec.Struct():
                return replace(part, **{name: visit(getattr(part, name)) for name in part.__struct_fields__})
        return part

    def sized(part: Any) -> Any:
        return tuple(map(sized, part)) if isinstance(part, tuple) else scaled(visit(part))

    return visit(value)


def _map_arguments(node: Node, change: Callable[[Any], Any]) -> Node:
    return replace(
        node, args=tuple(map(change, node.args)), kwargs={key: change(arg) for key, arg in node.kwargs.items()}
    )


def statement_count(kernel: Kernel) -> int:
    """How many statements its sections have."""
    return sum(len(section.statements) for section in kernel.sections)


def with_statements(kernel: Kernel, chosen: Sequence[int]) -> Kernel:
    """With some of its statements alone, by number; a number stands where the result of another one was read, and a
    mask that is none of theirs is left away."""
    kept = set(chosen)
    defined = set[str]()
    sections, number = [], 0
    for section in kernel.sections:
        own = []
        for statement in section.statements:
            if number in kept:
                own.append(_closed(statement, defined))
                defined.update(results(statement))
            number += 1
        if own:
            sections.append(Section(section.axes, tuple(own)))
    return replace(kernel, sections=tuple(sections))


def _closed(statement: Statement, defined: set[str]) -> Statement:
    """It reads nothing else than what is defined."""
    mask = getattr(statement, "mask", None)
    if isinstance(statement, Load | Store) and isinstance(mask, Ref) and mask.name not in defined:
        statement = replace(statement, mask=None)
    return map_operands(statement, lambda one: 1 if isinstance(one, Ref) and one.name not in defined else one)


def without_single_points(kernel: Kernel) -> Kernel:
    """Without the axes of one point."""
    every = (*kernel.axes, *(axis for section in kernel.sections for axis in section.axes))
    names = {axis.name for axis in every if axis.size == 1} - {axis.name for axis in every if axis.size != 1}
    zeros = dict.fromkeys(names, ix.ZERO)

    def left(axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
        return tuple(axis for axis in axes if axis.name not in names)

    def at_zero(statement: Statement) -> Statement:
        return map_indices(statement, lambda index: ix.inline(index, zeros))

    sections = tuple(Section(left(one.axes), tuple(map(at_zero, one.statements))) for one in kernel.sections)
    return replace(kernel, axes=left(kernel.axes), sections=sections)


def plainer_calls(node: Node) -> Iterator[Node]:
    """With one argument less of those by name, or one plainer number."""
    for key in node.kwargs:
        yield replace(node, kwargs={name: arg for name, arg in node.kwargs.items() if name != key})
    for position, number in enumerate(_numbers_of(node)):
        plain = (False,) if number is True else () if number in (0, 1) else (0, 1)
        yield from (_with_number(node, position, type(number)(other)) for other in plain)


def _numbers_of(node: Node) -> list[Any]:
    arguments = (*node.args, *node.kwargs.values())
    return [leaf for arg in arguments for leaf in leaves(arg) if type(leaf) in (bool, int, float)]


def _with_number(node: Node, position: int, number: Any) -> Node:
    left = [position]

    def change(leaf: Any) -> Any:
        if type(leaf) not in (bool, int, float):
            return leaf
        left[0] -= 1
        return number if left[0] == -1 else leaf

    return _map_arguments(node, lambda arg: map_arg(arg, change))
