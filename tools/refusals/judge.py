"""One case in each way beside eager.

fixed       compiled for the sizes of the call
symbolic    compiled with dynamic=True; of a misfit, the fitting call comes first
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_map

import bytecap
from stagefold.backend import StagefoldBackend
from stagefold.options import Options
from tools.opinfo.samples import Sample, copied, tensors
from tools.opinfo.ways import TooSlow, limited, tangent
from tools.refusals.cases import Case

WAYS = ("fixed", "symbolic")
STATUSES = ("same", "silent", "other", "crashed", "refused", "computed")
"""same: both raise, ours eager's class or a subclass. silent: eager raises, ours computes. other: another class, or
not in the same of forward and backward. crashed: ours ended its process or gave no answer. refused: eager computes,
ours raises. computed: both compute."""
FAULTS = ("silent", "other", "crashed", "refused")
COMPUTED = 0.1
"""The share of the cases that eager computes that are compiled too."""
BEHIND = (0, 1, 2, -1, 100)
"""Numbers that are put behind operands before eager is asked again."""


@dataclass(frozen=True)
class Raised:
    """What an attempt raised. phase: "forward" or "backward"."""

    error: BaseException
    phase: str

    def __str__(self) -> str:
        text = (str(self.error).strip().splitlines() or [""])[0][:160]
        return f"{type(self.error).__name__} ({self.phase}): {text}"


def attempt(call: Callable[..., Any], sample: Sample, gradient: bool) -> Raised | None:
    """Forward and backward on a copy of the sample; None where nothing is raised."""
    (own,) = copied([sample])
    leaves = [x for x in tensors(own.call()) if x.requires_grad]
    torch.manual_seed(1)
    try:
        with limited():
            results = call(own.input, own.args, own.kwargs)
    except Exception as error:
        return Raised(error, "forward")
    roots = [x for x in tensors(results) if x.requires_grad and x.layout is torch.strided]
    if not (gradient and roots and leaves):
        return None
    try:
        with limited():
            torch.autograd.grad(roots, leaves, [tangent(r) for r in roots], allow_unused=True)
    except Exception as error:
        return Raised(error, "backward")
    return None


def status(expected: Raised | None, found: Raised | None) -> str:
    """One of STATUSES."""
    match expected, found:
        case None, None:
            return "computed"
        case None, _:
            return "crashed" if isinstance(found.error, TooSlow) else "refused"
        case _, None:
            return "silent"
    is_same = isinstance(found.error, type(expected.error)) and found.phase == expected.phase
    return "same" if is_same else "other"


def is_steady(case: Case, expected: Raised | None) -> bool:
    """Whether eager answers so whatever stands in memory behind its operands.

    `lu_unpack` with less pivots than rows reads on there, and refuses what it finds or not.
    """
    answers = [attempt(program(case.op), _extended(case.sample, number), case.gradient) for number in BEHIND]
    return all(status(expected, answer) in ("same", "computed") for answer in answers)


def _extended(sample: Sample, number: int) -> Sample:
    """The same operands, with this number behind each of them."""

    def extend(x: Any) -> Any:
        if not isinstance(x, torch.Tensor) or x.layout is not torch.strided or x.is_meta or x.is_conj() or x.is_neg():
            return x
        storage = x.detach().untyped_storage()
        elements = torch.empty(0, dtype=x.dtype).set_(storage, 0, (storage.nbytes() // x.itemsize,))
        longer = torch.cat([elements, torch.full((1024,), number).to(x.dtype)])
        return longer.as_strided(x.shape, x.stride(), x.storage_offset()).requires_grad_(x.requires_grad)

    return Sample(*(tree_map(extend, part) for part in sample.call()))


def program(op: Callable[..., Any]) -> Callable[..., Any]:
    """What is compiled: one call."""

    def call(input: Any, args: Any, kwargs: Any) -> Any:
        return op(input, *args, **kwargs)

    return call


def compiled(case: Case, dynamic: bool) -> Callable[..., Any]:
    """The program of a case by a fresh compiler."""
    return bytecap.optimize(
        program(case.op), StagefoldBackend(Options(progress=False)), dynamic=dynamic, recompile_limit=1000
    )


class Judge:
    """Judges the cases of one operator, in order: misfits of a sample share the program of its fitting call."""

    def __init__(self) -> None:
        self.fitting: Sample | None = None
        self.open: Callable[..., Any] | None = None

    def rows(self, name: str, number: int, case: Case) -> Iterator[dict[str, Any]]:
        """A row before and after each attempt, so that a crash has its place."""
        row = {"op": name, "case": number, "kind": case.kind, "what": case.what}
        yield {**row, "begins": "eager"}
        expected = attempt(program(case.op), case.sample, case.gradient)
        if expected is not None and isinstance(expected.error, TooSlow):
            yield {**row, "left out": "eager takes too long"}
            return
        compiles = expected is not None or random.Random(f"{name} {number}").random() < COMPUTED
        for way in WAYS if compiles else ():
            yield {**row, "begins": way, "eager": str(expected)}
            call = compiled(case, dynamic=False) if way == "fixed" else self._symbolic(case)
            found = attempt(call, case.sample, case.gradient)
            if status(expected, found) in ("silent", "other", "refused") and not is_steady(case, expected):
                yield {**row, "left out": "eager's answer depends on memory behind its operands"}
                return
            yield {**row, "way": way, "status": status(expected, found), "eager": str(expected), "ours": str(found)}

    def _symbolic(self, case: Case) -> Callable[..., Any]:
        if case.fitting is None:
            return compiled(case, dynamic=True)
        if case.fitting is not self.fitting or self.open is None:
            self.fitting, self.open = case.fitting, compiled(case, dynamic=True)
            attempt(self.open, case.fitting, case.gradient)
        return self.open
