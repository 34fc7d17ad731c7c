"""Philox4x32-10, and which of its numbers an element of a tensor draws as ATen's kernels for GPUs do.

The kernels run Philox4x32-10 (Salmon et al., Parallel random numbers: as easy as 1, 2, 3, 2011) with the seed as key. A
thread draws four numbers a call from the counter (offset / 4 + call, number of the thread):

    width 1    element e is number (e // threads) % 4 of call e // threads // 4 of thread e % threads
    width w    thread (e // w) % threads takes w elements that lie together, in rounds:
               element e is number e % w % 4 of call (e // w // threads) * max(w // 4, 1) + e % w // 4

Source: aten/src/ATen/native/cuda/Dropout.cu, DistributionTemplates.h; cuRAND's curand_uniform4. What is computed with
are arrays of 64-bit integers with a sign, of whatever library, or numbers: products wrap, and their sign is masked off.
"""

from __future__ import annotations

from typing import Any

MASK = 0xFFFFFFFF
THREADS_OF_A_BLOCK = 256
Words = tuple[Any, Any, Any, Any]


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


def places(element: Any, threads: int, width: int) -> tuple[Any, Any, Any]:
    """The thread, the call and the number in it for each element.

    >>> places(11, 256, 8)
    (1, 0, 3)
    """
    if width == 1:
        turn = element // threads
        return element % threads, turn // 4, turn % 4
    group, within = element // width, element % width
    return group % threads, group // threads * max(width // 4, 1) + within // 4, within % 4


def philox(counter: Words, key: tuple[int, int]) -> Words:
    """The four words of 32 bits at a counter of four.

    >>> [hex(x) for x in philox((0, 0, 0, 0), (0, 0))]
    ['0x6627e8d5', '0xe169c58d', '0xbc57ac4c', '0x9b00dbd8']
    """
    a, b, c, d = counter
    low, high = key
    for _ in range(10):
        left, right = 0xD2511F53 * a, 0xCD9E8D57 * c
        a, b, c, d = ((right >> 32) & MASK) ^ b ^ low, right & MASK, ((left >> 32) & MASK) ^ d ^ high, left & MASK
        low, high = (low + 0x9E3779B9) & MASK, (high + 0xBB67AE85) & MASK
    return a, b, c, d


def draw(seed: int, offset: int, element: Any, threads: int, width: int) -> tuple[Words, Any]:
    """For each element the words of its call, and which of these it takes."""
    thread, call, number = places(element, threads, width)
    call = call + offset // 4
    return philox((call & MASK, call >> 32, thread, call * 0), (seed & MASK, (seed >> 32) & MASK)), number


def in_unit_interval(word: Any) -> Any:
    """A word of 32 bits, given as a float32, as a number in (0, 1]."""
    return word * 2.0**-32 + 2.0**-33
