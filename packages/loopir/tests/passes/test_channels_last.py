"""channels_last: images between convolutions in half precision on a GPU have their channels fastest."""

from __future__ import annotations

import dataclasses

import pytest

from loopir import LoopIR, Options
from loopir.passes.channels_last import ChannelsLast
from loopir.pipeline import PASSES
from loopir.testing.graphs import externs, kernels, lowered
from stagewire.expr import symbol
from stagewire.grad import Binding, BoundInput, Fresh, SavedResult
from stagewire.graph import Ref
from stagewire.loop import LoopGraph
from stagewire.parser import parse_graph
from stagewire.prim import Prim

TAIL = "[1, 1], [1, 1], [1, 1], false, [0, 0], 1"
NET = f"""\
input %x: bf16[2, 3, 8, 8]@cuda:0
input %w: bf16[16, 3, 3, 3]@cuda:0
input %v: bf16[16, 16, 3, 3]@cuda:0
%a: bf16[2, 16, 8, 8]@cuda:0 = aten.convolution.default(%x, %w, null, {TAIL})
%b: bf16[2, 16, 8, 8]@cuda:0 = prims.maximum(%a, 0.0)
%c: bf16[2, 16, 8, 8]@cuda:0 = aten.convolution.default(%b, %v, null, {TAIL})
%y: bf16[2, 16, 8, 8]@cuda:0 = prims.add(%c, %b)
"""
PLAIN, LAST = (1024, 64, 8, 1), (1024, 1, 128, 16)


def images(graph: LoopGraph) -> list[list[tuple[object, ...]]]:
    """Strides of the image that each convolution reads, and of the one that it writes."""
    types = {buffer.name: buffer.type for buffer in graph.buffers}
    calls = [step for step in externs(graph) if step.target == "aten.convolution.default"]
    return [[types[call.args[0].name].stride, types[call.results[0]].stride] for call in calls]  # type: ignore[union-attr]


def weights(graph: LoopGraph) -> list[tuple[object, ...]]:
    """Strides of the weight of each convolution."""
    types = {buffer.name: buffer.type for buffer in graph.buffers}
    calls = [step for step in externs(graph) if step.target == "aten.convolution.default"]
    return [types[call.args[1].name].stride for call in calls]  # type: ignore[union-attr]


def returned(graph: LoopGraph) -> list[tuple[object, ...]]:
    types = {buffer.name: buffer.type for buffer in graph.buffers}
    return [types[output.name].stride for output in graph.outputs if isinstance(output, Ref)]


def test_images_between_convolutions() -> None:
    """The input is copied once; the result that the user gets has eager's strides."""
    graph = lowered(NET + "return %y\n")
    assert images(graph) == [[(192, 1, 24, 3), LAST], [LAST, LAST]]
    assert returned(graph) == [PLAIN]
    assert len(kernels(graph)) == 3


def test_images_of_any_size() -> None:
    text = (NET + "return %y\n").replace("[2, 3, 8, 8]", "[n, 3, h, w]").replace("[2, 16, 8, 8]", "[n, 16, h, w]")
    graph = lowered(text, hints={"n": 2, "h": 8, "w": 8})
    h, w = symbol("h"), symbol("w")
    turned = (16 * h * w, 1, 16 * w, 16)
    assert images(graph) == [[(3 * h * w, 1, 3 * w, 3), turned], [turned, turned]]
    assert returned(graph) == [(16 * h * w, h * w, w, 1)]
    assert len(kernels(graph)) == 3


def test_a_result_of_a_convolution_that_is_returned_is_copied() -> None:
    graph = lowered(NET + "return %c\n")
    assert images(graph) == [[(192, 1, 24, 3), LAST], [LAST, LAST]]
    assert returned(graph) == [PLAIN]


def test_a_result_that_is_returned_and_read_by_the_next_convolution() -> None:
    """It is read as the convolution before writes it."""
    graph = lowered(NET.replace("(%b, %v", "(%a, %v") + "return %a, %c\n")
    assert images(graph) == [[(192, 1, 24, 3), LAST], [LAST, LAST]]
    assert returned(graph) == [PLAIN, PLAIN]
    first, second = (step for step in externs(graph) if step.target == "aten.convolution.default")
    assert second.args[0] == Ref(first.results[0])


@pytest.mark.parametrize("change", [("@cuda:0", ""), ("bf16", "f64")])
def test_other_devices_and_types_are_left_alone(change: tuple[str, str]) -> None:
    graph = lowered((NET + "return %y\n").replace(*change))
    assert images(graph) == [[(192, 64, 8, 1), PLAIN], [PLAIN, PLAIN]]


