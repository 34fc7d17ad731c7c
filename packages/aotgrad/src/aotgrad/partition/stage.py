"""The second stage: a `Prim` that is one joint graph in, one cut into forward and backward out."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from msgspec.structs import replace

from aotgrad.joint import Joint
from aotgrad.partition import Partition, Partitioner, partitioner_of, split
from stagewire.grad import Grad
from stagewire.prim import Prim
from stagewire.stage import expect


@dataclasses.dataclass(frozen=True)
class Options:
    """Choices of the stage.

    partitioner: decides what is saved for the backward: a name of `aotgrad.partition.PARTITIONERS`, or any callable
    from `Joint` to `Partition`.
    memory_budget: which part of the bytes that "min_cut" would save for the backward it may save, from 0 to 1; the rest
    is computed again there (`MinCut.memory_budget`).
    """

    partitioner: str | Partitioner = "min_cut"
    memory_budget: float = 1.0


@dataclasses.dataclass(frozen=True)
class PartitionStage:
    """Cuts the joint graph into forward and backward, which share no more than the values that are saved."""

    name: str = "partition"
    version: str = "1"
    consumes: str = "prim"
    produces: str = "prim"

    Options: ClassVar[type[Options]] = Options

    def run(self, document: Prim, options: Options | None = None) -> Prim:
        """The same program in two parts."""
        expect(document, "prim", self.name)
        return replace(cut(document, options), opset=document.opset)


def cut(document: Grad | Prim, options: Options | None = None) -> Prim:
    """Both directions of a joint graph, of ATen calls or of prims."""
    options = Options() if options is None else options
    partitioner = partitioner_of(options.partitioner, options.memory_budget)
    assert document.joint is not None
    joint = Joint(document.joint, document.binding)
    return split(joint, partitioner(joint) if joint.has_backward else Partition(()))
