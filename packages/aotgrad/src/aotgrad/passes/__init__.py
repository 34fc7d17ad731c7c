"""Passes on the joint graph. Each is a frozen struct that is called with a `Joint` and returns one."""

from __future__ import annotations

from collections.abc import Callable

from aotgrad.joint import Joint
from aotgrad.passes.fold_constants import FoldConstants
from aotgrad.passes.narrow_positions import NarrowPositions
from aotgrad.passes.remove_dead_code import RemoveDeadCode
from aotgrad.passes.separate_results import SeparateResults

__all__ = ["DEFAULT_PASSES", "FoldConstants", "NarrowPositions", "Pass", "RemoveDeadCode", "SeparateResults"]

Pass = Callable[[Joint], Joint]

DEFAULT_PASSES: tuple[Pass, ...] = (
    RemoveDeadCode(),
    FoldConstants(),
    RemoveDeadCode(),
    NarrowPositions(),
    SeparateResults(),
)
