"""Gradients of gradients through compiled programs, where torch.compile raises: values as in eager."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import stagefold
from integration_tests.zoo.devices import ON_GPU
from stagewire.errors import StageError

Run = Callable[[Callable[..., Tensor]], Any]


def same_both_ways(program: Callable[..., Tensor], use: Run) -> None:
    """`use` of the program answers alike when it is compiled."""
    torch.manual_seed(3)
    expected = use(program)
    torch.manual_seed(3)
    found = use(stagefold.compile(program, fullgraph=True))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def model_both_ways(model: nn.Module, use: Run) -> None:
    """The same, for the gradients that `use` leaves on the parameters of a model too."""
    found = []
    for call in (lambda m: m, lambda m: stagefold.compile(m, fullgraph=True)):
        own = copy.deepcopy(model)
        torch.manual_seed(3)
        answer = use(call(own))
        found.append((answer, [p.grad for p in own.parameters()], list(own.buffers()), torch.rand(2)))
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-5)


def test_gradient_penalty_of_a_critic() -> None:
    critic = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.LeakyReLU(0.2), nn.Flatten(), nn.Linear(144, 1)
    )  # fmt: skip

    def use(call: Callable[..., Tensor]) -> Tensor:
        images = torch.randn(4, 1, 8, 8, requires_grad=True)
        scores = call(images)
        (gradient,) = torch.autograd.grad(scores.sum(), images, create_graph=True)
        (((gradient.flatten(1).norm(dim=1) - 1) ** 2).mean() + scores.mean()).backward()
        return images.grad

    model_both_ways(critic, use)


def test_force_matching_with_dropout() -> None:
    """The second order sees the same masks, and leaves the random stream where eager does."""
    potential = nn.Sequential(nn.Linear(3, 16), nn.SiLU(), nn.Dropout(0.3), nn.Linear(16, 1))

    def use(call: Callable[..., Tensor]) -> Tensor:
        places = torch.randn(5, 3, requires_grad=True)
        (gradient,) = torch.autograd.grad(call(places).sum(), places, create_graph=True)
        (gradient + 1).square().sum().backward()
        return places.grad

    model_both_ways(potential, use)


def test_hessian_vector_product() -> None:
    def use(call: Callable[..., Tensor]) -> Any:
        x, w = torch.randn(3, 4, requires_grad=True), torch.randn(4, 5, requires_grad=True)
        first = torch.autograd.grad(call(x, w), (x, w), create_graph=True)
        return torch.autograd.grad(sum((g * g.detach()).sum() for g in first), (x, w))

    same_both_ways(lambda x, w: F.log_softmax(F.layer_norm(torch.tanh(x @ w), (5,)), -1)[:, 0].sum(), use)


def test_hessian_by_torch() -> None:
    x = torch.linspace(-1, 1, 4)
    same_both_ways(lambda x: (x.sin() * x**3).sum(), lambda call: torch.autograd.functional.hessian(call, x))


@pytest.mark.parametrize("order", [3, 4])
def test_higher_orders(order: int) -> None:
    def use(call: Callable[..., Tensor]) -> list[Tensor]:
        x = torch.linspace(-1, 1, 4).requires_grad_()
        answers = [call(x)]
        for _ in range(order):
            answers += torch.autograd.grad(answers[-1].sum(), x, create_graph=True)
        return [answer.detach() for answer in answers]

    same_both_ways(lambda x: x.exp() * x.sin() * x.detach(), use)


class Cube(torch.autograd.Function):
    """Its backward applies another Function: the usual way to write a second derivative by hand."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return CubeBackward.apply(*ctx.saved_tensors, gradient)


class CubeBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, gradient: Tensor) -> Tensor:
        ctx.save_for_backward(x, gradient)
        return 3 * x**2 * gradient

    @staticmethod
    def backward(ctx: Any, second: Tensor) -> tuple[Tensor, Tensor]:
        x, gradient = ctx.saved_tensors
        return 7 * x * gradient * second, 3 * x**2 * second  # 7, where 6 is right: it is this that counts


class Exponential(torch.autograd.Function):
    """Its backward applies itself, and saves only where gradients are wanted."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        if ctx.needs_input_grad[0]:
            ctx.save_for_backward(x)
        return x.exp()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return Exponential.apply(*ctx.saved_tensors) * gradient


class OnceOnly(torch.autograd.Function):
    """Its backward applies a Function whose own backward cannot be captured."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return OnceOnlyBackward.apply(*ctx.saved_tensors) * gradient


class OnceOnlyBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        raise ValueError("no second derivative")


