"""What eager refuses in a backward: the call goes through, and the backward raises eager's exception."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import stagefold
from stagefold.errors import RunsPlain


def overwritten(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x.exp()
    y.add_(1)
    return y, x * 2


@pytest.mark.parametrize("fullgraph", [True, False])
def test_a_saved_tensor_that_is_overwritten_raises_in_the_backward(fullgraph: bool) -> None:
    found = []
    compiled: Callable[..., Any] = stagefold.compile(overwritten, fullgraph=fullgraph)
    for call in (overwritten, compiled):
        x = torch.linspace(-1, 1, 3, requires_grad=True)
        if call is compiled:
            with pytest.warns(RunsPlain, match="its backward will raise"):
                y, z = call(x)
        else:
            y, z = call(x)
        with pytest.raises(RuntimeError, match="modified by an inplace operation") as raised:
            y.sum().backward()
        z.sum().backward()
        found.append((y.detach(), x.grad, str(raised.value)))
    assert found[1][2] == found[0][2]
    torch.testing.assert_close(found[1][:2], found[0][:2], rtol=0, atol=0)


def test_a_backward_whose_kernels_refuse_the_dtypes_raises_in_the_backward() -> None:
    def divided(x: Tensor, n: Tensor) -> Tensor:
        return torch.addcdiv(x, x, n)

    n = torch.ones(3, dtype=torch.int64)
    for call in (divided, stagefold.compile(divided)):
        x = torch.linspace(1, 2, 3, requires_grad=True)
        y = call(x, n)
        torch.testing.assert_close(y, divided(x, n), rtol=0, atol=0)
        with pytest.raises(RuntimeError, match="can't be cast"):
            y.sum().backward()


MATRIX = torch.tensor([[1.0, 2.0, 0.5], [-1.0, 0.5, 1.0], [0.3, -0.7, 2.0]], dtype=torch.complex64)


@pytest.mark.parametrize("decompose", [torch.linalg.eig, torch.linalg.eigh])
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_loss_that_depends_on_the_phase_of_eigenvectors_raises_in_the_backward(
    decompose: Callable[..., Any], dynamic: bool
) -> None:
    def vectors(x: Tensor) -> Tensor:
        return decompose(x)[1]

    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing runs plain
        for call in (vectors, stagefold.compile(vectors, dynamic=dynamic)):
            x = (MATRIX + 1j * MATRIX.mT).requires_grad_()
            call(x).abs().pow(3).sum().backward()
            with pytest.raises(RuntimeError, match="multiplication by e") as raised:
                call(x).imag.pow(2).sum().backward()
            found.append((x.grad, str(raised.value)))
    assert found[1][1] == found[0][1]
    torch.testing.assert_close(found[1][0], found[0][0])


def test_a_gradient_inside_of_a_program_that_depends_on_the_phase_of_eigenvectors_is_refused() -> None:
    def slope(x: Tensor) -> Tensor:
        return torch.autograd.grad(torch.linalg.eig(x)[1].imag.pow(2).sum(), x)[0]

    messages = []
    for call in (slope, stagefold.compile(slope)):
        with pytest.raises(RuntimeError, match="multiplication by e") as raised:
            call(MATRIX.clone().requires_grad_())
        messages.append(str(raised.value))
    assert messages[1] == messages[0]


def test_an_assertion_on_data_is_made_in_either_direction() -> None:
    class Small(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            torch._assert_async((x.abs() <= 1).all(), "large value")
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            torch._assert_async((gradient.abs() <= 1).all(), "large gradient")
            return gradient * 2

    def program(x: Tensor) -> Tensor:
        return Small.apply(x)  # type: ignore[no-any-return]

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        call = stagefold.compile(program)
        x = torch.linspace(-1, 1, 4, requires_grad=True)
        call(x).sum().backward()
        torch.testing.assert_close(x.grad, torch.full((4,), 2.0))
        with pytest.raises(RuntimeError, match="large gradient"):
            (call(x) * 2).sum().backward()
        with pytest.raises(RuntimeError, match="large value"):
            call(x.detach() + 1)


LOW, WIDE = (3,), (2, 3)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("shapes", [(LOW, LOW, WIDE), (LOW, WIDE, LOW), (WIDE, LOW, LOW), (LOW, WIDE, WIDE)], ids=str)
@pytest.mark.parametrize("needed", [(True, False, False), (False, True, False), (False, False, True)], ids=str)
def test_a_backward_of_clamp_that_writes_a_wider_comparison_raises(
    shapes: tuple[tuple[int, ...], ...], needed: tuple[bool, ...], dynamic: bool
) -> None:
    def clamped(*operands: Tensor) -> Tensor:
        return torch.clamp(*operands)

    found: list[Any] = []
    for call in (clamped, stagefold.compile(clamped, dynamic=dynamic)):
        values = (torch.linspace(-2, 2, 6), torch.tensor(-1.0), torch.tensor(1.0))
        operands = [
            value.expand(6)[: torch.Size(shape).numel()].reshape(shape).clone().requires_grad_(is_needed)
            for value, shape, is_needed in zip(values, shapes, needed, strict=True)
        ]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RunsPlain)
            result = call(*operands)
        try:
            result.sum().backward()
        except RuntimeError as error:
            found.append(str(error))
        else:
            found.append([x.grad for x in operands])
    if isinstance(found[0], str):
        assert found[1] == found[0]
    else:
        torch.testing.assert_close(found[1], found[0])
