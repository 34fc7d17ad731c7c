"""Which stage makes a wrong result of a program, which pass of it, and the smallest document that shows it.

    blame ::= slot of the first document whose meaning differs: "capture" where that is the first of all, "load" where
              all documents mean the same and what a loader of the user's makes of the last does something else
              pass: the first whose effect makes it differ (its earlier runs and all before it do not)
              excerpt: the fewest calls (or kernels) of what the slot is given that still differ, on the values they had

Documents are compared by their `meaning`, results, gradients and written inputs, before any machine code is made; the
last step compares the program itself.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from msgspec.structs import replace

import bytecap
import stagewire
from primops import Interpreter
from stagefold.backend import StagefoldBackend
from stagefold.capture_slot import CaptureSlot
from stagefold.excerpts import NotApart, Part, apart, part_of, smallest
from stagefold.options import Options, parse_options
from stagefold.pipeline import ENDS, Pipeline, StageLike, resolve_stage
from stagefold.reference import Call, inputs_of, loop_executor, meaning
from stagefold.torch_capabilities import TORCH
from stagewire.capture import Capture
from stagewire.codec import Document, form_of
from stagewire.grad import Grad
from stagewire.graph import Graph, Ref, Value
from stagewire.loop import Loop, LoopGraph
from stagewire.passes import PassRun, first_passes
from stagewire.prim import Prim
from stagewire.stage import Stage
from stagewire.symbols import bind_sizes

_FULL, _HALF = 256.0, 8.0
"""Units in the last place that two orders of the same sums may be apart: in float32 and wider, in half precision."""


@dataclasses.dataclass(frozen=True)
class Blame:
    """Who made a program wrong.

    slot, stage: where the first wrong document comes from. culprit: the pass of the stage; None where the stage without
    its passes is wrong already. calls: the targets of the calls, or the names of the kernels, of the excerpt.
    document, inputs: what the slot is given, cut down where the fault shows in a part; and the tensors that show it. Of
        slot "capture" the first graph that it made; None where it made none.
    difference: a sentence on the results.
    """

    slot: str
    stage: str
    culprit: str | None
    calls: tuple[str, ...]
    document: Document | None
    inputs: tuple[Any, ...]
    difference: str

    def __str__(self) -> str:
        by = f"the pass {self.culprit!r} of " if self.culprit is not None else ""
        on = f" on {', '.join(self.calls)}" if self.calls else ""
        return f"{by}stage {self.stage!r} in slot {self.slot!r}{on}: {self.difference}"

    def save(self, directory: Path | str) -> None:
        """Write the document and its inputs: `stagefold run-stage SLOT` and `stagefold run` take them."""
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        if self.document is None:
            return
        stagewire.save(self.document, directory / f"{form_of(self.document)}.json")
        torch.save(list(self.inputs), directory / "inputs.pt")


def blame(
    model: Callable[..., Any],
    *args: Any,
    options: Mapping[str, Any] | None = None,
    stages: Mapping[str, StageLike] | None = None,
    dynamic: bool = False,
) -> Blame | None:
    """Who makes the first wrong result of a call of `model`; None where each document means what eager computes.

    options, stages: as for `compile`. dynamic: programs with symbolic sizes.

    The call is made of copies of the model and its arguments, its graphs run call by call.

    >>> import torch
    >>> def tanh_for_exp(p, x):
    ...     return p.tanh(x)
    >>> options = {"primops.decompositions": (("aten.exp.default", tanh_for_exp),)}
    >>> found = blame(torch.exp, torch.ones(3), options=options)
    >>> print(found.slot, found.calls)
    primops ('aten.exp.default',)
    """
    settings, inner = parse_options(None, options), dict(stages or {})
    ends = {slot: resolve_stage(slot, inner.pop(slot)) for slot in ENDS if slot in inner}
    pipeline = Pipeline.build(settings, inner)
    seen: list[tuple[Capture, tuple[Any, ...]]] = []

    def keep(capture: Capture, inputs: tuple[Any, ...] | None) -> Call:
        run = bytecap.executor(capture)

        def call(*given: Any) -> tuple[Any, ...]:
            seen.append((capture, _copies(given)))
            return run(*given)

        return call

    keep.takes_symbols = dynamic  # type: ignore[attr-defined]

    def captured(model: Callable[..., Any]) -> Callable[..., Any]:
        if "capture" in ends:
            return CaptureSlot(model, ends["capture"], keep, settings, dynamic).as_function()
        return bytecap.optimize(model, keep, dynamic=dynamic)  # type: ignore[no-any-return]

    difference = _capture_difference(model, args, captured)
    if difference is not None:
        name = ends["capture"].name if "capture" in ends else "bytecap"
        capture, inputs = seen[0] if seen else (None, ())
        return Blame("capture", name, None, (), capture, inputs, difference)
    for capture, inputs in seen:
        found = blame_document(capture, inputs, pipeline, ends.get("load"))
        if found is not None:
            return found
    return None


def _capture_difference(
    model: Callable[..., Any], args: tuple[Any, ...], captured: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> str | None:
    """How a call of what is captured differs from eager's. None, too, for a model of which eager runs differ: it has
    a state that cannot be copied."""
    runs: list[list[Any]] = []
    for wrap in (lambda model: model, lambda model: model, captured):
        try:
            own, given = copy.deepcopy((model, args))
        except Exception:  # objects raise anything there
            captured(model)(*args)
            return None
        runs.append(_leaves_of(wrap(own), given))
    eager, again, found = runs
    if isinstance(eager[0], Exception):
        raise eager[0]
    return first_difference(found, eager) if first_difference(again, eager) is None else None


def _leaves_of(call: Callable[..., Any], args: tuple[Any, ...]) -> list[Any]:
    """What a call returns and what it leaves in its arguments, as a list; what it raised, if it raised."""
    torch.manual_seed(0)
    try:
        leaves = TORCH.tree_flatten((call(*args), args))[0]
    except Exception as error:
        return [error]
    return [one.detach() for one in leaves if isinstance(one, torch.Tensor)]


def blame_document(
    document: Document, inputs: Sequence[Any], pipeline: Pipeline, loader: Stage | None = None
) -> Blame | None:
    """The same for a document of any form before a program, on its inputs. loader: the stage in slot "load"."""
    expected = results_of(lambda: meaning(document), inputs)
    given = document
    for slot, stage, options in pipeline.between(given):

        def carried(own: Document, stage: Any = stage, options: Any = options) -> Document:
            return stage.run(own, options)  # type: ignore[no-any-return]

        made = functools.cache(functools.partial(carried, given))  # made once; raises each time what the stage raises
        difference = first_difference(results_of(lambda made=made: meaning(made()), inputs), expected)
        if difference is None:
            given = made()
            continue
        culprit = _culprit(carried, given, inputs, expected)
        excerpt = next(_excerpts(carried, given, inputs), None)
        shown, values, calls = excerpt or (given, tuple(inputs), ())
        if excerpt is not None:
            difference = _wrong(carried, shown, values) or difference
        return Blame(slot, stage.name, culprit, calls, shown, values, difference)
    if loader is None:
        return None
    loaded = StagefoldBackend(Options(), {"load": loader}).load
    difference = first_difference(results_of(lambda: loaded(given), inputs), expected)  # type: ignore[arg-type]
    return None if difference is None else Blame("load", loader.name, None, (), given, tuple(inputs), difference)


def _wrong(carried: Callable[[Document], Document], given: Document, inputs: Sequence[Any]) -> str | None:
    """How what a stage makes of a document differs from it."""
    expected = results_of(lambda: meaning(given), inputs)
    return first_difference(results_of(lambda: meaning(carried(given)), inputs), expected)


def _culprit(
    carried: Callable[[Document], Document], given: Document, inputs: Sequence[Any], expected: list[Any]
) -> str | None:
    """The name of the pass whose run makes the document wrong, found by halves; None where it is so without any.

    What breaks a constraint is wrong, too: the pass behind it that raises is right to.
    """
    runs: list[PassRun[Any]] = []

    def wrong(count: int) -> bool:
        def limited() -> Call:
            with first_passes(count) as seen:
                made = carried(given)
            runs[:] = seen
            for last in seen[:count][-1:]:
                last.verify(last.after)
            return meaning(made)

        return first_difference(results_of(limited, inputs), expected) is not None

    if wrong(0) or not runs:
        return None
    right, broken = 0, len(runs)
    while broken - right > 1:
        middle = (right + broken) // 2
        right, broken = (right, middle) if wrong(middle) else (middle, broken)
    return runs[broken - 1].name  # one that raises leaves the runs of the time before, which were all


Excerpt = tuple[Document, tuple[Any, ...], tuple[str, ...]]


def _excerpts(carried: Callable[[Document], Document], given: Document, inputs: Sequence[Any]) -> Iterator[Excerpt]:
    """The smallest wrong part of each graph of a document."""
    for part, values in _parts(given, inputs):
        everything = tuple(range(part.count))

        def taken(names: tuple[str, ...], values: dict[str, Any] = values) -> tuple[Any, ...]:
            own = _copies([values[name] for name in names])
            return tuple([one.detach() if isinstance(one, torch.Tensor) else one for one in own])

        def wrong(chosen: tuple[int, ...], part: Part = part, taken: Any = taken) -> bool:
            try:
                document, names = part.excerpt(chosen)
            except NotApart:
                return False
            return _wrong(carried, document, taken(names)) is not None

        if wrong(everything):
            fewest = smallest(everything, wrong)
            document, names = part.excerpt(fewest)
            yield document, taken(names), part.callees(fewest)


def _parts(document: Document, inputs: Sequence[Any]) -> Iterator[tuple[Part, dict[str, Any]]]:
    """Each graph that runs, with the values that its excerpts are given."""
    taken: list[tuple[Any, tuple[Any, ...]]] = []
    results_of(lambda: meaning(document, lambda graph, given: taken.append((graph, _copies(given)))), inputs)
    for graph, given in taken:
        if isinstance(document, (Grad, Prim, Loop)):
            yield part_of(document, graph), _values(graph, given)


def _values(graph: Graph | LoopGraph, given: tuple[Any, ...]) -> dict[str, Any]:
    """What everything in a graph is worth. Buffers have memory of their own there, so that what a kernel read is known
    after all have run."""
    if isinstance(graph, Graph):
        inputs: Sequence[Value] = graph.inputs
        values = (*graph.inputs, *(each for node in graph.nodes for each in node.results))
        names = [value.name for value in values]
        whole: Any = replace(graph, outputs=tuple(map(Ref, names)))
        run: Call = Interpreter(whole)
    else:
        inputs = inputs_of(graph)
        names = [buffer.name for buffer in graph.buffers if buffer.base is None]
        run = loop_executor(replace(apart(graph), outputs=tuple(map(Ref, names)), updates=()))
    torch.manual_seed(0)
    return dict(zip(names, run(*given), strict=True)) | bind_sizes(inputs, given)


def _copies(inputs: Sequence[Any]) -> tuple[Any, ...]:
    """Tensors in the same layout with memory of their own, which are leaves where autograd is to see them."""
    return tuple([_copy(one) if isinstance(one, torch.Tensor) else one for one in inputs])


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    memory = tensor.detach().untyped_storage().clone()
    own = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    own.set_(memory, tensor.storage_offset(), tensor.shape, tensor.stride())  # type: ignore[call-overload]
    return own.requires_grad_(tensor.requires_grad)


def results_of(make: Callable[[], Call], inputs: Sequence[Any]) -> list[Any]:
    """Results, gradients and inputs after a run on copies of `inputs`; what it raised, if it raised."""
    own = _copies(inputs)
    torch.manual_seed(0)
    try:
        outputs = make()(*map(_written_freely, own))
        trained = [one for one in outputs if isinstance(one, torch.Tensor) and one.grad_fn is not None]
        leaves = [one for one in own if isinstance(one, torch.Tensor) and one.requires_grad]
        tangents = [torch.randn(one.shape, generator=torch.Generator().manual_seed(0)).to(one) for one in trained]
        gradients = torch.autograd.grad(trained, leaves, tangents, allow_unused=True) if trained else ()
    except Exception as error:
        return [error]
    return [one.detach() if isinstance(one, torch.Tensor) else one for one in (*outputs, *gradients, *own)]


def _written_freely(one: Any) -> Any:
    """An input that a program may write into: no leaf, where the copy has the same layout."""
    if not isinstance(one, torch.Tensor) or not one.requires_grad:
        return one
    copy = one.clone()
    return copy if copy.stride() == one.stride() and not one.storage_offset() else one


def first_difference(found: list[Any], expected: list[Any]) -> str | None:
    """A sentence on the first result that is not the expected one."""
    for position, (one, wanted) in enumerate(zip(found, expected, strict=False)):
        if isinstance(one, Exception) or isinstance(wanted, Exception):
            told = [f"{type(x).__name__}: {x}" if isinstance(x, Exception) else "no error" for x in (one, wanted)]
            return None if type(one) is type(wanted) else f"{told[0]}, where there is to be {told[1]}"
        fault = _apart(one, wanted)
        if fault is not None:
            return f"result {position} {fault}"
    return None if len(found) == len(expected) else f"{len(found)} results, not {len(expected)}"


def _apart(found: Any, expected: Any) -> str | None:
    if not isinstance(found, torch.Tensor) or not isinstance(expected, torch.Tensor):
        return None if type(found) is type(expected) and found == expected else f"is {found}, not {expected}"
    if (found.dtype, found.shape) != (expected.dtype, expected.shape):
        return f"is {found.dtype}{list(found.shape)}, not {expected.dtype}{list(expected.shape)}"
    if not expected.numel():
        return None
    if not (expected.is_floating_point() or expected.is_complex()):
        wrong = int((found != expected).sum())
        return f"differs in {wrong} of {expected.numel()} elements" if wrong else None
    eps = torch.finfo(expected.dtype).eps
    relative = eps * (_FULL if eps < 1e-4 else _HALF)
    finite = expected[expected.isfinite()].abs()
    absolute = relative * float(finite.double().mean()) if finite.numel() else 0.0
    close = torch.isclose(found, expected, rtol=relative, atol=absolute, equal_nan=True)
    if bool(close.all()):
        return None
    worst = float((found - expected).abs().nan_to_num(math.inf)[~close].max())
    return f"differs in {int((~close).sum())} of {expected.numel()} elements, by up to {worst:.3g}"
