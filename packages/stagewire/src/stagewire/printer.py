"""The printed form of documents: one line a node, types on every line, the user's line as a comment.

    document  ::= kind version "{" entry* "}"
    entry     ::= field "=" value | field "{" line* "}" | "source" "{" ("|" text)* "}"
    graph     ::= ("input" value)* node* "return" args
    node      ::= (value ("," value)* "=")? target "(" args ")" tail
    tail      ::= ("with" field "=" value ("," field "=" value)*)? ("#" user's line)?

Fields at their default are left out. What has no form of its own prints as Class(field=value), so a new optional
field needs no change here. `stagewire.parser` reads all of it back.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, cast

import msgspec

from stagewire import capture, graph, loop, program, types
from stagewire.codec import VERSIONS, Document, kind_of
from stagewire.notation import BLOCKS, SHORT_DTYPE, STORE_SIGN, bare, fields_of, is_default
from stagewire.print_values import (
    print_dim,
    print_dims,
    print_fields,
    print_index,
    print_line,
    print_ref,
    print_target,
    print_type,
    print_value,
)

Path = tuple[str | int, ...]

__all__ = ["Page", "Path", "print_document", "print_graph", "print_page", "print_type"]


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


def _fields(page: Page, depth: int, struct: msgspec.Struct, path: Path) -> None:
    for field in fields_of(type(struct)):
        value = getattr(struct, field.name)
        if not is_default(field, value):
            _entry(page, depth, field.name, value, (*path, field.name))


def _entry(page: Page, depth: int, name: str, value: Any, path: Path) -> None:
    match value:
        case graph.Graph():
            _block(page, depth, name, path, lambda: _graph(page, depth + 1, value, path))
        case msgspec.Struct() if isinstance(value, BLOCKS):
            _block(page, depth, name, path, lambda: _fields(page, depth + 1, value, path))
        case tuple() if _is_struct_sequence(cast("tuple[object, ...]", value)):
            items = cast("tuple[msgspec.Struct, ...]", value)
            _block(page, depth, name, path, lambda: _sequence(page, depth + 1, items, path))
        case str() if "\n" in value:
            _block(page, depth, name, path, lambda: _text(page, depth + 1, value))
        case _:
            page.add(depth, f"{name} = {print_value(value)}", path)


def _is_struct_sequence(value: tuple[object, ...]) -> bool:
    """Lines are for structs that are no arguments: `outputs` stays one line."""
    return bool(value) and all(isinstance(item, msgspec.Struct) and not isinstance(item, graph.Arg) for item in value)


def _block(page: Page, depth: int, name: str, path: Path, body: Callable[[], None]) -> None:
    page.add(depth, f"{name} {{", path)
    body()
    page.add(depth, "}")


def _text(page: Page, depth: int, text: str) -> None:
    for line in text.split("\n"):
        page.add(depth, "|" + line)


def _sequence(page: Page, depth: int, items: Sequence[msgspec.Struct], path: Path) -> None:
    for position, item in enumerate(items):
        if isinstance(item, loop.Kernel):
            _kernel(page, depth, item, (*path, position))
        elif isinstance(item, BLOCKS):
            where = (*path, position)
            _block(page, depth, type(item).__name__, where, partial(_fields, page, depth + 1, item, where))
        else:
            page.add(depth, _line(item), (*path, position))


def _graph(page: Page, depth: int, value: graph.Graph, path: Path) -> None:
    for position, item in enumerate(value.inputs):
        page.add(depth, f"input {_value(item)}", (*path, "inputs", position))
    for position, node in enumerate(value.nodes):
        page.add(depth, _line(node), (*path, "nodes", position))
    outputs = ", ".join(print_value(output) for output in value.outputs)
    tail = _tail(value, ("inputs", "nodes", "outputs"))
    page.add(depth, (f"return {outputs}" if outputs else "return") + tail, (*path, "outputs"))


def _kernel(page: Page, depth: int, kernel: loop.Kernel, path: Path) -> None:
    page.add(depth, f"kernel {bare(kernel.name)}{_axes(kernel.axes)} {{", path)
    for position, section in enumerate(kernel.sections):
        where = (*path, "sections", position)
        page.add(depth + 1, f"section{_axes(section.axes)} {{", where)
        for number, statement in enumerate(section.statements):
            page.add(depth + 2, _line(statement), (*where, "statements", number))
        page.add(depth + 1, "}" + _tail(section, ("axes", "statements")))
    page.add(depth, "}" + _tail(kernel, ("name", "axes", "sections")))


def _axes(axes: tuple[loop.Axis, ...]) -> str:
    return " for " + ", ".join(f"{bare(axis.name)} in {print_dim(axis.size)}" for axis in axes) if axes else ""


def _line(item: msgspec.Struct) -> str:
    """One struct on one line: its natural form and its tail, or Class(...) and the user's line."""
    natural = _natural(item)
    if natural is None:
        return f"{type(item).__name__}({print_fields(item, ('line',))}){_comment(item)}"
    text, covered = natural
    return text + _tail(item, covered)


def _tail(item: msgspec.Struct, covered: Collection[str]) -> str:
    rest = print_fields(item, (*covered, "line"))
    return (f" with {rest}" if rest else "") + _comment(item)


