"""Convolutions as products of matrices: the same numbers, where a product is the faster way."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from primops.decompositions import TABLE
from primops.exactness import bound
from primops.stage import lower_graph
from primops.testing.opinfo import Compare
from stagewire.parser import parse_graph

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
    exact = [node.target for node in lower_graph(graph, TABLE, exact=True).nodes]
    assert FORWARD in exact
