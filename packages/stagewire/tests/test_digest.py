"""The digest sees content, and neither names nor provenance."""

from __future__ import annotations

import typing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings

from stagewire import capture, grad, graph, loop, prim, program
from stagewire.codec import KINDS, Document
from stagewire.digest import digest
from stagewire.graph import SourceLine
from stagewire.parser import parse_document
from stagewire.testing.strategies import documents

DOCUMENTS = Path(__file__).parent / "data" / "documents"


def example(kind: str) -> Document:
    return parse_document((DOCUMENTS / f"{kind}.txt").read_text(encoding="utf-8"))


def changed(kind: str, old: str, new: str) -> Document:
    text = (DOCUMENTS / f"{kind}.txt").read_text(encoding="utf-8")
    assert old in text
    return parse_document(text.replace(old, new))


SAME = [
    ("grad", "%y", "%other", "names of values"),
    ("grad", "model.py:5", "another.py:77", "the user's line"),
    ("prim_trained", "saved_bytes=64", "saved_bytes=65", "the partition report"),
    ("capture", 'name="forward", file="model.py"', 'name="g", file="n.py"', "the code object"),
    ("loop", "%e", "%ee", "values of a kernel"),
    ("loop", "j1", "k9", "axes of a kernel"),
    ("loop", "kernel gather", "kernel collect", "names of kernels"),
    ("loop", "%q", "%buffer7", "names of buffers"),
    ("loop", "one pass over x", "for fun", "fusion decisions"),
    ("loop", 'origins=("e",)', 'origins=("f",)', "origins"),
    ("program", "%c", "%cc", "buffers of a unit"),
]


@pytest.mark.parametrize(("kind", "old", "new", "what"), SAME, ids=[row[3] for row in SAME])
def test_names_and_provenance_do_not_count(kind: str, old: str, new: str, what: str) -> None:
    assert changed(kind, old, new) != example(kind)
    assert digest(changed(kind, old, new)) == digest(example(kind))


OTHER = [
    ("grad", "mm.default(%x, %w)", "mm.default(%w, %x)"),
    ("grad", "0.0)", "-0.0)"),
    ("grad", "0.0)", "0)"),
    ("grad", "0.0)", "False)"),
    ("grad", "AAAAPw==", "AACAPw=="),
    ("grad", "return %y, %mean2, None", "return %mean2, %y, None"),
    ("grad", "checkpoint=0", "checkpoint=1"),
    ("prim_trained", "return %y, %mean2, %mask", "return %mean2, %y, %mask"),
    ("capture", "self.depth, value=2", "self.depth, value=3"),
    ("capture", "self.depth", "self.width"),
    ("capture", "alpha=2", "beta=2"),
    ("prim", "[2, 4], [0])", "(2, 4), [0])"),
    ("prim", "opset = 2", "opset = 3"),
    ("loop", "exp(%d)", "exp2(%d)"),
    ("loop", "16*i0 + (i1)//2", "16*i0 + (i0)//2"),
    ("loop", "if %ok else 0.0", "if %ok else 1.0"),
    ("loop", "%q: f32[8, 16] = kernel", "%q: f16[8, 16] = kernel"),
    ("loop", " reuse %s", ""),
    ("program", "y[i] = 2", "y[i] = 3"),
    ("program", "launch exp_kernel(%x, %c)", "launch exp_kernel(%y, %c)"),
    ("program", 'target = "cpp"', 'target = "triton"'),
]


@pytest.mark.parametrize(("kind", "old", "new"), OTHER, ids=[f"{row[0]}-{row[1]}" for row in OTHER])
def test_content_counts(kind: str, old: str, new: str) -> None:
    assert digest(changed(kind, old, new)) != digest(example(kind))


def test_two_values_do_not_become_one() -> None:
    """Renaming that merges two names is no renaming."""
    assert digest(changed("prim", "sub(%x, %b)", "sub(%b, %b)")) != digest(example("prim"))


