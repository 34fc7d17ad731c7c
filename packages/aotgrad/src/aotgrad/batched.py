"""A backward that is given a batch of gradients: `torch.autograd.grad(..., is_grads_batched=True)`, and
`torch.autograd.functional.jacobian(..., vectorize=True)`, which call it once, under torch's vmap of its own.

A compiled backward knows memory, and no batches: it runs for each row, and what it gives is stacked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from aotgrad.torch_capabilities import TORCH

Gradients = Sequence[torch.Tensor | None]


def for_each_row(backward: Callable[[Gradients], Gradients], tangents: Gradients) -> Gradients:
    """What `backward` gives for each row of the batches among the tangents, as batches."""
    level = TORCH.enter_batch_level() - 1
    TORCH.leave_batch_level()
    rows = {
        number: TORCH.remove_batch_dim(tangent, level, 1, 0)
        for number, tangent in enumerate(tangents)
        if tangent is not None and TORCH.is_batched(tangent)
    }
    count = min(len(batch) for batch in rows.values())  # torch refuses a batch of none
    found = [
        backward([rows[number][row] if number in rows else tangent for number, tangent in enumerate(tangents)])
        for row in range(count)
    ]
    return [
        None if any(one is None for one in column) else TORCH.add_batch_dim(torch.stack(column), 0, level)
        for column in zip(*found, strict=True)
    ]
