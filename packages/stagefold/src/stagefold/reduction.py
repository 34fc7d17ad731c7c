"""`reduce(document, keep)`: the smallest document that a condition still holds of, and that breaks no constraint.

    reduce ::= sizes fixed, then the fewest steps of one graph, then the fewest results

Whatever a candidate is, it is verified before anybody is asked.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from stagefold.errors import CommandFault
from stagefold.excerpts import NotApart, Part, parts_of, smallest
from stagewire.capture import Capture
from stagewire.codec import Document, form_of
from stagewire.errors import StageError
from stagewire.expr import evaluate
from stagewire.files import write
from stagewire.grad import Fresh
from stagewire.graph import Graph
from stagewire.loop import LoopGraph
from stagewire.substitution import map_sizes
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

    def holds(candidate: Document | None) -> bool:
        try:
            if candidate is None:
                return False
            verify(candidate)
        except StageError:
            return False
        return keep(candidate)

    fixed = _at_hints(document)
    document = fixed if fixed is not None and holds(fixed) else document
    for part in sorted(parts_of(document), key=lambda part: part.count):
        everything = tuple(range(part.count))
        if holds(_excerpt(part, everything)):
            fewest = smallest(everything, lambda chosen, part=part: holds(_excerpt(part, chosen)))  # type: ignore[misc]
            document = _excerpt(part, fewest) or document
            break
    return _fewest_results(document, holds)


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
    for field in ("graph", "joint", "forward"):
        graph = getattr(document, field, None)
        if not isinstance(graph, (Graph, LoopGraph)) or len(graph.outputs) < 2:
            continue

        def cut(chosen: tuple[int, ...], field: str = field, graph: Graph | LoopGraph = graph) -> Document:
            own = replace(graph, outputs=tuple(graph.outputs[number] for number in chosen))
            fresh = {} if isinstance(document, Capture) else {"binding": _with_results(document, len(chosen))}
            return replace(document, **{field: own}, **fresh)  # type: ignore[arg-type]

        everything = tuple(range(len(graph.outputs)))
        if holds(cut(everything)):
            return cut(smallest(everything, lambda chosen, cut=cut: holds(cut(chosen))))  # type: ignore[misc]
    return document


def _with_results(document: Document, count: int) -> object:
    return replace(document.binding, outputs=tuple(map(Fresh, range(count))))  # type: ignore[union-attr]


def command(text: str, suffix: str = ".json", timeout: float | None = None) -> Condition:
    """The condition that a shell command succeeds: `{}` in it is the file of the candidate, else it is its last word.

    One that takes longer than `timeout` seconds does not.
    """

    def keep(candidate: Document) -> bool:
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / f"{form_of(candidate)}{suffix}"
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
