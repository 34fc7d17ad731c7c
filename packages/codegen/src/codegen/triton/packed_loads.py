"""Loads of products whose weights are bytes, each of which may hold two numbers of four bits.

s = sum of x[2 k] * low(w[k]) * scale[k // 64] + x[2 k + 1] * high(w[k]) * scale[k // 64]

A thread loads 16 bytes at once, which are many points of w, and of the rest one element after the other. Here what lies
side by side is loaded at once and taken apart, and what a run of points has in common is loaded once for all of these.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from codegen.triton.accesses import varies
from codegen.triton.few_rows import FewRowsEmitter
from stagewire import index as ix
from stagewire.loop import Axis, Index, Kernel, Load
from stagewire.statements import select

LEAST_RUN = 8
"""Points of the shortest run that is loaded once: as many as a thread has."""


def run_of(index: Index, axes: Sequence[Axis], tile: int) -> int:
    """How many neighbours of a loop read the same element, if tiles consist of such runs; else 1."""
    run = axes[-1].size if len(axes) > 1 else 0
    if not isinstance(run, int) or run < LEAST_RUN or tile % run or ix.has_values(index):
        return 1
    return run if any(varies(index, axis) for axis in axes[:-1]) and not varies(index, axes[-1]) else 1


def has_every_second(index: Index, axes: Sequence[Axis]) -> bool:
    """Whether neighbours of a loop read elements that are two apart."""
    steps, step = ix.steps(index) if ix.is_plain(index) else {}, 2
    for axis in reversed(axes):
        if steps.get(axis.name) != step or not isinstance(axis.size, int):
            return False
        step *= axis.size
    return True


@dataclass(kw_only=True)
class PackedLoadEmitter(FewRowsEmitter):
    """number: of the section that is being written. tiles: the axes that run along "x" and "r" there, and the first
    point of the tile. in_pairs: the results of loads that were taken out of those of their neighbours.
    """

    kernel: Kernel
    plan: Any
    number: int = -1
    tiles: dict[str, tuple[tuple[Axis, ...], str]] = field(default_factory=dict)
    in_pairs: set[str] = field(default_factory=set)

    def loads_packed(self, load: Load) -> bool:
        """Whether it has loaded what a statement of the loop loads in such a way."""
        axes, start = self.tiles["r"]
        if load.result in self.in_pairs:
            return True
        if load.mask is not None or load.dtype == "bool" or "r" not in self.full:
            return False
        along, run = self.index_spread(load.index), run_of(load.index, axes, self.plan.inner)
        if run > 1:
            text = self.at_every(run, load.index, "r")
            self.define(load.result, f"repeated(tl.load({self.pointer[load.buffer]} + ({text})), {run})", along)
            return True
        pair = self.pair_of(load) if has_every_second(load.index, axes) else ()
        if pair:
            outer = self.index(ix.inline(pair[0].index, {axis.name: ix.ZERO for axis in axes}))
            lanes = self.widened("tl.arange(0, 2 * RBLOCK)[None, :]")
            text = " + ".join([outer, *([f"2 * ({start})"] if start else []), lanes])
            both = f"b{self.made}"
            self.put(f"{both} = in_pairs(tl.load({self.pointer[load.buffer]} + ({text})))")
            for number, one in enumerate(pair):
                self.define(one.result, f"{both}[{number}]", along)
                self.in_pairs.add(one.result)
        return bool(pair)

    def pair_of(self, load: Load) -> tuple[Load, ...]:
        """A load and that of the element before or behind it, in the order of memory; nothing if there is none."""
        loads = select((self.kernel.sections[self.number],), Load)
        same = [one for one in loads if (one.buffer, one.mask) == (load.buffer, None)]
        for step in (1, -1):
            for one in same:
                if one.index == Index(load.index.constant + step, load.index.terms):
                    return (load, one)[::step]
        return ()
