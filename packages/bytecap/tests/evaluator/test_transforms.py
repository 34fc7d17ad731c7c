"""Transforms of torch.func in captured code: one graph with torch's own transforms in it, or a clean refusal."""

import warnings

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, grad_and_value, hessian, jacfwd, jacrev, jvp, vjp, vmap

from bytecap import executor, optimize
from bytecap.errors import StageError
from bytecap.testing.breaking import forced_breaks, once
from bytecap.testing.oracle import check, observe

WEIGHT = torch.linspace(-1, 1, 9).view(3, 3)
TRAINED = WEIGHT.clone().requires_grad_()
torch.manual_seed(0)
NET = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


def energy(x):
    return (x @ WEIGHT).tanh().sum()


def trained(x):
    return (x @ TRAINED).tanh().sum()


def loss(params, x, y):
    return (functional_call(NET, params, (x,)) - y).pow(2).mean()


def per_sample(x):
    params = {name: value.detach() for name, value in NET.named_parameters()}
    return vmap(grad(loss), in_dims=(None, 0, 0))(params, x, x.sum(-1, keepdim=True))


def an_ensemble(x):
    stacked = {name: torch.stack([value, value * 2]) for name, value in NET.named_parameters()}
    return vmap(lambda params, x: functional_call(NET, params, (x,)), in_dims=(0, None))(stacked, x)


def effects_inside(x):
    log = []

    def row(v):
        log.append(tuple(v.shape))
        return v.sum()

    return vmap(row)(x), log


def numbers_inside(x):
    return vmap(lambda row: row.sum() * 2 + 0.5)(x)


def no_grad_around(x):
    with torch.no_grad():
        return grad(energy)(x)


def no_grad_inside(x):
    def f(v):
        with torch.no_grad():
            offset = v.pow(2).sum()
        return v.pow(3).sum() - offset

    return grad(f)(x)


OUTSIDE = vmap(grad(energy))

with warnings.catch_warnings():
    # The first use of forward mode imports modules of torch, some of which warn.
    warnings.simplefilter("ignore")
    jvp(torch.sin, (WEIGHT,), (WEIGHT,))

PROGRAMS = {
    "grad": lambda x: grad(energy)(x),
    "grad, closed over what needs a gradient": lambda x: grad(trained)(x),
    "grad of grad": lambda x: grad(lambda y: grad(energy)(y).pow(2).sum())(x),
    "grad_and_value": lambda x: grad_and_value(energy)(x),
    "grad with aux": lambda x: grad(lambda a, s: (energy(a) * s, (a * 2, a)), has_aux=True)(x, 3),
    "grad by several": lambda x: grad(lambda a, b: (a * b).sum(), argnums=(0, -1))(x, x + 1),
    "grad of one tensor twice": lambda x: grad(lambda a, b: (a * b.sin()).sum(), argnums=1)(x, x),
    "grad by name": lambda x: grad(lambda a, *, s: (a * s).sum())(x, s=x),
    "vmap": lambda x: vmap(energy)(x),
    "vmap of what needs a gradient": lambda x: vmap(trained)(x),
    "vmap over other dimensions": lambda x: vmap(lambda a, b: a * b.sum(), in_dims=(1, None), out_dims=1)(x, x),
    "vmap of no rows": lambda x: vmap(lambda v: (v * 2, v.sum()))(x[:0]),
    "vmap of trees": lambda x: vmap(lambda d: {"o": d["a"] + d["b"]}, in_dims=({"a": 0, "b": None},))(
        {"a": x, "b": x[0]}
    ),
    "vmap with a name": lambda x: vmap(lambda a, b=None: a + b)(x, b=x),
    "vmap in chunks": lambda x: vmap(energy, chunk_size=2)(x),
    "vmap of vmap": lambda x: vmap(lambda a: vmap(lambda b: (a * b).sum())(x))(x),
    "vmap with random numbers": lambda x: vmap(lambda a: a + torch.rand(3), randomness="different")(x),
    "vmap that raises": lambda x: vmap(lambda a: a + torch.rand(3))(x),
    "vmap of several results": lambda x: vmap(lambda a: (a.sin(), [a.sum()]))(x),
    "jvp": lambda x: jvp(energy, (x,), (x.cos(),)),
    "jvp of several": lambda x: jvp(lambda a, b: (a * b, {"s": a}), (x, x + 1), (x.cos(), x)),
    "vjp": lambda x: vjp(lambda a: a @ TRAINED, x)[1](torch.ones(4, 3)),
    "vjp, its results": lambda x: vjp(lambda a, b: (a * b, a + b), x, x + 1)[0],
    "jacrev": lambda x: jacrev(lambda a: a @ WEIGHT)(x),
    "jacrev of trees": lambda x: jacrev(lambda d: {"y": d["x"].sin()})({"x": x}),
    "jacfwd": lambda x: jacfwd(lambda a: (a @ TRAINED).sin())(x),
    "hessian": lambda x: hessian(energy)(x),
    "vmap of hessian": lambda x: vmap(hessian(lambda v: (v @ WEIGHT).tanh().sum()))(x),
    "per-sample gradients": per_sample,
    "an ensemble": an_ensemble,
    "made outside": lambda x: OUTSIDE(x),
    "effects inside": effects_inside,
    "numbers inside": numbers_inside,
    "no_grad around": no_grad_around,
    "no_grad inside": no_grad_inside,
    "torch.autograd.functional": lambda x: torch.autograd.functional.hvp(energy, x, x)[1],
}


