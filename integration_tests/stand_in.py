"""Recordings of CUDA graphs without an NVIDIA GPU: a stand-in runs the unit again, into the memory of the recording."""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections import Counter
from typing import Any

import pytest
import torch

from codegen.runtime import cuda_graphs, memory_kinds, recordable, recording, result_memory
from codegen.torch_capabilities import TORCH


class StandIn:
    """A recording of a unit on the CPU."""

    def __init__(self, launch: Any, inputs: list[Any], memory: list[Any], results: list[Any]) -> None:
        self.launch, self.inputs, self.memory, self.results = launch, inputs, memory, results

    def replay(self) -> None:
        for result, made in zip(self.results, self.launch(self.inputs, self.memory), strict=True):
            if isinstance(result, torch.Tensor) and result.data_ptr() != made.data_ptr():
                result.copy_(made)


def bare(x: torch.Tensor) -> torch.Tensor:
    """A tensor on the same memory, which it does not own: a recording holds addresses."""
    if not isinstance(x, torch.Tensor) or not x.numel():
        return x
    reach = sum((n - 1) * step for n, step in zip(x.shape, x.stride(), strict=True)) + 1
    memory = (ctypes.c_byte * (reach * x.element_size())).from_address(x.data_ptr())
    return torch.frombuffer(memory, dtype=x.dtype).as_strided(x.shape, x.stride())


def unseen(x: Any) -> Any:
    """An input that a recording is made with: its numbers are not seen then, and integers may be indices."""
    if not isinstance(x, torch.Tensor):
        return x
    if 0 in x.stride():
        return x  # is only read
    return x.clone() if x.is_floating_point() else torch.zeros_like(x)


def storage_of(x: Any) -> int | None:
    return x.untyped_storage()._cdata if isinstance(x, torch.Tensor) else None


class Device(recording.Device):
    """What recordings share, without what needs a GPU."""

    def __init__(self) -> None:
        self.index, self.stream, self.lock, self.addresses = 0, None, threading.Lock(), Counter()
        self.recorders = weakref.WeakSet()
        self.memory = result_memory.ResultMemory(self.forget_outgrown)

    def capture(self, launch: Any, given: list[Any], memory: list[Any], *, shares: bool) -> Any:
        state = torch.get_rng_state()
        made = launch([unseen(x) for x in given], memory)
        torch.set_rng_state(state)  # a recording runs nothing
        places = {x.untyped_storage()._cdata for x in memory}
        results = [bare(x) if storage_of(x) in places else x for x in made]
        return StandIn(launch, [bare(x) for x in given], [bare(x) for x in memory], results), None, made


def replayed(unit: Any, bound: Any, replay: Any, load: Any) -> Any:
    """As `cuda_graphs.replayed` for a unit of a GPU."""
    return cuda_graphs.replayed_by_sizes(recordable.Recordable(unit, bound, replay, load), "cuda:0", replay.sizes)


def record_even_one_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Units are recorded however few launches they have, by the stand-in where there is no GPU."""
    monkeypatch.setattr(recordable, "FEWEST", 0)
    if torch.cuda.is_available():
        return
    monkeypatch.setitem(memory_kinds.LARGE, "cpu", 0)  # buffers of a replay lie in memory that it is given, as there
    device = Device()
    monkeypatch.setattr(cuda_graphs, "device_of_recordings", lambda index: device)
    monkeypatch.setattr(cuda_graphs, "replayed", replayed)
    monkeypatch.setattr(TORCH, "current_stream", lambda index: 0)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
