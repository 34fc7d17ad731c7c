"""The processes that measure: one alone for each engine (first call, memory), then one with all of them in turns."""

from __future__ import annotations

import ctypes
import gc
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from beside.case import ENGINES, Call, Case, Program

MIB = 1 << 20
ROUND_SECONDS = 0.03


def alone(case: Case, engine: str) -> dict[str, float]:
    """Seconds of the first step from `compile` on, and MiB that later steps take above the model and its inputs."""
    os.environ.pop("LD_PRELOAD", None)  # the compilers that are started need no counter
    counter = ctypes.CDLL(os.environ["LIVE_BYTES"])
    counter.live_bytes.restype = counter.peak_bytes.restype = ctypes.c_long
    program = _build(case)
    before = counter.live_bytes()
    start = time.perf_counter()
    call = ENGINES[engine](program.call)
    program.step(call)
    seconds = time.perf_counter() - start
    gc.collect()
    for _ in range(3):
        counter.reset_peak()
        program.step(call)
        peak = counter.peak_bytes()
    return {"first": seconds, "peak": (peak - before) / MIB}


def together(case: Case, engines: list[str], rounds: int) -> dict[str, Any]:
    """First steps over filled caches, then rounds in which every engine takes its turn.

    With one thread the clock is the processor time of the process, which other processes hardly change. A ratio is
    the median over the rounds of (eager's time) / (the engine's time) within a round; the spread is the distance
    between the quartiles of the engine's times, relative to their median.
    """
    program = _build(case)
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    calls: dict[str, Call] = {}
    rows: dict[str, dict[str, Any]] = {}
    expected = _result(case, program, program.call)
    for engine in engines:
        start = time.perf_counter()
        calls[engine] = ENGINES[engine](program.call)
        program.step(calls[engine])
        rows[engine] = {"warm": time.perf_counter() - start}
        rows[engine]["error"] = _error(expected, _result(case, program, calls[engine])) if case.exact else 0.0
    repeat = {engine: _repeat(lambda call=call: program.step(call), clock) for engine, call in calls.items()}
    times: dict[str, list[float]] = {engine: [] for engine in engines}
    gc.collect()
    gc.disable()
    for number in range(rounds):
        turn = number % len(engines)
        for engine in (*engines[turn:], *engines[:turn]):
            times[engine].append(_seconds(lambda engine=engine: program.step(calls[engine]), repeat[engine], clock))
    for engine in engines:
        low, middle, high = statistics.quantiles(times[engine], n=4)
        ratios = [base / own for base, own in zip(times["eager"], times[engine], strict=True)]
        rows[engine] |= {"us": middle * 1e6, "spread": (high - low) / middle, "ratio": statistics.median(ratios)}
    return rows


def _build(case: Case) -> Program:
    torch.manual_seed(0)
    return case.build()


def _result(case: Case, program: Program, call: Call) -> list[torch.Tensor]:
    """What a step gives: the result and the gradients."""
    torch.manual_seed(1)
    result = program.step(call).clone()
    return [result, *(leaf.grad.clone() for leaf in program.leaves if leaf.grad is not None)]


def _error(expected: list[torch.Tensor], got: list[torch.Tensor]) -> float:
    """The largest difference, relative to the largest element of its tensor (but to a thousandth of the largest of
    all: some gradients are sums that vanish)."""
    if len(expected) != len(got):
        return float("inf")
    largest = [float(one.double().abs().max()) if one.numel() else 0.0 for one in expected]
    floor = max(*largest, 1e-30) * 1e-3 if len(largest) > 1 else 1e-30
    errors = [0.0]
    for one, other, scale in zip(expected, got, largest, strict=True):
        if one.numel():
            difference = (one.double() - other.double()).abs().nan_to_num(0.0).max()
            errors.append(float(difference) / max(scale, floor))
    return max(errors)


def _seconds(run: Callable[[], Any], repeat: int, clock: Callable[[], float]) -> float:
    start = clock()
    for _ in range(repeat):
        run()
    return (clock() - start) / repeat


def _repeat(run: Callable[[], Any], clock: Callable[[], float]) -> int:
    """How many calls make a round; warms up."""
    for _ in range(2):
        run()
    return max(1, round(ROUND_SECONDS / max(_seconds(run, 2, clock), 1e-7)))
