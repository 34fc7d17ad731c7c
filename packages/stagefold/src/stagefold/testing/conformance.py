"""Does a stage keep the meaning of what it is given: for ours, and for any other in its slot.

    conform("primops", stage) -> faults        of each trial: a sentence and the smallest document that shows it

What a slot is given is made by our stages before it, from small programs (`stagefold.testing.programs`) and drawn ones,
with fixed and symbolic sizes, forward and backward. Its document is verified and run (`stagefold.meaning`). Oracle: the
program in float64 for how far off a result may be, and eager for nan, infinities, signs of zero and all that is exact.
A stage at an end (capture, load) is run as a part of `stagefold.compile`.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_leaves

import bytecap
from stagefold.api import compile
from stagefold.bisector import Blame, blame_document, results_of
from stagefold.errors import BrokenDocument, CommandFault, RunsPlain
from stagefold.options import parse_options
from stagefold.pipeline import BOUNDARIES, ENDS, Pipeline, StageLike
from stagefold.reference import meaning
from stagefold.testing.programs import Trial, trials
from stagewire.capture import Capture
from stagewire.codec import Document, decode, encode
from stagewire.errors import StageError

__all__ = ["Misfit", "captured", "conform", "faults"]

_ZERO = 1e-14
"""What is as good as zero where terms cancel, as in lgamma near 1."""


_TERMS = 2.0**-5
"""The size of the terms that cancel where a whole result is near zero, in trials that are not `elementwise`."""


class Misfit(NamedTuple):
    """A trial in which the stage is wrong. blame: the smallest document that shows it, where one was found."""

    trial: str
    message: str
    blame: Blame | None

    def __str__(self) -> str:
        return f"{self.trial}: {self.message}" + (f"\n  {self.blame}" if self.blame is not None else "")


class _Backend:
    """Takes captures of any sizes, keeps them, and runs them call by call."""

    takes_symbols = True

    def __init__(self) -> None:
        self.captures: list[Capture] = []

    def __call__(self, capture: Capture, inputs: tuple[Any, ...]) -> Callable[..., Any]:
        self.captures.append(capture)
        return bytecap.executor(capture)


def conform(
    slot: str, stage: StageLike, *, only: str = "", drawn: int = 100, device: str = "cpu",
    options: Mapping[str, Any] | None = None, tell: Callable[[str], None] = lambda trial: None,
) -> Iterator[Misfit]:  # fmt: skip
    """The trials in which `stage` is wrong in `slot`, as they are found.

    only: trials with this in their name. drawn: how many programs Hypothesis draws (with `only`, none). device: where
    the inputs lie, "cuda" for a stage that makes code for GPUs. options: as of `compile`; of a target registered with
    codegen: conform("codegen", "codegen", options={"codegen.target": NAME}). tell: is told the name of each trial.

    >>> from primops import Primops
    >>> def no_relu(grad):
    ...     return Primops().run(grad, Primops.Options(decompositions=(("aten.relu.default", lambda p, x: x),)))
    >>> print(next(conform("primops", no_relu, only="relu float32")).message)
    result 0 has -1.0 at [3], where 0.0 is expected, and is wrong in 12 of 29 elements
    """
    settings = {"cache": False, **(options or {})}
    pipeline = Pipeline.build(parse_options(None, settings), {} if slot in ENDS else {slot: stage})
    chosen = [one for one in trials() if only in one.name]
    if not chosen:
        raise CommandFault(
            f"no trial has {only!r} in its name", fix='Name an operator or an effect ("relu", "writes").'
        )
    for trial in chosen:
        own = trial._replace(inputs=tuple(_moved(one, device) for one in trial.inputs))
        if slot in ENDS:
            tell(own.name)
            yield from _compiled(slot, stage, own, settings)
            continue
        for dynamic in (False, True):
            name = f"{trial.name}, symbolic sizes" if dynamic else trial.name
            tell(name)
            yield from _judged(pipeline, slot, captured(own, dynamic), own, name)
    if drawn and not only and device == "cpu" and slot not in ENDS:
        yield from _drawn(pipeline, slot, drawn, tell)


def captured(trial: Trial, dynamic: bool) -> Capture:
    """The program of a trial as one graph, at fixed or symbolic sizes."""
    backend = _Backend()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        bytecap.optimize(trial.program, backend, fullgraph=True, dynamic=dynamic)(*_fresh(trial.inputs))
    (capture,) = backend.captures
    return capture


def _compiled(slot: str, stage: StageLike, trial: Trial, options: Mapping[str, Any]) -> Iterator[Misfit]:
    back: dict[str, Any] = {"backend": "eager"} if slot == "capture" else {"options": options}
    program = compile(trial.program, fullgraph=True, stages={slot: stage}, **back)
    with warnings.catch_warnings():
        for kind in (bytecap.CaptureWarning, RunsPlain):  # a call that eager has computed says nothing of the stage
            warnings.simplefilter("error", kind)
        found = results_of(lambda: _flat(program), trial.inputs)
    eager = results_of(lambda: _flat(trial.program), trial.inputs)
    fault = _fault(found, eager, _exact(captured(trial, False), trial), trial)
    if fault is not None:
        yield Misfit(trial.name, fault, None)


def _flat(program: Callable[..., Any]) -> Callable[..., tuple[Any, ...]]:
    return lambda *inputs: tuple(tree_leaves(program(*inputs)))


def _exact(capture: Capture, trial: Trial) -> list[Any]:
    return results_of(lambda: meaning(_widened(capture)), [_wide(one) for one in trial.inputs])


def _judged(pipeline: Pipeline, slot: str, capture: Capture, trial: Trial, name: str) -> Iterator[Misfit]:
    before, after = BOUNDARIES[slot]
    try:
        given = pipeline.run(capture, until=before)
    except StageError as error:
        if error.refuses_program or error.needs_fixed_sizes:
            return
        raise
    try:
        made = pipeline.run(given, until=after)
    except BrokenDocument as error:
        yield Misfit(name, str(error), None)
        return
    except Exception as error:
        declared = isinstance(error, StageError) and (error.refuses_program or error.needs_fixed_sizes)
        if not declared:
            yield Misfit(name, f"{type(error).__name__}: {error}", None)
        return
    (fault,) = faults([made], capture, trial)
    if fault is not None:
        # Beside 1e30 nothing small is a difference, and eager itself may give inf where the exact number is finite.
        attempts = ([_bounded(one, bound) for one in trial.inputs] for bound in (4.0, 100.0, math.inf))
        found = (blame_document(given, inputs, pipeline) for inputs in attempts)
        yield Misfit(name, fault, next(filter(None, found), None))


def faults(documents: Sequence[Document], capture: Capture, trial: Trial) -> list[str | None]:
    """Of each document that was made of `capture`: a sentence on the first result of the trial that it gets wrong."""
    eager = results_of(lambda: meaning(capture), trial.inputs)
    wide = _exact(capture, trial)
    found = [results_of(functools.partial(meaning, one), trial.inputs) for one in documents]
    return [_fault(one, eager, wide, trial) for one in found]


def _drawn(pipeline: Pipeline, slot: str, count: int, tell: Callable[[str], None]) -> Iterator[Misfit]:
    try:
        from hypothesis import HealthCheck, Phase, given, settings

        from aotgrad.testing.strategies import programs
    except ModuleNotFoundError as error:
        raise CommandFault(
            f"drawn programs need {error.name}", fix='Install "stagefold[testing]", or draw none (--drawn 0).'
        ) from error

    pairs: list[tuple[Capture, list[torch.Tensor]]] = []

    @settings(max_examples=count, derandomize=True, database=None, deadline=None, phases=[Phase.generate],
              suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(programs())
    def collect(pair: tuple[Capture, list[torch.Tensor]]) -> None:
        pairs.append(pair)

    collect()
    for number, (capture, inputs) in enumerate(islice(pairs, count)):
        trial = Trial(f"drawn {number}", lambda *given: None, tuple(inputs), 64.0, False)
        tell(trial.name)
        yield from _judged(pipeline, slot, capture, trial, trial.name)


def _moved(tensor: torch.Tensor, device: str) -> torch.Tensor:
    return tensor.detach().to(device).requires_grad_(tensor.requires_grad)


def _fresh(inputs: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    return [one.detach().clone().requires_grad_(one.requires_grad) for one in inputs]


def _bounded(tensor: torch.Tensor, bound: float) -> torch.Tensor:
    """The numbers up to `bound`, and zeros."""
    if not tensor.is_floating_point() or bound == math.inf:
        return tensor
    kept = torch.where(tensor.detach().abs() <= bound, tensor.detach(), 0.0)
    return kept.requires_grad_(tensor.requires_grad)


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    if not tensor.is_floating_point():
        return tensor
    return tensor.detach().double().requires_grad_(tensor.requires_grad)


def _widened(capture: Capture) -> Capture:
    """The program in float64."""
    data = encode(capture)
    for dtype in (b"float32", b"bfloat16", b"float16"):
        data = data.replace(b'"' + dtype + b'"', b'"float64"')
    return decode(data)  # type: ignore[return-value]


def _fault(found: list[Any], eager: list[Any], wide: list[Any], trial: Trial) -> str | None:
    """A sentence on the first result that is too far off."""
    failed = next((one for one in (*found, *eager) if isinstance(one, Exception)), None)
    if failed is not None:
        same = isinstance(found[0], Exception) and isinstance(eager[0], type(found[0]))
        return None if same else f"{type(failed).__name__}: {failed}"
    if len(found) != len(eager):
        return f"{len(found)} results, not {len(eager)}"
    exact = wide if len(wide) == len(eager) else eager
    rows = zip(found, eager, exact, strict=True)
    faults = (_apart(f, e, w, trial) for f, e, w in rows)
    return next((f"result {number} {fault}" for number, fault in enumerate(faults) if fault), None)


def _apart(found: Any, eager: Any, wide: Any, trial: Trial) -> str | None:
    if not isinstance(found, torch.Tensor) or not isinstance(eager, torch.Tensor):
        return None if type(found) is type(eager) and found == eager else f"is {found}, not {eager}"
    if (found.dtype, found.shape) != (eager.dtype, eager.shape):
        return f"is {found.dtype}{list(found.shape)}, not {eager.dtype}{list(eager.shape)}"
    if eager.is_complex():
        exact = wide if isinstance(wide, torch.Tensor) and wide.is_complex() else eager
        return _apart(*[torch.view_as_real(one.resolve_conj()) for one in (found, eager, exact)], trial)
    if not eager.is_floating_point():
        return _places(found != eager, found, eager)
    special, exact = ~eager.isfinite(), wide.to(eager.dtype) if isinstance(wide, torch.Tensor) else eager
    wrong = special & ~(_same(found, eager) | _same(found, exact))  # eager's own kernels err: gelu of inf
    if bool(wrong.any()):
        return _places(wrong, found, eager)
    if trial.signed:
        wrong = (eager == 0) & (found == 0) & (found.signbit() != eager.signbit())
        if bool(wrong.any()):
            return _places(wrong, found, eager)
    target = torch.where(special, 0.0, wide.double() if isinstance(wide, torch.Tensor) else eager.double())
    off, own = (torch.where(special, 0.0, one.double()) - target for one in (found, eager))
    size = target.abs()
    unit = torch.finfo(eager.dtype).eps * (size if trial.elementwise or not size.numel() else size.max() + _TERMS)
    allowed = trial.ulps * (unit + _ZERO) + 2 * own.abs()
    if not trial.elementwise and own.numel():
        allowed = allowed + 2 * own.abs().max()
    return _places((off.abs() > allowed) | off.isnan(), found, eager)


def _same(found: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    return (found == expected) | (found.isnan() & expected.isnan())


def _places(wrong: torch.Tensor, found: torch.Tensor, expected: torch.Tensor) -> str | None:
    if not bool(wrong.any()):
        return None
    first = tuple(wrong.nonzero()[0].tolist())
    what = f"{found[first].item()!r} at {list(first)}, where {expected[first].item()!r} is expected"
    return f"has {what}, and is wrong in {int(wrong.sum())} of {wrong.numel()} elements"
