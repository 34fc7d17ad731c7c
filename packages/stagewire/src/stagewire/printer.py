"""The printed form of documents: one line a node, types on every line, the user's line as a comment.

    document  ::= kind version "{" entry* "}"
    entry     ::= field "=" value | field "{" line* "}" | "source" "{" ("|" text)* "}"
    graph     ::= ("input" value)* node* "return" args
    line      ::= form tail
    node      ::= (value ("," value)* "=")? target "(" args ")" tail
    tail      ::= ("with" field "=" value ("," field "=" value)*)? ("#" user's line)?

The forms of lines and values are the rows of `stagewire.forms`. `stagewire.parser` reads all of it back.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec

from stagewire import graph
from stagewire.codec import VERSIONS, Document, kind_of
from stagewire.forms import BLOCKS, BODIES
from stagewire.graph import SourceLine
from stagewire.notation import fields_of, is_default, line_form, write
from stagewire.scanner import bare
from stagewire.types import TensorType, ValueType

Path = tuple[str | int, ...]


_PLAIN_FILE = re.compile(r'[^\s"]\S*')


class Page:
    """Lines under construction, and the line on which each part of the document begins (for error windows)."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.anchors: dict[Path, int] = {}

    def add(self, depth: int, text: str, path: Path | None = None) -> None:
        if path is not None:
            self.anchors.setdefault(path, len(self.lines))
        self.lines.append("  " * depth + text if text else "")

    def text(self) -> str:
        return "\n".join(self.lines) + "\n"


def print_document(document: Document) -> str:
    """The whole document as text; `parse(print_document(d)) == d`."""
    return print_page(document).text()


def print_page(document: Document) -> Page:
    """The printed document with the line number of every part, keyed by its path of fields and positions."""
    page = Page()
    kind = kind_of(document)
    page.add(0, f"{kind} {VERSIONS[kind]} {{", ())
    _fields(page, 1, document, ())
    page.add(0, "}")
    return page


def print_graph(graph: graph.Graph) -> str:
    """The lines of one graph."""
    page = Page()
    _graph(page, 0, graph, ())
    return "\n".join(page.lines)


def print_type(type: ValueType) -> str:
    """`f32[2, 3]{1, 2}+4@cuda:0 grad`: strides, offset, device and requires_grad only where they are not the default.

    >>> from stagewire.types import TensorType
    >>> print_type(TensorType("bool", (2, 3), (1, 2), device="cuda:0"))
    'b8[2, 3]{1, 2}@cuda:0'
    """
    return write(type)


def _fields(page: Page, depth: int, struct: msgspec.Struct, path: Path) -> None:
    for field in fields_of(type(struct)):
        value = getattr(struct, field.name)
        if not is_default(field, value):
            _entry(page, depth, field.name, value, (*path, field.name))


def _entry(page: Page, depth: int, name: str, value: Any, path: Path) -> None:
    if isinstance(value, BLOCKS):
        _block(page, depth, name, value, path)
    elif isinstance(value, tuple) and value and all(map(_has_line, value)):
        page.add(depth, f"{name} {{", path)
        _lines(page, depth + 1, value, path)
        page.add(depth, "}")
    elif isinstance(value, str) and "\n" in value:
        page.add(depth, f"{name} {{", path)
        for line in value.split("\n"):
            page.add(depth + 1, "|" + line)
        page.add(depth, "}")
    else:
        page.add(depth, f"{name} = {write(value)}", path)


def _has_line(item: object) -> bool:
    """Lines are for structs that are no arguments: `outputs` stays one line."""
    return isinstance(item, msgspec.Struct) and not isinstance(item, graph.Arg)


def _block(page: Page, depth: int, name: str, value: msgspec.Struct, path: Path) -> None:
    page.add(depth, f"{name} {{", path)
    body: Callable[[Page, int, Any, Path], None] = _graph if isinstance(value, graph.Graph) else _fields
    body(page, depth + 1, value, path)
    page.add(depth, "}")


def _lines(page: Page, depth: int, items: tuple[msgspec.Struct, ...], path: Path) -> None:
    for position, item in enumerate(items):
        where = (*path, position)
        if isinstance(item, BLOCKS):
            _block(page, depth, type(item).__name__, item, where)
        elif type(item) in BODIES:
            (body,) = BODIES[type(item)]
            page.add(depth, line_form(type(item)).write(item) + " {", where)
            _lines(page, depth + 1, getattr(item, body), (*where, body))
            page.add(depth, "}" + _tail(item))
        else:
            page.add(depth, line_form(type(item)).write(item) + _tail(item), where)


def _tail(item: msgspec.Struct) -> str:
    rest = line_form(type(item)).rest.write(item)
    return (f" with {rest}" if rest else "") + _comment(getattr(item, "line", None))


def _comment(line: Any) -> str:
    """`model.py:41 in forward`, with quotes where a name has white space."""
    if not isinstance(line, SourceLine):
        return ""
    function = f" in {bare(line.function, _PLAIN_FILE)}" if line.function else ""
    return f"  # {bare(line.file, _PLAIN_FILE)}:{line.line}{function}"


def _graph(page: Page, depth: int, value: graph.Graph, path: Path) -> None:
    for position, item in enumerate(value.inputs):
        page.add(depth, f"input {write(item)}", (*path, "inputs", position))
    _lines(page, depth, value.nodes, (*path, "nodes"))
    page.add(depth, line_form(graph.Graph).write(value) + _tail(value), (*path, "outputs"))


graph.Graph.__str__ = print_graph  # type: ignore[method-assign, assignment]
TensorType.__str__ = print_type  # type: ignore[method-assign, assignment]
