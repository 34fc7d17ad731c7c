"""Convolutions of few terms as loops, in inference on a CPU: eager's results for each geometry, dtype and layout."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import stagefold

# channels, kernel, stride, padding, dilation, bias
GEOMETRIES = {
    "3x3": (32, 3, 1, 1, 1, True),
    "steps": (24, 3, 2, 1, 1, False),
    "spread": (16, 3, 1, 2, 2, True),
    "7x7": (40, 7, 1, 3, 1, True),
    "uneven": (96, (5, 1), (1, 2), (2, 0), 1, False),
    "no padding": (8, 3, 1, 0, 1, True),
    "wide padding": (20, 3, 2, 4, 1, False),
    "odd channels": (13, 3, 1, 1, 1, True),
}


class Block(nn.Module):
    """A first convolution, a depthwise one with batch norm and relu6, a 1x1 with a residual, what a mean gates."""

    def __init__(self, channels: int, kernel: int | tuple[int, int], *geometry: object) -> None:
        super().__init__()
        *geometry, bias = geometry
        self.first = nn.Conv2d(3, channels, 3, 2, 1, bias=bias)
        self.single = nn.Conv2d(channels, channels, kernel, *geometry, groups=channels, bias=bias)
        self.norm, self.last = nn.BatchNorm2d(channels), nn.Conv2d(channels, channels, 1)
        self.norm.running_mean.uniform_(-0.5, 0.5)
        self.norm.running_var.uniform_(0.5, 2)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = nn.functional.hardswish(self.first(x))
        x = nn.functional.relu6(self.norm(self.single(x)))
        gated = x * torch.sigmoid(x.mean((2, 3), keepdim=True))
        return self.last(gated) + gated, self.single(x[:, :, 1:, 1:].flip(2)).amax((2, 3))


def check(model: nn.Module, x: torch.Tensor, compiled: object = None, **options: object) -> object:
    compiled = compiled or stagefold.compile(model, fullgraph=True, options=options)
    with torch.no_grad():
        expected, found = model(x), compiled(x)  # type: ignore[operator]
    near = 1e-4 if x.dtype is torch.float32 else 5e-2
    for one, other in zip(expected, found, strict=True):
        torch.testing.assert_close(other, one, rtol=near, atol=near)
        assert other.stride() == one.stride()
    return compiled


def block(name: str) -> Block:
    torch.manual_seed(0)
    return Block(*GEOMETRIES[name]).eval()


@pytest.mark.parametrize("freeze", [False, True])
@pytest.mark.parametrize("name", GEOMETRIES)
def test_each_geometry(name: str, freeze: bool) -> None:
    check(block(name), torch.randn(2, 3, 21, 18), freeze=freeze)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_half_precision_and_layouts_of_the_image(layout: torch.memory_format) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        model = block("3x3").to(dtype)
        check(model, torch.randn(2, 3, 20, 20).to(dtype, memory_format=layout))


def test_images_of_any_size() -> None:
    model = block("3x3")
    compiled = stagefold.compile(model, fullgraph=True, dynamic=True)
    for batch, height, width in ((2, 16, 20), (1, 17, 9), (3, 40, 32)):
        check(model, torch.randn(batch, 3, height, width), compiled)


def test_windows_on_an_image_that_is_repeated_or_written() -> None:
    torch.manual_seed(0)
    model = nn.Conv2d(16, 16, 3, padding=1, groups=16)

    def written(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        before = model(x)
        x.mul_(2)
        return before, model(x)

    repeated = torch.randn(1, 1, 1, 16).permute(0, 3, 1, 2).expand(2, 16, 6, 5)
    with torch.no_grad():
        torch.testing.assert_close(stagefold.compile(model)(repeated), model(repeated))
        x = torch.randn(2, 16, 6, 5).to(memory_format=torch.channels_last)
        ours, mine = x.clone(), x.clone()
        torch.testing.assert_close(stagefold.compile(written)(ours), written(mine))
        torch.testing.assert_close(ours, mine)


def test_nothing_to_convolve_and_what_eager_refuses() -> None:
    model = nn.Conv2d(16, 16, 3, padding=1, groups=16)
    compiled = stagefold.compile(model)
    with torch.no_grad():
        empty = torch.randn(0, 16, 6, 6).to(memory_format=torch.channels_last)
        assert compiled(empty).shape == model(empty).shape
        for call in (model, compiled):
            with pytest.raises(RuntimeError, match="expected input"):
                call(torch.randn(2, 8, 6, 6).to(memory_format=torch.channels_last))


def test_a_training_step_is_as_it_was() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.Conv2d(16, 16, 3, padding=1, groups=16), nn.ReLU6())
    ours = copy.deepcopy(model)
    x = torch.randn(2, 3, 12, 12)
    model(x).square().mean().backward()
    stagefold.compile(ours, fullgraph=True)(x).square().mean().backward()
    for one, other in zip(model.parameters(), ours.parameters(), strict=True):
        torch.testing.assert_close(other.grad, one.grad, rtol=1e-4, atol=1e-5)
