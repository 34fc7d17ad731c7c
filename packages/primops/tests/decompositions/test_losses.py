"""Losses with arguments that no sample of torch's database combines."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F

from primops.testing.opinfo import Compare

CASES = list(itertools.product((1, 2), (0.5, 2.0), (False, True), ("none", "mean", "sum")))


@pytest.mark.parametrize(("power", "margin", "weighted", "reduction"), CASES, ids=str)
@pytest.mark.parametrize("rows", [(), (4,)], ids=["one row", "rows"])
def test_multi_margin_loss(rows: tuple[int, ...], power: int, margin: float, weighted: bool, reduction: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(*rows, 5, requires_grad=True)
    target = torch.randint(5, rows)
    weight = torch.rand(5) if weighted else None
    with Compare() as mode:
        loss = F.multi_margin_loss(x, target, p=power, margin=margin, weight=weight, reduction=reduction)
        loss.sum().backward()
    for target_name in ("aten.multi_margin_loss.default", "aten.multi_margin_loss_backward.default"):
        outcome = mode.outcomes[target_name]
        assert outcome.compared == 1
        assert not outcome.faults, outcome.faults
