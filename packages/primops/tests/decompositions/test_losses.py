"""Losses with arguments that no sample of torch's database combines."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

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


@pytest.mark.parametrize(
    ("loss", "name"),
    [
        (F.smooth_l1_loss, "smooth_l1_loss"),
        (lambda x, y: F.smooth_l1_loss(x, y, beta=0.5), "smooth_l1_loss"),
        (F.huber_loss, "huber_loss"),
        (lambda x, y: F.huber_loss(x, y, delta=0.5), "huber_loss"),
        (lambda x, y: F.multi_margin_loss(x.reshape(2, 4), (y > 0).long()[:2]), "multi_margin_loss"),
        (lambda x, y: F.multi_margin_loss(x.reshape(2, 4), (y > 0).long()[:2], p=2), "multi_margin_loss"),
    ],
)
def test_nan_and_inf_and_ties(loss: Callable[..., torch.Tensor], name: str) -> None:
    """A gradient is nan where the operand is, and at a distance of exactly beta what eager says."""
    values = (0.0, math.nan, math.inf, -math.inf, 0.5, -0.5, 1.0, -1.0)
    x, y = torch.tensor(values, requires_grad=True), torch.zeros(len(values))
    with Compare() as mode:
        loss(x, y).backward()
    for target in (f"aten.{name}.default", f"aten.{name}_backward.default"):
        assert mode.outcomes[target].compared == 1
        assert not mode.outcomes[target].faults, mode.outcomes[target].faults


@pytest.mark.parametrize(
    ("loss", "name"),
    [
        (F.binary_cross_entropy_with_logits, "binary_cross_entropy_with_logits"),
        (F.huber_loss, "huber_loss"),
        (F.mse_loss, "mse_loss"),
        (F.smooth_l1_loss, "smooth_l1_loss"),
        (F.soft_margin_loss, "soft_margin_loss"),
        (lambda x, y: torch.ldexp(x, 20 * y), "ldexp"),
    ],
)
def test_operands_of_two_dtypes(loss: Callable[..., torch.Tensor], name: str) -> None:
    """The dtype in which eager computes, and that of the result, are not always the operands' common one."""
    floats = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
    for one, other in itertools.permutations(floats, 2):
        torch.manual_seed(0)
        x, y = torch.randn(6).to(one), torch.rand(6).to(other)
        with Compare() as mode:
            loss(x, y)
        if (outcome := mode.outcomes.get(f"aten.{name}.{'Tensor' if name == 'ldexp' else 'default'}")) is not None:
            assert not outcome.faults, outcome.faults
            steps = torch.finfo(max(one, other, key=lambda dtype: torch.finfo(dtype).eps)).eps
            for dtype, ulps in outcome.ulps.items():
                assert ulps * torch.finfo(getattr(torch, dtype)).eps <= 4 * steps, (one, other)


def test_weights_of_another_dtype() -> None:
    """They do not widen the loss: eager weighs in place."""
    x, y, weights = torch.randn(6).half(), torch.rand(6).half(), torch.rand(6)
    with Compare() as mode:
        assert F.binary_cross_entropy_with_logits(x, y, pos_weight=weights).dtype is torch.float16
        F.binary_cross_entropy_with_logits(x, y, weight=weights)
    outcome = mode.outcomes["aten.binary_cross_entropy_with_logits.default"]
    assert outcome.compared == 2
    assert not outcome.faults, outcome.faults
