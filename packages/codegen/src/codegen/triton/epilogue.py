"""What is computed from the elements of a product, one by one, as loops over the product's own rows and columns.

    for i in 6144 {                             batch: -   rows: for a in 8   columns: for b in 768
      %v = load %p[i]                      =>     %v = load %p[768*a + b]
      %c = load %bias[(i)%768] ...                %c = load %bias[b] ...

An axis of the kernel is a piece of one axis of the product, or runs over several: then it becomes several axes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from codegen.triton.products import Product, Types
from stagewire.index import affine, is_static, substitute
from stagewire.loop import Axis, AxisAtom, Index, Kernel, Load, Reduce, Statement, Store, Term
from stagewire.statements import indices, map_indices, statements_of
from stagewire.types import TensorType


@dataclass(frozen=True)
class Epilogue:
    """Statements at every element of a product.

    batch, rows, columns: axes, whose sizes multiply to those of the product; the last is the fastest. products: the
    buffers whose loads are the element itself.
    """

    batch: tuple[Axis, ...]
    rows: tuple[Axis, ...]
    columns: tuple[Axis, ...]
    statements: tuple[Statement, ...]
    products: frozenset[str]


def epilogue_of(product: Product, kernel: Kernel, types: Types, bases: Mapping[str, str]) -> Epilogue | None:
    """The kernel by elements of the product; None where it does not read each element at one point, its own.

    bases: the buffer on which each view is.
    """
    if any(section.axes for section in kernel.sections):
        return None
    statements = tuple(statements_of(kernel))
    products = frozenset(
        s.buffer for s in statements if isinstance(s, Load) and product.result in (s.buffer, bases.get(s.buffer))
    )
    if not products or not all(_fits(statement, products, statements) for statement in statements):
        return None
    made = types[product.result]
    if any(types[name].dtype != made.dtype for name in products):
        return None
    loads = [s for s in statements if isinstance(s, Load) and s.buffer in products]
    places = {offset(one.index, types[one.buffer], made) for one in loads}
    if len(places) != 1:
        return None
    found = pieces(places.pop(), kernel.axes, _dimensions(product))
    if found is None:
        return None
    axes, meaning = found
    sizes = {axis.name: axis.size for part in axes for axis in part}
    return Epilogue(*axes, tuple(rewritten(statement, meaning, sizes) for statement in statements), products)


def _fits(statement: Statement, products: frozenset[str], every: tuple[Statement, ...]) -> bool:
    """Whether a statement has a place in an epilogue: no reduction, no memory that other points write."""
    if not all(map(is_static, indices(statement))):
        return False  # templates take no sizes
    match statement:
        case Reduce() | Store(mode="atomic_add" | "sum"):
            return False
        case Store(buffer=buffer):
            return not any(isinstance(s, Load) and s.buffer == buffer for s in every) or _at_one_place(buffer, every)
        case Load(buffer=buffer, mask=mask):
            return mask is None or buffer not in products
    return True


def _at_one_place(buffer: str, every: tuple[Statement, ...]) -> bool:
    """Whether a buffer is read before it is written, and only where it then is."""
    touching = [s for s in every if isinstance(s, Load | Store) and s.buffer == buffer]
    first = next(number for number, s in enumerate(touching) if isinstance(s, Store))
    return first == len(touching) - 1 and len({s.index for s in touching}) == 1


def offset(index: Index, type_: TensorType, made: TensorType) -> Index:
    """An index into a window, counted from the first element of the memory that it is on."""
    return replace(index, constant=index.constant + type_.storage_offset - made.storage_offset)


@dataclass(frozen=True)
class Dimension:
    """One axis of the product. part: 0 batch, 1 rows, 2 columns."""

    part: int
    size: int
    step: int


def _dimensions(product: Product) -> list[Dimension]:
    """The axes of a product along which there is more than one element, the fastest first."""
    sizes = (product.batch, product.rows, product.columns)
    found = [Dimension(part, sizes[part], product.steps[part]) for part in range(3) if sizes[part] > 1]
    return sorted(found, key=lambda one: one.step)


Axes = tuple[tuple[Axis, ...], tuple[Axis, ...], tuple[Axis, ...]]
Pieces = tuple[Axes, dict[str, Index]]


def pieces(place: Index, loops: tuple[Axis, ...], dimensions: list[Dimension]) -> Pieces | None:
    """The axes of the product, cut so that each loop is some of them, and what each loop is; None where that fails.

    place: the index at which the kernel reads the product.
    """
    steps = affine(place)
    if steps is None or place.constant != 0:
        return None
    meaning = {axis.name: Index() for axis in loops if axis.size == 1}
    rest = [axis for axis in loops if axis.size != 1]
    if not all(isinstance(n, int) and n > 0 for axis in rest for n in (axis.size, steps.get(axis.name, 0))):
        return None
    cuts: list[list[Axis]] = [[], [], []]
    left = list(dimensions)
    for axis in sorted(rest, key=lambda axis: steps[axis.name]):
        terms, covered, step = [], 1, steps[axis.name]
        while covered < axis.size:
            if not left or left[0].step != step * covered:
                return None
            one, wanted = left.pop(0), axis.size // covered
            size = wanted if one.size % wanted == 0 else one.size
            if axis.size % (covered * size):
                return None
            name = f"{axis.name} {one.part} {len(cuts[one.part])}"
            cuts[one.part].insert(0, Axis(name, size))
            terms.append(Term(covered, AxisAtom(name)))
            covered *= size
            if size < one.size:
                left.insert(0, Dimension(one.part, one.size // size, one.step * size))
        meaning[axis.name] = Index(0, tuple(terms))
    return None if left else ((tuple(cuts[0]), tuple(cuts[1]), tuple(cuts[2])), meaning)


def rewritten(statement: Statement, meaning: dict[str, Index], sizes: dict[str, Any]) -> Statement:
    """With the meaning of each axis in its place; `sizes`: of the axes that stand there then."""
    return map_indices(statement, lambda index: substitute(index, meaning, sizes))
