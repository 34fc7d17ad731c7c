"""Which forward values the backward is given, and which it computes again.

partitioner ::= name | (Joint) -> Partition          any callable
partition   ::= the names of the forward values to hand over
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from aotgrad.errors import BadPartitioner
from aotgrad.partition.min_cut import MinCut
from aotgrad.partition.save_everything import save_everything
from aotgrad.partition.split import Partition, Partitioner, split

__all__ = ["PARTITIONERS", "MinCut", "Partition", "Partitioner", "partitioner_of", "save_everything", "split"]

PARTITIONERS: Mapping[str, Partitioner] = MappingProxyType({"min_cut": MinCut(), "save_everything": save_everything})


def partitioner_of(choice: str | Partitioner) -> Partitioner:
    """The partitioner of a name, or the callable itself; anything else raises `BadPartitioner`."""
    if callable(choice):
        return choice
    if isinstance(choice, str) and choice in PARTITIONERS:
        return PARTITIONERS[choice]
    raise BadPartitioner(f"{choice!r} is no partitioner; the names are {', '.join(PARTITIONERS)}")
