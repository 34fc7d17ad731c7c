"""channels_last: the layout through convolutions, where it pays and where it stays."""

from __future__ import annotations

import pytest

from primops.channels_last import channels_last, suits
from stagewire.graph import Graph
from stagewire.parser import parse_graph

SEPARABLE = """\
input %x: f32[2, 3, 8, 8]
input %w: f32[8, 3, 3, 3]
input %d: f32[8, 1, 3, 3]
%a: f32[2, 8, 8, 8] = aten.convolution.default(%x, %w, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
%b: f32[2, 8, 8, 8] = aten.relu.default(%a)
%c: f32[2, 8, 8, 8] = aten.convolution.default(%b, %d, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 8)
%e: f32[2, 8, 1, 1] = aten.mean.dim(%c, [-1, -2], True)
%f: f32[2, 8] = aten.view.default(%e, [2, 8])
return %f
"""


def strides(graph: Graph) -> dict[str, tuple[int, ...]]:
    return {value.name: value.type.stride for node in graph.nodes for value in node.results}  # type: ignore[union-attr]


def test_convolutions_and_what_follows_them() -> None:
    graph = parse_graph(SEPARABLE)
    assert suits(graph)
    found, last = strides(channels_last(graph)), (512, 1, 64, 8)
    assert found["a"] == found["b"] == found["c"] == last
    assert (found["e"], found["f"]) == ((8, 1, 1, 1), (8, 1))


def test_gates_of_channels_are_not_counted() -> None:
    """Convolutions of images of one place: three of them, and one of places makes two."""
    gate = "%{}: f32[2, 8, 1, 1] = aten.convolution.default(%{}, %g, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)\n"
    gates = "".join(gate.format(*names) for names in ("ge", "hg", "ih"))
    text = SEPARABLE.replace("input %d", "input %g: f32[8, 8, 1, 1]\ninput %d").replace("%f:", gates + "%f:")
    assert suits(parse_graph(text))
    assert not suits(
        parse_graph(text.replace("[2, 8, 1, 1]", "[2, 8, 2, 1]").replace("view.default(%e", "view.default(%i"))
    )


def test_symbolic_sizes_have_it_too() -> None:
    text = SEPARABLE.replace("2, 3, 8, 8", "s0, 3, s1, s1").replace("2, 8, 8, 8", "s0, 8, s1, s1")
    graph = parse_graph(text.replace("[2, 8, 1, 1]", "[s0, 8, 1, 1]").replace("[2, 8]", "[s0, 8]"))
    assert suits(graph)
    found = strides(channels_last(graph))
    assert [str(step) for step in found["c"]] == ["8*s1**2", "1", "8*s1", "8"]


def test_outputs_keep_their_strides() -> None:
    graph = parse_graph(SEPARABLE.replace("return %f", "return %f, %c"))
    assert strides(channels_last(graph))["c"] == (512, 64, 8, 1)


@pytest.mark.parametrize(
    "change",
    [
        ("[0, 0], 8)", "[0, 0], 1)"),
        (
            "%f: f32[2, 8] = aten.view.default(%e, [2, 8])",
            "%f: f32[2, 8] = aten.as_strided.default(%c, [2, 8], [8, 1])",
        ),
        ("aten.relu.default(%a)", "aten.native_group_norm.default(%a, None, None, 2, 8, 64, 2, 1e-05)"),
    ],
    ids=["no depthwise convolution", "memory is addressed", "sums over planes"],
)
def test_refused(change: tuple[str, str]) -> None:
    assert not suits(parse_graph(SEPARABLE.replace(*change)))
