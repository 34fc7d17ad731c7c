"""Pass: operands of externs (and outputs) that are windows on another buffer need no copy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from loopir.passes.definitions import Definition, piece_of
from loopir.passes.expand import Expander
from loopir.schedule import Item, Rewriting, Schedule, output_names, public_outputs, read_elsewhere
from stagewire import index as ix
from stagewire.expr import Dim
from stagewire.graph import Ref
from stagewire.loop import Buffer, Decision, Extern, Index, Kernel, Load, Store
from stagewire.sizes import estimate
from stagewire.statements import writes_of
from stagewire.types import TensorType, bytes_of, numel


@dataclass(frozen=True)
class AliasViews:
    """Before: a nest copies elements of `base` to `x`, and the strides of `x` are those of a window on `base`.
    After: `x` is a view buffer, the nest is gone, and nests that read `x` read `base`.

    An output may share memory with nothing that the user sees besides it: not with inputs (but as in eager a gradient
    may with the one that it is a view of), nor with other outputs (saved activations among themselves excepted), nor
    hold alive a base more than `slack` times its size.
    """

    name = "alias_views"
    slack: float = 2.0

    def run(self, schedule: Schedule) -> Schedule:
        state = Rewriting(schedule)
        buffers = state.buffers
        owners = _Owners(schedule, buffers)
        written = Counter(name for item in schedule.items for name in set(writes_of(item)))
        items: list[Item] = []
        windows: dict[str, Definition] = {}
        for item in schedule.items:
            window = None if isinstance(item, Extern) else window_of(item, buffers)
            piece = None if isinstance(item, Extern) or window is None else piece_of(item)
            if window is None or piece is None or written[window.name] != 1:
                items.append(item)
                continue
            refusal = owners.refusal(window, self.slack)
            if refusal is not None:
                state.decisions.append(Decision("refused", (window.name, window.base or ""), refusal))
                items.append(item)
                continue
            owners.share(window)
            buffers[window.name] = window
            windows[window.name] = Definition(window.name, window.type.dtype, (piece,))
            state.decisions.append(
                Decision("inlined", (window.name, window.base or ""), "a window, no copy", bytes_of(window.type) * 2)
            )
        # nests read the base, so that what they share with its writer is seen
        expander = Expander(windows, state.names)
        return state.with_items([expander.nest(i) if windows and isinstance(i, Kernel) else i for i in items])


class _Owners:
    """Which memory the outputs hold."""

    def __init__(self, schedule: Schedule, buffers: dict[str, Buffer]) -> None:
        self.buffers = buffers
        self.outputs = output_names(schedule)
        self.public = public_outputs(schedule)
        self.elsewhere = read_elsewhere(schedule)
        self.tangents = schedule.tangents
        self.views: dict[str, list[str]] = {}
        for buffer in buffers.values():
            if buffer.base is not None:
                self.views.setdefault(buffer.base, []).append(buffer.name)
        self.held: dict[str, set[str]] = {}
        for name in self.outputs:
            self.held.setdefault(buffers[name].base or name, set()).add(name)

    def refusal(self, window: Buffer, slack: float) -> str | None:
        """Why the window may not share its base's memory."""
        if window.name in self.elsewhere:
            return "a kernel on a GPU takes it by value"
        names = self.held.get(window.name, set())
        if not names:
            return None
        base = self.buffers[window.base or ""]
        if base.role == "input" and base.name not in self.tangents:
            return "an output must not share memory with an input"
        others = self.held.get(base.name, set()) - names
        if others and (names | others) & self.public:
            return f"the user would see {', '.join(sorted(names))} and {', '.join(sorted(others))} in one memory"
        if estimate(numel(base.type.shape)) > slack * estimate(numel(window.type.shape)):
            return "the output would keep a much larger buffer alive"
        return None

    def share(self, window: Buffer) -> None:
        """Note that outputs live in the memory of the window's base, and rebase the views of the window."""
        names = self.held.pop(window.name, set())
        if names:
            self.held.setdefault(window.base or "", set()).update(names)
        for name in self.views.pop(window.name, ()):
            type = self.buffers[name].type
            type = replace(type, storage_offset=type.storage_offset + window.type.storage_offset)
            self.buffers[name] = Buffer(name, type, "view", window.base)


def window_of(nest: Kernel, buffers: dict[str, Buffer]) -> Buffer | None:
    """The view buffer that makes a copying nest superfluous, or None."""
    if len(nest.sections) != 1 or nest.sections[0].axes or len(nest.sections[0].statements) != 2:
        return None
    read, write = nest.sections[0].statements
    if not isinstance(read, Load) or not isinstance(write, Store) or read.mask or write.mask or write.mode != "set":
        return None
    target, source = buffers[write.buffer], buffers[read.buffer]
    if target.role != "kernel" or target.type.dtype != source.type.dtype or write.value != Ref(read.result):
        return None
    if target.type.device != source.type.device:
        return None
    offset = ix.linear(read.index, source.type.stride)
    strides = strides_on(read.index, source.type)
    axes = [ix.single_axis(c) if c.terms else "" for c in write.index]
    if strides is None or None in axes:
        return None
    for axis, size, stride in zip(axes, target.type.shape, target.type.stride, strict=True):
        if size != 1 and strides.get(axis or "", 0) != stride:
            return None
    start = offset.constant + source.type.storage_offset
    if isinstance(start, int) and start < 0:
        return None
    base = source.base if source.role == "view" else source.name
    type = TensorType(target.type.dtype, target.type.shape, target.type.stride, start, target.type.device)
    return Buffer(target.name, type, "view", base)


def strides_on(coordinates: Sequence[Index], type: TensorType) -> dict[str, Dim] | None:
    """How far each axis goes in memory, or None where the element at these coordinates is more than a sum of axes."""
    return ix.affine(ix.linear(coordinates, type.stride))
