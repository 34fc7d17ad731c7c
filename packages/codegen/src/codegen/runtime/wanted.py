"""Which machine code the kernels of a unit need."""

from __future__ import annotations

from collections.abc import Collection

from codegen.runtime.memory_kinds import plan_memory
from codegen.triton.cubin import ALIGNMENT
from codegen.triton.cubins import Wanted
from stagewire import quotients
from stagewire.expr import Dim
from stagewire.program import Launch, Unit
from stagewire.sizes import divides


def wanted(unit: Unit, multiples: Collection[str] = ()) -> tuple[Wanted, ...]:
    """The kernels of a unit; memory is aligned that is at a good distance from a root's start.

    multiples: symbols that are multiples of `ALIGNMENT` where this machine code runs.
    Arenas and new tensors begin at good places, inputs that do not are refused by the native executor; a library may
    return a tensor that begins anywhere.
    """
    homes = plan_memory(unit)
    launches: dict[str, list[tuple[str, ...]]] = {}
    sizes: dict[str, tuple[bool, ...]] = {}
    for one in unit.instructions:
        if isinstance(one, Launch):
            launches.setdefault(one.kernel, []).append(one.buffers)
            sizes[one.kernel] = tuple(_is_multiple(size, multiples) for size in one.sizes)

    def is_value(buffer: str) -> bool:
        type_ = homes.types[buffer]
        return type_ is not None and type_.device != homes.device

    def is_aligned(buffer: str) -> bool:
        if is_value(buffer) or homes.of[buffer].kind == "library":
            return False
        return divides(ALIGNMENT, homes.distance[buffer])

    found = []
    for info in unit.kernels:
        places = range(len(info.parameters))
        aligned = frozenset(k for k in places if all(is_aligned(buffers[k]) for buffers in launches[info.name]))
        types = [homes.types[buffer] for buffer in launches[info.name][0]]
        dtypes = tuple(type_.dtype for type_ in types if type_ is not None)
        values = frozenset(k for k in places if is_value(launches[info.name][0][k]))
        found.append(Wanted(info, dtypes, aligned, sizes[info.name], values))
    return tuple(found)


def _is_multiple(size: Dim, multiples: Collection[str]) -> bool:
    """Whether a size is a multiple of `ALIGNMENT` where these symbols are: each of its terms is."""
    if isinstance(size, int):
        return size % ALIGNMENT == 0
    return all(
        factor % ALIGNMENT == 0 or any(name in multiples for name, _ in monomial)
        for monomial, factor in quotients.read(size.text).items()
    )
