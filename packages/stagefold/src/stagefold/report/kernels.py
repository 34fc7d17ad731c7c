"""The steps of a program, a row each: kernels with their text and calls of ATen, with bytes and measured seconds."""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from aotgrad import bind
from codegen import load
from stagefold.bisector import results_of
from stagefold.capsule.contents import printed_block
from stagewire.codec import Document
from stagewire.graph import references
from stagewire.loop import Kernel, LoopGraph
from stagewire.printer import print_document
from stagewire.program import CallExtern, Launch, Program, Unit
from stagewire.statements import writes_of

_RUNS = 5


@dataclasses.dataclass(frozen=True)
class StepRow:
    """One launch or call. origin: the user's line. text: of the generated function; loops: the kernel it was made of.

    bytes, seconds: of a run on the recorded inputs, the quickest of five; None where nothing was measured.
    """

    direction: str
    name: str
    origin: str
    computes: tuple[str, ...]
    text: str
    loops: str
    bytes: int | None = None
    seconds: float | None = None


def step_rows(
    loop: Document | None, program: Program, inputs: Sequence[Any] | None, cache: Path | None = None
) -> list[StepRow]:
    """All steps, forward then backward. inputs: run it on copies of them, step by step; None: measure nothing."""
    measured = {} if inputs is None else _measured(program, inputs, cache)
    printed = "" if loop is None else print_document(loop)
    rows = []
    for direction in ("forward", "backward"):
        unit = getattr(program, direction)
        if unit is not None:
            graph = getattr(loop, direction, None)
            steps = (number for number, one in enumerate(unit.instructions) if isinstance(one, (Launch, CallExtern)))
            rows += [_row(direction, unit, number, graph, printed, measured) for number in steps]
    return rows


def _row(
    direction: str, unit: Unit, number: int, graph: LoopGraph | None, printed: str, measured: dict[Any, Any]
) -> StepRow:
    step: Any = unit.instructions[number]
    touched, seconds = measured.get((direction, number), (None, None))
    made = _made_of(step, graph)
    origin = "" if made is None or made.line is None else str(made.line)
    if isinstance(step, CallExtern):
        return StepRow(direction, step.target, origin, step.results, "", "", touched, seconds)
    text, loops = _function(unit.source, unit, step.kernel), ""
    computes: tuple[str, ...] = step.buffers
    if made is not None:
        printed = printed.partition(f"\n  {direction} {{\n")[2]
        computes, loops = made.origins, printed_block(printed, f"kernel {re.escape(made.name)}") or ""
    return StepRow(direction, step.kernel, origin, computes, text, loops, touched, seconds)


def _made_of(step: Any, graph: LoopGraph | None) -> Any:
    """The kernel or call of the loops that a step stands for: the one that makes the same buffers."""
    for one in graph.steps if graph is not None else ():
        if isinstance(step, Launch) and isinstance(one, Kernel):
            stored = set(writes_of(one))
            if stored and stored.issubset(step.buffers):
                return one
        if isinstance(step, CallExtern) and getattr(one, "results", None) == step.results:
            return one
    return None


def _function(source: str, unit: Unit, name: str) -> str:
    """The text of a function: from its head to the next line that begins another."""
    names = {info.name: info.function or info.name for info in unit.kernels}
    head = re.compile(rf"^(?:extern .*|def |.*\b)({re.escape(names.get(name, name))})\(.*$", re.MULTILINE)
    found = head.search(source)
    if found is None:
        return ""
    ending = re.compile(r"^(?:}|(?=@|def |extern ))", re.MULTILINE).search(source, found.end())
    return source[found.start() : ending.end() if ending else len(source)].strip()


def _measured(program: Program, inputs: Sequence[Any], cache: Path | None) -> dict[Any, tuple[int, float]]:
    """Bytes and seconds of each step by direction and number, of runs one step at a time."""
    found: dict[Any, tuple[int, float]] = {}
    runs = []
    for direction in ("forward", "backward"):
        unit = getattr(program, direction)
        wrapper: Any = None if unit is None else load(unit, cache, executor="reference")
        if wrapper is not None and hasattr(wrapper, "run"):
            wrapper.run = _timed(wrapper.run, direction, found)
        runs.append(wrapper)
    call = bind(program.binding, runs[0], runs[1])
    for _ in range(_RUNS):
        results_of(lambda: call, inputs)
    return found


def _timed(run: Any, direction: str, found: dict[Any, tuple[int, float]]) -> Any:
    def timed(number: int, step: Any, environment: dict[str, Any], symbols: Any) -> None:
        if not isinstance(step, (Launch, CallExtern)):
            run(number, step, environment, symbols)
            return
        start = time.perf_counter()
        run(number, step, environment, symbols)
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        seconds = time.perf_counter() - start
        buffers = [environment.get(name) for name in dict.fromkeys(_touched(step))]
        touched = sum(one.nbytes for one in buffers if isinstance(one, torch.Tensor))
        before = found.get((direction, number), (touched, seconds))
        found[direction, number] = touched, min(seconds, before[1])

    return timed


def _touched(step: Launch | CallExtern) -> Iterator[str]:
    if isinstance(step, Launch):
        yield from step.buffers
    else:
        yield from (name for arg in (*step.args, *step.kwargs.values()) for name in references(arg))
        yield from filter(None, step.results)
