"""The printed form of each kind, as stored in `data/documents`."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

import stagewire
from stagewire.codec import KINDS
from stagewire.expr import Expr, symbol
from stagewire.forms import FORMS
from stagewire.graph import Graph, List, Node, Ref, SourceLine, Value
from stagewire.notation import Form
from stagewire.parser import parse_document
from stagewire.printer import print_document, print_graph, print_page, print_type
from stagewire.types import NoneType, ScalarType, TensorType, contiguous

DOCUMENTS = Path(__file__).parent / "data" / "documents"


@pytest.mark.parametrize("kind", KINDS)
def test_documents_print_as_stored(kind: str) -> None:
    """The stored text is the golden file: it parses, and prints back to itself."""
    text = (DOCUMENTS / f"{kind}.txt").read_text(encoding="utf-8")
    assert print_document(parse_document(text)) == text


@pytest.mark.parametrize(
    ("type", "text"),
    [
        (contiguous("float32", ()), "f32[]"),
        (contiguous("bool", (0, 3)), "b8[0, 3]"),
        (TensorType("int64", (2, 3), (1, 2)), "i64[2, 3]{1, 2}"),
        (TensorType("float16", (2,), (0,), 7), "f16[2]{0}+7"),
        (TensorType("float32", (symbol("s0"), 4), (4, 1), device="cuda:1"), "f32[s0, 4]@cuda:1"),
        (TensorType("float8_e4m3fn", (4,), (1,), requires_grad=True), "f8e4m3fn[4] grad"),
        (TensorType("float32", (Expr("bad ("),), (1,)), 'f32[Expr(text="bad (")]{1}'),
        (ScalarType("int"), "int"),
        (NoneType(), "none"),
    ],
)
def test_types(type: TensorType, text: str) -> None:
    assert print_type(type) == text


def test_a_graph_prints_one_line_a_node() -> None:
    x = Value("x", contiguous("float32", (2,)))
    node = Node("aten.sum.dim_IntList", (Ref("x"), List((0,))), {"keepdim": False}, (Value("odd name", x.type),))
    text = print_graph(Graph((x,), (node,), (Ref("odd name"), None)))
    assert text == (
        'input %x: f32[2]\n%"odd name": f32[2] = aten.sum.dim_IntList(%x, [0], keepdim=False)\nreturn %"odd name", None'
    )


@pytest.mark.parametrize("kind", FORMS, ids=lambda kind: kind.__name__)
def test_a_row_inside_a_line_covers_every_field(kind: type[msgspec.Struct]) -> None:
    """Nothing follows it there that could hold the others."""
    assert Form(kind, FORMS[kind]).rest.fields == ()


def test_str_of_a_graph_is_its_printed_form() -> None:
    graph = Graph((), (), ())
    assert str(graph) == print_graph(graph) == "return"


def test_lines_with_blanks_are_quoted() -> None:
    node = Node("f", (), {}, (), SourceLine("my model.py", 3, "Model.<locals>.f"))
    assert print_graph(Graph((), (node,), ())).startswith('f()  # "my model.py":3 in Model.<locals>.f')


def test_a_page_knows_the_line_of_every_part() -> None:
    document = parse_document((DOCUMENTS / "loop.txt").read_text(encoding="utf-8"))
    assert isinstance(document, stagewire.Loop)
    page = print_page(document)
    assert page.anchors[()] == 0
    line = page.lines[page.anchors["forward", "steps", 0, "sections", 1, "statements", 2]]
    assert line.strip() == "%e: f32 = exp(%d)"
    for position, buffer in enumerate(document.forward.buffers):
        assert page.lines[page.anchors["forward", "buffers", position]].strip().startswith(f"%{buffer.name}:")
