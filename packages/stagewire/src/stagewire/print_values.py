"""What fits inside a line: sizes, types, arguments, sources, index expressions, and any other struct as Class(...)."""

from __future__ import annotations

import base64
import re
from collections.abc import Collection
from functools import lru_cache
from typing import Any, cast

import msgspec

from stagewire import capture, graph, loop
from stagewire.errors import ExprError, ParseError
from stagewire.expr import Dim, Expr
from stagewire.graph import SourceLine
from stagewire.notation import (
    DEVICE,
    IDENTIFIER,
    KEYWORDS,
    LEAF_CALLS,
    SHORT_DTYPE,
    TARGET,
    bare,
    fields_of,
    is_default,
    quote,
)
from stagewire.scanner import Scanner
from stagewire.types import NoneType, ScalarType, TensorType, ValueType, contiguous_stride

_PLAIN_FILE = re.compile(r'[^\s"]\S*')


def print_dim(dim: Dim) -> str:
    """4, or the text of the expression."""
    if isinstance(dim, int):
        return str(dim)
    return dim.text if _reads_back(dim.text) else f"Expr(text={quote(dim.text)})"


@lru_cache(maxsize=4096)
def _reads_back(text: str) -> bool:
    """True where the parser takes exactly `text` as one expression that is no integer."""
    scanner = Scanner(text)
    try:
        same = scanner.take_expression() == text
    except ParseError:
        return False
    return same and scanner.at_end() and re.fullmatch(r"-?[0-9]+", text) is None


def print_dims(dims: tuple[Dim, ...]) -> str:
    return ", ".join(print_dim(dim) for dim in dims)


def print_type(type: ValueType) -> str:
    """`f32[2, 3]{1, 2}+4@cuda:0 grad`: strides, offset, device and requires_grad only where they are not the default.

    >>> print_type(TensorType("bool", (2, 3), (1, 2), device="cuda:0"))
    'b8[2, 3]{1, 2}@cuda:0'
    """
    match type:
        case ScalarType(name):
            return name
        case NoneType():
            return "none"
        case TensorType(dtype, shape, stride, offset, device, requires_grad):
            text = f"{SHORT_DTYPE[dtype]}[{print_dims(shape)}]"
            if not _is_contiguous(shape, stride):
                text += f"{{{print_dims(stride)}}}"
            if offset != 0:
                text += f"+{print_dim(offset)}"
            if device != "cpu":
                text += f"@{bare(device, DEVICE)}"
            return text + " grad" if requires_grad else text


def _is_contiguous(shape: tuple[Dim, ...], stride: tuple[Dim, ...]) -> bool:
    try:
        return len(shape) == len(stride) and contiguous_stride(shape) == stride
    except ExprError:  # a document that the verifier refuses prints as well
        return False


def print_ref(name: str) -> str:
    return "%" + bare(name)


def print_target(target: str) -> str:
    return quote(target) if target in KEYWORDS else bare(target, TARGET)


def print_line(line: SourceLine) -> str:
    """`model.py:41 in forward`, with quotes where a name has white space."""
    text = f"{bare(line.file, _PLAIN_FILE)}:{line.line}"
    return text + (f" in {bare(line.function, _PLAIN_FILE)}" if line.function else "")


def print_value(value: object) -> str:
    """Any value of a field: literals, tuples, and structs in their natural form where they have one."""
    match value:
        case None | bool() | int():
            return str(value)
        case float():
            return repr(value) if value - value == 0 else f'float("{value}")'
        case str():
            return quote(value)
        case bytes():
            return f'bytes("{base64.b64encode(value).decode()}")'
        case tuple():
            return _enclose("(", [print_value(item) for item in value], ")", comma=True)
        case dict():
            items = cast("dict[str, Any]", value).items()
            return _enclose("{", [f"{quote(key)}: {print_value(item)}" for key, item in items], "}")
        case msgspec.Struct():
            return _print_struct(value)
        case _:
            raise TypeError(f"{type(value).__name__} is no part of a document")


def _enclose(left: str, items: list[str], right: str, comma: bool = False) -> str:
    tail = "," if comma and len(items) == 1 else ""
    return left + ", ".join(items) + tail + right


