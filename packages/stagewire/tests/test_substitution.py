"""`map_sizes`: every size expression of a document is replaced, and nothing else."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stagewire.expr import Dim, Expr, evaluate, parse_expr, symbols_of
from stagewire.graph import Graph, List, Node, Ref, Slice, Value
from stagewire.substitution import map_sizes, symbols_in
from stagewire.testing.strategies import documents
from stagewire.types import contiguous


def test_types_and_arguments() -> None:
    n = Expr("n")
    x = Value("x", contiguous("float32", (n, 3)))
    node = Node("aten.view.default", (Ref("x"), List((n * 3,)), Slice(n)), {"k": n}, (Value("y", x.type),))
    graph = map_sizes(Graph((x,), (node,), (n,)), lambda size: evaluate(size, {"n": 4}))
    y = Value("y", contiguous("float32", (4, 3)))
    expected = Node("aten.view.default", (Ref("x"), List((12,)), Slice(4)), {"k": 4}, (y,))
    assert graph == Graph((Value("x", contiguous("float32", (4, 3))),), (expected,), (4,))


@given(st.data())
def test_property_no_expression_is_left(data: st.DataObject) -> None:
    document = data.draw(documents("capture", "grad", "prim"))
    seen: list[Expr] = []

    def note(size: Expr) -> Dim:
        seen.append(size)
        return size

    assert map_sizes(document, note) is document
    assert symbols_in(document) == {name for size in seen for name in symbols_of(size)}
    values = {name: 5 for size in seen for name in symbols_of(size)}
    fixed = map_sizes(document, lambda size: evaluate(size, values))
    left: list[Expr] = []
    map_sizes(fixed, lambda size: left.append(size) or size)
    assert not left
    if not seen:
        assert fixed is document


def test_a_size_may_become_another_expression() -> None:
    assert map_sizes((Expr("n"), 2), lambda size: parse_expr("2*m")) == (parse_expr("2*m"), 2)
