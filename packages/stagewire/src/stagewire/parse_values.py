"""Reading what fits inside a line; the counterpart of `print_values`.

A value is read by the type of the field that it fills: that is also the whitelist of the structs it may name.
"""

from __future__ import annotations

import base64
import binascii
import functools
import operator
import re
import types
import typing
from collections.abc import Callable
from typing import Any, Literal, TypeVar, cast

import msgspec

from stagewire import capture, graph, loop
from stagewire.expr import Dim, Expr
from stagewire.graph import Arg, Ref, SourceLine
from stagewire.notation import BARE, DEVICE, IDENTIFIER, LEAF_CALLS, LONG_DTYPE, TARGET, fields_of
from stagewire.scanner import Scanner
from stagewire.types import DType, NoneType, ScalarType, TensorType, ValueType, contiguous_stride

T = TypeVar("T")

_INTEGER = re.compile(r"-?[0-9]+")
_FLOAT = re.compile(r"-?[0-9]+(?:\.[0-9]*(?:[eE][-+]?[0-9]+)?|[eE][-+]?[0-9]+)")
_NON_FINITE = re.compile(r"(?:-?inf|nan)(?![A-Za-z0-9_(])")
_LITERALS: dict[str, bool | None] = {"None": None, "True": True, "False": False}
_LEAVES: dict[str, type[Any]] = {word: getattr(graph, name) for name, word in LEAF_CALLS.items()}
_SCALARS = ("int", "float", "bool", "complex")
_FILE_LINE = re.compile(r'("(?:[^"\\]|\\.)*"|[^\s"]\S*?):(-?[0-9]+)(?: in ("(?:[^"\\]|\\.)*"|[^\s"]\S*))?$')


def parse_dim(scanner: Scanner) -> Dim:
    """An integer or an expression, whose text is kept as it stands."""
    if scanner.accept("Expr("):
        scanner.expect("text")
        scanner.expect("=")
        text = scanner.take_string()
        scanner.expect(")")
        return Expr(text)
    text = scanner.take_expression()
    return int(text) if _INTEGER.fullmatch(text) else Expr(text)


def parse_dims(scanner: Scanner, close: str) -> tuple[Dim, ...]:
    return tuple(parse_items(scanner, close, parse_dim))


def parse_items(scanner: Scanner, close: str, item: Callable[[Scanner], T]) -> list[T]:
    """Items separated by commas, up to and with `close`; one comma may stand before it."""
    items: list[T] = []
    while not scanner.accept(close):
        if items:
            scanner.expect(",")
            if scanner.accept(close):
                break
        items.append(item(scanner))
    return items


def parse_dtype(scanner: Scanner) -> DType:
    start = scanner.position
    short = scanner.take(IDENTIFIER, "a dtype")
    if short not in LONG_DTYPE:
        raise scanner.error(f"unknown dtype {short!r}; known: {', '.join(LONG_DTYPE)}", start)
    return cast(DType, LONG_DTYPE[short])


def parse_type(scanner: Scanner) -> ValueType:
    """A tensor type, a Python scalar type or `none`."""
    word = scanner.match(IDENTIFIER)
    if word in _SCALARS:
        scanner.advance(len(word))
        return ScalarType(cast(Any, word))
    return NoneType() if scanner.accept_word("none") else parse_tensor_type(scanner)


def parse_tensor_type(scanner: Scanner) -> TensorType:
    dtype = parse_dtype(scanner)
    scanner.expect("[")
    shape = parse_dims(scanner, "]")
    stride = parse_dims(scanner, "}") if scanner.accept("{") else contiguous_stride(shape)
    offset = parse_dim(scanner) if scanner.accept("+") else 0
    device = scanner.take_name(DEVICE, "a device") if scanner.accept("@") else "cpu"
    return TensorType(dtype, shape, stride, offset, device, scanner.accept_word("grad"))


def parse_name(scanner: Scanner) -> str:
    return scanner.take_name(BARE, "a name")


def parse_ref(scanner: Scanner) -> str:
    """The name of `%name`."""
    scanner.expect("%")
    return parse_name(scanner)


def parse_target(scanner: Scanner) -> str:
    return scanner.take_name(TARGET, "a qualified name")


def parse_line(scanner: Scanner, text: str) -> SourceLine:
    """`model.py:41 in forward`."""
    match = _FILE_LINE.match(text)
    if match is None:
        raise scanner.error(f"the comment {text!r} is no file:line", scanner.comment_start)
    file, line, function = match.groups()
    return SourceLine(_unquoted(file), int(line), _unquoted(function or ""))


