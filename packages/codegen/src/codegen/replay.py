"""What recording a unit as a CUDA graph needs to know of its inputs and outputs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Replay:
    """Record what a unit launches on a CUDA device, and replay it from then on.

    in_place: numbers of inputs that are mostly the same memory at every call (parameters, buffers, constants): they are
        read where they are, and another place makes another recording. The others are copied.
    handed: numbers of outputs that a user gets, and may hold for long.
    alone: numbers of outputs that nobody sees but the unit of the other direction.
    sizes: of a unit with symbolic sizes, for how many sets of sizes recordings are kept.
    """

    in_place: frozenset[int] = frozenset()
    handed: frozenset[int] = frozenset()
    alone: frozenset[int] = frozenset()
    sizes: int = 32
