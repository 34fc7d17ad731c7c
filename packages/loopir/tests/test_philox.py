"""Philox against the published vectors, and the places of elements against ATen's kernels, thread by thread."""

from __future__ import annotations

import numpy as np
import pytest

from loopir.errors import NotInterpretable
from loopir.interpret import interpret
from loopir.numpy_ops import uniform
from loopir.pipeline import PASSES, UNFUSED
from loopir.stage import LoopIR, Options
from loopir.testing.graphs import document
from loopir.testing.prim_meaning import prim_meaning
from stagewire.parser import parse_graph
from stagewire.philox import philox, places
from stagewire.testing.random123 import VECTORS


@pytest.mark.parametrize(("counter", "key", "result"), VECTORS)
def test_published_vectors(counter: tuple[int, ...], key: tuple[int, int], result: tuple[int, ...]) -> None:
    words = philox(tuple(np.array([word], np.int64) for word in counter), key)  # type: ignore[arg-type]
    assert tuple(int(word[0]) for word in words) == result


def as_the_kernel_draws(count: int, threads: int, width: int) -> list[tuple[int, int, int]]:
    """fused_dropout_kernel_vec (fused_dropout_kernel for width 1) of ATen, in Python: who draws each element."""
    found = [(-1, -1, -1)] * count
    for thread in range(threads):
        call = 0
        if width == 1:
            rounded = ((count - 1) // (threads * 4) + 1) * threads * 4
            for first in range(thread, rounded, threads * 4):
                for number in range(4):
                    if first + threads * number < count:
                        found[first + threads * number] = (thread, call, number)
                call += 1
            continue
        for first in range(thread * width, count, threads * width):
            for within in range(width):
                found[first + within] = (thread, call + within // 4, within % 4)
            call += max(width // 4, 1)
    return found


@pytest.mark.parametrize("width", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("rounds", [0.3, 1, 2, 5.5])
def test_places_are_those_of_the_kernels(width: int, rounds: float) -> None:
    threads = 32
    count = int(threads * max(width, 4) * rounds) // width * width
    thread, call, number = places(np.arange(count), threads, width)
    assert list(zip(thread.tolist(), call.tolist(), number.tolist(), strict=True)) == as_the_kernel_draws(
        count, threads, width
    )


def test_numbers_are_in_the_half_open_interval() -> None:
    drawn = uniform(np.array(7), np.array(8), np.arange(100_000), np.array(1024), np.array(4))
    assert drawn.dtype == np.float32
    assert 0 < drawn.min() < 1e-4
    assert 1 - 1e-4 < drawn.max() <= 1
    assert abs(float(drawn.mean()) - 0.5) < 0.005


def test_the_offset_carries_into_the_second_word() -> None:
    start = 4 * (2**32 - 1)
    late = uniform(np.array(1), np.array(start), np.arange(2048), np.array(256), np.array(4))
    next_ = uniform(np.array(1), np.array(start + 4), np.arange(1024), np.array(256), np.array(4))
    assert np.array_equal(late[1024:], next_)


def test_other_widths_have_no_meaning() -> None:
    with pytest.raises(NotInterpretable, match="width 3"):
        uniform(np.array(1), np.array(0), np.arange(6), np.array(256), np.array(3))


@pytest.mark.parametrize(("shape", "width"), [("7", 1), ("33, 20", 2), ("3, 5, 64", 8), ("1", 4)])
@pytest.mark.parametrize("passes", [PASSES, UNFUSED], ids=["fused", "unfused"])
def test_the_prim_in_loops(shape: str, width: int, passes: tuple) -> None:  # type: ignore[type-arg]
    graph = parse_graph(f"""
        input %seed: i64[]
        input %offset: i64[]
        input %x: f32[{shape}]
        %drawn: f32[{shape}] = prims.philox_uniform(%seed, %offset, [{shape}], 256, {width}, "cpu")
        %mask: b8[{shape}] = prims.lt(%drawn, 0.75)
        %kept: f32[{shape}] = prims.where(%mask, %x, 0.0)
        return %drawn, %mask, %kept
    """)
    x = np.random.default_rng(0).standard_normal([int(n) for n in shape.split(",")]).astype(np.float32)
    inputs = [np.array(-(2**62)), np.array(44), x]
    loop = LoopIR().run(document(graph), Options(passes=passes))
    for have, want in zip(interpret(loop.forward, inputs), prim_meaning(graph, inputs), strict=True):
        assert np.array_equal(have, want)  # type: ignore[arg-type]
