"""Values that an operator does not take are refused where eager refuses them."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

import stagefold


@pytest.mark.parametrize("dynamic", [False, True], ids=["fixed", "symbolic"])
@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_binary_cross_entropy_takes_probabilities(dtype: torch.dtype, reduction: str, dynamic: bool) -> None:
    def loss(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.binary_cross_entropy(x * 2, target, reduction=reduction)

    compiled = stagefold.compile(loss, dynamic=dynamic)
    target = torch.tensor([0.0, 1.0, 0.25, 1.0, 0.0], dtype=dtype)
    for tried in (0.0, 0.5, -1e-6, 0.5001, math.nan, math.inf, -math.inf, 0.25):
        x, y = (torch.full((5,), 0.3, dtype=dtype) for _ in range(2))
        for one in (x, y):
            one[3] = tried
            one.requires_grad_()
        if not 0 <= tried <= 0.5:
            with pytest.raises(RuntimeError, match="should be between 0 and 1"):
                loss(x, target)
            with pytest.raises(RuntimeError, match="should be between 0 and 1"):
                compiled(y, target)
            continue
        expected, found = loss(x, target), compiled(y, target)
        torch.testing.assert_close(found, expected)
        expected.sum().backward()
        found.sum().backward()
        torch.testing.assert_close(y.grad, x.grad)
