"""Convolutions as products of matrices: the same numbers, where a product is the faster way."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from primops import interpret
from primops.decompositions import TABLE
from primops.exactness import bound
from primops.interpret import tensor_type
from primops.stage import Options, lower_graph
from primops.testing.opinfo import Compare, Outcome, compare_call, compare_results, plain, run_as_graph
from stagewire.graph import Graph, List
from stagewire.parser import parse_graph
from stagewire.printer import print_graph
from stagewire.types import NoneType
from stagewire.verify import verify_graph

Sizes = tuple[int, ...]

FORWARD, BACKWARD = "aten.convolution.default", "aten.convolution_backward.default"
# channels, features, kernel, stride, padding, dilation, images, size
CASES = {
    "1x1 of many weights": (256, 512, 1, 1, 0, 1, 3, 4),
    "1x1 in steps": (256, 512, 1, 2, 0, 1, 2, 7),
    "3x3 of few windows": (64, 96, 3, 1, 1, 1, 2, 3),
    "in steps that leave a rest": (64, 96, 3, 2, 1, 1, 2, 6),
    "uneven": (48, 128, (1, 3), (2, 1), (0, 1), (1, 1), 2, 4),
    "spread": (64, 96, 3, 2, 2, 2, 2, 6),
    "patches": (16, 80, 4, 4, 0, 1, 2, 18),
    "uneven patches": (16, 80, (2, 5), (2, 5), 0, 1, 2, 11),
    "apart": (64, 96, 2, 3, 0, 1, 2, 9),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_both_ways(case: tuple, layout: torch.memory_format, bias: bool, dtype: torch.dtype) -> None:
    channels, features, kernel, stride, padding, dilation, images, size = case
    torch.manual_seed(0)
    sides = kernel if isinstance(kernel, tuple) else (kernel, kernel)
    x = torch.randn(images, channels, size, size).to(dtype, memory_format=layout).requires_grad_()
    weight = torch.randn(features, channels, *sides).to(dtype).requires_grad_()
    shift = torch.randn(features).to(dtype).requires_grad_() if bias else None
    mode = Compare()
    with mode:
        result = F.conv2d(x, weight, shift, stride, padding, dilation)
        result.backward(torch.randn_like(result))
    for target in (FORWARD, BACKWARD):
        outcome = mode.outcomes[target]
        assert (outcome.faults, outcome.compared, outcome.declined) == ([], 1, 0)
        assert max(outcome.ulps.values()) <= bound(target)[dtype is torch.bfloat16]


# channels, kernel, stride, padding, dilation, size
DEPTHWISE = {
    "3x3": (24, 3, 1, 1, 1, 9),
    "steps": (24, 3, 2, 1, 1, 8),
    "spread": (16, 5, 1, 4, 2, 11),
    "uneven": (8, (7, 1), (1, 3), (2, 0), (1, 1), 10),
    "no padding": (40, 2, 1, 0, 1, 5),
    "one place": (16, 7, 1, 3, 1, 1),
}


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("case", DEPTHWISE.values(), ids=DEPTHWISE)
def test_single_channels(case: tuple, bias: bool) -> None:
    channels, kernel, stride, padding, dilation, size = case
    torch.manual_seed(0)
    sides = kernel if isinstance(kernel, tuple) else (kernel, kernel)
    x = torch.randn(2, channels, size, size).to(memory_format=torch.channels_last)
    weight, shift = torch.randn(channels, 1, *sides), torch.randn(channels) if bias else None
    mode = Compare()
    with mode:
        F.conv2d(x, weight, shift, stride, padding, dilation, channels)
    outcome = mode.outcomes[FORWARD]
    assert (outcome.faults, outcome.compared, outcome.declined) == ([], 1, 0)
    assert max(outcome.ulps.values()) <= bound(FORWARD)[0]


FEW_TERMS = """\
input %x: {dtype}[{n}, {channels}, {size}, {size}]{layout}
input %w: {dtype}[{features}, {each}, 3, 3]
%y: {dtype}[{n}, {features}, {size}, {size}]{{{strides}}} = aten.convolution.default(%x, %w, None, [1, 1], [1, 1], \
[1, 1], False, [0, 0], {groups})
return %y
"""
FIRST = dict(dtype="f32", n=2, channels=3, size=8, layout="", features=16, each=3, strides="1024, 1, 128, 16", groups=1)
SINGLE = FIRST | dict(channels=16, each=1, groups=16, layout="{1024, 1, 128, 16}")


@pytest.mark.parametrize("image", [FIRST, SINGLE], ids=["first of a network", "single channels"])
def test_images_whose_channels_become_fastest(image: dict) -> None:
    graph = parse_graph(FEW_TERMS.format(**image))
    lowered = lower_graph(graph, TABLE)
    verify_graph(lowered)
    assert "prims.direct_conv" in [node.target for node in lowered.nodes]
    assert FORWARD in [node.target for node in lower_graph(graph, TABLE, trains=True).nodes]
    assert FORWARD in [node.target for node in lower_graph(graph, TABLE, Options(numerics="eager")).nodes]
    torch.manual_seed(0)
    x, w = torch.randn(2, image["channels"], 8, 8), torch.randn(16, image["each"], 3, 3)
    (found,) = interpret(lowered, (x, w))
    torch.testing.assert_close(found, F.conv2d(x, w, padding=1, groups=image["groups"]), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "change",
    [
        FIRST | dict(strides="1024, 64, 8, 1"),
        FIRST | dict(layout="{192, 1, 24, 3}"),
        FIRST | dict(channels=6, each=6),
        FIRST | dict(channels=6, each=3, groups=2),
        FIRST | dict(channels=3, each=1, groups=3, features=6, strides="384, 1, 48, 6"),
        SINGLE | dict(dtype="bf16"),
    ],
    ids=["planes", "channels fastest already", "more terms", "groups", "two features of a channel", "bfloat16"],
)
def test_what_is_no_sum_of_few_terms(change: dict) -> None:
    nodes = lower_graph(parse_graph(FEW_TERMS.format(**change)), TABLE).nodes
    assert FORWARD in [node.target for node in nodes]


def convolution(seed: int) -> tuple[tuple[Any, ...], tuple[bool, ...]]:
    """The operands of a convolution, and which gradients are wanted: few channels mostly, windows of all kinds."""
    draw = random.Random(seed)

    def each(low: int, high: int) -> tuple[int, ...]:
        return tuple([draw.randint(low, high) for _ in range(rank)])

    rank, kind, transposed = draw.randint(1, 3), draw.choice(KINDS), (draw.random() < 0.5)
    kernel = (1,) * rank if kind == "pointwise" else each(1, 4)
    step = kernel if kind == "patches" else each(1, 3)
    pad, dilation = (each(0, 2), each(1, 2)) if kind == "any" else ((0,) * rank, (1,) * rank)
    spread = tuple([d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True)])
    rest = tuple([draw.randint(0, n - 1) for n in step])
    small = each(1, 3)
    sides = zip(small, step, spread, rest, pad, strict=True)
    large = tuple([max((n - 1) * each_step + w + r - 2 * p, 1) for n, each_step, w, r, p in sides])
    groups, narrow = draw.choice((1, 1, 1, 2)), (draw.random() < 0.5)
    wide = math.isqrt((1 << 17) // math.prod(kernel)) + 1  # of many weights
    channels, features = (groups * (draw.randint(1, 4) if narrow else wide) for _ in range(2))
    order = torch.Generator().manual_seed(draw.randint(0, 999))
    layout = torch.channels_last if rank == 2 and (draw.random() < 0.5) else torch.contiguous_format
    dtype = draw.choice((torch.float32, torch.bfloat16))
    image = (draw.randint(1, 3), channels, *(small if transposed else large))
    weight = (channels, features // groups) if transposed else (features, channels // groups)
    x, w, b = (torch.randn(*n, generator=order).to(dtype) for n in (image, (*weight, *kernel), (features,)))
    x = x.to(memory_format=layout)
    more = rest if transposed else (0,) * rank
    geometry = ([*step], [*pad], [*dilation], transposed, [*more], groups)
    return (x, w, b if (draw.random() < 0.5) else None, *geometry), tuple([(draw.random() < 0.5) for _ in range(3)])


KINDS = ("patches", "pointwise", "any")


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.sampled_from(range(100)))
def test_a_drawn_convolution_and_its_gradients(seed: int) -> None:
    """As on a CPU, and as on a GPU."""
    (x, w, bias, *geometry), wanted = convolution(seed)
    forward = (x, w, bias, *geometry)
    try:
        result = torch.ops.aten.convolution(*forward)
    except RuntimeError:
        return  # an image smaller than its window
    check(FORWARD, forward, result)
    if any(wanted):
        sizes = None if bias is None else [len(bias)]
        backward = (torch.randn_like(result), x, w, sizes, *geometry, [*wanted])
        made = torch.ops.aten.convolution_backward(*backward)  # some kernels give what nobody asked for
        check(BACKWARD, backward, [one if asked else None for one, asked in zip(made, wanted, strict=True)])


def check(target: str, args: tuple[Any, ...], result: Any) -> None:
    expected, outcome = [result] if isinstance(result, torch.Tensor) else result, Outcome()
    compare_call(outcome, target, args, {}, result)
    assert not outcome.faults, outcome.faults
    types = tuple([NoneType() if one is None else tensor_type(one) for one in expected])
    found = run_as_graph(target, plain(args), {}, types, device="cuda:0")
    faults = [] if found is None else compare_results(target, args, {}, found, expected)
    assert not faults, faults


def test_one_dimension() -> None:
    mode = Compare()
    with mode:
        F.conv1d(torch.randn(2, 64, 9, requires_grad=True), torch.randn(96, 64, 3), None, 2, 1).sum().backward()
    for target in (FORWARD, BACKWARD):
        assert (mode.outcomes[target].faults, mode.outcomes[target].declined) == ([], 0)


GRAPH = """\
input %x: {dtype}[{images}, 256, {size}, {size}]{on}
input %w: {dtype}[512, {channels}, {kernel}, {kernel}]{on}
%y: {dtype}[{images}, 512, {out}, {out}]{on} = aten.convolution.default(%x, %w, None, [1, 1], [{pad}, {pad}], [1, 1], \
{turned}, [0, 0], {groups})
return %y
"""
PLAIN = dict(dtype="f32", images=1, size=4, channels=256, kernel=1, out=4, pad=0, turned="False", groups=1, on="")


@pytest.mark.parametrize(
    ("change", "stays"),
    [
        ({}, False),
        (dict(size=32, out=32), True),
        (dict(kernel=3, pad=1), False),
        (dict(kernel=3, pad=1, images=8), True),
        (dict(kernel=5, pad=2), True),
        (dict(dtype="bf16"), False),
        (dict(dtype="f16"), True),
        (dict(groups=256, channels=1), True),
        (dict(on="@cuda:0"), True),
    ],
)
def test_what_stays_with_aten(change: dict, stays: bool) -> None:
    graph = parse_graph(GRAPH.format(**(PLAIN | change)))
    assert (FORWARD in [node.target for node in lower_graph(graph, TABLE).nodes]) is stays
    exact = [node.target for node in lower_graph(graph, TABLE, Options(numerics="eager")).nodes]
    assert FORWARD in exact


STEP = """\
input %x: {dtype}{x}@cuda:0
input %w: {dtype}{w}@cuda:0
input %b: {dtype}[24]@cuda:0
input %g: {dtype}{y}@cuda:0
%y: {dtype}{y}@cuda:0 = aten.convolution.default(%x, %w, %b, {step}, {none}, {ones}, False, {none}, 1)
%dx: {dtype}{x}@cuda:0, %dw: {dtype}{w}@cuda:0, %db: {dtype}[24]@cuda:0 = \
aten.convolution_backward.default(%g, %x, %w, [24], {step}, {none}, {ones}, False, {none}, 1, [True, True, True])
return %y, %dx, %dw, %db
"""
# sizes of an image and of a kernel, step
ON_A_GPU = {
    "patches": ((2, 3, 16, 12), (4, 4), 4),
    "patches and a rest": ((2, 3, 18, 13), (4, 4), 4),
    "in a row": ((2, 3, 17), (5,), 5),
    "in space": ((1, 3, 4, 9, 8), (2, 4, 4), (2, 4, 4)),
    "1x1 of odd images": ((2, 16, 7, 7), (1, 1), 1),
}


def training_step(image: Sizes, kernel: tuple[int, ...], step: int | tuple[int, ...], **change: str) -> Graph:
    """Forward and gradients of a convolution, on a GPU."""
    steps = (step,) * len(kernel) if isinstance(step, int) else step
    out = [(n - k) // each + 1 for n, k, each in zip(image[2:], kernel, steps, strict=True)]
    geometry = dict(step=list(steps), none=[0] * len(kernel), ones=[1] * len(kernel))
    sizes = dict(x=[*image], w=[24, image[1], *kernel], y=[image[0], 24, *out])
    return parse_graph(STEP.format(**{"dtype": "bf16", **sizes, **change}, **geometry))


def check_step(graph: Graph, image: Sizes, kernel: tuple[int, ...], step: int | tuple[int, ...]) -> None:
    """What a lowered step means, computed on the CPU, beside eager in float64."""
    torch.manual_seed(0)
    x, w, b = (torch.randn(*each).bfloat16() for each in (image, (24, image[1], *kernel), (24,)))
    exact = [one.double().requires_grad_() for one in (x, w, b)]
    wanted = [F.conv1d, F.conv2d, F.conv3d][len(kernel) - 1](*exact, stride=step)  # type: ignore[operator]
    tangent = torch.randn_like(wanted).bfloat16()
    found = interpret(parse_graph(print_graph(graph).replace("@cuda:0", "")), (x, w, b, tangent))
    for one, other in zip(found, (wanted, *torch.autograd.grad(wanted, exact, tangent.double())), strict=True):
        torch.testing.assert_close(one.double(), other, rtol=2e-2, atol=2e-2 * float(other.detach().abs().max()))


@pytest.mark.parametrize(("image", "kernel", "step"), ON_A_GPU.values(), ids=ON_A_GPU)
def test_a_training_step_on_a_gpu(image: Sizes, kernel: tuple[int, ...], step: int | tuple[int, ...]) -> None:
    graph = lower_graph(training_step(image, kernel, step))
    verify_graph(graph)
    left = [node for node in graph.nodes if "convolution" in node.target]
    if set(kernel) == {1}:  # the gradient of the kernel alone is a product
        assert [node.target for node in left] == [FORWARD, BACKWARD]
        assert left[1].args[-1] == List((True, False, False))
    else:
        assert not left
    check_step(graph, image, kernel, step)


WITHOUT_BIAS = """\
input %x: {dtype}{x}@cuda:0
input %w: {dtype}{w}@cuda:0
input %b: {dtype}[{channels}]@cuda:0
input %g: {dtype}{y}@cuda:0
%y: {dtype}{y}@cuda:0 = aten.convolution.default(%x, %w, %b, {geometry})
{dx}, {dw}, %db: {dtype}[{channels}]@cuda:0 = \
aten.convolution_backward.default(%g, %x, %w, [{channels}], {geometry}, [{mask}, {mask}, True])
return %y, %db{more}
"""
# function, sizes of image and kernel, channels of the result, options
BIASED = {
    "one dimension": (F.conv1d, (2, 6, 11), (4, 6, 3), 4, dict(stride=2, padding=1)),
    "two": (F.conv2d, (2, 6, 9, 8), (4, 6, 3, 3), 4, dict(padding=1)),
    "three": (F.conv3d, (1, 2, 5, 6, 4), (3, 2, 3, 3, 3), 3, dict(dilation=1)),
    "of single channels": (F.conv2d, (2, 6, 9, 8), (6, 1, 3, 3), 6, dict(groups=6)),
    "transposed": (F.conv_transpose2d, (2, 6, 5, 4), (6, 4, 3, 3), 4, dict(stride=2, output_padding=1)),
}


@pytest.mark.parametrize("mask", [True, False], ids=["all gradients", "that of the bias"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", BIASED)
def test_biases_on_a_gpu_are_no_part_of_calls(name: str, dtype: torch.dtype, mask: bool) -> None:
    function, image, kernel, channels, options = BIASED[name]
    torch.manual_seed(0)
    x, w, b = (torch.randn(*each).to(dtype) for each in (image, kernel, (channels,)))
    exact = [one.double().requires_grad_() for one in (x, w, b)]
    wanted = function(*exact, **options)
    tangent = torch.randn_like(wanted).to(dtype)
    rank, kind = len(image) - 2, "f32" if dtype is torch.float32 else "bf16"
    each = {"stride": 1, "padding": 0, "dilation": 1, "output_padding": 0, "groups": 1} | options
    stride, padding, dilation, more = (
        [each[key]] * rank for key in ("stride", "padding", "dilation", "output_padding")
    )
    geometry = f"{stride}, {padding}, {dilation}, {'transpose' in function.__name__}, {more}, {each['groups']}"
    made = [f"%{name}: {f'{kind}{[*one.shape]}@cuda:0' if mask else 'none'}" for name, one in (("dx", x), ("dw", w))]
    text = WITHOUT_BIAS.format(
        dtype=kind, x=[*x.shape], w=[*w.shape], y=[*wanted.shape], channels=channels, geometry=geometry, mask=mask,
        dx=made[0], dw=made[1], more=", %dx, %dw" * mask,
    )  # fmt: skip
    graph = lower_graph(parse_graph(text))
    verify_graph(graph)
    left = [node for node in graph.nodes if "convolution" in node.target]
    assert [node.target for node in left] == [FORWARD, BACKWARD][: 1 + mask]
    assert left[0].args[2] is None
    assert not mask or left[1].args[-1] == List((True, True, False))
    kept = lower_graph(parse_graph(text), options=Options(numerics="eager"))
    assert [node.target for node in kept.nodes] == [FORWARD, BACKWARD]
    found = interpret(parse_graph(print_graph(graph).replace("@cuda:0", "")), (x, w, b, tangent))
    gradients = torch.autograd.grad(wanted, exact, tangent.double())
    near = 1e-4 if dtype is torch.float32 else 2e-2
    for one, other in zip(found, (wanted, gradients[2], *gradients[:2]), strict=False):
        torch.testing.assert_close(one.double(), other, rtol=near, atol=near * float(other.detach().abs().max()))


def test_patches_of_images_of_any_size_on_a_gpu() -> None:
    text = dict(x="[n, 3, h, w]", y="[n, 24, h // 4, w // 4]")
    graph = lower_graph(training_step((2, 3, 8, 8), (4, 4), 4, **text))
    assert not [node.target for node in graph.nodes if "convolution" in node.target]
    for image in ((2, 3, 16, 12), (5, 3, 11, 22)):
        check_step(graph, image, (4, 4), 4)


@pytest.mark.parametrize(
    ("image", "kernel", "step", "change"),
    [
        ((2, 16, 8, 8), (1, 1), 1, {}),
        ((2, 3, 9, 9), (3, 3), 2, {}),
        ((2, 3, 16, 12), (4, 4), 4, dict(dtype="f32")),
        ((2, 16, 7, 7), (1, 1), 1, dict(x="[2, 16, 7, 7]{784, 1, 112, 16}")),
        ((2, 32, 7, 7), (1, 1), 1, {}),
    ],
    ids=["an even image", "windows that overlap", "float32", "channels fastest", "channels that shrink"],
)
def test_what_stays_with_cudnn(image: Sizes, kernel: tuple[int, ...], step: int, change: dict[str, str]) -> None:
    graph = lower_graph(training_step(image, kernel, step, **change))
    assert {FORWARD, BACKWARD} <= {node.target for node in graph.nodes}


TRANSPOSED = """\
input %x: bf16[2, 16,{height},{width}]@cuda:0
input %w: bf16[16, 8, 2, 3]@cuda:0
input %b: bf16[8]@cuda:0
%y: bf16[2, 8,{out}]@cuda:0 = aten.convolution.default(%x, %w, %b, [2, 3], [0, 0], [1, 1], True, [{more}, 0], 1)
return %y
"""


@pytest.mark.parametrize("more", [0, 1])
@pytest.mark.parametrize(("height", "width"), [(3, 5), ("h", "w")])
def test_patches_of_the_result_on_a_gpu(height: int | str, width: int | str, more: int) -> None:
    high = f"2*h + {more}" if more else "2*h"
    out = f"{high},3*w" if height == "h" else f"{6 + more},15"
    text = TRANSPOSED.format(height=height, width=width, out=out, more=more)
    graph = lower_graph(parse_graph(text))
    verify_graph(graph)
    assert "aten.mm.default" in [node.target for node in graph.nodes]
    torch.manual_seed(0)
    x, w, b = torch.randn(2, 16, 3, 5).bfloat16(), torch.randn(16, 8, 2, 3).bfloat16(), torch.randn(8).bfloat16()
    (found,) = interpret(parse_graph(print_graph(graph).replace("@cuda:0", "")), (x, w, b))
    wanted = F.conv_transpose2d(x.double(), w.double(), b.double(), (2, 3), output_padding=(more, 0))
    torch.testing.assert_close(found.double(), wanted, rtol=2e-2, atol=2e-2 * float(wanted.abs().max()))
    for elsewhere in (text.replace("@cuda:0", ""), text):  # on a CPU, in a training step
        stays = lower_graph(parse_graph(elsewhere), trains=True)
        assert [node.target for node in stays.nodes if node.target.startswith("aten.")] == [FORWARD]
