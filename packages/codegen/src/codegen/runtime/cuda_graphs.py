"""CUDA graphs: what a unit launches is recorded once, and replayed by one call of the driver.

    call ::= plain | (copy input*)? replay output*

A recording has the addresses of its memory burnt in. Inputs that stay where they are (parameters, and results of other
recordings) are read in place; the others are copied into memory of the recording. Results lie in such memory too,
which the next replay overwrites: a recording is not replayed while anybody holds what lies there. A second one takes
turns with it, and where that is held as well the unit runs plain. So nothing is overwritten that can be seen.
Recordings share memory: what is between inputs and results always (`recording.py`), results while nobody holds them
(`result_memory.py`).
"""

from __future__ import annotations

import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch

from codegen.choices import Bound, Replay
from codegen.errors import NotRecorded
from codegen.runtime.arguments import Symbols, symbol_reader
from codegen.runtime.device_partitions import InTurns
from codegen.runtime.memory_kinds import device_of, single_device
from codegen.runtime.python_wrapper import at_distance
from codegen.runtime.recordable import SEVERAL, Loader, Output, Recordable, is_on_cpu, is_short, obstacle
from codegen.runtime.recording import Captured, Recording, device_of_recordings
from codegen.runtime.result_memory import Block, Kind, type_of
from codegen.torch_capabilities import TORCH
from stagewire.errors import StageError
from stagewire.program import Unit

PATIENCE = 16
REMEMBERED = 4096
"""Sets of sizes that came once, of which that is remembered."""

Sizes = tuple[int, ...]
Run = Callable[..., Any]


class BySizes:
    """A unit with symbolic sizes as a callable.

    make: the callable for one set of sizes, which takes what `Replayed` takes. tell: is told once that more than `most`
    sets came.
    """

    def __init__(
        self, recordable: Recordable, most: int, make: Callable[[Symbols], Run], tell: Callable[[str], None]
    ) -> None:
        self._run, self._most, self._make, self._tell = recordable.run, most, make, tell
        self._read = symbol_reader(recordable.unit)
        self._kept: dict[Sizes, Run] = {}
        self._last: dict[Sizes, int] = {}
        self._once: dict[Sizes, None] = {}
        self._calls = 0
        self._told = False
        self._lock = threading.RLock()  # a finalizer may call the program anywhere

    def __call__(self, *inputs: Any) -> Any:
        given = inputs[0] if len(inputs) == 1 and isinstance(inputs[0], list) else inputs
        if not given:
            self._kept.clear()
            return self._run(*inputs)
        symbols = self._read(given)
        sizes = tuple(symbols.values())
        self._calls += 1
        run = self._kept.get(sizes) or self._new(sizes, symbols)
        if run is None:
            return self._run(*inputs)
        self._last[sizes] = self._calls
        return run(*inputs)

    def _new(self, sizes: Sizes, symbols: Symbols) -> Run | None:
        """What runs these sizes from now on; None where they run plain."""
        with self._lock:
            if sizes not in self._once:
                self._once[sizes] = None
                if len(self._once) > REMEMBERED:
                    del self._once[next(iter(self._once))]
                return None
            if len(self._kept) >= self._most and not self._made_room():
                return None
            return self._kept.setdefault(sizes, self._make(symbols))

    def _made_room(self) -> bool:
        """Whether the sizes that have not come for longest were let go of."""
        oldest = min(self._kept, key=lambda sizes: self._last.get(sizes, 0), default=None)
        if oldest is not None and self._calls - self._last.pop(oldest, 0) > PATIENCE * self._most:
            del self._kept[oldest]
            return True
        if not self._told:
            self._told = True
            self._tell(f"it came with more than {self._most} sets of sizes, and each of these is still in use")
        return False


TURNS = 2
"""Recordings for one set of addresses: results of the last call are often still held when the next one begins."""
MISSES = 8
"""So often all of them are held until the oldest is made again elsewhere: somebody may hold its memory for good."""
LIMIT = 16
"""Recordings of one unit, after which it is launched each time."""
PLACES = 4
"""Sets of addresses of inputs that stay in place for which recordings are kept."""
COPIED = 1 << 20
"""Results of up to so many bytes that the caller gets are copied, so that they can be held at no cost."""


