"""Equality of tensors up to the stated accuracy of the generated code."""

from __future__ import annotations

import torch

TOLERANCE: dict[torch.dtype, float] = {
    torch.float32: 2e-6,
    torch.float64: 1e-12,
    torch.bfloat16: 1.6e-2,
    torch.float16: 2e-3,
}
"""Relative to the largest finite magnitude about; a 16-bit float may round the other way at a tie (two steps)."""


def assert_same(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Equal shape, dtype, nan and inf places, and values within the tolerance of the dtype (exact for integers)."""
    assert found.dtype == expected.dtype, (found.dtype, expected.dtype)
    assert found.shape == expected.shape, (found.shape, expected.shape)
    if not found.dtype.is_floating_point:
        assert torch.equal(found, expected), f"{found.tolist()} is not {expected.tolist()}"
        return
    tolerance = TOLERANCE[found.dtype]
    torch.testing.assert_close(found, expected, rtol=8 * tolerance, atol=tolerance, equal_nan=True)
