"""Kernels by elements as loops over given dimensions: those of a product, or of the scores of an attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from stagewire import loop
from stagewire.expr import Dim
from stagewire.index import affine, is_static, substitute
from stagewire.statements import indices, map_indices, select, statements_of


@dataclass(frozen=True)
class Dimension:
    """One axis of a product or of scores. part: 0 batch, 1 rows, 2 columns."""

    part: int
    size: Dim
    step: Dim


Axes = tuple[tuple[loop.Axis, ...], tuple[loop.Axis, ...], tuple[loop.Axis, ...]]


def pieces(
    place: loop.Index, loops: tuple[loop.Axis, ...], dimensions: list[Dimension], statements: Sequence[loop.Statement]
) -> tuple[Axes, tuple[loop.Statement, ...]] | None:
    """The axes of the product, cut so that each loop is some of them, and the statements along these; None where that
    fails.

    place: the index at which the kernel reads the product.
    """
    steps = affine(place)
    if steps is None or place.constant != 0:
        return None
    meaning = {axis.name: loop.Index() for axis in loops if axis.size == 1}
    rest = [axis for axis in loops if axis.size != 1]
    if any(n in (0, None) for axis in rest for n in (axis.size, steps.get(axis.name))):
        return None
    cuts: list[list[loop.Axis]] = [[], [], []]
    left = list(dimensions)
    while rest:
        axis = next((axis for axis in rest if left and steps[axis.name] == left[0].step), None)
        if axis is None:
            return None
        rest.remove(axis)
        terms, covered, step = list[loop.Term](), 1, steps[axis.name]
        while covered != axis.size:
            if not left or left[0].step != step * covered:
                return None
            one, wanted = left.pop(0), axis.size // covered
            size = wanted if one.size % wanted == 0 else one.size
            if axis.size % (covered * size) != 0:
                return None
            name = f"{axis.name} {one.part} {len(cuts[one.part])}"
            cuts[one.part].insert(0, loop.Axis(name, size))
            terms.append(loop.Term(covered, loop.AxisAtom(name)))
            covered *= size
            if size != one.size:
                left.insert(0, Dimension(one.part, one.size // size, one.step * size))
        meaning[axis.name] = loop.Index(0, tuple(terms))
    if left:
        return None
    sizes = {axis.name: axis.size for part in cuts for axis in part}
    change = partial(substitute, mapping=meaning, sizes=sizes)
    axes = (tuple(cuts[0]), tuple(cuts[1]), tuple(cuts[2]))
    return axes, tuple(map_indices(statement, change) for statement in statements)


def only_store(
    kernel: loop.Kernel, *, of_open_sizes: bool = False
) -> tuple[loop.Store | None, tuple[loop.Statement, ...]]:
    """The one plain store of a kernel by elements, and what makes its value; None where it does more than that.

    of_open_sizes: whether there may be symbols in its indices.
    """
    stores = select(kernel.sections, loop.Store)
    if len(stores) != 1 or any(section.axes for section in kernel.sections):
        return None, ()
    (store,), body = stores, tuple(s for s in statements_of(kernel) if not isinstance(s, loop.Store))
    if store.mode != "set" or store.mask is not None or not all(map(_is_of_one_point, (store, *body))):
        return None, ()
    is_static_here = of_open_sizes or all(map(is_static, (index for one in (store, *body) for index in indices(one))))
    return (store, body) if is_static_here else (None, ())


def _is_of_one_point(statement: loop.Statement) -> bool:
    if isinstance(statement, loop.Compute) and statement.op == "philox":  # drawn for whole tiles of a kernel's own axes
        return False
    return isinstance(statement, loop.Load | loop.Compute | loop.IndexValue | loop.Store)
