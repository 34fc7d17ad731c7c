"""Philox4x32-10, and which of its numbers an element of a tensor draws as ATen's kernels for GPUs do. Needs numpy.

A thread of such a kernel has the counter (offset / 4 + call, its number) and draws four numbers in each call:

    width 1    element e is number (e // threads) % 4 of call e // threads // 4 of thread e % threads
    width w    thread (e // w) % threads takes w elements that lie together; after each round, the next of its groups:
               element e is number e % w % 4 of call (e // w // threads) * max(w // 4, 1) + e % w // 4

Salmon et al., Parallel random numbers: as easy as 1, 2, 3 (2011). The order is that of aten/src/ATen/native/cuda
(Dropout.cu, DistributionTemplates.h); the numbers are those of cuRAND's curand_uniform4.
"""

from __future__ import annotations

import numpy as np

from loopir.errors import NotInterpretable

Array = np.ndarray
MASK = np.uint64(0xFFFFFFFF)
HALF = np.uint64(32)
MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
WEYL = 0x9E3779B9, 0xBB67AE85
ROUNDS = 10


def philox(counter: tuple[Array, Array, Array, Array], key: tuple[int, int]) -> tuple[Array, Array, Array, Array]:
    """The four 32-bit numbers at a counter of four words, in arrays of uint64.

    >>> zero = np.zeros(1, np.uint64)
    >>> [hex(int(x[0])) for x in philox((zero, zero, zero, zero), (0, 0))]
    ['0x6627e8d5', '0xe169c58d', '0xbc57ac4c', '0x9b00dbd8']
    """
    a, b, c, d = counter
    low, high = key
    for _ in range(ROUNDS):
        left, right = MULTIPLIERS[0] * a, MULTIPLIERS[1] * c
        a, c = (right >> HALF) ^ b ^ np.uint64(low), (left >> HALF) ^ d ^ np.uint64(high)
        b, d = right & MASK, left & MASK
        low, high = (low + WEYL[0]) & 0xFFFFFFFF, (high + WEYL[1]) & 0xFFFFFFFF
    return a, b, c, d


def uniform(seed: Array, offset: Array, element: Array, threads: Array, width: Array) -> Array:
    """The loop op `philox`: float32 in (0, 1], one for each element; the other operands are one number each."""
    (key,), (start,), (t,), (w,) = (np.unique(x) for x in (seed, offset, threads, width))
    if w not in (1, 2, 4, 8, 16) or start % 4:
        raise NotInterpretable(f"philox of width {w} from offset {start}")
    thread, call, number = places(np.asarray(element, np.int64), int(t), int(w))
    call = (call + int(start) // 4).astype(np.uint64)
    zero = np.zeros_like(call)
    words = philox(
        (call & MASK, call >> HALF, thread.astype(np.uint64), zero),
        (int(key) & 0xFFFFFFFF, (int(key) >> 32) & 0xFFFFFFFF),
    )
    drawn = np.choose(number, words)
    return drawn.astype(np.float32) * np.float32(2.0**-32) + np.float32(2.0**-33)


def places(element: Array, threads: int, width: int) -> tuple[Array, Array, Array]:
    """The thread, the call and the number in it for each element.

    >>> [int(x) for x in places(np.array(11), 256, 8)]
    [1, 0, 3]
    """
    if width == 1:
        turn = element // threads
        return element % threads, turn // 4, turn % 4
    group, within = element // width, element % width
    return group % threads, group // threads * max(width // 4, 1) + within // 4, within % 4