def test_the_order_of_keyword_arguments_does_not_count() -> None:
    node = graph.Node("prims.full", (), {"a": 1, "b": 2}, ())
    other = msgspec.structs.replace(node, kwargs={"b": 2, "a": 1})
    one, two = (_prim_of(item) for item in (node, other))
    assert digest(one) == digest(two)


def _prim_of(node: graph.Node) -> Document:
    document = example("prim")
    return msgspec.structs.replace(document, forward=graph.Graph((), (node,), ()))


def test_integers_past_64_bits_have_a_digest() -> None:
    nodes = [graph.Node("prims.full", (2**70 + number,), {}, ()) for number in (0, 1)]
    assert digest(_prim_of(nodes[0])) != digest(_prim_of(nodes[1]))


NAMES = {
    capture.Capture: {"code"},
    grad.Grad: {"rewrites"},
    prim.Prim: {"partition"},
    grad.BoundInput: {"name"},
    grad.BoundConstant: {"name"},
    graph.Value: {"name"},
    graph.Ref: {"name"},
    loop.LoopGraph: {"decisions", "inputs"},
    loop.Kernel: {"name", "origins"},
    loop.AxisAtom: {"name"},
    loop.ValueAtom: {"name"},
    loop.Axis: {"name"},
    loop.Load: {"result", "buffer"},
    loop.Store: {"buffer"},
    loop.Compute: {"result"},
    loop.IndexValue: {"result"},
    loop.Reduce: {"results"},
    loop.Scan: {"result"},
    loop.Extern: {"results"},
    loop.Free: {"buffer"},
    loop.Buffer: {"name", "base", "reuse"},
    program.Unit: {"inputs"},
    program.Allocate: {"buffer", "reuse"},
    program.MakeView: {"buffer", "base"},
    program.Launch: {"buffers"},
    program.CallExtern: {"results"},
    program.Release: {"buffer"},
}
"""Fields that hold names or provenance, written down a second time on purpose. Every other field counts."""


@pytest.mark.parametrize("kind", KINDS)
def test_a_change_of_any_other_field_changes_the_digest(kind: str) -> None:
    """Each field of each struct of the example in turn, so that a new field that the digest forgets is found."""
    document = example(kind)
    before = digest(document)
    count = 0
    for other, what in _variants(document):
        count += 1
        assert digest(other) != before, what
    assert count > 40


def _variants(value: Any) -> typing.Iterator[tuple[Any, str]]:
    """`value` with one field changed somewhere, and which."""
    if isinstance(value, msgspec.Struct):
        for field in value.__struct_fields__:
            if field == "line" or field in NAMES.get(type(value), ()):
                continue
            for item, what in _variants(getattr(value, field)):
                yield msgspec.structs.replace(value, **{field: item}), f"{type(value).__name__}.{field} {what}"
    elif isinstance(value, tuple):
        yield (value[:-1], "shorter") if value else (("xy",), "longer")
        for position, part in enumerate(value):
            for item, what in _variants(part):
                yield (*value[:position], item, *value[position + 1 :]), what
    elif isinstance(value, dict):
        yield value | {"added": 1}, "longer"
    else:
        yield _other(value), f"{value!r}"


def _other(value: Any) -> Any:
    match value:
        case None:
            return 0
        case bool():
            return not value
        case int() | float():
            return value + 1
        case bytes():
            return value + b"\x00"
        case _:
            return value + "x"


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(documents())
def test_the_users_lines_do_not_count(document: Document) -> None:
    assert digest(_with_lines(document)) == digest(document)


def _with_lines(value: Any) -> Any:
    """Another user's line wherever there may be one."""
    if isinstance(value, tuple):
        return tuple(_with_lines(item) for item in value)
    if not isinstance(value, msgspec.Struct):
        return value
    fields = {field: _with_lines(getattr(value, field)) for field in value.__struct_fields__}
    if "line" in fields and not isinstance(value, SourceLine):
        fields["line"] = SourceLine("elsewhere.py", 9)
    return type(value)(**fields)
