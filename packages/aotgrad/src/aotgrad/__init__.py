"""aotgrad: captured torch programs as functional ATen graphs of both directions, and back to the caller's tensors."""

from __future__ import annotations

from aotgrad.bind import bind
from aotgrad.executor import executor
from aotgrad.interpret import bind_capture, bind_interpreted, interpret, run_plain
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
