"""`verify(document)`: labelled constraints, checked at every boundary in tests and on request in use.

The README of the package says what each label stands for. Modules check: `types` T, `graphs` G and V, `captures` and
`functions` C, `bindings` B and P, `loops` and `reuse` L, `kernels` K, `programs` R.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

from stagewire.capture import Capture
from stagewire.codec import Document
from stagewire.errors import VerifyError
from stagewire.grad import Grad
from stagewire.graph import Graph
from stagewire.loop import Loop, LoopGraph
from stagewire.prim import Prim
from stagewire.printer import Page, print_page
from stagewire.program import Program
from stagewire.verify.bindings import check_grad, check_prim, check_qualified
from stagewire.verify.captures import check_capture
from stagewire.verify.fault import Fault, Path
from stagewire.verify.loops import check_loop, check_loop_graph
from stagewire.verify.programs import check_program
from stagewire.verify.types import check_parts

__all__ = ["Fault", "faults", "verify", "verify_graph", "verify_loop_graph", "window"]

_LINES_AROUND = 3


def verify(document: Document) -> None:
    """Raise `VerifyError` for the first broken constraint, with the printed lines around it."""
    for fault in faults(document):
        message = f"{fault.message}\n{window(document, fault.path)}"
        raise VerifyError(fault.label, message, where=_user_line(document, fault.path))


def verify_graph(graph: Graph) -> None:
    """The same for one graph of calls, as in Grad and Prim, whatever symbols its sizes are made of."""
    for fault in itertools.chain(check_parts(graph, None), check_qualified(graph)):
        raise VerifyError(fault.label, fault.message, where=_user_line(graph, fault.path))


def verify_loop_graph(graph: LoopGraph) -> None:
    """The same for one direction of a Loop, whatever symbols its sizes are made of."""
    for fault in itertools.chain(check_parts(graph, None), check_loop_graph(graph)):
        raise VerifyError(fault.label, fault.message, where=_user_line(graph, fault.path))


def faults(document: Document) -> Iterator[Fault]:
    """Every broken constraint, in the order of checking."""
    symbols = document.symbols if isinstance(document, Capture) else document.binding.symbols
    yield from check_parts(document, frozenset(symbol.name for symbol in symbols))
    yield from _CHECKS[type(document)](document)


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
    margin = _shared_indent(shown)
    return "\n".join(
        f"{'>' if number == line else ' '} {number + 1:4} | {text[margin:]}" for number, text in enumerate(shown, first)
    )


def _anchor(page: Page, path: Path) -> int:
    while path not in page.anchors:
        path = path[:-1]
    return page.anchors[path]


def _shared_indent(lines: list[str]) -> int:
    return min((len(line) - len(line.lstrip()) for line in lines if line), default=0)


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