def _unquoted(text: str) -> str:
    return Scanner(text).take_string() if text.startswith('"') else text


def parse_number(scanner: Scanner) -> float | None:
    """A float with a point or an exponent, if one is here."""
    text = scanner.match(_FLOAT)
    if text is not None:
        scanner.advance(len(text))
        return float(text)
    if scanner.at("float("):
        scanner.advance(6)
        text = scanner.take_string()
        scanner.expect(")")
        return float(text)
    return None


def parse_arg(scanner: Scanner) -> Arg:
    """An argument of a node."""
    word = scanner.match(IDENTIFIER)
    if word in _LITERALS:
        scanner.advance(len(word))
        return _LITERALS[word]
    number = parse_number(scanner)
    if number is not None:
        return number
    if (text := scanner.match(_NON_FINITE)) is not None:
        scanner.advance(len(text))
        return graph.NonFinite(cast(Any, text))
    if word is not None and scanner.at(f"{word}(") and word in _CALLS:
        scanner.advance(len(word) + 1)
        return _CALLS[word](scanner)
    return _parse_punctuated(scanner)


def _parse_punctuated(scanner: Scanner) -> Arg:
    if scanner.at('"'):
        return scanner.take_string()
    if scanner.at("%"):
        return Ref(parse_ref(scanner))
    if scanner.accept("..."):
        return graph.Ellipsis()
    if scanner.accept("["):
        return graph.List(tuple(parse_items(scanner, "]", parse_arg)))
    if scanner.accept("{"):
        return graph.Dict(tuple(parse_items(scanner, "}", _parse_pair)))
    if scanner.at("("):
        return _parse_parenthesis(scanner)
    return parse_dim(scanner)


def _parse_parenthesis(scanner: Scanner) -> Arg:
    """A tuple, or an expression that begins with a parenthesis: a tuple has a comma after its first item."""
    start = scanner.position
    scanner.advance(1)
    if scanner.accept(")"):
        return graph.Tuple(())
    first = parse_arg(scanner)
    if scanner.accept(","):
        rest = parse_items(scanner, ")", parse_arg)
        return graph.Tuple((first, *rest))
    scanner.position = start
    return parse_dim(scanner)


def _parse_pair(scanner: Scanner) -> tuple[str, Arg]:
    key = scanner.take_string()
    scanner.expect(":")
    return key, parse_arg(scanner)


def _parse_slice(scanner: Scanner) -> Arg:
    start = scanner.position
    items = parse_items(scanner, ")", parse_arg)
    if len(items) != 3:
        raise scanner.error("slice(start, stop, step) takes three arguments", start)
    return graph.Slice(*items)


def _parse_complex(scanner: Scanner) -> Arg:
    start = scanner.position
    items = parse_items(scanner, ")", parse_arg)
    if len(items) != 2 or not all(isinstance(item, float | graph.NonFinite) for item in items):
        raise scanner.error("complex(real, imag) takes two floats", start)
    return graph.Complex(*cast("list[float]", items))


def _parse_leaf(kind: type[Any]) -> Callable[[Scanner], Arg]:
    pattern = BARE if kind in (graph.Callee, graph.HandleRef) else DEVICE

    def read(scanner: Scanner) -> Arg:
        name = scanner.take_name(pattern, "a name")
        scanner.expect(")")
        return cast(Arg, kind(name))

    return read


_CALLS: dict[str, Callable[[Scanner], Arg]] = {
    "slice": _parse_slice,
    "complex": _parse_complex,
    **{word: _parse_leaf(kind) for word, kind in _LEAVES.items()},
}


def parse_source(scanner: Scanner) -> capture.Source:
    """A path to a Python value, such as `self.layers[0].weight`."""
    source = _parse_source_base(scanner)
    while True:
        if scanner.accept("."):
            source = capture.Attribute(source, scanner.take_name(IDENTIFIER, "an attribute"))
        elif scanner.accept("["):
            source = capture.Item(source, parse_key(scanner))
            scanner.expect("]")
        else:
            return source


