"""Decompositions of ATen into prims: `TABLE` by overload name, one file a family.

A decomposition is an ordinary function `f(p, *args, **kwargs)` over a `Builder` p, with the parameters of the ATen op.
It returns a value, or a tuple with one value (or None) for each result. It raises `Decline` for what it leaves to ATen.
`ALL` has those, too, that distributions register in the group of entry points `stagefold.decompositions`.
"""

from __future__ import annotations

from primops.decompositions import (
    activations,
    compositions,
    convolutions,
    creation,
    elementwise,
    indexing,
    losses,
    normalisation,
    padding,
    pooling,
    products,
    random,
    reductions,
    resampling,
    shape,
)
from primops.decompositions.foreach import foreach_table
from primops.decompositions.operands import Function, Table
from stagewire.stage import Table as Registered

FAMILIES = (
    elementwise, activations, shape, creation, reductions, normalisation, losses, indexing, random, padding, resampling,
    pooling, products, compositions, convolutions,
)  # fmt: skip


def _merged() -> Table:
    table: Table = {}
    for family in FAMILIES:
        twice = table.keys() & family.TABLE.keys()
        if twice:
            raise ValueError(f"decomposed twice: {', '.join(sorted(twice))}")
        table.update(family.TABLE)
    return table | foreach_table(table)


TABLE: Table = _merged()
ALL = Registered("stagefold.decompositions", TABLE)
VIEWS = frozenset(shape.VIEWS)

__all__ = ["ALL", "TABLE", "VIEWS", "Function", "Table"]
