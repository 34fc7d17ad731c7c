"""`Prim`: the graph of `Grad` in prims ("prims.add") and named externs of ATen ("aten.mm.default"), then cut in two.

prim ::= binding joint:graph opset | binding forward:graph backward:graph? partition opset
"""

from __future__ import annotations

import msgspec

from stagewire.expr import Dim
from stagewire.grad import Binding
from stagewire.graph import Graph


class PartitionReport(msgspec.Struct, frozen=True):
    """What the partitioner decided: bytes saved for backward, nodes recomputed there."""

    saved_bytes: Dim = 0
    saved_bytes_without_recompute: Dim = 0
    recomputed: tuple[str, ...] = ()


class Prim(msgspec.Struct, frozen=True, kw_only=True, tag="prim", tag_field="document"):
    """`joint` until the partition, then `forward` and, of a program that is trained, `backward`; the calling convention
    is that of `stagewire.grad`. `opset` is the version of primops' opset."""

    binding: Binding
    joint: Graph | None = None
    forward: Graph | None = None
    backward: Graph | None = None
    partition: PartitionReport = PartitionReport()
    opset: int = 1
