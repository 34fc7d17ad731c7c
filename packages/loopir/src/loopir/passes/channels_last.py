"""Pass: images lie with their channels fastest, from convolution to convolution.

Libraries of convolutions compute on such images on a GPU; they turn others before and after each call. (On a CPU the
layout pays for depthwise convolutions and packed weights alone; there primops says it of the calls themselves.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from msgspec.structs import replace

from loopir.passes.pad_products import copying
from loopir.schedule import Item, Rewriting, Schedule, public_outputs
from stagewire.graph import Arg, Ref
from stagewire.loop import Buffer, Decision, Extern, Kernel, Load
from stagewire.statements import reads_of, statements_of, writes_of
from stagewire.types import DType, TensorType, channels_last_stride


class Images(NamedTuple):
    """Places of the images among the arguments and the results of a call: these are laid out as those are. weight: the
    place of that of a convolution, which ATen would turn in each call."""

    arguments: tuple[int, ...]
    results: tuple[int, ...]
    weight: int | None = None


CALLS = {
    "aten.convolution.default": Images((0,), (0,), 1),
    "aten.convolution_backward.default": Images((0, 1), (0, 1), 2),  # the gradient of the weight too
    "aten.max_pool2d_with_indices.default": Images((0,), (0, 1)),
    "aten.max_pool2d_with_indices_backward.default": Images((0, 1, 7), (0,)),
}


FEWEST = 2
"""Convolutions from which the copies at the borders pay: a single one takes images as they are."""


@dataclass(frozen=True)
class ChannelsLast:
    """Before: buffers have the strides that eager gives them. After: in a graph with several convolutions (on `device`,
    in `dtypes`), the images that they read and write, and what nests make of these, have their channels fastest. Inputs
    are copied once; what the user gets has eager's strides, by a copy.

    training: also where a backward follows (`docs/gpu.md` has figures); there weights are copied as well, which ATen
    would do in each call.
    """

    name = "channels_last"
    device: str = "cuda"
    dtypes: tuple[DType, ...] = ("bfloat16", "float16", "float32")
    training: bool = True

    def run(self, schedule: Schedule) -> Schedule:
        calls = [call for call in schedule.calls if call.target in CALLS and self._takes(call, schedule.buffers)]
        if sum(CALLS[call.target].weight is not None for call in calls) < FEWEST:
            return schedule
        targets = {call.target for call in schedule.calls}
        trains = bool(schedule.private) or "aten.convolution_backward.default" in targets
        if trains and not self.training:
            return schedule
        state, taken = _Layouts(schedule, turns_weights=trains), set(map(id, calls))
        for item in schedule.items:
            if isinstance(item, Kernel):
                state.nest(item)
            elif id(item) in taken:
                state.call(item, CALLS[item.target])
            else:
                state.items.append(item)
        return state.with_items(state.items)

    def _takes(self, item: Extern, buffers: dict[str, Buffer]) -> bool:
        arg = item.args[0]
        type = buffers[arg.name].type if isinstance(arg, Ref) and arg.name in buffers else None
        return type is not None and is_image(type) and type.dtype in self.dtypes and type.device.startswith(self.device)


class _Layouts(Rewriting):
    """Buffers and items while layouts change. fixed: buffers whose strides somebody else reads; copies: by source."""

    def __init__(self, schedule: Schedule, *, turns_weights: bool) -> None:
        super().__init__(schedule)
        self.turns_weights = turns_weights
        self.items: list[Item] = []
        self.copies: dict[str, str] = {}
        others = [reads_of(call) for call in schedule.calls if call.target not in CALLS]
        self.fixed = public_outputs(schedule).union(*others)

    def nest(self, nest: Kernel) -> None:
        """What a nest makes of images whose channels are fastest is such an image: of as many channels, or as large."""
        self.items.append(nest)
        read = [self.buffers[s.buffer].type for s in statements_of(nest) if isinstance(s, Load)]
        turned = [type.shape for type in read if is_image(type) and is_last(type)]
        sizes = {shape[:2] for shape in turned}, {(shape[0], shape[2:]) for shape in turned}
        for name in writes_of(nest):
            shape = self.buffers[name].type.shape
            if shape[:2] in sizes[0] or (len(shape) == 4 and (shape[0], shape[2:]) in sizes[1]):
                self._turn(name)

    def call(self, call: Extern, images: Images) -> None:
        """A call reads and writes images whose channels are fastest; copies stand before and after it."""
        args = list(call.args)
        weight = () if images.weight is None or not self._is_turned_by_aten(args[images.weight]) else (images.weight,)
        for place in (*images.arguments, *weight):
            arg = args[place] if place < len(args) else None
            if isinstance(arg, Ref) and is_image(self.buffers[arg.name].type):
                args[place] = Ref(self._last(arg.name))
        results, after = list(call.results), []
        for place in images.results:
            name = results[place] if place < len(results) else ""
            if not name or not is_image(type := self.buffers[name].type) or is_last(type):
                continue
            results[place] = self.copies[name] = self.names(f"{name}_last")
            self.buffers[results[place]] = Buffer(results[place], last(type), "extern")
            self.buffers[name] = Buffer(name, type, "kernel")
            self._turn(name)
            after.append(copying(results[place], name, self.buffers, self.names, type.shape))
        self.items.append(replace(call, args=tuple(args), results=tuple(results)))
        self.items += after

    def _is_turned_by_aten(self, weight: Arg) -> bool:
        """Whether ATen would bring a weight into another order in each of two calls, forward and backward."""
        type = self.buffers[weight.name].type if isinstance(weight, Ref) and self.turns_weights else None
        return type is not None and len(type.shape) == 4 and type.shape[1] != 1 and type.shape[2:] != (1, 1)

    def _last(self, name: str) -> str:
        """The buffer with its channels fastest, or a copy of it that has them so."""
        if self._turn(name):
            return name
        if name not in self.copies:
            copy = self.copies[name] = self.names(f"{name}_last")
            self.buffers[copy] = Buffer(copy, last(self.buffers[name].type), "kernel")
            self.items.append(copying(name, copy, self.buffers, self.names, self.buffers[name].type.shape))
            self.decisions.append(Decision("materialised", (copy, name), "channels fastest, for a convolution"))
        return self.copies[name]

    def _turn(self, name: str) -> bool:
        """Whether the channels of a buffer are fastest now."""
        buffer = self.buffers[name]
        if not is_image(buffer.type):
            return False
        if is_last(buffer.type):
            return True
        if buffer.role != "kernel" or name in self.fixed:
            return False
        self.buffers[name] = replace(buffer, type=last(buffer.type))
        return True


def is_image(type: TensorType) -> bool:
    """Batch, channels, height, width; nothing repeated."""
    return len(type.shape) == 4 and 0 not in (*type.shape, *type.stride)


def is_last(type: TensorType) -> bool:
    """Whether an image is dense with its channels fastest, by strides of dimensions of one element too: libraries look
    at these."""
    return type.stride == channels_last_stride(type.shape)


def last(type: TensorType) -> TensorType:
    """The image with its channels fastest."""
    return TensorType(type.dtype, type.shape, channels_last_stride(type.shape), device=type.device)
