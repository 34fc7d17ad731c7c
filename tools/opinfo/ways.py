"""The three ways in which a sample runs beside eager.

decomposition   each ATen call that eager makes, and that has a decomposition, is computed by it too
interpreted     captured, carried to a Loop document, and that interpreted; on a fault, the first document at fault
compiled        `stagefold.compile` on the CPU; under fullgraph, and again without where that is refused
symbolic        the same with dynamic=True, sample by sample: calls that differ in sizes alone share a program
"""

from __future__ import annotations

import signal
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._pytree import tree_map

import bytecap
from primops.testing.opinfo import Compare
from stagefold.backend import StagefoldBackend
from stagefold.options import Options
from stagefold.reference import meaning
from stagewire.codec import form_of
from stagewire.errors import StageError
from stagewire.vocabulary import keeps_layout
from tools.opinfo.judge import Run, faults
from tools.opinfo.samples import Sample, copied, program, tensors, widened

SECONDS = 60
UNDEFINED = ("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided")
"""Operators whose values mean nothing."""

Call = Callable[..., Any]


@dataclass(frozen=True)
class Outcome:
    """passed, failed or refused; `detail` says why, `externs` are the calls that ATen computes, prims among them."""

    status: str
    detail: str = ""
    externs: frozenset[str] = field(default_factory=frozenset)


class TooSlow(Exception):
    """A way took longer than `SECONDS`."""


@contextmanager
def limited() -> Iterator[None]:
    """Raise `TooSlow` in the main thread after `SECONDS`."""

    def expire(signum: int, frame: Any) -> None:
        raise TooSlow(f"more than {SECONDS} s")

    before = signal.signal(signal.SIGALRM, expire)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def run(call: Call, op: Call, samples: list[Sample], gradient: bool, mode: Any = None) -> Run:
    """The program on copies of the samples, forward and backward; torch's work is seen by `mode`."""
    around = nullcontext() if mode is None else mode
    own = copied(samples)
    calls = tuple(s.call() for s in own)
    inputs = tensors(calls)
    leaves = [x for x in inputs if x.requires_grad]
    torch.manual_seed(1)
    with around:
        results = call(op, calls)
    roots = [x for x in tensors(results) if x.requires_grad and x.layout is torch.strided]
    gradients = None
    if gradient and roots and leaves:
        tangents = [tangent(r) for r in roots]
        with around:
            gradients = torch.autograd.grad(roots, leaves, tangents, allow_unused=True)
    return Run(results, gradients, tuple(inputs))


def tangent(root: torch.Tensor) -> torch.Tensor:
    """Between a half and one and a half, nowhere equal: neither zero nor a constant that cancels."""
    steps = torch.arange(root.numel(), dtype=torch.float64) * 0.6180339887498949
    return (steps.frac() + 0.5).reshape(root.shape).to(root.dtype)


class Expected:
    """Eager's run of some samples, and float64's on demand."""

    def __init__(self, op: Call, samples: list[Sample], gradient: bool) -> None:
        self.op, self.samples, self.gradient = op, samples, gradient
        self.run = run(program, op, samples, gradient)

    def wide(self) -> Run | None:
        try:
            return run(program, self.op, widened(self.samples), self.gradient)
        except (RuntimeError, TypeError, ValueError, NotImplementedError):
            return None  # no float64 there: eager itself is the only oracle

    def faults(self, call: Call, name: str) -> list[str]:
        with limited(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = run(call, self.op, self.samples, self.gradient)
        return faults(found, self.run, self.wide, name in UNDEFINED)


def decomposition(op: Call, samples: list[Sample], gradient: bool) -> Outcome:
    mode = Compare()
    with limited():
        run(program, op, samples, gradient, mode)
    wrong = [f"{target}: {o.faults[0]}" for target, o in mode.outcomes.items() if o.faults]
    externs = frozenset(mode.externs)
    return Outcome("failed", "; ".join(wrong), externs) if wrong else Outcome("passed", "", externs)


class Recorder:
    """A backend that keeps the documents of its last compilation and runs one of them."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.inner = StagefoldBackend(Options(cache=False, progress=False))
        self.externs: set[str] = set()

    def __call__(self, capture: Any, inputs: Any) -> Call:
        made = {"capture": capture}

        def observe(event: Any) -> None:
            made[form_of(event.document)] = event.document

        until = self.kind if self.kind in ("grad", "prim", "loop") else "program"
        if self.kind == "capture":
            return lambda *given: bytecap.interpret(capture, given)
        self.inner.pipeline.run(capture, observe=observe, until=until)
        if "prim" in made:
            self.externs |= {node.target for node in made["prim"].joint.nodes if keeps_layout(node.target)}
        document = made[until]
        return self.inner.load(document) if self.kind == "program" else meaning(document)


ORDER = ("capture", "grad", "prim", "loop")


def _attempt(kind: str, name: str, expected: Expected, fullgraph: bool = True) -> Outcome:
    recorder = Recorder(kind)
    try:
        call = bytecap.optimize(program, recorder, fullgraph=fullgraph)
        wrong = expected.faults(call, name)
    except StageError as error:
        return Outcome("refused", f"{error.code} {error.message}", frozenset(recorder.externs))
    except Exception as error:
        text = str(error).strip().splitlines() or [""]
        return Outcome("failed", f"{type(error).__name__}: {text[0]}", frozenset(recorder.externs))
    return Outcome("failed" if wrong else "passed", "; ".join(wrong[:2]), frozenset(recorder.externs))


def interpreted(name: str, expected: Expected) -> Outcome:
    outcome = _attempt("loop", name, expected)
    if outcome.status != "failed":
        return outcome
    for kind in ORDER[:-1]:
        earlier = _attempt(kind, name, expected)
        if earlier.status != "passed":
            return Outcome(earlier.status, f"[{kind}] {earlier.detail}", outcome.externs)
    return Outcome("failed", f"[loop] {outcome.detail}", outcome.externs)


def compiled(name: str, expected: Expected) -> Outcome:
    outcome = _attempt("program", name, expected)
    if outcome.status != "refused":
        return outcome
    plain = _attempt("program", name, expected, fullgraph=False)
    if plain.status == "passed":
        return Outcome("refused", outcome.detail, outcome.externs)
    return Outcome("failed", f"without fullgraph: {plain.detail} ({outcome.detail})", plain.externs)


def symbolic(info_name: str, op: Call, samples: list[Sample], gradient: bool) -> Outcome:
    """One call after the other; `detail` counts the programs, and the kinds of calls when sizes are left out."""
    inner = StagefoldBackend(Options(cache=False, progress=False))
    call = bytecap.optimize(program, inner, dynamic=True, recompile_limit=len(samples) + 1)
    wrong: list[str] = []
    for number, sample in enumerate(samples):
        try:
            wrong += [f"sample {number}: {fault}" for fault in Expected(op, [sample], gradient).faults(call, info_name)]
        except Exception as error:
            wrong.append(f"sample {number}: {type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}")
    kinds = len({repr(tree_map(_kind, sample.call())) for sample in samples})
    counts = f"{len(inner.reports)} programs for {kinds} kinds in {len(samples)} samples"
    return Outcome("failed" if wrong else "passed", "; ".join([*wrong[:2], counts]))


def _kind(leaf: Any) -> Any:
    """What of an argument is the same at all sizes."""
    return (leaf.dim(), leaf.dtype) if isinstance(leaf, torch.Tensor) else leaf
