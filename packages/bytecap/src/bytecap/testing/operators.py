"""Operators that tests register with torch. To register one again frees what calls of the first still use.

A test file that `programs_below` loads exists twice in a process; this module exists once.
"""

from __future__ import annotations

import torch

__all__ = ["doubled", "halves"]


@torch.library.custom_op("bytecap_tests::doubled", mutates_args=())
def doubled(x: torch.Tensor) -> torch.Tensor:
    """Without a fake kernel."""
    return x * 2


@torch.library.custom_op("bytecap_tests::halves", mutates_args=())
def halves(x: torch.Tensor, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    """With a fake kernel."""
    return x[:1] * scale, x[1:] * scale


@halves.register_fake
def _(x: torch.Tensor, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty_like(x[:1]), torch.empty_like(x[1:])
