"""FlexAttention by kernels of ours (`flex_kernels.py`): what is launched in place of a call."""

from __future__ import annotations

from collections.abc import Callable

from codegen.flex_attention import Attention
from codegen.triton import tuning
from codegen.triton.flex_kernels import FEW_QUERIES, SMALL_FORWARD, Writer
from codegen.triton.products import MOST_BATCHES, Types
from stagewire.program import Allocate, Instruction, KernelInfo, Launch, Release
from stagewire.types import contiguous

Make = Callable[[str, KernelInfo, tuple[str, ...]], str]
"""Takes a function, the info of a kernel and the dtypes of its buffers, and gives the name of such a kernel."""


def is_launched(call: Attention, types: Types) -> bool:
    """Whether a grid can have its heads."""
    batch, heads = types[call.query].shape[:2]
    return batch * heads <= MOST_BATCHES  # type: ignore[operator]


def stand_in(call: Attention, types: Types, name: str, make: Make) -> list[Instruction]:
    """What computes the call's results. `name` begins the names of what is made."""
    made: list[Instruction] = [Allocate(result, types[result]) for result in call.results if result]
    kinds, scratch, parts = ("queries", "keys") if call.more else ("forward",), (), parts_of(call, types)
    if parts > 1:
        query, width = types[call.query], types[call.value].shape[3]
        shapes = (parts, *query.shape[:3], width), (2, parts, *query.shape[:3])
        scratch = tuple(f"{name}_{what}" for what in ("sums", "levels"))
        types = {
            **types,
            **{one: contiguous("float32", s, query.device) for one, s in zip(scratch, shapes, strict=True)},
        }
        made += [Allocate(one, types[one]) for one in scratch]
        kinds = ("part", "joined")
    for kind in kinds:
        writer = Writer.of(call, types, kind, scratch, parts)
        if any(writer.results):
            text, info = writer.kernel(f"{name}_{kind}")
            kernel = make(text, info, tuple(types[one].dtype for one in info.parameters))
            made.append(Launch(kernel, info.parameters))
    return [*made, *(Release(one) for one in scratch)]


def parts_of(call: Attention, types: Types) -> int:
    """In how many parts the keys of few queries are gone through."""
    batch, heads, length, _ = types[call.query].shape
    if call.more or length > FEW_QUERIES:  # type: ignore[operator]
        return 1
    tiles = -(-types[call.key].shape[2] // SMALL_FORWARD.other)  # type: ignore[operator]
    return max(1, min(tiles // 2, -(-tuning.SM_90.programs // (batch * heads))))  # type: ignore[operator,return-value]
