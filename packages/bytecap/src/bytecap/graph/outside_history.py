"""The history of an outside tensor: it was computed by something, of which the capture knows nothing."""

from __future__ import annotations

from typing import Any

import torch

from absint import AbstractTensor


class Outside(torch.autograd.Function):
    """The same tensor as something that was computed: neither a leaf nor a view of one, so that it may be written."""

    @staticmethod
    def forward(ctx: Any, leaf: AbstractTensor) -> AbstractTensor:
        return AbstractTensor(leaf.meta, leaf.storage_record)
