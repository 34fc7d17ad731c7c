"""Which stage makes a wrong result of a program, which pass of it, and the smallest document that shows it.

    blame ::= slot of the first document whose meaning differs
              pass: the first whose effect makes it differ (its earlier runs and all before it do not)
              excerpt: the fewest calls (or kernels) of what the slot is given that still differ, on the values they had

Documents are compared by their `meaning`, results, gradients and written inputs, before any machine code is made; the
last step compares the program itself.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from msgspec.structs import replace

import bytecap
import stagewire
from primops import Interpreter
from stagefold.options import parse_options
from stagefold.pipeline import Pipeline, StageLike
from stagefold.reference import Call, loop_executor, meaning
from stagewire.capture import Capture
from stagewire.codec import Document, form_of
from stagewire.grad import Binding, BoundInput, Fresh, Grad
from stagewire.graph import Graph, Ref, Value, node_references, references
from stagewire.loop import Extern, Free, Kernel, Loop, LoopGraph, Store
from stagewire.passes import PassRun, first_passes
from stagewire.prim import Prim
from stagewire.statements import buffers_of, select
from stagewire.types import TensorType

__all__ = ["Blame", "blame", "blame_document", "results_of"]

_FULL, _HALF = 256.0, 8.0
"""Units in the last place that two orders of the same sums may be apart: in float32 and wider, in half precision."""


@dataclasses.dataclass(frozen=True)
class Blame:
    """Who made a program wrong.

    slot, stage: where the first wrong document comes from. culprit: the pass of the stage; None where the stage without
    its passes is wrong already. calls: the targets of the calls, or the names of the kernels, of the excerpt.
    document, inputs: what the slot is given, cut down where the fault shows in a part; and the tensors that show it.
    difference: a sentence on the results.
    """

    slot: str
    stage: str
    culprit: str | None
    calls: tuple[str, ...]
    document: Document
    inputs: tuple[Any, ...]
    difference: str

    def __str__(self) -> str:
        by = f"the pass {self.culprit!r} of " if self.culprit is not None else ""
        on = f" on {', '.join(self.calls)}" if self.calls else ""
        return f"{by}stage {self.stage!r} in slot {self.slot!r}{on}: {self.difference}"

    def save(self, directory: Path) -> None:
        """Write the document and its inputs: `stagefold run-stage SLOT` and `stagefold run` take them."""
        directory.mkdir(parents=True, exist_ok=True)
        stagewire.save(self.document, directory / f"{form_of(self.document)}.json")
        torch.save(list(self.inputs), directory / "inputs.pt")


def blame(
    model: Callable[..., Any],
    *args: Any,
    options: Mapping[str, Any] | None = None,
    stages: Mapping[str, StageLike] | None = None,
) -> Blame | None:
    """Who makes the first wrong result of a call of `model`; None where each document means what eager computes.

    options, stages: as for `compile`. The call is a real one, its graphs run call by call.

    >>> import torch
    >>> def tanh_for_exp(p, x):
    ...     return p.tanh(x)
    >>> options = {"primops.decompositions": (("aten.exp.default", tanh_for_exp),)}
    >>> found = blame(torch.exp, torch.ones(3), options=options)
    >>> print(found.slot, found.calls)
    primops ('aten.exp.default',)
    """
    seen: list[tuple[Capture, tuple[Any, ...]]] = []

    def keep(capture: Capture, inputs: tuple[Any, ...]) -> Call:
        run = bytecap.executor(capture)

        def call(*given: Any) -> tuple[Any, ...]:
            seen.append((capture, _copies(given)))
            return run(*given)

        return call

    bytecap.optimize(model, keep, dynamic=False)(*args)
    pipeline = Pipeline.build(parse_options(None, options), stages)
    for capture, inputs in seen:
        found = blame_document(capture, inputs, pipeline)
        if found is not None:
            return found
    return None


def blame_document(document: Document, inputs: Sequence[Any], pipeline: Pipeline) -> Blame | None:
    """The same for a document of any form before a program, on its inputs."""
    expected = results_of(lambda: meaning(document), inputs)
    given = document
    for slot, stage, options in pipeline.between(given):

        def carried(own: Document, stage: Any = stage, options: Any = options) -> Document:
            return stage.run(own, options)  # type: ignore[no-any-return]

        made = _made(carried, given)
        difference = _difference(results_of(lambda made=made: meaning(made()), inputs), expected)
        if difference is None:
            given = made()
            continue
        culprit = _culprit(carried, given, inputs, expected)
        excerpt = next(_excerpts(carried, given, inputs), None)
        shown, values, calls = excerpt or (given, tuple(inputs), ())
        if excerpt is not None:
            difference = _wrong(carried, shown, values) or difference
        return Blame(slot, stage.name, culprit, calls, shown, values, difference)
    return None


def _made(carried: Callable[[Document], Document], given: Document) -> Callable[[], Document]:
    """What a stage makes, made once; raises what the stage raises each time."""
    kept: list[Document] = []

    def made() -> Document:
        if not kept:
            kept.append(carried(given))
        return kept[0]

    return made


def _wrong(carried: Callable[[Document], Document], given: Document, inputs: Sequence[Any]) -> str | None:
    """How what a stage makes of a document differs from it."""
    expected = results_of(lambda: meaning(given), inputs)
    return _difference(results_of(lambda: meaning(carried(given)), inputs), expected)


def _culprit(
    carried: Callable[[Document], Document], given: Document, inputs: Sequence[Any], expected: list[Any]
) -> str | None:
    """The name of the pass whose run makes the document wrong, found by halves; None where it is so without any."""
    runs: list[PassRun[Any]] = []

    def wrong(count: int) -> bool:
        def limited() -> Call:
            with first_passes(count) as seen:
                made = carried(given)
            runs[:] = seen
            return meaning(made)

        return _difference(results_of(limited, inputs), expected) is not None

    if wrong(0) or not runs:
        return None
    right, broken = 0, len(runs)
    while broken - right > 1:
        middle = (right + broken) // 2
        right, broken = (right, middle) if wrong(middle) else (middle, broken)
    return runs[broken - 1].name


Excerpt = tuple[Document, tuple[Any, ...], tuple[str, ...]]


def _excerpts(carried: Callable[[Document], Document], given: Document, inputs: Sequence[Any]) -> Iterator[Excerpt]:
    """The smallest wrong part of each graph of a document."""
    for part in _parts(given, inputs):
        everything = tuple(range(part.count))

        def wrong(chosen: tuple[int, ...], part: _Part = part) -> bool:
            try:
                document, values = part.excerpt(chosen)
            except _NotApart:
                return False
            return _wrong(carried, document, values) is not None

        if wrong(everything):
            smallest = _smallest(everything, wrong)
            document, values = part.excerpt(smallest)
            yield document, values, part.names(smallest)


def _smallest(items: tuple[int, ...], wrong: Callable[[tuple[int, ...]], bool]) -> tuple[int, ...]:
    """A part of `items`, of which none can be left out; wrong(items) holds (Zeller's ddmin)."""
    pieces = 2
    while len(items) > 1:
        length = math.ceil(len(items) / pieces)
        chunks = [items[start : start + length] for start in range(0, len(items), length)]
        rests = [tuple(one for one in items if one not in chunk) for chunk in chunks] if len(chunks) > 2 else []
        found = next((part for part in (*chunks, *rests) if wrong(part)), None)
        if found is not None:
            pieces = 2 if len(found) <= length else max(pieces - 1, 2)
            items = found
        elif length == 1:
            break
        else:
            pieces = min(pieces * 2, len(items))
    return items


@dataclasses.dataclass(frozen=True)
class _Part:
    """One graph of a document, of which any steps can be taken out.

    count: of its steps. excerpt: the document of some steps alone, and its inputs. names: of their callees.
    """

    count: int
    excerpt: Callable[[tuple[int, ...]], tuple[Document, tuple[Any, ...]]]
    names: Callable[[tuple[int, ...]], tuple[str, ...]]


def _parts(document: Document, inputs: Sequence[Any]) -> Iterator[_Part]:
    taken: list[tuple[Any, tuple[Any, ...]]] = []
    results_of(lambda: meaning(document, lambda graph, given: taken.append((graph, _copies(given)))), inputs)
    for graph, given in taken:
        match document:
            case Grad():
                yield _calls(graph, given, lambda binding, own: Grad(binding=binding, joint=own))
            case Prim(joint=None):
                yield _calls(graph, given, lambda binding, own: Prim(binding=binding, forward=own))
            case Prim():
                yield _calls(graph, given, lambda binding, own: replace(document, binding=binding, joint=own))
            case Loop():
                yield _kernels(graph, given)


def _alone(inputs: Sequence[Value], results: int) -> Binding:
    """How a graph meets a caller who gives each of its inputs and is given each of its results."""
    bound = tuple(BoundInput(value.name, value.type) for value in inputs)
    return Binding(inputs=bound, outputs=tuple(map(Fresh, range(results))))


def _calls(graph: Graph, given: tuple[Any, ...], wrap: Callable[[Binding, Graph], Document]) -> _Part:
    types = {value.name: value for value in (*graph.inputs, *(each for node in graph.nodes for each in node.results))}
    torch.manual_seed(0)
    values = dict(
        zip(types, Interpreter(Graph(graph.inputs, graph.nodes, tuple(map(Ref, types))))(*given), strict=True)
    )
    returned = {name for output in graph.outputs for name in references(output)}

    def excerpt(chosen: tuple[int, ...]) -> tuple[Document, tuple[Any, ...]]:
        nodes = tuple(replace(graph.nodes[number], phase="forward") for number in chosen)
        others = (node for number, node in enumerate(graph.nodes) if number not in set(chosen))
        made = [value for node in nodes for value in node.results if isinstance(value.type, TensorType)]
        used = dict.fromkeys(name for node in nodes for name in node_references(node))
        elsewhere = returned.union(*(node_references(node) for node in others))
        wanted = [value for value in made if value.name in elsewhere or value.name not in used]
        taken = [types[name] for name in used if name not in {value.name for value in made}]
        own = Graph(tuple(taken), nodes, tuple(Ref(value.name) for value in wanted))
        return wrap(_alone(taken, len(wanted)), own), tuple(values[value.name] for value in taken)

    return _Part(len(graph.nodes), excerpt, lambda chosen: tuple(graph.nodes[number].target for number in chosen))


def _kernels(graph: LoopGraph, given: tuple[Any, ...]) -> _Part:
    """Buffers have memory of their own there, so that what a kernel read is known after all have run."""
    steps = tuple(step for step in graph.steps if not isinstance(step, Free))
    buffers = {buffer.name: replace(buffer, reuse=None) for buffer in graph.buffers}
    roots = {name: buffer.base or name for name, buffer in buffers.items()}
    owners = [name for name, root in roots.items() if name == root]
    whole = replace(graph, buffers=tuple(buffers.values()), steps=steps, outputs=tuple(map(Ref, owners)), updates=())
    torch.manual_seed(0)
    values = dict(zip(owners, loop_executor(whole)(*given), strict=True))
    writes = [{roots[name] for name in _written(step)} for step in steps]

    def excerpt(chosen: tuple[int, ...]) -> tuple[Document, tuple[Any, ...]]:
        own = tuple(steps[number] for number in chosen)
        made = [name for name in owners if any(name in writes[number] for number in chosen)]
        if any(name in made for number, names in enumerate(writes) if number not in set(chosen) for name in names):
            raise _NotApart
        touched = {roots[name] for step in own for name in buffers_of(step)}
        taken = [buffers[name] for name in owners if name in touched and name not in made]
        kept = [replace(buffers[name], role="input") if buffers[name] in taken else buffers[name] for name in buffers]
        kept = [buffer for buffer in kept if roots[buffer.name] in touched]
        names = tuple(buffer.name for buffer in taken)
        part = LoopGraph(buffers=tuple(kept), inputs=names, outputs=tuple(map(Ref, made)), steps=own)
        binding = _alone([Value(buffer.name, buffer.type) for buffer in taken], len(made))
        return Loop(binding=binding, forward=part), tuple(values[name] for name in names)

    return _Part(len(steps), excerpt, lambda chosen: tuple(_callee(steps[number]) for number in chosen))


class _NotApart(Exception):
    """Steps that cannot be looked at without others."""


def _written(step: Kernel | Extern) -> list[str]:
    if isinstance(step, Extern):
        return [name for name in step.results if name]
    return [store.buffer for store in select(step.sections, Store)]


def _callee(step: Kernel | Extern) -> str:
    return step.target if isinstance(step, Extern) else step.name


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
        trained = [one for one in outputs if isinstance(one, torch.Tensor) and one.requires_grad]
        leaves = [one for one in own if isinstance(one, torch.Tensor) and one.requires_grad]
        tangents = [torch.randn(one.shape, generator=_seeded()).to(one) for one in trained]
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


def _seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def _difference(found: list[Any], expected: list[Any]) -> str | None:
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
