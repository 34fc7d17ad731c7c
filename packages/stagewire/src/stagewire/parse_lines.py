"""Reading the lines that have a natural form: nodes, inputs, buffers, statements, externs, instructions.

Each reader returns the struct's class and the fields that the form covers; the caller reads the tail and the comment.
"""

from __future__ import annotations

import typing
from collections.abc import Callable
from typing import Any, cast

from stagewire import capture, graph, loop, program
from stagewire.graph import Arg, Ref, Value
from stagewire.notation import BARE, IDENTIFIER, STORE_SIGN
from stagewire.parse_values import (
    parse_arg,
    parse_dim,
    parse_dtype,
    parse_field,
    parse_index,
    parse_items,
    parse_name,
    parse_ref,
    parse_source,
    parse_target,
    parse_tensor_type,
    parse_type,
)
from stagewire.scanner import Scanner
from stagewire.types import TensorType

Fields = tuple[type[Any], dict[str, Any]]
_REDUCTIONS = typing.get_args(loop.ReduceKind)


def parse_value(scanner: Scanner) -> Value:
    """`%name: type`."""
    name = parse_ref(scanner)
    scanner.expect(":")
    return Value(name, parse_type(scanner))


def parse_axes(scanner: Scanner) -> tuple[loop.Axis, ...]:
    """`for i in 8, j in 16`, or nothing."""
    axes: list[loop.Axis] = []
    more = scanner.accept_word("for")
    while more:
        name = parse_name(scanner)
        scanner.expect("in")
        axes.append(loop.Axis(name, parse_dim(scanner)))
        more = scanner.accept(",")
    return tuple(axes)


def _call(scanner: Scanner) -> dict[str, Any]:
    """`target(args, key=arg)`."""
    target = parse_target(scanner)
    scanner.expect("(")
    args: list[Arg] = []
    kwargs: dict[str, Arg] = {}

    def item(inner: Scanner) -> None:
        start = inner.position
        key = _keyword(inner)
        if key is None and kwargs:
            raise inner.error("a positional argument follows a keyword argument", start)
        if key is None:
            args.append(parse_arg(inner))
        elif key in kwargs:
            raise inner.error(f"the argument {key!r} stands twice", start)
        else:
            kwargs[key] = parse_arg(inner)

    parse_items(scanner, ")", item)
    return {"target": target, "args": tuple(args), "kwargs": kwargs}


def _keyword(scanner: Scanner) -> str | None:
    """The name before `=`, if this argument has one."""
    start = scanner.position
    if not (scanner.at('"') or scanner.match(BARE)):
        return None
    name = parse_name(scanner)
    if scanner.accept("="):
        return name
    scanner.position = start
    return None


def _comma_separated(scanner: Scanner, item: Callable[[Scanner], Any]) -> tuple[Any, ...]:
    items = [item(scanner)]
    while scanner.accept(","):
        items.append(item(scanner))
    return tuple(items)


def _node(scanner: Scanner) -> Fields:
    results: tuple[Value, ...] = ()
    if scanner.at("%"):
        results = _comma_separated(scanner, parse_value)
        scanner.expect("=")
    return graph.Node, {**_call(scanner), "results": results}


def _input(scanner: Scanner) -> Fields:
    value = parse_value(scanner)
    scanner.expect("=")
    role = _choice(scanner, capture.InputRole)
    return capture.Input, {"value": value, "source": parse_source(scanner), "role": role}


def _choice(scanner: Scanner, literal: Any) -> str:
    start = scanner.position
    word = scanner.take(IDENTIFIER, "a word")
    if word not in typing.get_args(literal):
        raise scanner.error(f"{word!r} is none of {', '.join(typing.get_args(literal))}", start)
    return word


def _buffer(scanner: Scanner) -> Fields:
    name, kind = _declaration(scanner)
    values: dict[str, Any] = {"name": name, "type": kind, "role": _choice(scanner, loop.BufferRole)}
    values["base"] = parse_ref(scanner) if scanner.accept_word("of") else None
    return loop.Buffer, {**values, "reuse": _reuse(scanner)}


def _declaration(scanner: Scanner) -> tuple[str, TensorType]:
    name = parse_ref(scanner)
    scanner.expect(":")
    kind = parse_tensor_type(scanner)
    scanner.expect("=")
    return name, kind


def _reuse(scanner: Scanner) -> str | None:
    return parse_ref(scanner) if scanner.accept_word("reuse") else None


def _kept(scanner: Scanner) -> str:
    return "" if scanner.accept_word("_") else parse_ref(scanner)


def _kept_results(scanner: Scanner) -> tuple[str, ...]:
    if not (scanner.at("%") or scanner.at_word("_")):
        return ()
    results = _comma_separated(scanner, _kept)
    scanner.expect("=")
    return results


