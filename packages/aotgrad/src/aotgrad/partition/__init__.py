"""Which forward values the backward is given, and which it computes again.

    partitioner ::= (Joint) -> Partition          any callable
    partition   ::= the names of the forward values to hand over
"""

from __future__ import annotations

from aotgrad.partition.min_cut import MinCut
from aotgrad.partition.save_everything import save_everything
from aotgrad.partition.split import Partition, Partitioner, split

__all__ = ["MinCut", "Partition", "Partitioner", "save_everything", "split"]