def replayed(unit: Unit, bound: Bound, replay: Replay, load: Loader) -> Callable[..., Any]:
    """A unit, recorded and replayed, where it allows that; else as it is, with a warning if it is for a GPU. Of a unit
    of several GPUs each partition is, by itself.

    load: binds another unit of the same source.
    """
    if isinstance(bound.run, InTurns):
        return bound.run.recorded(replay, lambda one, run, own: replayed(one, Bound(run, lambda: one), own, load))
    reason = obstacle(unit) if single_device(unit) is not None else SEVERAL
    if reason is not None:
        if not is_on_cpu(unit) and not is_short(unit):
            _warn(reason)
        return bound.run
    return replayed_by_sizes(Recordable(unit, bound, replay, load), device_of(unit), replay.sizes)


def replayed_by_sizes(recordable: Recordable, device: str, most: int) -> Callable[..., Any]:
    """What replays recordings of a unit, of each of its sizes, of `most` of them at a time."""
    if not recordable.symbols:
        return Replayed(recordable, device, {})
    return BySizes(recordable, most, lambda symbols: Replayed(recordable, device, symbols, is_warm=True), _warn)


def _warn(reason: str) -> None:
    message = f"a program is not recorded as a CUDA graph: {reason}; it is launched each time"
    warnings.warn(message, NotRecorded, stacklevel=2)