def _step(scanner: Scanner) -> Fields:
    if scanner.accept("free %"):
        return loop.Free, {"buffer": parse_name(scanner)}
    results = _kept_results(scanner)
    return loop.Extern, {**_call(scanner), "results": results}


def _statement(scanner: Scanner) -> Fields:
    if scanner.accept_word("store"):
        return _store(scanner)
    start = scanner.position
    results = _comma_separated(scanner, parse_ref)
    scanner.expect(":")
    dtype = parse_dtype(scanner)
    scanner.expect("=")
    if scanner.accept_word("reduce"):
        reduction = _choice(scanner, loop.ReduceKind)
        operand = parse_field(scanner, loop.Operand)
        return loop.Reduce, {"results": results, "reduction": reduction, "operand": operand, "dtype": dtype}
    if len(results) != 1:
        raise scanner.error("only a reduction has several results", start)
    values: dict[str, Any] = {"result": results[0], "dtype": dtype}
    if scanner.accept_word("scan"):
        kind = _choice(scanner, loop.ScanKind)
        return loop.Scan, values | {"scan": kind, "operand": parse_field(scanner, loop.Operand)}
    if scanner.accept_word("load"):
        return loop.Load, values | _load(scanner)
    if scanner.accept_word("index"):
        return loop.IndexValue, values | {"index": parse_index(scanner)}
    values["op"] = parse_target(scanner)
    scanner.expect("(")
    operands = parse_items(scanner, ")", lambda inner: parse_field(inner, loop.Operand))
    return loop.Compute, {**values, "operands": tuple(operands)}


def _access(scanner: Scanner) -> dict[str, Any]:
    buffer = parse_ref(scanner)
    scanner.expect("[")
    index = parse_index(scanner)
    scanner.expect("]")
    return {"buffer": buffer, "index": index}


def _mask(scanner: Scanner) -> Ref | None:
    return Ref(parse_ref(scanner)) if scanner.accept_word("if") else None


def _load(scanner: Scanner) -> dict[str, Any]:
    values = _access(scanner)
    values["mask"] = _mask(scanner)
    if scanner.accept_word("else"):
        values["other"] = parse_field(scanner, loop.Operand)
    return values


def _store(scanner: Scanner) -> Fields:
    values = _access(scanner)
    values["mode"] = next((mode for mode, sign in STORE_SIGN.items() if scanner.accept(sign)), None)
    if values["mode"] is None:
        scanner.expect("=")
    values["value"] = parse_field(scanner, loop.Operand)
    return loop.Store, {**values, "mask": _mask(scanner)}


def _instruction(scanner: Scanner) -> Fields:
    if scanner.accept_word("release"):
        return program.Release, {"buffer": parse_ref(scanner)}
    if scanner.accept_word("launch"):
        return program.Launch, _launch(scanner)
    if scanner.accept_word("call"):
        results = _kept_results(scanner)
        return program.CallExtern, {**_call(scanner), "results": results}
    buffer, kind = _declaration(scanner)
    if scanner.accept_word("allocate"):
        return program.Allocate, {"buffer": buffer, "type": kind, "reuse": _reuse(scanner)}
    if scanner.accept_word("view"):
        return program.MakeView, {"buffer": buffer, "type": kind, "base": parse_ref(scanner)}
    raise scanner.error(f"expected allocate or view, found {scanner.preview()}")


def _launch(scanner: Scanner) -> dict[str, Any]:
    kernel = parse_name(scanner)
    scanner.expect("(")
    buffers: tuple[str, ...] = ()
    if scanner.at("%"):
        buffers = _comma_separated(scanner, parse_ref)
    sizes = _comma_separated(scanner, parse_dim) if scanner.accept(";") else ()
    scanner.expect(")")
    return {"kernel": kernel, "buffers": buffers, "sizes": sizes}


LINES: dict[type[Any], Callable[[Scanner], Fields]] = {
    graph.Node: _node,
    capture.Input: _input,
    loop.Buffer: _buffer,
    loop.Extern: _step,
    loop.Load: _statement,
    program.Allocate: _instruction,
}
"""By the struct, or by one that its union always holds."""


def line_reader(choices: tuple[Any, ...]) -> Callable[[Scanner], Fields] | None:
    """The reader of the lines of a sequence whose items are one of `choices`."""
    for kind, read in LINES.items():
        if kind in choices:
            return read
    return None


def parse_outputs(scanner: Scanner) -> tuple[Arg, ...]:
    """The arguments after `return`, up to the end of the line's values."""
    if scanner.at("}") or scanner.at_end() or scanner.line_ended() or scanner.at_word("with"):
        return ()
    return cast("tuple[Arg, ...]", _comma_separated(scanner, parse_arg))
