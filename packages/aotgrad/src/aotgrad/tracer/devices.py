"""Which device C++ code means that asks for the CPU, because abstract tensors say that they are there."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from stagewire.capture import Capture
from stagewire.graph import Node, Value
from stagewire.types import TensorType


def home_of(node: Node) -> torch.device | None:
    """The one device, other than the CPU, that a captured call makes tensors on; None where it is not one."""
    return _one(node.results)


def device_of(capture: Capture) -> torch.device | None:
    """That of a whole program; None for a program of several devices."""
    return _one((*capture.graph.inputs, *(value for node in capture.graph.nodes for value in node.results)))


def _one(values: Iterable[Value]) -> torch.device | None:
    """A 0-dim tensor on the CPU goes along with any device."""
    types = [value.type for value in values if isinstance(value.type, TensorType)]
    devices = {type_.device for type_ in types if type_.shape or type_.device != "cpu"}
    return torch.device(devices.pop()) if len(devices) == 1 and devices != {"cpu"} else None
