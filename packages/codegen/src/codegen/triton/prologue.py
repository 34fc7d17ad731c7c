"""What an operand of a product is made of, element by element, as loops over the product's own axes.

    for i in 6144 {                             for each row a and depth k of the left operand
      %v = load %x[i]                     =>      %v = load %x[768*a + k]
      store %left[i] = gelu(%v)                   element = gelu(%v)

The kernel that would write the operand is left out: a template computes each element where it reads it, once for each
tile of the result that takes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from msgspec.structs import replace

from codegen.triton.epilogue import Axes, Dimension, offset, pieces, rewritten
from codegen.triton.products import Product, Types
from stagewire.graph import Ref
from stagewire.index import has_values, is_static
from stagewire.loop import Compute, IndexValue, Kernel, Load, Operand, Statement, Store
from stagewire.statements import indices, map_operands, select, statements_of

Side = Literal["left", "right"]
SIDES: tuple[Side, Side] = ("left", "right")


@dataclass(frozen=True)
class Prologue:
    """The operand on one side of a product, which `kernel` writes into `buffer` and nothing else reads.

    axes: of the batch, then of the two axes of the operand, each cut as the kernel's loops need. value: what
    `statements` make of a point, before it is rounded to the dtype of the buffer.
    """

    side: Side
    kernel: Kernel
    buffer: str
    axes: Axes
    statements: tuple[Statement, ...]
    value: Operand

    @property
    def loads(self) -> tuple[str, ...]:
        """The buffers that are read in the place of the operand."""
        return tuple(dict.fromkeys(s.buffer for s in self.statements if isinstance(s, Load)))


def prologue_of(product: Product, side: Side, kernel: Kernel, types: Types) -> Prologue | None:
    """The kernel by elements of the operand on one side; None where it does more than to write each, at one point."""
    statements = tuple(statements_of(kernel))
    stores = select(kernel.sections, Store)
    if product.window is not None or len(stores) != 1 or any(section.axes for section in kernel.sections):
        return None
    (store,) = stores
    body = tuple(s for s in statements if not isinstance(s, Store))
    if store.mode != "set" or store.mask is not None or not all(_fits(s, store.buffer) for s in statements):
        return None
    operand, made = types[product.left if side == "left" else product.right], types[store.buffer]
    dimensions = _dimensions(product, side)
    if operand.dtype != made.dtype or any(one.step == 0 for one in dimensions):
        return None
    found = pieces(offset(store.index, made, operand), kernel.axes, dimensions)
    if found is None:
        return None
    axes, meaning = found
    sizes = {axis.name: axis.size for part in axes for axis in part}
    renamed = tuple(_renamed(rewritten(statement, meaning, sizes)) for statement in body)
    return Prologue(side, kernel, store.buffer, axes, renamed, _value(store.value))


def _fits(statement: Statement, buffer: str) -> bool:
    if not all(is_static(index) and not has_values(index) for index in indices(statement)):
        return False
    match statement:
        case Load():
            return statement.mask is None and statement.buffer != buffer
        case Compute(op=op):
            return op != "philox"  # drawn for whole tiles of a kernel's own axes
    return isinstance(statement, Store | IndexValue)


def _dimensions(product: Product, side: Side) -> list[Dimension]:
    """The axes of an operand along which there is more than one element, the fastest first."""
    if side == "left":
        sizes, steps = (product.batch, product.rows, product.depth), product.left_steps
    else:
        sizes, steps = (product.batch, product.depth, product.columns), product.right_steps
    return sorted((Dimension(part, sizes[part], steps[part]) for part in range(3) if sizes[part] > 1), key=_step)


def _step(dimension: Dimension) -> int:
    return dimension.step


# ---- names: those of an epilogue's values may be the same


def _value(operand: Operand) -> Operand:
    return Ref(f"operand {operand.name}") if isinstance(operand, Ref) else operand


def _renamed(statement: Statement) -> Statement:
    return replace(map_operands(statement, _value), result=f"operand {statement.result}")  # type: ignore[union-attr]
