"""Networks that are measured and that no package brings: written in plain torch, with small default sizes."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


def convolved(channels_in: int, channels_out: int, size: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """Convolution, batch norm, relu."""
    return nn.Sequential(
        nn.Conv2d(channels_in, channels_out, size, stride, size // 2, groups=groups, bias=False),
        nn.BatchNorm2d(channels_out),
        nn.ReLU(inplace=True),
    )


class Bottleneck(nn.Module):
    """The block of ResNet-50: 1x1, 3x3, 1x1 and a shortcut."""

    expansion = 4

    def __init__(self, channels_in: int, width: int, stride: int) -> None:
        super().__init__()
        out = self.expansion * width
        self.body = self.convolutions(channels_in, width, stride)
        same = stride == 1 and channels_in == out
        self.shortcut = nn.Identity() if same else nn.Sequential(
            nn.Conv2d(channels_in, out, 1, stride, bias=False), nn.BatchNorm2d(out))  # fmt: skip

    def convolutions(self, channels_in: int, width: int, stride: int) -> nn.Module:
        return nn.Sequential(
            convolved(channels_in, width, 1), convolved(width, width, 3, stride),
            nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


class Basic(Bottleneck):
    """The block of ResNet-18: two 3x3 and a shortcut."""

    expansion = 1

    def convolutions(self, channels_in: int, width: int, stride: int) -> nn.Module:
        return nn.Sequential(
            convolved(channels_in, width, 3, stride), nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
        )  # fmt: skip


class ResNet(nn.Module):
    """(N, 3, H, W) -> (N, classes), of four stages of blocks."""

    def __init__(self, block: type[Bottleneck], counts: tuple[int, ...], classes: int = 100) -> None:
        super().__init__()
        self.stem = nn.Sequential(convolved(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1))
        blocks: list[nn.Module] = []
        channels = 64
        for stage, count in enumerate(counts):
            for number in range(count):
                blocks.append(block(channels, 64 << stage, 2 if stage and not number else 1))
                channels = block.expansion * 64 << stage
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(channels, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


class Inverted(nn.Module):
    """The block of MobileNetV2: expand, depthwise, project."""

    def __init__(self, channels_in: int, out: int, stride: int, expand: int = 4) -> None:
        super().__init__()
        width = channels_in * expand
        self.same = stride == 1 and channels_in == out
        self.body = nn.Sequential(
            convolved(channels_in, width, 1), convolved(width, width, 3, stride, width),
            nn.Conv2d(width, out, 1, bias=False), nn.BatchNorm2d(out),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.body(x) if self.same else self.body(x)


def mobilenet() -> nn.Module:
    """A MobileNetV2 of eight blocks."""
    widths = ((16, 24, 2), (24, 24, 1), (24, 32, 2), (32, 32, 1), (32, 64, 2), (64, 64, 1), (64, 96, 1), (96, 96, 1))
    return nn.Sequential(
        convolved(3, 16, 3, 2), *(Inverted(*width) for width in widths), convolved(96, 384, 1),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(384, 100),
    )  # fmt: skip


class ConvNeXtBlock(nn.Module):
    """Depthwise 7x7, layer norm and a mlp over channels, scaled."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.scale = nn.Parameter(torch.full((width,), 0.1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        return x + (self.scale * self.down(F.gelu(self.up(y)))).permute(0, 3, 1, 2)


def convnext() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 48, 4, 4), *(ConvNeXtBlock(48) for _ in range(2)),
        nn.Conv2d(48, 96, 2, 2), *(ConvNeXtBlock(96) for _ in range(3)),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(96, 100),
    )  # fmt: skip


class UNet(nn.Module):
    """Three levels, group norm and silu, nearest upsampling."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.first = self.level(3, width)
        self.down1, self.down2 = self.level(width, 2 * width), self.level(2 * width, 4 * width)
        self.up1, self.up2 = self.level(6 * width, 2 * width), self.level(3 * width, width)
        self.last = nn.Conv2d(width, 3, 1)

    @staticmethod
    def level(channels_in: int, out: int) -> nn.Sequential:
        halves = ((channels_in, out), (out, out))
        return nn.Sequential(*(layer for a, b in halves for layer in (
            nn.Conv2d(a, b, 3, padding=1), nn.GroupNorm(8, b), nn.SiLU())))  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        one = self.first(x)
        two = self.down1(F.max_pool2d(one, 2))
        three = self.down2(F.max_pool2d(two, 2))
        two = self.up1(torch.cat((F.interpolate(three, scale_factor=2.0), two), 1))
        return self.last(self.up2(torch.cat((F.interpolate(two, scale_factor=2.0), one), 1)))


class Mixer(nn.Module):
    """A mlp-mixer of four blocks."""

    def __init__(self, tokens: int = 64, width: int = 128) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 8, 8)
        make = lambda size, hidden: nn.Sequential(nn.Linear(size, hidden), nn.GELU(), nn.Linear(hidden, size))  # noqa: E731
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(9))
        self.across = nn.ModuleList(make(tokens, 64) for _ in range(4))
        self.within = nn.ModuleList(make(width, 512) for _ in range(4))
        self.head = nn.Linear(width, 100)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        for number, (across, within) in enumerate(zip(self.across, self.within, strict=True)):
            x = x + across(self.norms[2 * number](x).transpose(1, 2)).transpose(1, 2)
            x = x + within(self.norms[2 * number + 1](x))
        return self.head(self.norms[8](x).mean(1))


class Recurrent(nn.Module):
    """An embedding, a LSTM of two layers and a classifier of the last state."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(1000, 64)
        self.lstm = nn.LSTM(64, 128, 2, batch_first=True)
        self.head = nn.Linear(128, 10)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(self.embedding(ids))[0][:, -1])


class DLRM(nn.Module):
    """Dense features through a mlp, sparse ones through tables, and their pairwise products (Naumov et al., 2019)."""

    def __init__(self, tables: int = 8, width: int = 32) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(1000, width, mode="sum") for _ in range(tables))
        self.bottom = nn.Sequential(nn.Linear(13, 128), nn.ReLU(), nn.Linear(128, width), nn.ReLU())
        pairs = (tables + 1) * tables // 2
        self.top = nn.Sequential(nn.Linear(pairs + width, 128), nn.ReLU(), nn.Linear(128, 1))
        self.register_buffer("pairs", torch.tril_indices(tables + 1, tables + 1, -1))

    def forward(self, dense: torch.Tensor, sparse: torch.Tensor) -> torch.Tensor:
        bottom = self.bottom(dense)
        rows = torch.stack([bottom, *(table(sparse[:, k]) for k, table in enumerate(self.tables))], 1)
        products = torch.bmm(rows, rows.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
        return self.top(torch.cat((bottom, products), 1))
