"""Recompute nothing: every forward value that the backward uses is saved, as eager does."""

from __future__ import annotations

from aotgrad.joint import Joint
from aotgrad.partition.needs import needs_of
from aotgrad.partition.split import Partition

__all__ = ["save_everything"]


def save_everything(joint: Joint) -> Partition:
    """The partition of eager torch."""
    return Partition(needs_of(joint).direct)
