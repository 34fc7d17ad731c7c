"""Which machine code the kernels of a unit need."""

from __future__ import annotations

from math import gcd

from codegen.runtime.memory_kinds import plan_memory
from codegen.triton.cubins import CubinSpec
from codegen.triton.tuning import VECTOR_BYTES
from stagewire.expr import Dim, polynomial_of
from stagewire.polynomial import symbol
from stagewire.program import Launch, Unit
from stagewire.sizes import divides

Multiples = tuple[tuple[str, int], ...]
"""Symbols, and of which number each is a multiple."""


def required_cubins(unit: Unit, multiples: Multiples = ()) -> tuple[CubinSpec, ...]:
    """The kernels of a unit; memory is aligned that is at a good distance from a root's start.

    multiples: symbols that are multiples of a number where this machine code runs.
    Arenas and new tensors begin at good places; inputs that do not are refused by the native executor, and results of
    libraries that do not are copied, where the unit states their type.
    """
    homes = plan_memory(unit)
    launches: dict[str, list[tuple[str, ...]]] = {}
    sizes: dict[str, tuple[int, ...]] = {}
    for one in unit.instructions:
        if isinstance(one, Launch):
            launches.setdefault(one.kernel, []).append(one.buffers)
            sizes[one.kernel] = tuple(known_divisor(size, multiples) for size in one.sizes)

    def is_value(buffer: str) -> bool:
        type_ = homes.types[buffer]
        return type_ is not None and type_.device != homes.device

    def is_aligned(buffer: str) -> bool:
        if is_value(buffer) or homes.types[homes.of[buffer].root] is None:
            return False
        return divides(VECTOR_BYTES, homes.distance[buffer])

    found = []
    for info in unit.kernels:
        places = range(len(info.parameters))
        aligned = frozenset(k for k in places if all(is_aligned(buffers[k]) for buffers in launches[info.name]))
        types = [homes.types[buffer] for buffer in launches[info.name][0]]
        dtypes = tuple(type_.dtype for type_ in types if type_ is not None)
        values = frozenset(k for k in places if is_value(launches[info.name][0][k]))
        found.append(CubinSpec(info, dtypes, aligned, sizes[info.name], values))
    return tuple(found)


def known_divisor(size: Dim, multiples: Multiples) -> int:
    """The greatest power of two up to `VECTOR_BYTES` that divides a size where these symbols are multiples.

    >>> from stagewire.expr import Expr
    >>> known_divisor(Expr("(n + 1)//(2)*m"), (("n", 16), ("m", 2)))
    16
    """
    value = polynomial_of(size).substitute({name: symbol(name) * number for name, number in multiples})
    return gcd(VECTOR_BYTES, *value.terms.values())


def useful(unit: Unit) -> Multiples:
    """Those of the unit's multiples that make other machine code."""
    kept = unit.multiples
    whole = required_cubins(unit, kept)
    for one in unit.multiples:
        fewer = tuple(other for other in kept if other != one)
        if required_cubins(unit, fewer) == whole:
            kept = fewer
    return kept
