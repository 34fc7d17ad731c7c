"""`verify(document)`: labelled constraints, checked at every boundary in tests and on request in use.

The README of the package says what each label stands for. Modules check: `types` T, `graphs` G and V, `captures` C,
`bindings` B and P, `loops` and `memory` L, `kernels` K, `programs` R; `samples`: at which sizes; `conversions`: what a
stage makes of what it is given.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from stagewire.capture import Capture
from stagewire.codec import Document
from stagewire.errors import ExprError, VerifyError
from stagewire.grad import Grad
from stagewire.graph import Graph
from stagewire.loop import Loop, LoopGraph
from stagewire.prim import Prim
from stagewire.printer import Page, print_page
from stagewire.program import Program
from stagewire.verify.bindings import check_grad, check_prim, check_qualified
from stagewire.verify.captures import check_capture
from stagewire.verify.conversions import check_conversion
from stagewire.verify.fault import NO_SIZES, Fault, Path
from stagewire.verify.loops import check_loop, check_loop_graph
from stagewire.verify.programs import check_program
from stagewire.verify.samples import at_sizes, sample_sizes
from stagewire.verify.types import check_parts

__all__ = ["Fault", "faults", "told", "verify", "verify_graph", "verify_loop_graph", "window"]

_LINES_AROUND = 3


def verify(document: Document, given: Document | None = None) -> None:
    """Raise `VerifyError` for the first broken constraint, with the printed lines around it.

    given: what the document was made of by a stage.
    """
    for fault in faults(document, given):
        message = f"{told(fault)}\n{window(document, fault.path)}"
        raise VerifyError(fault.label, message, where=_user_line(document, fault.path), sizes=fault.sizes)


def verify_graph(graph: Graph, sizes: Mapping[str, int] = NO_SIZES) -> None:
    """The same for one graph of calls, as in Grad and Prim, whatever symbols its sizes are made of.

    sizes: values for these.
    """
    graph = at_sizes(graph, sizes)
    for fault in itertools.chain(check_parts(graph, None), check_qualified(graph)):
        raise VerifyError(fault.label, fault.message, where=_user_line(graph, fault.path))


def verify_loop_graph(graph: LoopGraph, sizes: Mapping[str, int] = NO_SIZES) -> None:
    """The same for one direction of a Loop."""
    graph = at_sizes(graph, sizes)
    for fault in itertools.chain(check_parts(graph, None), check_loop_graph(graph)):
        raise VerifyError(fault.label, fault.message, where=_user_line(graph, fault.path))


def faults(document: Document, given: Document | None = None) -> Iterator[Fault]:
    """Every broken constraint, in the order of checking: of the document, and where it has none, of what it is at the
    first of a few sizes where it has."""
    symbols = document.symbols if isinstance(document, Capture) else document.binding.symbols
    names = frozenset(symbol.name for symbol in symbols)
    found = False
    for fault in _faults(document, names):
        found = True
        yield fault
    if isinstance(document, Capture):
        return
    for sizes in sample_sizes(document.binding) if names else (NO_SIZES,):
        if found:
            return
        try:
            fixed, before = at_sizes(document, sizes), at_sizes(given, sizes)
        except ExprError:  # a size divides by zero there
            continue
        for fault in itertools.chain(_faults(fixed, names) if names else (), check_conversion(before, fixed)):
            found = True
            yield fault._replace(sizes=sizes)


def _faults(document: Document, symbols: frozenset[str]) -> Iterator[Fault]:
    yield from check_parts(document, symbols)
    yield from _CHECKS[type(document)](document)


def told(fault: Fault) -> str:
    """What is wrong, and at which sizes."""
    sizes = ", ".join(f"{name}={size}" for name, size in fault.sizes.items())
    return f"{fault.message} (at {sizes})" if sizes else fault.message


_CHECKS: dict[type[Document], Callable[[Any], Iterator[Fault]]] = {
    Capture: check_capture, Grad: check_grad, Prim: check_prim, Loop: check_loop, Program: check_program,
}  # fmt: skip


def window(document: Document, path: Path) -> str:
    """The printed lines around one part of the document, the part marked by `>`.

    A part that prints no line of its own is found by the nearest enclosing part that does.
    """
    page = print_page(document)
    line = _anchor(page, path)
    first = max(0, line - _LINES_AROUND)
    shown = page.lines[first : line + _LINES_AROUND + 1]
    margin = min((len(line) - len(line.lstrip()) for line in shown if line), default=0)
    return "\n".join(
        f"{'>' if number == line else ' '} {number + 1:4} | {text[margin:]}" for number, text in enumerate(shown, first)
    )


def _anchor(page: Page, path: Path) -> int:
    while path not in page.anchors:
        path = path[:-1]
    return page.anchors[path]


def _user_line(document: Document | Graph | LoopGraph, path: Path) -> str | None:
    """The user's line of the nearest part that has one."""
    found: str | None = None
    part: Any = document
    for step in path:
        try:
            part = part[step] if isinstance(step, int) else getattr(part, step)
        except (AttributeError, IndexError, TypeError):  # the path of something missing ends above it
            break
        line = getattr(part, "line", None)
        found = str(line) if line is not None else found
    return found
