"""Walking graphs."""

from __future__ import annotations

from hypothesis import given

from stagewire.graph import (
    Arg,
    Dict,
    Graph,
    List,
    Ref,
    Slice,
    Tuple,
    definitions,
    node_references,
    references,
)
from stagewire.testing.graphs import graphs

NESTED: Arg = Tuple((Ref("a"), List((1, Ref("b"))), Dict((("k", Ref("a")),)), Slice(None, Ref("c"), None)))


def test_references_are_found_in_order_with_repetitions() -> None:
    assert list(references(NESTED)) == ["a", "b", "a", "c"]


@given(graphs())
def test_references_are_to_definitions(graph: Graph) -> None:
    known = definitions(graph)
    assert all(name in known for node in graph.nodes for name in node_references(node))
    assert len(known) == len(graph.inputs) + sum(len(node.results) for node in graph.nodes)
