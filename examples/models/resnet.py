"""ResNet-18 (He et al., "Deep Residual Learning for Image Recognition", 2015), written for the examples."""

from __future__ import annotations

import torch
from torch import nn


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut: (N, in, H, W) -> (N, out, H / stride, W / stride)."""

    def __init__(self, channels_in: int, channels_out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels_out, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels_out)
        self.conv2 = nn.Conv2d(channels_out, channels_out, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels_out)
        self.act = nn.ReLU(inplace=True)
        self.shortcut: nn.Module | None = None
        if stride != 1 or channels_in != channels_out:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels_in, channels_out, 1, stride, bias=False), nn.BatchNorm2d(channels_out)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shortcut = x if self.shortcut is None else self.shortcut(x)
        out = self.act(self.norm1(self.conv1(x)))
        out = self.norm2(self.conv2(out))
        out += shortcut
        return self.act(out)


class ResNet18(nn.Module):
    """(N, 3, H, W) images -> (N, classes) logits."""

    def __init__(self, classes: int = 1000, width: int = 64) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2, padding=1),
        )
        widths = [width, 2 * width, 4 * width, 8 * width]
        blocks: list[nn.Module] = []
        channels = width
        for stage, out in enumerate(widths):
            blocks += [BasicBlock(channels, out, 1 if stage == 0 else 2), BasicBlock(out, out, 1)]
            channels = out
        self.blocks = nn.Sequential(*blocks)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(channels, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features = self.pool(self.blocks(self.stem(images)))
        return self.head(torch.flatten(features, 1))