def _parse_source_base(scanner: Scanner) -> capture.Source:
    start = scanner.position
    word = scanner.take(IDENTIFIER, "a source")
    if not scanner.accept("("):
        return capture.Local(word)
    match word:
        case "local":
            source: capture.Source = capture.Local(scanner.take_string())
        case "global":
            name = parse_name(scanner)
            source = capture.Global(name, parse_name(scanner) if scanner.accept(",") else None)
        case "builtin":
            source = capture.Builtin(parse_name(scanner))
        case "cell":
            name = parse_name(scanner)
            source = capture.Cell(name, parse_source(scanner) if scanner.accept(",") else None)
        case "dict_key" | "dict_value":
            base = parse_source(scanner)
            scanner.expect(",")
            kind = capture.DictKey if word == "dict_key" else capture.DictValue
            source = kind(base, int(scanner.take(_INTEGER, "an integer")))
        case "type_of":
            source = capture.TypeOf(parse_source(scanner))
        case "handle_source":
            source = capture.HandleSource(parse_name(scanner))
        case _:
            return cast(capture.Source, _parse_fields(scanner, _struct_named(scanner, word, capture.Source, start)))
    scanner.expect(")")
    return source


def parse_key(scanner: Scanner) -> int | str | bool | float | None:
    """A literal key."""
    start = scanner.position
    value = parse_arg(scanner)
    if not isinstance(value, None | int | str | float):
        raise scanner.error("a key is a number, a string, a bool or None", start)
    return value


def parse_index(scanner: Scanner) -> loop.Index:
    """A sum of terms and at most one constant, which comes last."""
    terms: list[loop.Term] = []
    constant: Dim | None = None
    negative = scanner.accept("-")
    while True:
        start = scanner.position
        found = _parse_term(scanner, negative)
        if isinstance(found, loop.Term) and constant is None:
            terms.append(found)
        elif constant is None:
            constant = cast(Dim, found)
        else:
            raise scanner.error("the constant comes last in an index", start)
        if scanner.accept("+"):
            negative = False
        elif scanner.accept("-"):
            negative = True
        else:
            return loop.Index(0 if constant is None else constant, tuple(terms))


def _parse_term(scanner: Scanner, negative: bool) -> loop.Term | Dim:
    if not (scanner.at("{") or scanner.match(_INTEGER) is not None):
        return loop.Term(-1 if negative else 1, _parse_atom(scanner))
    start = scanner.position
    coefficient = _parse_index_dim(scanner)
    if negative:
        if not isinstance(coefficient, int):
            raise scanner.error("a symbolic coefficient has no sign in front", start)
        coefficient = -coefficient
    return loop.Term(coefficient, _parse_atom(scanner)) if scanner.accept("*") else coefficient


def _parse_index_dim(scanner: Scanner) -> Dim:
    if scanner.accept("{"):
        dim = parse_dim(scanner)
        scanner.expect("}")
        return dim
    return int(scanner.take(_INTEGER, "an integer"))


def _parse_atom(scanner: Scanner) -> loop.Atom:
    if scanner.at("%"):
        return loop.ValueAtom(parse_ref(scanner))
    if scanner.accept("("):
        numerator = parse_index(scanner)
        scanner.expect(")")
        kind = loop.FloorDivAtom if scanner.accept("//") else loop.ModAtom
        if kind is loop.ModAtom:
            scanner.expect("%")
        return kind(numerator, _parse_index_dim(scanner))
    if scanner.accept("axis("):
        name = scanner.take_string()
        scanner.expect(")")
        return loop.AxisAtom(name)
    return loop.AxisAtom(scanner.take(IDENTIFIER, "an axis"))


def parse_field(scanner: Scanner, kind: Any) -> Any:
    """A value of the type `kind`, in natural form where there is one."""
    if kind in _NATURAL:
        return _NATURAL[kind](scanner)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is tuple:
        return _parse_tuple(scanner, arguments)
    if origin is dict:
        scanner.expect("{")
        return dict(parse_items(scanner, "}", lambda inner: _parse_entry(inner, arguments[1])))
    if origin is types.UnionType or origin is typing.Union:
        return _parse_union(scanner, arguments)
    if origin is Literal:
        return _parse_literal(scanner, arguments)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        start = scanner.position
        name = scanner.take(IDENTIFIER, kind.__name__)
        found = _struct_named(scanner, name, kind, start)
        scanner.expect("(")
        return _parse_fields(scanner, found)
    raise scanner.error(f"no notation for a field of type {kind}")


