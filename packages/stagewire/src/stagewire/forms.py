"""The printed form of structs as data: from one row printer and parser both derive. `stagewire.notation` reads them.

    form ::= (text | "{" field ("," field)* (":" notation)? ("?" text)? "}")*

`{buffer:ref}` is the field `buffer` in the notation `ref` (`notation.NOTATIONS`). Where none is named it is the one
that is called as the field is, or else that of the field's type. `{mask:? if }` is left out, and the text ` if ` with
it, where the field is at its default. White space between tokens is free when a text is read.

A struct without a row is Class(field=value, ...), without the fields that are at their default: a new struct, or a new
optional field of one that has a row in `LINES`, needs no change here.
"""

from __future__ import annotations

import re
import string

import msgspec

from stagewire import capture, graph, loop, program
from stagewire.capture import CustomFunction
from stagewire.grad import Binding
from stagewire.types import NoneType, ScalarType, TensorType

FORMS: dict[type[msgspec.Struct], str] = {
    # arguments
    graph.Ref: "{name:ref}",
    graph.List: "[{items:commas}]",
    graph.Dict: "{{{items:pairs}}}",
    graph.Slice: "slice({start}, {stop}, {step})",
    graph.Ellipsis: "...",
    graph.DTypeArg: "dtype({name:device})",
    graph.DeviceArg: "device({name:device})",
    graph.LayoutArg: "layout({name:device})",
    graph.MemoryFormatArg: "memory_format({name:device})",
    graph.NonFinite: "{text:word}",
    graph.Complex: "complex({real}, {imag})",
    graph.Callee: "callee({target:name})",
    graph.HandleRef: "handle({name})",
    # types and values
    TensorType: "{dtype}{shape,stride:layout}{storage_offset:?+}{device:?@}{requires_grad:grad}",
    ScalarType: "{type:word}",
    NoneType: "none",
    graph.Value: "{name:ref}: {type}",
    # sources
    capture.Local: "{name:local}",
    capture.Global: "global({name}{module:name?, })",
    capture.Builtin: "builtin({name})",
    capture.Cell: "cell({name}{function:?, })",
    capture.Attribute: "{base}.{name:attribute}",
    capture.Item: "{base}[{key}]",
    capture.DictKey: "dict_key({base}, {index})",
    capture.DictValue: "dict_value({base}, {index})",
    capture.TypeOf: "type_of({base})",
    capture.HandleSource: "handle_source({name})",
    # axes and indices
    loop.Axis: "{name} in {size}",
    loop.AxisAtom: "{name:axis}",
    loop.ValueAtom: "{name:ref}",
    loop.FloorDivAtom: "({numerator})//{divisor:braced}",
    loop.ModAtom: "({numerator})%{divisor:braced}",
}
"""Inside a line. A row covers every field."""

_CALL = "{target}({args,kwargs:arguments})"

LINES: dict[type[msgspec.Struct], str] = {
    graph.Node: "{results:values}" + _CALL,
    graph.Graph: "return{outputs:outputs}",
    capture.Input: "{value} = {role:word} {source}",
    # loops
    loop.Buffer: "{name:ref}: {type} = {role:word}{base:ref? of }{reuse:ref? reuse }",
    loop.Kernel: "kernel {name}{axes:commas? for }",
    loop.Section: "section{axes:commas? for }",
    loop.Extern: "{results:kept}" + _CALL,
    loop.Free: "free {buffer:ref}",
    loop.Load: "{result:ref}: {dtype} = load {buffer:ref}[{index}]{mask:? if }{other:? else }",
    loop.Store: "store {buffer:ref}[{index}] {mode:store} {value}{mask:? if }",
    loop.IndexValue: "{result:ref}: {dtype} = index {index}",
    loop.Scan: "{result:ref}: {dtype} = scan {scan:word} {operand}",
    loop.Compute: "{result:ref}: {dtype} = {op:target}({operands:commas})",
    loop.Reduce: "{results:refs}: {dtype} = reduce {reduction:word} {operand}",
    # programs
    program.Allocate: "{buffer:ref}: {type} = allocate{reuse:ref? reuse }",
    program.MakeView: "{buffer:ref}: {type} = view {base:ref}",
    program.Launch: "launch {kernel:name}({buffers:refs}{sizes:commas?; })",
    program.CallExtern: "call {results:kept}" + _CALL,
    program.Release: "release {buffer:ref}",
}
"""On a line of their own. The fields that a row does not cover follow as `with field=value`, `line` as a comment."""

BODIES: dict[type[msgspec.Struct], tuple[str, ...]] = {
    loop.Kernel: ("sections",),
    loop.Section: ("statements",),
    graph.Graph: ("inputs", "nodes"),
}
"""The fields that stand on lines of their own, those of kernels and sections in braces behind the row."""

BLOCKS: tuple[type[msgspec.Struct], ...] = (Binding, graph.Graph, loop.LoopGraph, program.Unit, CustomFunction)
"""Structs that print as `name { lines }` instead of `name = Class(field=value)`; in a sequence as `Class { lines }`."""

SHORT_DTYPE: dict[str, str] = {
    "float32": "f32", "float64": "f64", "float16": "f16", "bfloat16": "bf16", "int64": "i64", "int32": "i32",
    "int16": "i16", "int8": "i8", "uint8": "u8", "uint16": "u16", "uint32": "u32", "uint64": "u64", "bool": "b8",
    "complex64": "c64", "complex128": "c128", "complex32": "c32", "float8_e4m3fn": "f8e4m3fn",
    "float8_e5m2": "f8e5m2", "float8_e4m3fnuz": "f8e4m3fnuz", "float8_e5m2fnuz": "f8e5m2fnuz",
}  # fmt: skip
STORE_SIGN: dict[str, str] = {"set": "=", "atomic_add": "+=", "sum": "sum="}

KEYWORDS = frozenset(
    word
    for form in (*LINES.values(), "_ input return with grad")
    for text, *_ in string.Formatter().parse(form)
    for word in re.findall(r"\w+", text)
) | {"of", "reuse", "if", "else", "for"}
"""Words that begin a line or an operation: a target of this name is quoted."""
