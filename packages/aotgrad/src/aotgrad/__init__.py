"""aotgrad: captured torch programs as functional ATen graphs of both directions, and back to the caller's tensors."""

from __future__ import annotations

from aotgrad.bind import bind
from aotgrad.executor import executor
from aotgrad.interpret import bind_capture, bind_interpreted, interpret, run_plain
from aotgrad.joint import Joint
from aotgrad.partition import PARTITIONERS, MinCut, Partition, Partitioner, save_everything, split
from aotgrad.partition.stage import PartitionStage, cut
from aotgrad.stage import AotGrad, Options

__all__ = [
    "PARTITIONERS",
    "AotGrad",
    "Joint",
    "MinCut",
    "Options",
    "Partition",
    "PartitionStage",
    "Partitioner",
    "bind",
    "bind_capture",
    "bind_interpreted",
    "cut",
    "executor",
    "interpret",
    "run_plain",
    "save_everything",
    "split",
]