def test_images_that_other_calls_read_keep_their_strides() -> None:
    graph = lowered(NET + "%z: bf16[2, 16, 8, 8]@cuda:0 = aten.erfinv.default(%b)\nreturn %z, %y\n")
    types = {buffer.name: buffer.type for buffer in graph.buffers}
    (call,) = [step for step in externs(graph) if step.target == "aten.erfinv.default"]
    assert types[call.args[0].name].stride == PLAIN  # type: ignore[union-attr]
    assert images(graph) == [[(192, 1, 24, 3), LAST], [LAST, LAST]]


def test_one_channel_is_said_to_be_the_fastest() -> None:
    """Libraries look at the strides of single elements."""
    text = (NET + "return %y\n").replace("[2, 3, 8, 8]", "[2, 1, 8, 8]").replace("[16, 3, 3, 3]", "[16, 1, 3, 3]")
    assert images(lowered(text)) == [[(64, 1, 8, 1), LAST], [LAST, LAST]]


def test_a_single_convolution_takes_images_as_they_are() -> None:
    """The copies at the borders would take longer than what it gains."""
    first, _, _ = (NET + "return %a\n").partition("%c: ")
    assert images(lowered(first + "return %b\n")) == [[(192, 64, 8, 1), PLAIN]]


def trained(net: str) -> Prim:
    """A net with a backward, for which an image is saved."""
    forward = parse_graph(net + "return %y, %b\n")
    back = parse_graph("input %b: bf16[2, 16, 8, 8]@cuda:0\n%d: bf16[2, 16, 8, 8]@cuda:0 = prims.neg(%b)\nreturn %d\n")
    inputs = tuple(BoundInput(v.name, v.type) for v in forward.inputs)  # type: ignore[arg-type]
    binding = Binding(inputs=inputs, outputs=(Fresh(0),), saved=(SavedResult(1),), input_gradients=(0, None, None))
    return Prim(binding=binding, forward=forward, backward=back)


def test_what_is_saved_for_the_backward() -> None:
    """It lies as the backward reads it."""
    passes = tuple(dataclasses.replace(p, training=False) if isinstance(p, ChannelsLast) else p for p in PASSES)
    assert returned(LoopIR().run(trained(NET), Options(passes=passes)).forward) == [PLAIN, PLAIN]
    loop = LoopIR().run(trained(NET))
    assert returned(loop.forward) == [PLAIN, LAST]
    assert loop.backward is not None
    assert loop.backward.buffers[0].type.stride == LAST
    assert returned(loop.backward) == [PLAIN]


WEIGHTS = {
    "windows": ("[16, 16, 3, 3]", TAIL, (144, 1, 48, 16)),
    "single channels": ("[16, 1, 3, 3]", f"{TAIL}6", (9, 9, 3, 1)),
    "single places": ("[16, 16, 1, 1]", "[1, 1], [0, 0], [1, 1], false, [0, 0], 1", (16, 1, 1, 1)),
}


@pytest.mark.parametrize("name", WEIGHTS)
def test_weights_are_copied_in_training_where_they_lie_otherwise(name: str) -> None:
    size, tail, stride = WEIGHTS[name]
    net = NET.replace("%v: bf16[16, 16, 3, 3]", f"%v: bf16{size}").replace(
        f"%b, %v, null, {TAIL}", f"%b, %v, null, {tail}"
    )
    assert weights(LoopIR().run(trained(net)).forward) == [(27, 1, 9, 3), stride]
    plain = [(27, 9, 3, 1), (144, 9, 3, 1) if name == "windows" else stride]
    assert weights(lowered(net + "return %y\n")) == plain


def test_images_that_many_read_stay_so() -> None:
    """As in dense blocks, whose later layers read all earlier ones."""
    pooled = "%i: i64[2, 16, 8, 8]@cuda:0 = prims.max_pool2d(%a, [3, 3], [1, 1], [1, 1], [1, 1], false)"
    text = NET.replace(" = prims.maximum(%a, 0.0)", f", {pooled}").partition("%c: ")[0].replace("%a:", "%c0:")
    for n in range(1, 10):
        text += f"%b{n}: bf16[2, 16, 8, 8]@cuda:0 = prims.mul(%b, %c{n - 1})\n"
        text += f"%c{n}: bf16[2, 16, 8, 8]@cuda:0 = aten.convolution.default(%b{n}, %v, null, {TAIL})\n"
    graph = lowered(text.replace("(%a,", "(%c0,") + "return %c9\n")
    types = {buffer.name: buffer.type for buffer in graph.buffers}
    assert types["b"].stride == LAST
