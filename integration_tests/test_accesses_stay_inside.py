"""Compiled code touches no memory beside its buffers: inputs end and begin at pages that nobody may read or write."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import stagefold
from codegen.testing.guarded_memory import guarded

PROGRAMS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "padded": lambda x: F.pad(x, (3, 5)) * 2,
    "cut and padded": lambda x: F.pad(x, (-1, 2)) * 3,
    "joined": lambda x: torch.cat((x, x * 2)) + 1,
    "rolled": lambda x: torch.roll(x, 3) * 2,
    "interleaved": lambda x: torch.stack((x, x + 1), -1).flatten() * 2,
    "every second": lambda x: x[1::2] * 2 + x[::2][: x[1::2].numel()],
    "written at the end": lambda x: torch.slice_scatter(x, x[:2] * 2, 0, x.numel() - 2) + 1,
}


@pytest.mark.parametrize("at_end", [True, False])
@pytest.mark.parametrize("name", PROGRAMS)
def test_short_rows(name: str, at_end: bool) -> None:
    """Of such lengths compilers know all masks, and may leave them out: the process would end here."""
    for size in (7, 16, 17, 33):
        run = stagefold.compile(PROGRAMS[name], dynamic=False)
        for dtype in (torch.float32, torch.float64, torch.uint8):
            x = guarded(torch.arange(size).to(dtype), at_end=at_end)
            torch.testing.assert_close(run(x), PROGRAMS[name](x.clone()), rtol=0, atol=0)
