"""Uses, renaming, live and equal nodes."""

from __future__ import annotations

from hypothesis import given

from stagewire.graph import Arg, Dict, Graph, List, Ref, Slice, Tuple, map_arg, node_references, references
from stagewire.graph_passes import live_nodes, merge_equal, operands, output_names, rename, rename_node, with_nodes
from stagewire.parser import parse_graph
from stagewire.printer import print_graph
from stagewire.testing.basics import args
from stagewire.testing.graphs import graphs

NESTED: Arg = Tuple((Ref("a"), List((1, Ref("b"))), Dict((("k", Ref("a")),)), Slice(None, Ref("c"), None)))

GRAPH = """\
input %x: f32[2]
%a: f32[2] = prims.exp(%x)
%b: f32[2] = prims.exp(%x)
%c: f32[2] = prims.add(%a, %b)
%d: f32[2] = prims.add(%b, %a)
%r: f32[2] = aten.rand.default([2]) with effect="draws"
%unused: f32[2] = prims.neg(%d)
return %c, %d
"""


def test_rename() -> None:
    assert list(references(rename(NESTED, {"a": "x", "c": "z"}))) == ["x", "b", "x", "z"]


@given(args(("a", "b")))
def test_rename_to_the_same_names_changes_nothing(arg: Arg) -> None:
    assert rename(arg, {}) is arg or rename(arg, {}) == arg
    assert map_arg(arg, lambda leaf: leaf) == arg


@given(graphs())
def test_operands_are_the_references_once(graph: Graph) -> None:
    for node in graph.nodes:
        assert operands(node) == tuple(dict.fromkeys(node_references(node)))
        assert rename_node(node, {"another": "name"}) is node


@given(graphs())
def test_what_is_live_stays_live(graph: Graph) -> None:
    live = with_nodes(graph, live_nodes(graph))
    assert live_nodes(live) == live.nodes
    used = output_names(live).union(*map(node_references, live.nodes))
    assert all(node.effect or used & {value.name for value in node.results} for node in live.nodes)


def test_live_nodes_are_those_that_outputs_and_effects_need() -> None:
    assert [node.results[0].name for node in live_nodes(parse_graph(GRAPH))] == ["a", "b", "c", "d", "r"]


def test_equal_nodes_become_the_first_of_them() -> None:
    merged = merge_equal(parse_graph(GRAPH), lambda node: None if node.effect else (node.target, str(node.args)))
    assert print_graph(merged).splitlines() == [
        "input %x: f32[2]",
        "%a: f32[2] = prims.exp(%x)",
        "%c: f32[2] = prims.add(%a, %a)",
        '%r: f32[2] = aten.rand.default([2]) with effect="draws"',
        "%unused: f32[2] = prims.neg(%c)",
        "return %c, %c",
    ]


def test_a_value_that_stays_is_computed_again() -> None:
    merged = merge_equal(
        parse_graph(GRAPH),
        lambda node: (node.target, str(node.args)),
        stays=lambda node, first: node.results[0].name in "cd",
    )
    assert [node.results[0].name for node in merged.nodes] == ["a", "c", "d", "r", "unused"]
    assert output_names(merged) == {"c", "d"}
