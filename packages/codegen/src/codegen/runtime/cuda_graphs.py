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

import warnings
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from codegen.bound import Bound
from codegen.errors import NotRecorded
from codegen.replay import Replay
from codegen.runtime.arguments import resolve
from codegen.runtime.destinations import with_destinations
from codegen.runtime.encode import at_distance
from codegen.runtime.memory_kinds import plan_memory, stated
from codegen.runtime.native import static_device
from codegen.runtime.recording import Captured, Recording, Target, device_of_recordings
from codegen.runtime.result_memory import Block, type_of
from stagewire.errors import StageError
from stagewire.graph import Ref
from stagewire.program import CallExtern, Launch, Unit
from stagewire.types import TensorType

TURNS = 2
"""Recordings for one set of addresses: results of the last call are often still held when the next one begins."""
FEWEST = 6
"""Launches and calls from which a recording is worth what it costs; fewer are started in less time than a replay."""
LIMIT = 16
"""Recordings of one unit, after which it is launched each time."""
PLACES = 4
"""Sets of addresses of inputs that stay in place for which recordings are kept."""
COPIED = 1 << 20
"""Results of up to so many bytes that the caller gets are copied, so that they can be held at no cost."""


def replayed(unit: Unit, bound: Bound, replay: Replay, load: Loader) -> Callable[..., Any]:
    """A unit, recorded and replayed, where it allows that; else as it is, with a warning if it is for a GPU.

    load: binds another unit of the same source.
    """
    run = bound.run
    device = static_device(unit)
    if all(type_.device == "cpu" for type_ in stated(unit)):
        return run
    if sum(isinstance(one, Launch | CallExtern) for one in unit.instructions) < FEWEST:
        return run
    reason = "it has symbolic sizes, or works on several devices" if device is None else _obstacle(unit, device)
    if reason is not None:
        _warn(reason)
        return run
    assert device is not None
    return Replayed(unit, device, bound, replay, load)


def _obstacle(unit: Unit, device: str) -> str | None:
    """Why a unit cannot be recorded, as far as the document says."""
    if any(type_.device != device for type_ in stated(unit)):
        return "it computes on the CPU beside"
    for one in unit.instructions:
        if isinstance(one, CallExtern):
            types = one.result_types or (None,) * len(one.results)
            if any(name and type_ is None for name, type_ in zip(one.results, types, strict=False)):
                return f"{one.target} has results of a size that depends on data"
    return None


def _warn(reason: str) -> None:
    message = f"a program is not recorded as a CUDA graph: {reason}; it is launched each time"
    warnings.warn(message, NotRecorded, stacklevel=2)


class _Output(NamedTuple):
    """What an output is: a literal; memory of input number `input` (itself, or a window on it); else a result."""

    is_result: bool = False
    input: int | None = None
    window: tuple[TensorType, int] | None = None
    literal: Any = None
    may_copy: bool = False


