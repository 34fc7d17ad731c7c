"""Random numbers by formula: those that ATen's kernels for GPUs draw, as a function of a seed and an element's place.

    seed, offset = state(count, device)          # takes what such a kernel would take from the stream
    uniform(seed, offset, shape, threads, width, device)

The kernels run Philox4x32-10 (Salmon et al., 2011) with the seed as key. A thread draws four numbers a call from the
counter (offset / 4 + call, number of the thread):

    width 1    element e is number (e // threads) % 4 of call e // threads // 4 of thread e % threads
    width w    thread (e // w) % threads takes w elements that lie together, in rounds:
               element e is number e % w % 4 of call (e // w // threads) * max(w // 4, 1) + e % w // 4

Source: aten/src/ATen/native/cuda/Dropout.cu, DistributionTemplates.h; cuRAND's curand_uniform4.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

MASK = 0xFFFFFFFF
THREADS_OF_A_BLOCK = 256


def threads_for(elements: int, most: int) -> int:
    """How many threads ATen starts for so many elements, on a device where it starts at most `most` of them.

    >>> threads_for(1000, 270336), threads_for(10**7, 270336)
    (1024, 270336)
    """
    return min(-(-elements // THREADS_OF_A_BLOCK) * THREADS_OF_A_BLOCK, most)


def count_for(elements: int, threads: int) -> int:
    """By how much ATen then moves the offset on: four for each call that one of the threads makes.

    >>> count_for(1000, 1024), count_for(10**7, 270336)
    (4, 40)
    """
    return ((elements - 1) // (threads * 4) + 1) * 4


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
    key = int(seed) & MASK, (int(seed) >> 32) & MASK
    element = torch.arange(torch.Size(shape).numel(), device=device)
    thread, call, number = places(element, threads, width)
    call = call + int(offset) // 4
    words = torch.stack(philox((call & MASK, call >> 32, thread, torch.zeros_like(call)), key))
    drawn = words.gather(0, number[None])[0].to(torch.float32)
    return (drawn * 2.0**-32 + 2.0**-33).reshape(tuple(shape))


def places(element: Tensor, threads: int, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """The thread, the call and the number in it for each element."""
    if width == 1:
        turn = element // threads
        return element % threads, turn // 4, turn % 4
    group, within = element // width, element % width
    return group % threads, group // threads * max(width // 4, 1) + within // 4, within % 4


def philox(counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[int, int]) -> tuple[Tensor, ...]:
    """The four words of 32 bits at a counter of four, as int64.

    >>> zero = torch.zeros(1, dtype=torch.int64)
    >>> [hex(int(x)) for x in philox((zero, zero, zero, zero), (0, 0))]
    ['0x6627e8d5', '0xe169c58d', '0xbc57ac4c', '0x9b00dbd8']
    """
    a, b, c, d = counter
    low, high = key
    for _ in range(10):
        left, right = 0xD2511F53 * a, 0xCD9E8D57 * c  # 64 bits, the topmost among them: shifted, it is masked off
        a, b, c, d = ((right >> 32) & MASK) ^ b ^ low, right & MASK, ((left >> 32) & MASK) ^ d ^ high, left & MASK
        low, high = (low + 0x9E3779B9) & MASK, (high + 0xBB67AE85) & MASK
    return a, b, c, d
