"""What the parser refuses, and where it says the fault is."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from stagewire.errors import ParseError, StageError, UnknownVersion
from stagewire.graph import Graph, Node
from stagewire.parser import parse_document, parse_graph
from stagewire.printer import print_document, print_graph
from stagewire.program import CallExtern, Program

DOCUMENTS = Path(__file__).parent / "data" / "documents"
PRIM = (DOCUMENTS / "prim.txt").read_text(encoding="utf-8")
LOOP = (DOCUMENTS / "loop.txt").read_text(encoding="utf-8")
PROGRAM = (DOCUMENTS / "program.txt").read_text(encoding="utf-8")
CAPTURE = (DOCUMENTS / "capture.txt").read_text(encoding="utf-8")

REFUSED = [
    (PRIM, "%m: f32[2]", "%m: f33[2]", "12:9", "'f33' is none of f32, f64"),
    (PRIM, "prims.sub(%x, %b)", "prims.sub(%x %b)", "14:34", "expected ','"),
    (PRIM, "return %h", "return %h }", "19:3", "text after the document"),
    (PRIM, "[1])", "[1, )", "12:37", "expected"),
    (PRIM, "[1])", "(1 2))", "12:36", r"expected ',' or '\)', found '2"),
    (PRIM, "[1])", "complex(1.0))", "12:44", "expected ','"),
    (PRIM, "opset = 2", "opset = two", "19:11", "expected"),
    (PRIM, "opset = 2", "opcode = 2", "19:3", "Prim takes no 'opcode' here; its fields: binding"),
    (PRIM, "opset = 2", "opset = 2\n  opset = 3", "20:3", "takes no 'opset' here"),
    (PRIM, "in softmax", "in softmax of m", "12:41", "is no file:line"),
    (PRIM, '"x", type', '"x, type', "4:23", "expected a string"),
    (PRIM, "dtype=dtype(float16)", "dtype=3, dtype=4", "16:66", "the argument 'dtype' stands twice"),
    (PRIM, "dtype=dtype(float16)", "dtype=3, 4", "16:66", "a positional argument follows a keyword argument"),
    (LOOP, "= reduce max", "= reduce mux", "28:28", "'mux' is none of sum, prod"),
    (LOOP, "16*i0 + j1] = %e", "3 + 16*i0] = %e", "34:24", "the constant comes last in an index"),
    (LOOP, "= view of", "= window of", "17:31", "'window' is none of input, kernel, extern, view"),
    (LOOP, "= reduce max", "= max", "28:25", r"expected '\(', found '%v"),
    (LOOP, "%v: f32 = load", "%v, %w: f32 = load", "27:25", "expected reduce"),
    (PROGRAM, "= allocate\n", "= allocated\n", "28:24", "expected allocate or view"),
    (CAPTURE, "TypeIs(source", "TypeWas(source", "17:5", "expected TypeIs or IdentityIs or Equals"),
    (CAPTURE, 'operator=">="', 'operator="=>"', "23:32", "'=>' is none of ==, !="),
    (CAPTURE, ", hint=4", "", "26:12", "Symbol lacks hint"),
]


@pytest.mark.parametrize(("text", "old", "new", "where", "says"), REFUSED, ids=[row[2][:24] for row in REFUSED])
def test_faults_are_placed(text: str, old: str, new: str, where: str, says: str) -> None:
    assert old in text
    with pytest.raises(ParseError, match=says) as error:
        parse_document(text.replace(old, new, 1))
    assert error.value.where == where


@pytest.mark.parametrize("text", ["prim 4 {}", "graph 1 {}", "prim 0 {}"])
def test_unknown_kinds_and_versions_are_refused(text: str) -> None:
    with pytest.raises(UnknownVersion, match="known: capture 1, grad 3") as error:
        parse_document(text)
    assert error.value.where == "1:1"


@pytest.mark.parametrize("text", [PRIM, LOOP, PROGRAM, CAPTURE], ids=["prim", "loop", "program", "capture"])
def test_truncated_text_is_refused(text: str) -> None:
    for length in range(0, len(text) - 2, 7):
        with pytest.raises(ParseError):
            parse_document(text[:length])


def test_text_after_the_document_is_refused() -> None:
    with pytest.raises(ParseError, match="text after the document"):
        parse_document(PRIM + PRIM)
    with pytest.raises(ParseError, match="text after the graph"):
        parse_graph("return\nreturn")


def test_deep_nesting_is_refused() -> None:
    deep = "[" * 5000 + "]" * 5000
    with pytest.raises(StageError):
        parse_document(PRIM.replace("[1])", f"{deep})"))
    with pytest.raises(ParseError):
        parse_document(PRIM.replace("[1])", "(" * 5000 + "1" + ")" * 5000 + ")"))


@pytest.mark.parametrize("target", ["_.0", "_", "input.a", "return.a", "input", "kernel", "free.x", "with", "a b", "%"])
def test_targets_that_look_like_words_of_the_text(target: str) -> None:
    graph = Graph((), (Node(target, (), {}, ()), Node(target, (), {}, ())), ())
    assert parse_graph(print_graph(graph)) == graph
    document = parse_document(PROGRAM)
    assert isinstance(document, Program)
    call = CallExtern(target, (), {}, ())
    unit = msgspec.structs.replace(document.forward, instructions=(call, call))
    document = msgspec.structs.replace(document, forward=unit)
    assert parse_document(print_document(document)) == document


def test_layout_of_the_text_does_not_matter() -> None:
    squeezed = "\n".join(line.strip() for line in PRIM.split("\n"))
    assert parse_document(squeezed) == parse_document(PRIM)
