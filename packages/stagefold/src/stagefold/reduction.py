"""`reduce(document, keep)`: the smallest document that a condition still holds of, and that breaks no constraint.

    reduce ::= symbols fixed, then the fewest steps of one graph, the fewest results, the fewest statements of kernels,
               smaller sizes, plainer arguments (`stagefold.shrinking`); again, until nothing gets smaller

Whatever a candidate is, it is verified before anybody is asked. Where the calls of the document give values of the
types that it states, those of a candidate do so too.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from msgspec.structs import replace

from stagefold import shrinking
from stagefold.bisector import results_of
from stagefold.errors import CommandFault
from stagefold.excerpts import NotApart, Part, graphs_of, parts_of, smallest
from stagefold.reference import meaning
from stagewire.capture import Capture
from stagewire.codec import Document, encode, form_of
from stagewire.errors import StageError
from stagewire.expr import evaluate
from stagewire.files import write
from stagewire.grad import Fresh
from stagewire.graph import Arg, Graph, Ref, Value
from stagewire.loop import Kernel, Loop, LoopGraph
from stagewire.substitution import map_sizes
from stagewire.types import TensorType, extent
from stagewire.verify import verify

Condition = Callable[[Document], bool]


def reduce(document: Document, keep: Condition) -> Document:
    """The smallest excerpt of `document` of which `keep` holds; itself where there is no smaller one.

    Errors: `CommandFault` where `keep` does not hold of the document.

    >>> from stagewire.parser import parse_document
    >>> text = '''prim 3 {
    ...   binding { inputs { BoundInput(name="x", type=f32[2]) } outputs { Fresh(result=0) } }
    ...   forward { input %x: f32[2]  %a: f32[2] = prims.neg(%x)  %b: f32[2] = prims.exp(%a)  return %b }
    ... }'''
    >>> [node.target for node in reduce(parse_document(text), lambda d: "exp" in str(d)).forward.nodes]
    ['prims.exp']
    """
    if not keep(document):
        raise CommandFault(
            "the condition does not hold of the document as it is", fix="Its exit code has to be 0 there."
        )

    known: dict[bytes, bool] = {}

    def holds(candidate: Document | None) -> bool:
        if candidate is None:
            return False
        text = encode(candidate)
        if text not in known:
            known[text] = _is_valid(candidate) and keep(candidate)
        return known[text]

    fixed = _at_hints(document)
    document = fixed if fixed is not None and holds(fixed) else document
    while True:
        before = document
        document = _fewest_results(_fewest_steps(document, holds), holds)
        document = _fewest_statements(document, holds)
        is_typed = _has_its_types(document)

        def stays_typed(candidate: Document, is_typed: bool = is_typed) -> bool:
            return (not is_typed or _has_its_types(candidate)) and holds(candidate)

        for shrunk in (shrinking.smaller_sizes, _fewer_axes, _plainer):
            document = _descended(document, shrunk, stays_typed)
        if document == before:
            return document


def _is_valid(document: Document) -> bool:
    try:
        verify(document)
    except StageError:
        return False
    return True


def _descended(document: Document, shrunk: Callable[[Document], Iterator[Document]], holds: Condition) -> Document:
    """Shrunk as long as it holds of something smaller."""
    while True:
        smaller = next((one for one in shrunk(document) if one != document and holds(one)), None)
        if smaller is None:
            return document
        document = smaller


def _fewest_steps(document: Document, holds: Condition) -> Document:
    for part in sorted(parts_of(document), key=lambda part: part.count):
        everything = tuple(range(part.count))
        whole = _excerpt(part, everything)
        if whole is not None and holds(whole):
            fewest = smallest(everything, lambda chosen, part=part: holds(_excerpt(part, chosen)))  # type: ignore[misc,arg-type]
            return _excerpt(part, fewest) or document
    return document


def _fewest_statements(document: Document, holds: Condition) -> Document:
    """Fewer statements of the kernels of a document that is one graph."""
    for number, kernel in _kernels_of(document):

        def cut(chosen: tuple[int, ...], number: int = number, kernel: Kernel = kernel) -> Document | None:
            return _with_kernel(document, number, shrinking.with_statements(kernel, chosen))  # noqa: B023

        everything = tuple(range(shrinking.statement_count(kernel)))
        if everything:
            fewest = smallest(everything, lambda chosen, cut=cut: holds(cut(chosen)))  # type: ignore[misc]
            document = document if fewest == everything else cut(fewest) or document
    return document


def _fewer_axes(document: Document) -> Iterator[Document]:
    for number, kernel in _kernels_of(document):
        yield _with_kernel(document, number, shrinking.without_single_points(kernel)) or document


def _plainer(document: Document) -> Iterator[Document]:
    """With one call, or its arguments, plainer."""
    for field, graph in graphs_of(document).items():
        for number, node in enumerate(graph.nodes if isinstance(graph, Graph) else ()):
            for other in shrinking.plainer_calls(node):
                nodes = (*graph.nodes[:number], other, *graph.nodes[number + 1 :])
                yield replace(document, **{field: replace(graph, nodes=nodes)})


def _kernels_of(document: Document) -> list[tuple[int, Kernel]]:
    """The kernels of a `Loop` of one direction, with their positions."""
    if not isinstance(document, Loop) or document.backward is not None:
        return []
    return [(number, step) for number, step in enumerate(document.forward.steps) if isinstance(step, Kernel)]


def _with_kernel(document: Document, number: int, kernel: Kernel) -> Document | None:
    """Without what nothing reads or writes then."""
    assert isinstance(document, Loop)
    steps = (*document.forward.steps[:number], kernel, *document.forward.steps[number + 1 :])
    part = next(parts_of(replace(document, forward=replace(document.forward, steps=steps))))
    return _excerpt(part, tuple(range(part.count)))


def _has_its_types(document: Document) -> bool:
    """Whether each call gives values of the types that it states, on zeros; False where that cannot be said."""
    for field, graph in graphs_of(document).items():
        if not isinstance(graph, Graph) or getattr(document, "backward", None) is not None:
            continue
        values = [one for node in graph.nodes for one in node.results if isinstance(one.type, TensorType)]
        whole = _with_outputs(document, field, graph, tuple(Ref(one.name) for one in values))
        kinds = [one.type for one in graph.inputs]
        if not all(isinstance(kind, TensorType) and kind.is_static for kind in kinds):
            return False
        found = results_of(lambda: meaning(whole), [_zeros(kind) for kind in kinds])  # type: ignore[arg-type]  # noqa: B023
        return len(found) >= len(values) and all(map(_is_of, found, values))
    return False


def _is_of(result: Any, value: Value) -> bool:
    kind = value.type
    assert isinstance(kind, TensorType)
    of_dtype = isinstance(result, torch.Tensor) and str(result.dtype) == f"torch.{kind.dtype}"
    return of_dtype and tuple(result.shape) == kind.shape


def _zeros(kind: TensorType) -> torch.Tensor:
    memory = torch.zeros(int(extent(kind)), dtype=getattr(torch, kind.dtype), device=kind.device)
    return memory.as_strided(kind.shape, kind.stride).requires_grad_(kind.requires_grad)  # type: ignore[arg-type]


def _excerpt(part: Part, chosen: tuple[int, ...]) -> Document | None:
    try:
        return part.excerpt(chosen)[0]
    except NotApart:
        return None


def _at_hints(document: Document) -> Document | None:
    """With numbers for all symbols; None where it has none, or not for all."""
    known = document.symbols if isinstance(document, Capture) else document.binding.symbols
    sizes = {symbol.name: symbol.hint for symbol in known if symbol.hint is not None}
    if not known or len(sizes) != len(known):
        return None
    fixed = map_sizes(document, lambda size: evaluate(size, sizes))
    return replace(fixed, symbols=()) if isinstance(fixed, Capture) else fixed


def _fewest_results(document: Document, holds: Condition) -> Document:
    """Fewer results of a document that is one graph, whose results are all new."""
    for field, graph in graphs_of(document).items():
        if field == "backward" or len(graph.outputs) < 2:
            continue

        def cut(chosen: tuple[int, ...], field: str = field, graph: Graph | LoopGraph = graph) -> Document:
            return _with_outputs(document, field, graph, tuple(graph.outputs[number] for number in chosen))

        everything = tuple(range(len(graph.outputs)))
        if holds(cut(everything)):
            return cut(smallest(everything, lambda chosen, cut=cut: holds(cut(chosen))))  # type: ignore[misc]
    return document


def _with_outputs(document: Document, field: str, graph: Graph | LoopGraph, outputs: tuple[Arg, ...]) -> Document:
    """With other results of the graph, each of which is one of the document."""
    own: dict[str, Any] = {field: replace(graph, outputs=outputs)}
    if not isinstance(document, Capture):
        own["binding"] = replace(document.binding, outputs=tuple(map(Fresh, range(len(outputs)))))
    return replace(document, **own)  # type: ignore[no-any-return]


def command(text: str, timeout: float | None = None) -> Condition:
    """The condition that a shell command succeeds: `{}` in it is the file of the candidate, else it is its last word.

    One that takes longer than `timeout` seconds does not.
    """

    def keep(candidate: Document) -> bool:
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / f"{form_of(candidate)}.json"
            write(candidate, path)
            quoted = shlex.quote(str(path))
            line = re.sub(r"\{\}", lambda _: quoted, text) if "{}" in text else f"{text} {quoted}"
            try:
                done = subprocess.run(line, shell=True, capture_output=True, timeout=timeout)
            except subprocess.TimeoutExpired:
                return False
            if done.returncode in (126, 127):  # the shell has not run it
                told = done.stderr.decode(errors="replace").strip()
                raise CommandFault(
                    f"{text!r} cannot be run: {told}", fix="Give a shell command, such as './fails.sh {}'."
                )
            return done.returncode == 0

    return keep


def step_count(document: Document) -> int:
    """How many calls or kernels its graphs have."""
    return sum(part.count for part in parts_of(document))
