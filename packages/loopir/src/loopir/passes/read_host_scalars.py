"""Pass: kernels of a GPU take scalars of the CPU as parameters."""

from __future__ import annotations

from dataclasses import dataclass

from msgspec.structs import replace

from loopir.schedule import Schedule, output_names, read_by_calls
from stagewire.graph import DeviceArg, Ref
from stagewire.loop import BY_VALUE, Extern, Kernel
from stagewire.statements import map_buffers


@dataclass(frozen=True)
class ReadHostScalars:
    """Before: a call copies a 0-dim tensor of the CPU to a GPU. After: nests read the one on the CPU, as a parameter of
    their kernel, and the call is gone unless something else needs the copy.

    An optimizer's step counts lie on the CPU, and eager, too, gives what is computed of them to kernels as numbers.
    """

    name = "read_host_scalars"

    def run(self, schedule: Schedule) -> Schedule:
        copies = dict(found for call in schedule.calls if (found := _copied_number(call, schedule)) is not None)
        if not copies:
            return schedule
        bases = {buffer.base for buffer in schedule.buffers.values()}
        gone = copies.keys() - output_names(schedule) - read_by_calls(schedule) - bases
        items = [item for item in schedule.items if isinstance(item, Kernel) or gone.isdisjoint(item.results)]
        items = [map_buffers(item, copies) if isinstance(item, Kernel) else item for item in items]
        buffers = {name: buffer for name, buffer in schedule.buffers.items() if name not in gone}
        return replace(schedule, items=tuple(items), buffers=buffers)


def _copied_number(call: Extern, schedule: Schedule) -> tuple[str, str] | None:
    """(copy, number) of a call that copies a number of the CPU to another device as it is."""
    match call:
        case Extern("aten._to_copy.default", (Ref(name),), {"device": DeviceArg(), **rest}) if not rest:
            type = schedule.buffers[name].type if name in schedule.buffers else None
            if type is not None and (type.device, type.shape) == ("cpu", ()) and type.dtype in BY_VALUE:
                return call.results[0], name
    return None
