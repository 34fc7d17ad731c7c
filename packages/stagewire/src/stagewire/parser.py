"""Reading the printed form: `parse(print_document(d)) == d`; faults are `ParseError` with line:column.

The grammar is in `stagewire.printer`. Blocks and lines are read here, what stands inside a line in `notation`.
"""

from __future__ import annotations

import re
import typing
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar, cast

import msgspec

from stagewire import graph, notation
from stagewire.codec import KINDS, VERSIONS, Document
from stagewire.combinators import Notation, around
from stagewire.errors import UnknownVersion
from stagewire.forms import BLOCKS, BODIES
from stagewire.graph import SourceLine
from stagewire.notation import Form, Values, build, fields_of, is_struct, line_form, members, notation_of
from stagewire.scanner import IDENTIFIER, Fault, Scanner

T = TypeVar("T")

_VERSION = re.compile(r"[0-9]+")
_TEXT_LINE = re.compile(r"\|([^\n]*)\n?")
_FILE_LINE = re.compile(r'("(?:[^"\\]|\\.)*"|[^\s"]\S*?):(-?[0-9]+)(?: in ("(?:[^"\\]|\\.)*"|[^\s"]\S*))?$')


def parse_document(text: str) -> Document:
    """Read a printed document; `parse` is its short name.

    Raises `ParseError` for text outside the grammar, `UnknownVersion` for another kind or version.
    """
    return _whole(text, _document, "document")


def parse_graph(text: str) -> graph.Graph:
    """Read the lines of one graph, as `print_graph` writes them."""
    return _whole(text, _graph, "graph")


def _whole(text: str, read: Callable[[Scanner], T], what: str) -> T:
    scanner = Scanner(text)
    try:
        found = read(scanner)
        if not scanner.at_end():
            raise Fault(scanner.position, f"text after the {what}")
    except Fault as fault:
        raise scanner.error(fault) from None
    except RecursionError:
        raise scanner.error(Fault(scanner.position, "the text is nested too deeply")) from None
    return found


def _document(scanner: Scanner) -> Document:
    start = Fault(scanner.position)
    kind = scanner.take(IDENTIFIER, "a kind of document")
    version = scanner.take(_VERSION, "a version")
    if kind not in KINDS or int(version) != VERSIONS[kind]:
        known = ", ".join(f"{name} {number}" for name, number in VERSIONS.items())
        raise UnknownVersion(f"the text is {kind} {version}; known: {known}", where=scanner.error(start).where)
    return cast(Document, _fields(scanner, KINDS[kind]))


def _block(scanner: Scanner, kind: type[msgspec.Struct]) -> msgspec.Struct:
    """`{ lines }` of a struct."""
    if kind is not graph.Graph:
        return _fields(scanner, kind)
    scanner.expect("{")
    found = _graph(scanner)
    scanner.expect("}")
    return found


def _fields(scanner: Scanner, kind: type[msgspec.Struct]) -> msgspec.Struct:
    start = scanner.position
    scanner.expect("{")
    values: Values = {}
    while not scanner.accept("}"):
        field = notation.take_field(scanner, kind, values)
        values[field.name] = _entry(scanner, field.type)
    return cast(msgspec.Struct, build(kind, values, start))


def _entry(scanner: Scanner, kind: Any) -> Any:
    if scanner.accept("="):
        return notation_of(kind).read(scanner)
    for choice in members(kind):
        if choice in BLOCKS:
            return _block(scanner, choice)
        if choice is str:
            return _text(scanner)
        if typing.get_origin(choice) is tuple and all(map(is_struct, members(typing.get_args(choice)[0]))):
            return _lines(scanner, typing.get_args(choice)[0])
    raise scanner.missing("'='")


def _text(scanner: Scanner) -> str:
    """Lines that begin with `|`, kept as they are."""
    scanner.expect("{")
    lines: list[str] = []
    while (found := scanner.match(_TEXT_LINE)) is not None:
        lines.append(found[1])
    scanner.expect("}")
    return "\n".join(lines)


def _lines(scanner: Scanner, kind: Any) -> tuple[Any, ...]:
    """`{ lines }`, one struct a line."""
    read = _line_reader(kind)
    scanner.expect("{")
    items: list[Any] = []
    while not scanner.accept("}"):
        items.append(read(scanner))
    return tuple(items)


@cache
def _line_reader(kind: Any) -> Callable[[Scanner], Any]:
    kinds = members(kind)

    def block(kind: type[msgspec.Struct]) -> Notation:
        return around(kind.__name__, Notation(str, lambda scanner: _block(scanner, kind)))

    forms = [line_form(one) for one in kinds if one not in BLOCKS]
    return notation.alternatives(forms, [block(one) for one in kinds if one in BLOCKS], _finish).read


def _finish(scanner: Scanner, form: Form, values: Values, start: int) -> Any:
    """The struct of a form, after its body, its tail and its comment."""
    types = {field.name: field.type for field in fields_of(form.kind)}
    for name in BODIES.get(form.kind, ()):
        if name not in values:
            values[name] = _lines(scanner, typing.get_args(types[name])[0])
    if scanner.accept("with"):
        form.rest.read(scanner, values)
    comment = scanner.take_comment()
    if comment is not None:
        if "line" not in types:
            raise Fault(comment[0], f"{form.kind.__name__} has no line for the comment")
        values["line"] = _source_line(*comment)
    return build(form.kind, values, start)


def _source_line(start: int, text: str) -> SourceLine:
    """`model.py:41 in forward`."""
    match = _FILE_LINE.match(text)
    if match is None:
        raise Fault(start, f"the comment {text!r} is no file:line")
    file, line, function = match.groups()
    return SourceLine(_unquoted(file), int(line), _unquoted(function or ""))


def _unquoted(text: str) -> str:
    return Scanner(text).take_string() if text.startswith('"') else text


def _graph(scanner: Scanner) -> graph.Graph:
    start = scanner.position
    inputs: list[graph.Value] = []
    nodes: list[graph.Node] = []
    read_input, read_node = notation_of(graph.Value).read, _line_reader(graph.Node)
    while scanner.accept("input"):
        inputs.append(read_input(scanner))
    while not scanner.at("return"):
        nodes.append(read_node(scanner))
    values: Values = {"inputs": tuple(inputs), "nodes": tuple(nodes)}
    form = line_form(graph.Graph)
    for part in form.parts:
        part.read(scanner, values)
    return cast(graph.Graph, _finish(scanner, form, values, start))


parse = parse_document
