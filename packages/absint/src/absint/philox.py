"""Random numbers by formula (`stagewire.philox`), in torch: the state that kernels start from, and the numbers."""

from __future__ import annotations

import torch
from torch import Tensor

from stagewire.philox import draw, in_unit_interval


def philox_state(count: int, device: str) -> tuple[Tensor, Tensor]:
    """Seed and offset, int64 on the CPU, as the next random kernel on `device` would get them; the stream goes on
    behind `count`.

    The generator of the CPU has no offset: a seed is drawn from it.
    """
    if device == "cpu":
        return torch.empty((), dtype=torch.int64).random_(), torch.zeros((), dtype=torch.int64)
    generator = torch.cuda.default_generators[torch.device(device).index or 0]
    offset = generator.get_offset()
    generator.set_offset(offset + count)
    seed = generator.initial_seed()
    return torch.tensor(seed - (seed >> 63 << 64)), torch.tensor(offset)


def uniform(seed: int, offset: int, element: Tensor, threads: int, width: int) -> Tensor:
    """float32 in (0, 1], one for the number of each element: what ATen's kernels for GPUs draw."""
    words, number = draw(seed, offset, element, threads, width)
    drawn = torch.stack(torch.broadcast_tensors(*words)).gather(0, number[None])[0]  # type: ignore[no-untyped-call]
    return in_unit_interval(drawn.to(torch.float32))  # type: ignore[no-any-return]
