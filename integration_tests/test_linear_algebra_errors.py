"""Matrices without a factorization are refused where eager refuses them: `info` is looked at, whoever reads it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import stagefold

GOOD = torch.tensor([[2.0, 0.5], [0.5, 1.0]])
SINGULAR = torch.zeros(2, 2)
INDEFINITE = -torch.eye(2)
RIGHT = torch.ones(2, 1)
Call = Callable[[torch.Tensor], torch.Tensor]

CALLS: dict[str, tuple[Call, torch.Tensor]] = {
    "cholesky": (lambda a: torch.linalg.cholesky(a) * 2, INDEFINITE),
    "cholesky, upper": (lambda a: torch.linalg.cholesky(a, upper=True), INDEFINITE),
    "cholesky_ex, checked": (lambda a: torch.linalg.cholesky_ex(a, check_errors=True).L, INDEFINITE),
    "inv": (lambda a: torch.linalg.inv(a) + 1, SINGULAR),
    "inverse": (lambda a: a.inverse(), SINGULAR),
    "inv_ex, checked": (lambda a: torch.linalg.inv_ex(a, check_errors=True).inverse, SINGULAR),
    "solve": (lambda a: torch.linalg.solve(a, RIGHT), SINGULAR),
    "solve from the right": (lambda a: torch.linalg.solve(a, RIGHT.t(), left=False), SINGULAR),
    "lu_factor": (lambda a: torch.linalg.lu_factor(a).LU, SINGULAR),
    "ldl_factor": (lambda a: torch.linalg.ldl_factor(a).LD, SINGULAR),
    "matrix_power": (lambda a: torch.linalg.matrix_power(a, -2), SINGULAR),
    "tensorsolve": (lambda a: torch.linalg.tensorsolve(a, RIGHT[:, 0]), SINGULAR),
    "tensorinv": (lambda a: torch.linalg.tensorinv(a, ind=1), SINGULAR),
}
ONE = ("tensorsolve", "tensorinv")
"""Their dimensions are those of one matrix."""
CONSTANT = ("ldl_factor",)
"""They have no gradient."""


@pytest.mark.parametrize("gradient", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize(
    ("name", "batched"),
    [(name, batched) for name in CALLS for batched in (False, True) if not (batched and name in ONE)],
)
def test_what_has_no_factorization_is_refused(name: str, batched: bool, gradient: bool) -> None:
    call, bad = CALLS[name]
    gradient = gradient and name not in CONSTANT
    compiled = stagefold.compile(call)
    for matrix in (GOOD, bad, GOOD):
        given = torch.stack([GOOD, matrix]) if batched else matrix.clone()
        a, b = (given.clone().requires_grad_(gradient) for _ in range(2))
        if matrix is bad:
            with pytest.raises(RuntimeError) as expected:
                call(a)
            with pytest.raises(type(expected.value)) as found:
                compiled(b)
            assert str(found.value) == str(expected.value)
            continue
        expected_result, result = call(a), compiled(b)
        torch.testing.assert_close(result, expected_result)
        if gradient:
            for y in (expected_result, result):
                y.sum().backward()
            torch.testing.assert_close(b.grad, a.grad)


def test_what_is_not_checked_gives_its_info() -> None:
    def call(a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        factor, info = torch.linalg.cholesky_ex(a)
        return factor * 2, info

    for matrix, info in ((GOOD, 0), (INDEFINITE, 1)):
        assert stagefold.compile(call)(matrix)[1].item() == info


@pytest.mark.parametrize("gradient", [False, True], ids=["inference", "training"])
def test_jitter_is_raised_until_the_matrix_is_positive(gradient: bool) -> None:
    def factor(a: torch.Tensor) -> tuple[torch.Tensor, float]:
        for jitter in (0.0, 1e-3, 1.0, 10.0):
            try:
                return torch.linalg.cholesky(a + jitter * torch.eye(2)), jitter
            except RuntimeError:
                continue
        raise AssertionError("no jitter is enough")

    for matrix in (GOOD, -0.5 * torch.eye(2), -2 * torch.eye(2)):
        a, b = (matrix.clone().requires_grad_(gradient) for _ in range(2))
        (expected, jitter), (found, tried) = factor(a), stagefold.compile(factor)(b)
        assert tried == jitter
        torch.testing.assert_close(found, expected)
        if gradient:
            expected.sum().backward()
            found.sum().backward()
            torch.testing.assert_close(b.grad, a.grad)