def points(requires_grad=False):
    return torch.linspace(0.1, 1, 12).view(4, 3).requires_grad_(requires_grad)


@pytest.mark.parametrize("needs_grad", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_transforms_are_captured_whole(name, needs_grad):
    check(lambda: (PROGRAMS[name], ((points(needs_grad),), {})), whole=name != "vmap that raises")


def a_branch_inside(x):
    def f(v):
        return v.sum() if v.sum() > 0 else -v.sum()

    return grad(f)(x)


def a_check_inside(x):
    def f(v):
        assert (v > 0).all()
        return v.pow(2).sum()

    return grad(f)(x)


def a_write_inside(x):
    total = torch.zeros(4, 3)

    def f(v):
        total.add_(1)
        return v.sum()

    return grad(f)(x), total


def a_tensor_that_leaves(x):
    kept = []

    def f(v):
        kept.append(v * 2)
        return v.sum()

    return vmap(f)(x), kept[0].shape


class Double(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x * 2

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


def a_function_inside(x):
    return grad(lambda v: Double.apply(v).sum())(x)


def a_way_back_out_of_no_grad(x):
    with torch.no_grad():
        value, back = vjp(lambda v: (v @ WEIGHT).tanh(), x * TRAINED[0])
    return value, back(torch.ones(4, 3))[0]


def of_text(x):
    return grad(lambda v: (v.sum(), "text"), has_aux=True)(x)


@pytest.mark.parametrize(
    "program",
    [
        a_branch_inside,
        a_check_inside,
        a_write_inside,
        a_function_inside,
        of_text,
        a_way_back_out_of_no_grad,
    ],
)
def test_what_is_refused_runs_plain(program):
    compiled = optimize(program, lambda capture, inputs: executor(capture), fullgraph=True)
    with pytest.raises(StageError):
        compiled(points())
    check(lambda: (program, ((points(),), {})), whole=False)


def test_a_tensor_of_an_example_may_be_asked_for_its_type_outside():
    check(lambda: (a_tensor_that_leaves, ((points(),), {})))


@pytest.mark.parametrize("count", range(0, 30, 3))
def test_breaks_around_a_transform(count):
    def program(x, log):
        differentiate = grad(energy)
        log.append(1)
        y = differentiate(x)
        log.append(2)
        _, back = vjp(energy, y)
        return back(torch.ones(())), jacrev(energy)(y)

    plain = observe(program, ((points(), []), {}))
    with forced_breaks(once(count)):
        call = optimize(program, lambda capture, inputs: executor(capture), on_event=lambda event: None)
        captured = observe(call, ((points(), []), {}))
    torch.testing.assert_close(captured.result, plain.result)
    assert captured.arguments[0][1] == plain.arguments[0][1]


def test_a_capture_under_an_outer_transform_runs_plain():
    compiled = optimize(energy, lambda capture, inputs: executor(capture), on_event=lambda event: None)
    torch.testing.assert_close(grad(compiled)(points()), grad(energy)(points()))
    torch.testing.assert_close(vmap(compiled)(points()), vmap(energy)(points()))