class Replayed:
    """A unit that runs plain once, is recorded at its second call, and replayed from then on.

    It runs plain where a recording cannot be used: results of the last replays are held, another thread is replaying,
    another stream is current, or the caller records himself.
    """

    def __init__(self, unit: Unit, device: str, bound: Bound, replay: Replay, load: Loader) -> None:
        self._bound, self._run, self._load = bound, bound.run, load
        self._device = device_of_recordings(torch.device(device).index or 0)
        self._targets: list[tuple[Unit, Target]] = []
        self._outputs = _outputs(unit, replay)
        self._alone = replay.alone
        written = {number for number, name in enumerate(unit.inputs) if name in unit.written}
        self._in_place = tuple(sorted(replay.in_place | _repeating(unit) | written))
        self._others = tuple(k for k in range(len(unit.inputs)) if k not in self._in_place)
        self._recordings: OrderedDict[Key, list[Recording]] = OrderedDict()
        self._is_warm = False
        self._made = 0

    def __call__(self, *inputs: Any) -> Any:
        given = inputs[0] if len(inputs) == 1 and isinstance(inputs[0], list) else None
        if given is not None:
            if not given and (self._in_place or self._others):
                self._forget(*self._recordings)
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
        stream = torch._C._cuda_getCurrentRawStream(device.index)
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
                torch._foreach_copy_(list(recording.copies), [inputs[k] for k in moving])
            recording.graph.replay()
            return self._handed(recording, inputs)
        finally:
            device.lock.release()

    def _free(self, key: Key) -> Recording | None:
        found = self._recordings.get(key)
        if found is None:
            return None
        self._recordings.move_to_end(key)
        return next((one for one in found if one.is_free()), None)

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

    def _record(self, key: Key, inputs: tuple[Any, ...], moving: list[int]) -> Recording | None:
        found = self._recordings.setdefault(key, [])
        if len(found) >= TURNS:
            return None
        self._made += 1
        if self._made > LIMIT:
            _warn(f"{LIMIT} recordings were made of it, for inputs in ever other places")
            self._forget(*self._recordings)
            return None
        taken = [block for one in found for block in one.hold.blocks]
        known = len(taken)
        try:
            copies = self._copies(inputs, moving, taken)
            given = list(inputs)
            for k, copy in zip(moving, copies, strict=True):
                given[k] = copy
            graph, pool, made = self._captured(given, taken)
        except (RuntimeError, StageError) as error:
            self._made = LIMIT + 1
            self._forget(*self._recordings)
            _warn(str(error).partition("\n")[0])
            return None
        given.clear()
        results = tuple([one if output.is_result else None for one, output in zip(made, self._outputs, strict=True)])
        made.clear()
        copied = tuple([_is_copied(result, output) for result, output in zip(results, self._outputs, strict=True)])
        recording = Recording.of(graph, pool, copies, results, copied, taken[known:])
        found.append(recording)
        self._device.addresses.update(recording.addresses())
        while len(self._recordings) > PLACES:
            self._forget(next(iter(self._recordings)))
        return recording

    def _copies(self, inputs: tuple[Any, ...], moving: list[int], taken: list[Block]) -> tuple[torch.Tensor, ...]:
        """Memory for copies of the inputs that move."""
        types = {str(k): type_of(inputs[k]) for k in moving}
        found = self._device.memory.place(types, types, "inputs", taken)
        return tuple([found[name] for name in types])

    def _captured(self, given: list[Any], taken: list[Block]) -> Captured:
        """The launches of one run on these inputs, which does not run, and the tensors that it returns."""
        plan, run, shares = self._target()
        types = {**plan.given, **(plan.library if shares else {})}
        alone = {root for root in types if plan.outputs[root] <= self._alone}
        placed = self._device.memory.place(types, alone, "saved", taken)

        def launch(inputs: list[Any], memory: list[torch.Tensor]) -> list[Any]:
            made = list(run(*inputs, *memory[: len(plan.given)]))
            return plan.moved(made, dict(zip(types, memory, strict=True))) if shares else made

        return self._device.capture(launch, given, [placed[root] for root in types], shares=shares)

    def _target(self) -> Target:
        """What is recorded: the unit as it runs now, made over to take memory for its results."""
        unit = self._bound.unit()
        for known, target in self._targets:
            if known is unit:
                return target
        plan = with_destinations(unit)
        self._targets.append((unit, Target.of(plan, self._load(plan.unit))))
        return self._targets[-1][1]

    def _forget(self, *keys: Key) -> None:
        for key in keys:
            for recording in self._recordings.pop(key):
                self._device.addresses.subtract(recording.addresses())
        self._device.addresses += Counter()  # keeps what is above zero


Key = tuple[Any, ...]
Loader = Callable[[Unit], Callable[..., Any]]


def _state() -> Key:
    """What libraries read of torch when they are called, and so when a recording is made: how precise products are."""
    return (
        torch.is_inference_mode_enabled(),
        torch._C._get_fp32_precision_getter("cuda", "matmul"),
        torch._C._get_fp32_precision_getter("cuda", "conv"),
        torch._C._get_cublas_allow_fp16_reduced_precision_reduction(),
        torch._C._get_cublas_allow_bf16_reduced_precision_reduction(),
    )


def _outputs(unit: Unit, replay: Replay) -> tuple[_Output, ...]:
    homes = plan_memory(unit)
    names = [output.name if isinstance(output, Ref) else None for output in unit.outputs]
    roots = Counter(homes.of[name].root for name in names if name is not None)
    numbers = {name: number for number, name in enumerate(unit.inputs)}
    found = []
    for place, (output, name) in enumerate(zip(unit.outputs, names, strict=True)):
        if name is None:
            found.append(_Output(literal=resolve(output, {}, {})))
        elif name in numbers:
            found.append(_Output(input=numbers[name]))
        elif (root := homes.of[name].root) in numbers:
            type_ = homes.types[name]
            assert type_ is not None
            found.append(_Output(input=numbers[root], window=(type_, homes.distance[name])))  # type: ignore[arg-type]
        else:
            found.append(_Output(is_result=True, may_copy=place in replay.handed and roots[root] == 1))
    return tuple(found)


def _is_copied(result: torch.Tensor | None, output: _Output) -> bool:
    if result is None or not output.may_copy or result.numel() * result.element_size() > COPIED:
        return False
    return torch.empty_like(result, device="meta").stride() == result.stride()


def _repeating(unit: Unit) -> frozenset[int]:
    """Inputs with elements that share memory: nothing can be copied into such a tensor."""
    return frozenset(
        k
        for k, type_ in enumerate(unit.input_types)
        if isinstance(type_, TensorType)
        and any(step == 0 and size != 1 for step, size in zip(type_.stride, type_.shape, strict=True))
    )
