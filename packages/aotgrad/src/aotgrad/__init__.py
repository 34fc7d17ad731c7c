"""aotgrad: captured torch programs as functional ATen graphs of both directions, and back to the caller's tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aotgrad.bind import bind
from aotgrad.executor import executor
from aotgrad.interpret import bind_capture, bind_interpreted, interpret, run_plain
from stagewire.lazy_names import lazy_names

if TYPE_CHECKING:
    from aotgrad.joint import Joint
    from aotgrad.partial import is_linear, partial_backward
    from aotgrad.partition import PARTITIONERS, MinCut, Partition, Partitioner, save_everything, split
    from aotgrad.partition.needs import needs_of
    from aotgrad.partition.stage import PartitionStage, cut
    from aotgrad.stage import AotGrad, Options
    from aotgrad.tracer.custom_writers import restore_twins

__all__ = [
    "PARTITIONERS", "AotGrad", "Joint", "MinCut", "Options", "Partition", "PartitionStage", "Partitioner", "bind",
    "bind_capture", "bind_interpreted", "cut", "executor", "interpret", "is_linear", "needs_of",
    "partial_backward", "restore_twins", "run_plain", "save_everything", "split",
]  # fmt: skip

__getattr__ = lazy_names(__name__, {
    "aotgrad.joint": "Joint",
    "aotgrad.partial": "is_linear partial_backward",
    "aotgrad.partition": "PARTITIONERS MinCut Partition Partitioner save_everything split",
    "aotgrad.partition.needs": "needs_of",
    "aotgrad.partition.stage": "PartitionStage cut",
    "aotgrad.stage": "AotGrad Options",
    "aotgrad.tracer.custom_writers": "restore_twins",
})  # fmt: skip
