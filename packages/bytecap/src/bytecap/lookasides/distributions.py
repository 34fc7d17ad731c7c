"""torch.distributions: what of it branches on data in its own way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.distributions import constraints

from bytecap.objects.base import Value
from bytecap.torch_capabilities import TORCH


def _is_symmetric(constraint: Any, value: torch.Tensor) -> torch.Tensor:
    """`check` of the constraint, which asks a tensor whether the matrices are square."""
    if value.shape[-2] != value.shape[-1]:
        return torch.full(value.shape[:-2], False, dtype=torch.bool, device=value.device)
    return torch.isclose(value, value.mT, atol=1e-6).all(-2).all(-1)


def _is_positive_definite(constraint: Any, value: torch.Tensor) -> torch.Tensor:
    """`check` of the constraint: where a matrix is not symmetric, only that is said."""
    symmetric = _is_symmetric(constraint, value)
    if value.shape[-2] != value.shape[-1]:
        return symmetric
    positive = torch.linalg.cholesky_ex(value).info.eq(0)
    return torch.where(symmetric.all(), positive, symmetric)


def _is_constraint_met(valid: torch.Tensor, error_message: str) -> torch.Tensor:
    """The condition of a branch that raises, as a tensor: its bool() would end the graph ahead of the branch."""
    return torch.ops.aten._is_all_true(valid)


def _inlined(function: Callable[..., Any]) -> Callable[..., Value]:
    return lambda tracer, *args, **kwargs: tracer.objects.wrap(function, None).call(tracer, list(args), kwargs)


DISTRIBUTIONS: dict[Any, Callable[..., Value]] = {
    type(constraints.symmetric).check: _inlined(_is_symmetric),
    type(constraints.positive_definite).check: _inlined(_is_positive_definite),
    TORCH.is_constraint_met: _inlined(_is_constraint_met),
}
