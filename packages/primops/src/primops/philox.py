"""Random numbers by formula: those that ATen's kernels for GPUs draw (`stagewire.philox`), on tensors.

seed, offset = state(count, device)          # takes what such a kernel would take from the stream
uniform(seed, offset, shape, threads, width, device)
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from stagewire.philox import draw, in_unit_interval


def state(count: int, device: str) -> tuple[Tensor, Tensor]:
    """Seed and offset, int64 on the CPU, as a kernel on `device` would get them; the stream goes on behind `count`.

    The generator of the CPU has no offset: a seed is drawn from it.
    """
    if device == "cpu":
        return torch.empty((), dtype=torch.int64).random_(), torch.zeros((), dtype=torch.int64)
    generator = torch.cuda.default_generators[torch.device(device).index or 0]
    offset = generator.get_offset()
    generator.set_offset(offset + count)
    return torch.tensor(_signed(generator.initial_seed())), torch.tensor(offset)


def _signed(word: int) -> int:
    """A word of 64 bits as the int64 of these bits."""
    return word - (1 << 64) if word >= 1 << 63 else word


def uniform(seed: Tensor, offset: Tensor, shape: Sequence[int], threads: int, width: int, device: str) -> Tensor:
    """float32 in (0, 1], the elements being numbered in row-major order."""
    element = torch.arange(torch.Size(shape).numel(), device=device)
    words, number = draw(int(seed), int(offset), element, threads, width)
    return in_unit_interval(torch.stack(words).gather(0, number[None])[0].to(torch.float32)).reshape(tuple(shape))