class Replayed:
    """A unit at one set of sizes, which runs plain once, is recorded at its second call, and replayed from then on.

    It runs plain where a recording cannot be used: results of the last replays are held, another thread is replaying,
    another stream is current, or the caller records himself.
    """

    def __init__(self, recordable: Recordable, device: str, symbols: Symbols, *, is_warm: bool = False) -> None:
        self._recordable, self._run, self._symbols = recordable, recordable.run, symbols
        self._device = device_of_recordings(torch.device(device).index or 0)
        self._outputs = recordable.outputs(symbols)
        in_place = recordable.in_place(symbols)
        self._in_place = tuple(sorted(in_place))
        self._others = tuple(k for k in recordable.tensors if k not in in_place)
        self._recordings: OrderedDict[Key, list[Recording]] = OrderedDict()
        self._is_warm = is_warm
        self._made = self._missed = 0
        self._device.recorders.add(self)

    def __call__(self, *inputs: Any) -> Any:
        given = inputs[0] if len(inputs) == 1 and isinstance(inputs[0], list) else None
        if given is not None:
            if not given and (self._in_place or self._others):
                self._recordings.clear()
                return self._run(given)
            inputs = tuple(given)
        results = self._replay(inputs) if self._is_usable() else None
        self._is_warm = True
        if results is not None:
            if given is not None:
                given.clear()
            return results
        if given is None:
            return self._run(*inputs)
        del inputs  # the list alone holds them
        return self._run(given)

    def _is_usable(self) -> bool:
        device = self._device
        stream = TORCH.current_stream(device.index)
        if not self._is_warm or self._made > LIMIT or torch.cuda.is_current_stream_capturing():
            return False
        if device.stream is None:
            device.stream = stream
        return device.stream == stream

    def _replay(self, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """The outputs; None where the unit has to run plain."""
        device = self._device
        if not device.lock.acquire(blocking=False):
            return None
        try:
            addresses = device.addresses
            places = [inputs[k].data_ptr() for k in self._others]
            known = [place if place in addresses else 0 for place in places]
            key = (*_state(), *[inputs[k].data_ptr() for k in self._in_place], *known)
            moving = [k for k, place in zip(self._others, known, strict=True) if not place]
            recording = self._free(key) or self._record(key, inputs, moving)
            if recording is None:
                return None
            if moving:
                TORCH.copy_all(list(recording.copies), [inputs[k] for k in moving])
            self._recordable.advance_host_generators(self._symbols)
            recording.graph.replay()
            return self._handed(recording, inputs)
        finally:
            device.lock.release()

    def _free(self, key: Key) -> Recording | None:
        found = self._recordings.get(key)
        if found is None:
            return None
        self._recordings.move_to_end(key)
        return next((one for one in found if one.is_free() and not one.is_outgrown()), None)

    def _handed(self, recording: Recording, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        made = []
        for output, result, copied in zip(self._outputs, recording.results, recording.copied, strict=True):
            if result is not None:
                made.append(result.clone() if copied else result.data)  # with a version counter of its own
            elif output.input is None:
                made.append(output.literal)
            else:
                given = inputs[output.input]
                made.append(given if output.window is None else at_distance(given, *output.window))
        return tuple(made)

    # ---- recording

    def forget_outgrown(self) -> None:
        """Let go of recordings in blocks that others stand for now."""
        for found in [*self._recordings.values()]:
            self._take_outgrown(found)

    def _take_outgrown(self, found: list[Recording]) -> list[Recording]:
        outgrown = [one for one in found if one.is_outgrown()]
        found[:] = [one for one in found if not any(one is other for other in outgrown)]
        self._made -= len(outgrown)
        return outgrown

    def forget_places(self) -> None:
        """Let go of recordings that read results of others in place which are gone."""
        count = len(self._others)
        for key in [*self._recordings]:
            if any(place and place not in self._device.addresses for place in key[len(key) - count :]):
                self._made -= len(self._recordings.pop(key))

    def _record(self, key: Key, inputs: tuple[Any, ...], moving: list[int]) -> Recording | None:
        self.forget_places()
        found = self._recordings.setdefault(key, [])
        outgrown = self._take_outgrown(found)  # kept until the end: results stay where they are if they can
        if len(found) >= TURNS:
            self._missed += 1
            if self._missed % MISSES or self._made >= LIMIT // 2:
                return None
            del found[0]
        self._made += 1
        if self._made > LIMIT:
            _warn(f"{LIMIT} recordings were made of it, for inputs in ever other places")
            self._recordings.clear()
            return None
        taken = [block for one in found for block in one.hold.blocks]
        known = len(taken)
        try:
            copies, (graph, pool, made) = self._captured(inputs, moving, taken)
        except (RuntimeError, StageError) as error:
            self._made = LIMIT + 1
            self._recordings.clear()
            _warn(str(error).partition("\n")[0])
            return None
        del outgrown
        results = tuple([one if output.is_result else None for one, output in zip(made, self._outputs, strict=True)])
        made.clear()
        copied = tuple([_is_copied(result, output) for result, output in zip(results, self._outputs, strict=True)])
        recording = Recording.of(graph, pool, copies, results, copied, taken[known:], self._device.addresses)
        found.append(recording)
        self._recordings[key] = found
        while len(self._recordings) > PLACES:
            self._recordings.popitem(last=False)
        return recording

    def _captured(
        self, inputs: tuple[Any, ...], moving: list[int], taken: list[Block]
    ) -> tuple[tuple[torch.Tensor, ...], Captured]:
        """Copies of the inputs that move, and the launches of a run (which does not run) with its results."""
        plan, run, shares = self._recordable.target(self._symbols)
        types = {**plan.given, **(plan.library if shares else {})}
        moved = {plan.unit.inputs[k]: type_of(inputs[k]) for k in moving}
        kinds: dict[str, Kind] = {root: self._recordable.kind(plan.outputs.get(root, frozenset())) for root in types}
        kinds |= dict.fromkeys(moved, "inputs") | dict.fromkeys(plan.between, "between")
        placed = self._device.memory.place({**types, **moved}, kinds, taken, plan.between)
        given = list(inputs)
        for k, name in zip(moving, moved, strict=True):
            given[k] = placed[name]

        def launch(inputs: list[Any], memory: list[torch.Tensor]) -> list[Any]:
            made = list(run(*inputs, *memory[: len(plan.given)]))
            return plan.moved(made, dict(zip(types, memory, strict=True))) if shares else made

        captured = self._device.capture(launch, given, [placed[root] for root in types], shares=shares)
        return tuple([placed[name] for name in moved]), captured


Key = tuple[Any, ...]


def _state() -> Key:
    """What libraries read of torch when they are called, and so when a recording is made: how precise products are."""
    return (
        torch.is_inference_mode_enabled(),
        TORCH.precision("cuda", "matmul"),
        TORCH.precision("cuda", "conv"),
        TORCH.reduces_in_float16(),
        TORCH.reduces_in_bfloat16(),
    )


def _is_copied(result: torch.Tensor | None, output: Output) -> bool:
    if result is None or not output.may_copy or result.numel() * result.element_size() > COPIED:
        return False
    return torch.empty_like(result, device="meta").stride() == result.stride()