@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("function", [Cube, Exponential])
def test_backwards_that_apply_functions(function: Any, order: int) -> None:
    def use(call: Callable[..., Tensor]) -> list[Tensor]:
        x = torch.linspace(0.5, 1, 4, requires_grad=True)
        value, found = call(x).sum(), []
        for _ in range(order):
            (gradient,) = torch.autograd.grad(value, x, create_graph=True)
            found.append(gradient.detach())
            value = (gradient * x).sum()
        return found

    same_both_ways(lambda x: function.apply(x * 2), use)


def test_a_backward_of_a_backward_that_cannot_be_captured_is_needed_by_the_second_order_alone() -> None:
    call = stagefold.compile(lambda x: OnceOnly.apply(x), fullgraph=True)
    x = torch.ones(3, requires_grad=True)
    (gradient,) = torch.autograd.grad(call(x).sum(), x)
    assert gradient.tolist() == [2, 2, 2]
    (gradient,) = torch.autograd.grad(call(x).sum(), x, create_graph=True)
    with pytest.raises(StageError, match="OnceOnlyBackward was captured without its backward"):
        gradient.sum().backward()


def test_tangents_are_differentiated_too() -> None:
    def use(call: Callable[..., Tensor]) -> Any:
        x, tangent = torch.randn(4, requires_grad=True), torch.randn(4, requires_grad=True)
        (gradient,) = torch.autograd.grad(call(x), x, tangent, create_graph=True)
        return torch.autograd.grad(gradient.square().sum(), (x, tangent))

    same_both_ways(lambda x: x.sigmoid() * x, use)


def test_second_order_programs_come_from_the_cache_of_the_next_process(tmp_path: Any) -> None:
    def square(x: Tensor) -> Tensor:
        return (x.sin() ** 2).sum()

    def hessian(call: Callable[..., Tensor]) -> Tensor:
        x = torch.linspace(-1, 1, 3)
        return torch.autograd.functional.hessian(call, x)

    options = {"cache_dir": str(tmp_path)}
    found = [hessian(stagefold.compile(square, fullgraph=True, options=options)) for _ in range(2)]
    torch.testing.assert_close(found[1], hessian(square))
    assert len(list(tmp_path.glob("programs/*/*.program"))) == 2  # the program, and its gradient's
    assert torch.equal(*found)


def test_a_loss_alone_gets_a_backward_of_its_own() -> None:
    """From the third time on; whichever outputs are differentiated in between, gradients are those of eager."""

    def program(x: Tensor, w: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        logits = F.layer_norm(x @ w, (7,))
        return logits, F.cross_entropy(logits, targets)

    call = stagefold.compile(program, fullgraph=True)
    for used in ((1,), (1,), (1,), (1,), (0, 1), (0,), (0,), (0,), (1,), (0, 1)):
        results = []
        for run in (program, call):
            torch.manual_seed(1)
            x, w = torch.randn(5, 4, requires_grad=True), torch.randn(4, 7, requires_grad=True)
            outputs = run(x, w, torch.arange(5))
            sum(outputs[number].sin().sum() for number in used).backward()
            results.append((x.grad, w.grad))
        torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("length", [1, 5, 8])
@pytest.mark.parametrize(("device", "mode"), [("cpu", "generic"), pytest.param("cuda", "pointwise", marks=ON_GPU)])
def test_associative_scan_has_gradients(device: str, mode: str, length: int) -> None:
    """A recurrence by steps, as state space models write it for compilers: eager's own kernel of it has no gradient."""
    scan = sys.modules["torch._higher_order_ops.associative_scan"].associative_scan  # type: ignore[attr-defined]

    def combine(left: tuple[Tensor, Tensor], right: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return left[0] * right[0], right[0] * left[1] + right[1]

    def program(a: Tensor, b: Tensor) -> Tensor:
        return scan(combine, (a, b), 1, combine_mode=mode)[1]

    def steps(a: Tensor, b: Tensor) -> Tensor:
        states = [b[:, 0]]
        for i in range(1, length):
            states.append(a[:, i] * states[-1] + b[:, i])
        return torch.stack(states, 1)

    given = [torch.rand(2, length, 3, device=device, requires_grad=True) for _ in range(2)]
    found, expected = stagefold.compile(program, fullgraph=True)(*given), steps(*given)
    torch.testing.assert_close(found, expected)
    weights = torch.rand_like(expected)
    for mine, theirs in zip(
        torch.autograd.grad((found * weights).sum(), given, allow_unused=True, materialize_grads=True),
        torch.autograd.grad((expected * weights).sum(), given, allow_unused=True, materialize_grads=True),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs)