def _print_struct(value: msgspec.Struct) -> str:
    match value:
        case graph.Ref(name):
            return print_ref(name)
        case Expr():
            return print_dim(value)
        case TensorType() | ScalarType() | NoneType():
            return print_type(value)
        case graph.Tuple(items):
            return _enclose("(", [print_value(item) for item in items], ")", comma=True)
        case graph.List(items):
            return _enclose("[", [print_value(item) for item in items], "]")
        case graph.Dict(items):
            return _enclose("{", [f"{quote(key)}: {print_value(item)}" for key, item in items], "}")
        case graph.Slice(start, stop, step):
            return f"slice({print_value(start)}, {print_value(stop)}, {print_value(step)})"
        case graph.Ellipsis():
            return "..."
        case graph.NonFinite(text):
            return text
        case graph.Complex(real, imag):
            return f"complex({print_value(real)}, {print_value(imag)})"
        case graph.Callee(name) | graph.HandleRef(name):
            return f"{LEAF_CALLS[type(value).__name__]}({bare(name)})"
        case graph.DTypeArg(name) | graph.DeviceArg(name) | graph.LayoutArg(name) | graph.MemoryFormatArg(name):
            return f"{LEAF_CALLS[type(value).__name__]}({bare(name, DEVICE)})"
        case _ if isinstance(value, capture.Source):
            return print_source(value)
        case _:
            return f"{type(value).__name__}({print_fields(value)})"


def print_fields(value: msgspec.Struct, skip: Collection[str] = ()) -> str:
    """`field=value, ...` for the fields that are neither skipped nor at their default."""
    kept = [
        (field.name, getattr(value, field.name))
        for field in fields_of(type(value))
        if field.name not in skip and not is_default(field, getattr(value, field.name))
    ]
    return ", ".join(f"{name}={print_value(item)}" for name, item in kept)


def print_source(source: capture.Source) -> str:
    """`self.layers[0].weight`, `global(name, module)`, `cell(name)`, `type_of(x)`..."""
    match source:
        case capture.Local(name):
            return name if IDENTIFIER.fullmatch(name) else f"local({quote(name)})"
        case capture.Global(name, module):
            return f"global({bare(name)})" if module is None else f"global({bare(name)}, {bare(module)})"
        case capture.Builtin(name):
            return f"builtin({bare(name)})"
        case capture.Cell(name, function):
            return f"cell({bare(name)})" if function is None else f"cell({bare(name)}, {print_source(function)})"
        case capture.Attribute(base, name):
            return f"{print_source(base)}.{bare(name, IDENTIFIER)}"
        case capture.Item(base, key):
            return f"{print_source(base)}[{print_value(key)}]"
        case capture.DictKey(base, index):
            return f"dict_key({print_source(base)}, {index})"
        case capture.DictValue(base, index):
            return f"dict_value({print_source(base)}, {index})"
        case capture.TypeOf(base):
            return f"type_of({print_source(base)})"
        case capture.HandleSource(name):
            return f"handle_source({bare(name)})"
        case _:  # a kind of source that another stage added: the constructor form reads back as well
            other = cast("msgspec.Struct", source)
            return f"{type(other).__name__}({print_fields(other)})"


def print_index(index: loop.Index) -> str:
    """`16*i0 + {s0*2}*i1 + (r0)//4 + 3`; symbolic sizes stand in braces."""
    terms = [_print_term(term) for term in index.terms]
    if not terms or index.constant != 0:
        terms.append(_index_dim(index.constant))
    return terms[0] + "".join(f" - {term[1:]}" if term[0] == "-" else f" + {term}" for term in terms[1:])


def _print_term(term: loop.Term) -> str:
    atom = _print_atom(term.atom)
    match term.coefficient:
        case 1:
            return atom
        case -1:
            return f"-{atom}"
        case coefficient:
            return f"{_index_dim(coefficient)}*{atom}"


def _print_atom(atom: loop.Atom) -> str:
    match atom:
        case loop.AxisAtom(name):
            return name if IDENTIFIER.fullmatch(name) else f"axis({quote(name)})"
        case loop.ValueAtom(name):
            return print_ref(name)
        case loop.FloorDivAtom(numerator, divisor):
            return f"({print_index(numerator)})//{_index_dim(divisor)}"
        case loop.ModAtom(numerator, divisor):
            return f"({print_index(numerator)})%{_index_dim(divisor)}"


def _index_dim(dim: Dim) -> str:
    return str(dim) if isinstance(dim, int) else f"{{{print_dim(dim)}}}"
