"""Epilogues and prologues of products: what is computed from the elements of a product one by one, and what its
operands are made of, as loops over the product's own axes for templates (`template.py`).

    epilogue  for i in 6144 {                             batch: -   rows: for a in 8   columns: for b in 768
                %v = load %p[i]                      =>     %v = load %p[768*a + b]
                %c = load %bias[(i)%768] ...                %c = load %bias[b] ...

    prologue  for i in 6144 {                             for each row a and depth k of the left operand
                %v = load %x[i]                      =>     %v = load %x[768*a + k]
                store %left[i] = gelu(%v)                   element = gelu(%v)

An axis of a kernel is a piece of one axis of the product, or runs over several: then it becomes several axes. The
kernel that would write an operand is left out: a template computes each element where it reads it, once for each tile
of the result that takes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from msgspec.structs import replace

from codegen.element_loops import Axes, Dimension, only_store, pieces
from codegen.triton.products import Product, Steps, Types
from stagewire import loop
from stagewire.graph import Ref
from stagewire.index import has_values, is_static
from stagewire.statements import indices, rename, results, statements_of
from stagewire.types import TensorType


@dataclass(frozen=True)
class Epilogue:
    """Statements at every element of a product.

    batch, rows, columns: axes, whose sizes multiply to those of the product; the last is the fastest. products: the
    buffers whose loads are the element itself.
    """

    batch: tuple[loop.Axis, ...]
    rows: tuple[loop.Axis, ...]
    columns: tuple[loop.Axis, ...]
    statements: tuple[loop.Statement, ...]
    products: frozenset[str]


def epilogue_of(product: Product, kernel: loop.Kernel, types: Types, bases: Mapping[str, str]) -> Epilogue | None:
    """The kernel by elements of the product; None where it does not read each element at one point, its own.

    bases: the buffer on which each view is.
    """
    if any(section.axes for section in kernel.sections):
        return None
    statements = tuple(statements_of(kernel))
    products = frozenset(
        s.buffer for s in statements if isinstance(s, loop.Load) and product.result in (s.buffer, bases.get(s.buffer))
    )
    if not products or not all(_fits(statement, products, statements) for statement in statements):
        return None
    made = types[product.result]
    if any(types[name].dtype != made.dtype for name in products):
        return None
    loads = [s for s in statements if isinstance(s, loop.Load) and s.buffer in products]
    places = {offset(one.index, types[one.buffer], made) for one in loads}
    if len(places) != 1:
        return None
    found = pieces(places.pop(), kernel.axes, _dimensions(product.sizes, product.steps), statements)
    return None if found is None else Epilogue(*found[0], found[1], products)


def _fits(statement: loop.Statement, products: frozenset[str], every: tuple[loop.Statement, ...]) -> bool:
    """Whether a statement has a place in an epilogue: no reduction, no memory that other points write."""
    if not all(map(is_static, indices(statement))):
        return False  # templates take no sizes
    match statement:
        case loop.Reduce() | loop.Store(mode="atomic_add" | "sum"):
            return False
        case loop.Store(buffer=buffer):
            is_read = any(isinstance(s, loop.Load) and s.buffer == buffer for s in every)
            return not is_read or _at_one_place(buffer, every)
        case loop.Load(buffer=buffer, mask=mask):
            return mask is None or buffer not in products
    return True


def _at_one_place(buffer: str, every: tuple[loop.Statement, ...]) -> bool:
    """Whether a buffer is read before it is written, and only where it then is."""
    touching = [s for s in every if isinstance(s, loop.Load | loop.Store) and s.buffer == buffer]
    first = next(number for number, s in enumerate(touching) if isinstance(s, loop.Store))
    return first == len(touching) - 1 and len({s.index for s in touching}) == 1


def offset(index: loop.Index, type_: TensorType, made: TensorType) -> loop.Index:
    """An index into a window, counted from the first element of the memory that it is on."""
    return replace(index, constant=index.constant + type_.storage_offset - made.storage_offset)


def _dimensions(sizes: Steps, steps: Steps) -> list[Dimension]:
    """The axes of a matrix, by batch first, along which there is more than one element; the fastest first."""
    found = [Dimension(part, sizes[part], steps[part]) for part in range(3) if sizes[part] > 1]
    return sorted(found, key=lambda one: one.step)


Side = Literal["left", "right"]
SIDES: tuple[Side, Side] = ("left", "right")


@dataclass(frozen=True)
class Prologue:
    """The operand on one side of a product, which `kernel` writes into `buffer` and nothing else reads.

    axes: of the batch, then of the two axes of the operand, each cut as the kernel's loops need. value: what
    `statements` make of a point, before it is rounded to the dtype of the buffer.
    """

    side: Side
    kernel: loop.Kernel
    buffer: str
    axes: Axes
    statements: tuple[loop.Statement, ...]
    value: loop.Operand

    @property
    def loads(self) -> tuple[str, ...]:
        """The buffers that are read in the place of the operand."""
        return tuple(dict.fromkeys(s.buffer for s in self.statements if isinstance(s, loop.Load)))


def prologue_of(product: Product, side: Side, kernel: loop.Kernel, types: Types) -> Prologue | None:
    """The kernel by elements of the operand on one side; None where it does more than to write each, at one point."""
    store, body = only_store(kernel)
    if store is None or any(map(has_values, (store.index, *(index for one in body for index in indices(one))))):
        return None
    if any(one.mask is not None or one.buffer == store.buffer for one in body if isinstance(one, loop.Load)):
        return None
    operand, made = types[product.left if side == "left" else product.right], types[store.buffer]
    if side == "left":
        dimensions = _dimensions((product.batch, product.rows, product.depth), product.left_steps)
    else:
        dimensions = _dimensions((product.batch, product.depth, product.columns), product.right_steps)
    if operand.dtype != made.dtype or any(one.step == 0 for one in dimensions):
        return None
    found = pieces(offset(store.index, made, operand), kernel.axes, dimensions, body)
    if found is None:
        return None
    names = {name: f"operand {name}" for one in body for name in results(one)}  # an epilogue's may be the same
    value = Ref(names[store.value.name]) if isinstance(store.value, Ref) else store.value
    return Prologue(side, kernel, store.buffer, found[0], tuple(rename(one, names) for one in found[1]), value)