def _comment(item: msgspec.Struct) -> str:
    line = getattr(item, "line", None)
    return f"  # {print_line(line)}" if isinstance(line, graph.SourceLine) else ""


def _natural(item: msgspec.Struct) -> tuple[str, tuple[str, ...]] | None:
    """The text of a struct and the fields that it covers."""
    match item:
        case graph.Node():
            results = ", ".join(_value(result) for result in item.results)
            return _assign(results) + _call(item), ("target", "args", "kwargs", "results")
        case capture.Input():
            return f"{_value(item.value)} = {item.role} {print_value(item.source)}", ("value", "source", "role")
        case loop.Buffer():
            base = f" of {print_ref(item.base)}" if item.base is not None else ""
            return (
                f"{print_ref(item.name)}: {print_type(item.type)} = {item.role}{base}{_reuse(item.reuse)}",
                ("name", "type", "role", "base", "reuse"),
            )
        case loop.Extern():
            return _assign(_kept(item.results)) + _call(item), ("target", "args", "kwargs", "results")
        case types.TensorType() | types.ScalarType():
            return print_type(item), item.__struct_fields__
        case loop.Free():
            return f"free {print_ref(item.buffer)}", ("buffer",)
        case loop.Load() | loop.Store() | loop.Compute() | loop.IndexValue() | loop.Reduce() | loop.Scan():
            return _statement(item)
        case program.Allocate() | program.MakeView() | program.Launch() | program.CallExtern() | program.Release():
            return _instruction(item)
        case _:
            return None


def _statement(item: loop.Statement) -> tuple[str, tuple[str, ...]]:
    match item:
        case loop.Load():
            other = "" if type(item.other) is int and item.other == 0 else f" else {print_value(item.other)}"
            where = f"{print_ref(item.buffer)}[{print_index(item.index)}]{_mask(item.mask)}{other}"
            return f"{_typed(item.result, item.dtype)} = load {where}", (
                "result", "buffer", "index", "dtype", "mask", "other",
            )  # fmt: skip
        case loop.Store():
            where = f"{print_ref(item.buffer)}[{print_index(item.index)}]"
            text = f"store {where} {STORE_SIGN[item.mode]} {print_value(item.value)}{_mask(item.mask)}"
            return text, ("buffer", "index", "value", "mode", "mask")
        case loop.Compute():
            operands = ", ".join(print_value(operand) for operand in item.operands)
            call = f"{print_target(item.op)}({operands})"
            return f"{_typed(item.result, item.dtype)} = {call}", ("result", "op", "operands", "dtype")
        case loop.IndexValue():
            text = f"{_typed(item.result, item.dtype)} = index {print_index(item.index)}"
            return text, ("result", "index", "dtype")
        case loop.Reduce():
            results = ", ".join(print_ref(name) for name in item.results)
            text = f"{results}: {SHORT_DTYPE[item.dtype]} = reduce {item.reduction} {print_value(item.operand)}"
            return text, ("results", "reduction", "operand", "dtype")
        case loop.Scan():
            text = f"{_typed(item.result, item.dtype)} = scan {item.scan} {print_value(item.operand)}"
            return text, ("result", "scan", "operand", "dtype")


def _instruction(item: program.Instruction) -> tuple[str, tuple[str, ...]]:
    match item:
        case program.Allocate():
            text = f"{print_ref(item.buffer)}: {print_type(item.type)} = allocate{_reuse(item.reuse)}"
            return text, ("buffer", "type", "reuse")
        case program.MakeView():
            text = f"{print_ref(item.buffer)}: {print_type(item.type)} = view {print_ref(item.base)}"
            return text, ("buffer", "base", "type")
        case program.Launch():
            sizes = f"; {print_dims(item.sizes)}" if item.sizes else ""
            buffers = ", ".join(print_ref(name) for name in item.buffers)
            return f"launch {bare(item.kernel)}({buffers}{sizes})", ("kernel", "buffers", "sizes")
        case program.CallExtern():
            return f"call {_assign(_kept(item.results))}{_call(item)}", ("target", "args", "kwargs", "results")
        case program.Release():
            return f"release {print_ref(item.buffer)}", ("buffer",)


def _value(value: graph.Value) -> str:
    return f"{print_ref(value.name)}: {print_type(value.type)}"


def _typed(name: str, dtype: str) -> str:
    return f"{print_ref(name)}: {SHORT_DTYPE[dtype]}"


def _assign(results: str) -> str:
    return f"{results} = " if results else ""


def _kept(results: tuple[str, ...]) -> str:
    """Results of an extern call: `_` for one that is not kept."""
    return ", ".join(print_ref(name) if name else "_" for name in results)


def _reuse(name: str | None) -> str:
    return f" reuse {print_ref(name)}" if name is not None else ""


def _mask(mask: graph.Ref | None) -> str:
    return f" if {print_ref(mask.name)}" if mask is not None else ""


def _call(item: graph.Node | loop.Extern | program.CallExtern) -> str:
    args = [print_value(arg) for arg in item.args]
    args += [f"{bare(key)}={print_value(arg)}" for key, arg in item.kwargs.items()]
    return f"{print_target(item.target)}({', '.join(args)})"