def _parse_tuple(scanner: Scanner, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    scanner.expect("(")
    if len(arguments) == 2 and arguments[1] is ...:
        return tuple(parse_items(scanner, ")", lambda inner: parse_field(inner, arguments[0])))
    start = scanner.position
    remaining = list(reversed(arguments))

    def item(inner: Scanner) -> Any:
        if not remaining:
            raise inner.error(f"a tuple of {len(arguments)} items has more")
        return parse_field(inner, remaining.pop())

    items = tuple(parse_items(scanner, ")", item))
    if len(items) != len(arguments):
        raise scanner.error(f"a tuple of {len(arguments)} items has {len(items)}", start)
    return items


def _parse_entry(scanner: Scanner, kind: Any) -> tuple[str, Any]:
    key = scanner.take_string()
    scanner.expect(":")
    return key, parse_field(scanner, kind)


def _parse_union(scanner: Scanner, arguments: tuple[Any, ...]) -> Any:
    if type(None) in arguments and scanner.accept_word("None"):
        return None
    kinds = tuple(kind for kind in arguments if kind is not type(None))
    union = functools.reduce(operator.or_, kinds)
    if len(kinds) == 1 or union in _NATURAL:
        return parse_field(scanner, union)
    word = scanner.match(IDENTIFIER)
    for kind in kinds:
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind.__name__ == word:
            return parse_field(scanner, kind)
    start = scanner.position
    value = parse_arg(scanner)
    if not isinstance(value, tuple(kind for kind in kinds if isinstance(kind, type))):
        raise scanner.error(f"expected {' or '.join(getattr(kind, '__name__', str(kind)) for kind in kinds)}", start)
    return value


def _parse_literal(scanner: Scanner, choices: tuple[Any, ...]) -> Any:
    start = scanner.position
    value = parse_key(scanner)
    if value not in choices:
        raise scanner.error(f"{value!r} is none of {', '.join(map(repr, choices))}", start)
    return value


def _struct_named(scanner: Scanner, name: str, kind: Any, at: int) -> type[msgspec.Struct]:
    """The struct called `name` among those that `kind` allows."""
    allowed = {struct.__name__: struct for struct in typing.get_args(kind) or (kind,) if struct is not type(None)}
    if name not in allowed:
        raise scanner.error(f"{name!r} is none of {', '.join(allowed)}", at)
    return cast("type[msgspec.Struct]", allowed[name])


def _parse_fields(scanner: Scanner, kind: type[msgspec.Struct]) -> msgspec.Struct:
    """`field=value, ...)` of a struct, up to and with the parenthesis."""
    start = scanner.position
    empty = scanner.accept(")")
    values = {} if empty else parse_assignments(scanner, kind, lambda inner: inner.accept(")"))
    return cast(msgspec.Struct, build(scanner, kind, values, start))


def parse_assignments(scanner: Scanner, kind: type[msgspec.Struct], done: Callable[[Scanner], bool]) -> dict[str, Any]:
    """`field=value, field=value`, at least one; `done` says after each whether it was the last."""
    known = {field.name: field for field in fields_of(kind)}
    values: dict[str, Any] = {}
    while True:
        start = scanner.position
        name = scanner.take(IDENTIFIER, f"a field of {kind.__name__}")
        if name not in known or name in values:
            raise scanner.error(f"{kind.__name__} takes no {name!r} here; its fields: {', '.join(known)}", start)
        scanner.expect("=")
        values[name] = parse_field(scanner, known[name].type)
        if done(scanner):
            return values
        scanner.expect(",")


def build(scanner: Scanner, kind: type[Any], values: dict[str, Any], at: int) -> Any:
    """The struct with these fields; a missing one is an error at `at`."""
    missing = [field.name for field in fields_of(kind) if field.required and field.name not in values]
    if missing:
        raise scanner.error(f"{kind.__name__} lacks {', '.join(missing)}", at)
    return kind(**values)


def _parse_bool(scanner: Scanner) -> bool:
    if scanner.accept_word("True"):
        return True
    if scanner.accept_word("False"):
        return False
    raise scanner.error(f"expected True or False, found {scanner.preview()}")


def _parse_int(scanner: Scanner) -> int:
    return int(scanner.take(_INTEGER, "an integer"))


def _parse_float(scanner: Scanner) -> float:
    value = parse_number(scanner)
    return float(_parse_int(scanner)) if value is None else value


def _parse_bytes(scanner: Scanner) -> bytes:
    start = scanner.position
    scanner.expect("bytes(")
    text = scanner.take_string()
    scanner.expect(")")
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise scanner.error(f"not base64: {error}", start) from None


_NATURAL: dict[Any, Callable[[Scanner], Any]] = {
    bool: _parse_bool,
    int: _parse_int,
    float: _parse_float,
    str: Scanner.take_string,
    bytes: _parse_bytes,
    Dim: parse_dim,
    Arg: parse_arg,
    Ref: lambda scanner: Ref(parse_ref(scanner)),
    ValueType: parse_type,
    TensorType | ScalarType: parse_type,
    TensorType: parse_tensor_type,
    capture.Source: parse_source,
}
