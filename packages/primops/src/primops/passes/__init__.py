"""Passes over Prim graphs: each a frozen dataclass with `run(graph) -> graph`; `DEFAULT_PASSES` in their order."""

from __future__ import annotations

from primops.passes.eliminate import EliminateCommon, EliminateDead
from primops.passes.fold_constants import FoldConstants
from primops.passes.remove_identities import RemoveIdentities

Pass = FoldConstants | RemoveIdentities | EliminateCommon | EliminateDead
DEFAULT_PASSES: tuple[Pass, ...] = (FoldConstants(), RemoveIdentities(), EliminateCommon(), EliminateDead())

__all__ = ["DEFAULT_PASSES", "EliminateCommon", "EliminateDead", "FoldConstants", "Pass", "RemoveIdentities"]
