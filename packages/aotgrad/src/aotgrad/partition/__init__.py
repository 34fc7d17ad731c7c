"""Which forward values the backward is given, and which it computes again.

partitioner ::= name | (Joint) -> Partition          any callable
partition   ::= the names of the forward values to hand over
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from msgspec.structs import replace

from aotgrad.errors import BadPartitioner
from aotgrad.joint import Joint
from aotgrad.partition.min_cut import MinCut
from aotgrad.partition.needs import needs_of
from aotgrad.partition.split import Partition, Partitioner, split

__all__ = ["PARTITIONERS", "MinCut", "Partition", "Partitioner", "partitioner_of", "save_everything", "split"]


def save_everything(joint: Joint) -> Partition:
    """The partition of eager torch."""
    return Partition(needs_of(joint).direct)


PARTITIONERS: Mapping[str, Partitioner] = MappingProxyType({"min_cut": MinCut(), "save_everything": save_everything})
"""The partitioners that options may name."""


def partitioner_of(choice: str | Partitioner, memory_budget: float = 1.0) -> Partitioner:
    """The partitioner of a name, or the callable itself; anything else raises `BadPartitioner`.

    memory_budget: for `MinCut`, which part of what it would save it may save; other partitioners take none.
    """
    if isinstance(choice, str) and choice in PARTITIONERS:
        choice = PARTITIONERS[choice]
    if not callable(choice):
        raise BadPartitioner(f"{choice!r} is no partitioner; the names are {', '.join(PARTITIONERS)}")
    if memory_budget == 1:
        return choice
    if not isinstance(choice, MinCut) or not 0 <= memory_budget <= 1:
        raise BadPartitioner(
            f"a memory budget of {memory_budget!r} for {choice!r}",
            fix="Give a budget from 0 to 1, with the partitioner min_cut or one of your own that knows budgets.",
        )
    return replace(choice, memory_budget=memory_budget)
