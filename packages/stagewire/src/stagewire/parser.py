"""Reading the printed form: `parse(print_document(d)) == d`; faults are `ParseError` with line:column.

The grammar is in `stagewire.printer`. Blocks and lines are read here, what stands inside a line in `parse_values`.
"""

from __future__ import annotations

import re
import types
import typing
from typing import Any, cast

import msgspec

from stagewire import graph, loop
from stagewire.codec import KINDS, VERSIONS, Document
from stagewire.errors import UnknownVersion
from stagewire.notation import BLOCKS, IDENTIFIER, fields_of
from stagewire.parse_lines import line_reader, parse_axes, parse_outputs, parse_value
from stagewire.parse_values import (
    build,
    parse_assignments,
    parse_field,
    parse_line,
    parse_name,
)
from stagewire.scanner import Scanner

_VERSION = re.compile(r"[0-9]+")
_TEXT_LINE = re.compile(r"\|([^\n]*)\n?")


def parse_document(text: str) -> Document:
    """Read a printed document; `parse` is its short name.

    Raises `ParseError` for text outside the grammar, `UnknownVersion` for another kind or version.
    """
    scanner = Scanner(text)
    try:
        document = _document(scanner)
    except RecursionError:
        raise scanner.error("the text is nested too deeply") from None
    if not scanner.at_end():
        raise scanner.error(f"text after the document: {scanner.preview()}")
    return document


def parse_graph(text: str) -> graph.Graph:
    """Read the lines of one graph, as `print_graph` writes them."""
    scanner = Scanner(text)
    found = _graph(scanner)
    if not scanner.at_end():
        raise scanner.error(f"text after the graph: {scanner.preview()}")
    return found


def _document(scanner: Scanner) -> Document:
    start = scanner.position
    kind = scanner.take(IDENTIFIER, "a kind of document")
    version = scanner.take(_VERSION, "a version")
    if kind not in KINDS or int(version) != VERSIONS[kind]:
        known = ", ".join(f"{name} {number}" for name, number in VERSIONS.items())
        raise UnknownVersion(f"the text is {kind} {version}; known: {known}", where=scanner.error("", start).where)
    return cast(Document, _struct_block(scanner, KINDS[kind]))


def _struct_block(scanner: Scanner, kind: type[msgspec.Struct]) -> msgspec.Struct:
    """`{ entries }` of a struct."""
    start = scanner.position
    scanner.expect("{")
    known = {field.name: field.type for field in fields_of(kind)}
    values: dict[str, Any] = {}
    while not scanner.accept("}"):
        at = scanner.position
        name = scanner.take(IDENTIFIER, f"a field of {kind.__name__}")
        if name not in known or name in values:
            raise scanner.error(f"{kind.__name__} takes no {name!r} here; its fields: {', '.join(known)}", at)
        values[name] = _entry(scanner, known[name])
    return cast(msgspec.Struct, build(scanner, kind, values, start))


def _entry(scanner: Scanner, kind: Any) -> Any:
    if scanner.accept("="):
        return parse_field(scanner, kind)
    choices = _choices(kind)
    if graph.Graph in choices:
        scanner.expect("{")
        found = _graph(scanner)
        scanner.expect("}")
        return found
    for choice in choices:
        if choice in BLOCKS:
            return _struct_block(scanner, choice)
        if choice is str:
            return _text(scanner)
        if typing.get_origin(choice) is tuple:
            return _sequence(scanner, typing.get_args(choice)[0])
    raise scanner.error(f"expected '=', found {scanner.preview()}")


def _choices(kind: Any) -> tuple[Any, ...]:
    """The members of a union, or the type itself."""
    is_union = typing.get_origin(kind) in (types.UnionType, typing.Union)
    return typing.get_args(kind) if is_union else (kind,)


def _text(scanner: Scanner) -> str:
    """Lines that begin with `|`, kept as they are."""
    scanner.expect("{")
    lines: list[str] = []
    while scanner.at("|"):
        found = scanner.match(_TEXT_LINE)
        assert found is not None
        lines.append(found[1:].removesuffix("\n"))
        scanner.advance(len(found))
    scanner.expect("}")
    return "\n".join(lines)


def _sequence(scanner: Scanner, kind: Any) -> tuple[Any, ...]:
    """`{ lines }`, one struct a line."""
    scanner.expect("{")
    items: list[Any] = []
    while not scanner.accept("}"):
        items.append(_item(scanner, kind))
    return tuple(items)


def _item(scanner: Scanner, kind: Any) -> Any:
    start = scanner.position
    choices = _choices(kind)
    if loop.Kernel in choices and scanner.at_word("kernel"):
        return _kernel(scanner)
    for choice in choices:
        if choice in BLOCKS and scanner.at_word(choice.__name__):
            scanner.expect(choice.__name__)
            return _struct_block(scanner, choice)
    read = line_reader(choices)
    if read is not None:
        found, values = read(scanner)
        return _finish(scanner, found, values, start)
    item = parse_field(scanner, kind)
    comment = scanner.take_comment()
    return item if comment is None else _with_line(scanner, item, comment)


def _with_line(scanner: Scanner, item: Any, comment: str) -> Any:
    if "line" not in item.__struct_fields__:
        raise scanner.error(f"{type(item).__name__} has no line for the comment")
    return msgspec.structs.replace(item, line=parse_line(scanner, comment))


def _finish(scanner: Scanner, kind: type[Any], values: dict[str, Any], start: int) -> Any:
    """The struct of a natural form, after its tail and comment."""
    values |= _tail(scanner, kind)
    item = build(scanner, kind, values, start)
    comment = scanner.take_comment()
    return item if comment is None else _with_line(scanner, item, comment)


def _tail(scanner: Scanner, kind: type[Any]) -> dict[str, Any]:
    """`with field=value, ...` where it stands."""
    if not scanner.accept_word("with"):
        return {}
    return parse_assignments(scanner, kind, lambda inner: not inner.at(","))


def _kernel(scanner: Scanner) -> loop.Kernel:
    start = scanner.position
    scanner.expect("kernel")
    values: dict[str, Any] = {"name": parse_name(scanner), "axes": parse_axes(scanner)}
    scanner.expect("{")
    sections: list[loop.Section] = []
    while not scanner.accept("}"):
        sections.append(_section(scanner))
    values["sections"] = tuple(sections)
    return cast(loop.Kernel, _finish(scanner, loop.Kernel, values, start))


def _section(scanner: Scanner) -> loop.Section:
    start = scanner.position
    scanner.expect("section")
    values: dict[str, Any] = {"axes": parse_axes(scanner)}
    values["statements"] = _sequence(scanner, loop.Statement)
    return cast(loop.Section, _finish(scanner, loop.Section, values, start))


def _graph(scanner: Scanner) -> graph.Graph:
    start = scanner.position
    inputs: list[graph.Value] = []
    nodes: list[graph.Node] = []
    while scanner.accept_word("input"):
        inputs.append(parse_value(scanner))
    while not scanner.accept_word("return"):
        nodes.append(_item(scanner, graph.Node))
    outputs = parse_outputs(scanner)
    values: dict[str, Any] = {"inputs": tuple(inputs), "nodes": tuple(nodes), "outputs": outputs}
    return cast(graph.Graph, _finish(scanner, graph.Graph, values, start))


parse = parse_document

__all__ = ["parse", "parse_document", "parse_graph"]
