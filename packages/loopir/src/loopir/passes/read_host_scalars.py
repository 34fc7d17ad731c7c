"""Pass: kernels of a GPU take scalars of the CPU as parameters."""

from __future__ import annotations

from dataclasses import dataclass

from msgspec.structs import replace

from loopir.schedule import Item, Schedule, output_names
from stagewire.graph import DeviceArg, Ref
from stagewire.loop import BY_VALUE, Extern, Kernel
from stagewire.statements import map_buffers, reads_of

COPY = "aten._to_copy.default"


@dataclass(frozen=True)
class ReadHostScalars:
    """Before: a call copies a 0-dim tensor of the CPU to a GPU. After: nests read the one on the CPU, as a parameter of
    their kernel, and the call is gone unless something else needs the copy.

    An optimizer's step counts lie on the CPU, and eager, too, gives what is computed of them to kernels as numbers.
    """

    name = "read_host_scalars"

    def run(self, schedule: Schedule) -> Schedule:
        copies = dict(found for item in schedule.items if (found := _copied_number(item, schedule)) is not None)
        if not copies:
            return schedule
        kept = set(output_names(schedule))
        kept.update(name for item in schedule.items if isinstance(item, Extern) for name in reads_of(item))
        kept.update(buffer.base for buffer in schedule.buffers.values() if buffer.base is not None)
        gone = copies.keys() - kept
        items = tuple(
            [
                map_buffers(item, copies) if isinstance(item, Kernel) else item
                for item in schedule.items
                if isinstance(item, Kernel) or gone.isdisjoint(item.results)
            ]
        )
        buffers = {name: buffer for name, buffer in schedule.buffers.items() if name not in gone}
        return replace(schedule, items=items, buffers=buffers)


def _copied_number(item: Item, schedule: Schedule) -> tuple[str, str] | None:
    """(copy, number) of a call that copies a number of the CPU to another device as it is."""
    if not isinstance(item, Extern) or item.target != COPY or set(item.kwargs) != {"device"}:
        return None
    match item.args, item.kwargs["device"]:
        case (Ref(name),), DeviceArg() if name in schedule.buffers:
            type = schedule.buffers[name].type
            if (type.device, type.shape) == ("cpu", ()) and type.dtype in BY_VALUE:
                return item.results[0], name
    return None
