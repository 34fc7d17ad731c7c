"""Images with their channels fastest between convolutions, as on a GPU: the same results, gradients and strides."""

from __future__ import annotations

import copy
import dataclasses

import torch
from torch import nn
from torch.nn import functional as F

import stagefold
from loopir.passes.channels_last import ChannelsLast
from loopir.pipeline import PASSES
from loopir.stage import LoopIR, Options
from stagewire.loop import Loop
from stagewire.prim import Prim

ON_A_CPU = tuple(dataclasses.replace(one, device="cpu") if isinstance(one, ChannelsLast) else one for one in PASSES)


class Net(nn.Module):
    """Images of two results, which join, are pooled, enlarged and made of groups; single channels; a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.grouped = nn.Conv2d(16, 16, 3, padding=1, groups=4)
        self.single = nn.Conv2d(16, 16, 3, padding=1, groups=16)
        self.second, self.third = nn.Conv2d(32, 8, 3, stride=2), nn.Conv2d(8, 8, 1)
        self.back = nn.ConvTranspose2d(8, 4, 2, 2)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.norm(self.first(x)).relu()
        x = F.max_pool2d(torch.cat([self.grouped(x).sigmoid() + x, self.single(x)], 1), 2)
        middle = self.second(x)
        return self.back(self.third(middle.tanh())), middle.mean()


def test_training() -> None:
    """Also where, later on, some results get no gradient: backwards of their own read what is saved as it lies."""
    loops: list[Loop] = []

    def lowered(prim: Prim) -> Loop:
        loops.append(LoopIR().run(prim, Options(passes=ON_A_CPU)))
        return loops[-1]

    torch.manual_seed(0)
    eager = Net()
    ours = copy.deepcopy(eager)
    compiled = stagefold.compile(
        ours, fullgraph=True, stages={"loopir": lowered}, options={"primops.channels_last": False}
    )
    for number in range(7):
        x = torch.randn(2, 3, 16, 16)
        found = []
        for module, call in ((eager, eager), (ours, compiled)):
            module.zero_grad()
            image, mean = call(x)
            loss = image.sin().sum() + mean if number == 0 else image.sin().sum() if number % 2 else mean
            loss.backward()
            found.append([image, mean, *[p.grad for p in module.parameters()]])
        for one, other in zip(*found, strict=True):
            assert (one is None) == (other is None)
            if one is not None:
                torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-4)
                assert other.stride() == one.stride()
    types = {buffer.name: buffer.type for buffer in loops[0].forward.buffers}
    images = [type for type in types.values() if len(type.shape) == 4 and type.shape[1] == 16 and type.shape[2] == 16]
    assert sum(type.stride[1] == 1 for type in images) >= 4
    assert len(loops) == 3  # both directions, and a backward for each of the results alone
