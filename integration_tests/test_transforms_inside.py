"""torch.func in compiled code, through all stages: per-sample gradients, ensembles, Hessians, forward mode."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor, nn
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

import stagefold

torch.manual_seed(0)
NET = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))


def loss(params: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
    return (functional_call(NET, params, (x,)) - y).pow(2).mean()


def per_sample_norms(x: Tensor) -> Tensor:
    params = {name: value.detach() for name, value in NET.named_parameters()}
    found = vmap(grad(loss), in_dims=(None, 0, 0))(params, x, x.sum(-1, keepdim=True))
    return torch.stack([g.flatten(1).norm(dim=1) for g in found.values()]).sum(0) + NET(x).sum()


def ensemble(x: Tensor) -> Tensor:
    stacked = {name: torch.stack([value, value * 2]) for name, value in NET.named_parameters()}
    return vmap(lambda params: functional_call(NET, params, (x,)))(stacked).sum()


def curvature(x: Tensor) -> Tensor:
    return vmap(hessian(lambda v: NET(v).sum()))(x).diagonal(dim1=-2, dim2=-1).sum()


def directional(x: Tensor) -> Tensor:
    value, slope = jvp(lambda v: NET(v).sum(), (x,), (x.cos(),))
    return value + slope


def pulled_back(x: Tensor) -> Tensor:
    value, back = vjp(NET, x)
    return (back(value.detach())[0] * x).sum()


def jacobians(x: Tensor) -> Tensor:
    return (jacrev(NET)(x) - 2 * jacfwd(NET)(x)).pow(2).sum()


def dual_numbers(x: Tensor) -> Tensor:
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, x.cos())
        value, slope = forward_ad.unpack_dual(NET(dual * 2 + 1).square().sum())
    return value + slope * 3


@pytest.mark.parametrize("backend", ["eager", "stagefold", "aot_eager"])
@pytest.mark.parametrize(
    "program", [per_sample_norms, ensemble, curvature, directional, pulled_back, jacobians, dual_numbers]
)
def test_transforms_and_what_is_learnt_through_them(program: Callable[[Tensor], Tensor], backend: str) -> None:
    found = []
    for call in (program, stagefold.compile(program, fullgraph=True, backend=backend)):
        NET.zero_grad()
        x = torch.linspace(-1, 1, 12).view(4, 3).requires_grad_()
        value = call(x)
        value.sum().backward()
        found.append((value, x.grad, [parameter.grad for parameter in NET.parameters()]))
    torch.testing.assert_close(*found)


def test_numbers_inside_of_two_maps() -> None:
    def program(x: Tensor) -> Tensor:
        return vmap(vmap(lambda s: s * 2 + 1))(x)

    x = torch.linspace(-1, 1, 12).view(4, 3)
    torch.testing.assert_close(stagefold.compile(program, fullgraph=True)(x), program(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(), (3,)])
def test_a_gradient_that_is_zero_by_rule(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """That of `sgn`, which autograd makes of sizes alone."""
    x = torch.full(shape, 1.5, dtype=dtype, requires_grad=True)
    (gradient,) = torch.autograd.grad(stagefold.compile(torch.sgn, fullgraph=True)(x).sum(), x)
    assert torch.equal(gradient, torch.zeros(shape, dtype=dtype))


@pytest.mark.parametrize("transform", [grad, vjp, jvp])
def test_a_transform_whose_result_is_zero_by_rule(transform: Callable[..., object]) -> None:
    def program(x: Tensor) -> object:
        if transform is jvp:
            return jvp(torch.sgn, (x,), (torch.ones_like(x),))
        return vjp(torch.sgn, x)[1](torch.ones_like(x)) if transform is vjp else grad(torch.sgn)(x)

    x = torch.tensor(1.5)
    torch.testing.assert_close(stagefold.compile(program, fullgraph=True)(x), program(x), rtol=0, atol=0)
