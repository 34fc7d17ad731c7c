"""Memory that libraries hold beside operands and results while a call runs, estimated."""

from __future__ import annotations

from collections.abc import Mapping

from stagewire.graph import Arg, Ref
from stagewire.loop import Buffer, Extern
from stagewire.sizes import estimate
from stagewire.types import ITEM_SIZE, TensorType, numel

PLACES = {"aten.convolution.default": (0, 1, 8), "aten.convolution_backward.default": (1, 2, 9)}
"""Where the image, the kernel and the number of groups stand among the arguments."""


def work_space(call: Extern, buffers: Mapping[str, Buffer]) -> int:
    """Bytes: cuDNN computes on images whose channels are fastest, and holds others in that order, results too; images
    of several groups it holds in an order of its own. What is left in memory as it lies: windows of one place, a group
    for each channel (`python benchmarks/peak_memory.py` shows such allocations)."""
    if call.target not in PLACES:
        return 0
    image, kernel, groups = (call.args[place] if place < len(call.args) else None for place in PLACES[call.target])
    given, weight = _type(image, buffers), _type(kernel, buffers)
    if given is None or weight is None or not given.device.startswith("cuda"):
        return 0
    in_place = groups == given.shape[1] if groups != 1 else given.stride[1] == 1 or numel(weight.shape[2:]) == 1
    if in_place:
        return 0
    other = call.args[0] if call.target.endswith("backward.default") else Ref(call.results[0])
    return sum(_bytes(type_) for type_ in (given, _type(other, buffers)) if type_ is not None)


def _type(arg: Arg, buffers: Mapping[str, Buffer]) -> TensorType | None:
    return buffers[arg.name].type if isinstance(arg, Ref) and arg.name in buffers else None


def _bytes(type_: TensorType) -> int:
    return estimate(numel(type_.shape)) * ITEM_SIZE[type_.dtype]
