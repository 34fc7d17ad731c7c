"""Programs whose gradients take a way of their own, through all stages: torch.autograd.Function, checkpoints, rows at
places that only the run knows."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import bytecap.errors
import stagefold
from stagewire.errors import StageError


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * 5 * x


class Rounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, steps):
        return (x * steps).round() / steps

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


class InPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x.add_(1)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 3


class Clipped(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return F.linear(x, weight), x > 0

    @staticmethod
    def backward(ctx, gradient, of_mask):
        x, weight = ctx.saved_tensors
        kept = gradient.clone()
        kept[:, 0] = 0
        return kept @ weight, kept.t() @ x


class Flat(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view(-1)

    @staticmethod
    def backward(ctx, gradient):
        return gradient.view(3, 4) * 5


class Passed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        return x + 1, y

    @staticmethod
    def backward(ctx, of_sum, of_y):
        return of_sum * 2, of_y * 3


class Sign(torch.autograd.Function):
    """Its gradient does not depend on the one that it is given."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.abs()

    @staticmethod
    def backward(ctx, gradient):
        return ctx.saved_tensors[0].sign()


def write_row(x, w):
    y = x * 2
    y[w[0].argmax() - 1] = w[1]
    y[:, w[1].argmin()] = 0.5
    return y * y


PROGRAMS = {
    "square": lambda x, w: Square.apply(x * 2) + 1,
    "rounded": lambda x, w: Rounded.apply(x, 4) * x,
    "in place": lambda x, w: InPlace.apply(x * 1) * 2,
    "clipped": lambda x, w: Clipped.apply(x.tanh(), w)[0],
    "mask": lambda x, w: torch.where(*reversed(Clipped.apply(x, w.sigmoid()[:4])), x),
    "row": lambda x, w: (x * 2)[w[:3, 0].argmax()] * w[:, w[2].argmax() - 2],
    "write row": write_row,
    "checkpoint": lambda x, w: checkpoint(lambda a, b: (a @ b).sin(), x, w, use_reentrant=False),
    "view": lambda x, w: Flat.apply(x * 1),
    "view of a leaf": lambda x, w: Flat.apply(x) * 2,
    "operand": lambda x, w: Passed.apply(x, w[:3])[1] * 2,
    "nested": lambda x, w: Square.apply(Rounded.apply(Square.apply(x), 8)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients(name: str) -> None:
    def run(function):
        generator = torch.Generator().manual_seed(3)
        x, w = (torch.randn(size, 4, generator=generator).requires_grad_() for size in (3, 4))
        result = function(x, w)
        return result, *torch.autograd.grad((result * result).sum(), (x, w), allow_unused=True)

    compiled = stagefold.compile(PROGRAMS[name], fullgraph=True)
    for expected, found in zip(run(PROGRAMS[name]), run(compiled), strict=True):
        assert (expected is None) == (found is None)
        if expected is not None:
            torch.testing.assert_close(found, expected)


SEVERAL = {
    "constant": lambda x, w: (Sign.apply(x * 2), Sign.apply(w).sin()),
    "pair": lambda x, w: Passed.apply(x * 2, w * 2),
    "through": lambda x, w: (Sign.apply(Square.apply(x)) * 2, w * 3),
}


@pytest.mark.parametrize("name", SEVERAL)
def test_gradients_of_some_results(name: str) -> None:
    """A custom function gives gradients where one arrives, whatever it does with that."""
    program = SEVERAL[name]

    def gradients(function, used: int):
        generator = torch.Generator().manual_seed(3)
        x, w = (torch.randn(3, 4, generator=generator).requires_grad_() for _ in range(2))
        function(x, w)[used].sum().backward()
        return x.grad, w.grad

    compiled = stagefold.compile(program, fullgraph=True)
    for used in range(len(program(*torch.ones(2, 3, 4)))):
        for expected, found in zip(gradients(program, used), gradients(compiled, used), strict=True):
            assert (expected is None) == (found is None)
            if expected is not None:
                torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    "program",
    [Flat.apply, lambda x: Passed.apply(x * 1, x), lambda x: (lambda y: (y, Flat.apply(y)))(x * 1)],
    ids=["leaf", "operand", "both"],
)
def test_view_with_its_own_gradient(program) -> None:
    """It cannot be made again from what it is a view of: refused, and right where that is no error."""

    def gradient(function):
        x = torch.ones(3, 4, requires_grad=True)
        results = function(x)
        results = results if isinstance(results, tuple) else (results,)
        return torch.autograd.grad(sum((result * result).sum() for result in results), x)

    with pytest.raises(StageError, match="AG007"):
        stagefold.compile(lambda x: program(x), fullgraph=True)(torch.ones(3, 4, requires_grad=True))
    torch.testing.assert_close(gradient(stagefold.compile(lambda x: program(x))), gradient(program))


def test_row_out_of_range() -> None:
    compiled = stagefold.compile(lambda x, i: x[i] * 2, fullgraph=True)
    torch.testing.assert_close(compiled(torch.arange(3.0), torch.tensor(-3)), torch.tensor(0.0))
    with pytest.raises(IndexError):
        compiled(torch.arange(3.0), torch.tensor(-4))


def test_written_row_is_refused() -> None:
    """A copy of the row stands for the view in the trace, and must not be written."""

    def program(x, i):
        y = x * 2
        y[i] += 1
        return y

    with pytest.raises(StageError, match="AG004"):
        stagefold.compile(program, fullgraph=True)(torch.ones(3), torch.tensor(1))
    with pytest.raises(StageError, match="AG007"):
        stagefold.compile(lambda x, i: x[i], fullgraph=True)(torch.ones(3), torch.tensor(1))


def test_default_generator_by_name() -> None:
    def program(x):
        draws = torch.randn(3, generator=None), torch.rand(3, generator=None), torch.randperm(3, generator=None)
        return x + draws[0] * draws[1] + draws[2] + torch.randint(0, 5, (3,), generator=None)

    compiled = stagefold.compile(program, fullgraph=True)
    torch.manual_seed(3)
    expected = program(torch.ones(3))
    torch.manual_seed(3)
    torch.testing.assert_close(compiled(torch.ones(3)), expected)


class Directions(torch.nn.Module):
    """Power iteration as in many spectral norms: the data of buffers is assigned in each call."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.weight = torch.nn.Parameter(torch.randn(5, 4))
        self.u = torch.nn.Parameter(torch.randn(5), requires_grad=False)
        self.v = torch.nn.Parameter(torch.randn(4), requires_grad=False)

    def forward(self, x):
        for _ in range(2):
            self.v.data = F.normalize(self.weight.data.t() @ self.u.data, dim=0)
            self.u.data = F.normalize(self.weight.data @ self.v.data, dim=0)
        self.scaled = self.weight / (self.u @ (self.weight @ self.v))
        return F.linear(x, self.scaled)


def test_assigned_data() -> None:
    outcomes = []
    for compiled in (False, True):
        module = Directions()
        call = stagefold.compile(module, fullgraph=True) if compiled else module
        for _ in range(3):
            call(torch.ones(2, 4)).square().sum().backward()
        outcomes.append((module.weight.grad, module.u.detach(), module.v.detach(), module.scaled.detach()))
    for expected, found in zip(*outcomes, strict=True):
        torch.testing.assert_close(found, expected)


class Binary(torch.nn.Module):
    """A layer that computes with the signs of its weights, and puts the weights back at once."""

    def __init__(self, layer) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x):
        kept = self.layer.weight.data.clone()
        self.layer.weight.data = torch.sign(self.layer.weight.data)
        y = self.layer(x)
        self.layer.weight.data = kept
        return y


@pytest.mark.parametrize("make", [lambda: torch.nn.Linear(3, 3), lambda: torch.nn.Conv1d(3, 2, 1)])
def test_data_assigned_behind_a_use(make) -> None:
    # Linear's backward reads a view of the signs; Conv1d's reads the parameter, which has its weights again.
    torch.manual_seed(2)
    outcomes = []
    layer = make()
    for compiled in (False, True):
        module = Binary(layer)
        x = torch.ones(3, 3, requires_grad=True)
        call = stagefold.compile(module, fullgraph=True) if compiled else module
        layer.zero_grad()
        y = call(x)
        y.sum().backward()
        outcomes.append((y, x.grad, layer.weight.grad, layer.weight.detach().clone()))
    for expected, found in zip(*outcomes, strict=True):
        torch.testing.assert_close(found, expected)


def test_data_that_is_written_later_is_refused() -> None:
    def program(x):
        y = torch.ones(3)
        x.data = y
        y.add_(1)
        return x * 2

    with pytest.raises(StageError, match="AG004"):
        stagefold.compile(program, fullgraph=True)(torch.zeros(3))


@pytest.mark.parametrize("program", [
    lambda x, y: (x * 2 + y * 2).sum(), lambda x, y: (x + y).sum(), lambda x, y: (x.sin() * y.exp()).sum(),
    lambda x, y: (x.exp() + y.view(2, 2).t().reshape(4)).sum(), lambda x, y: (x * 3).sum() + (y * 3).sum(),
])  # fmt: skip
def test_gradients_share_memory_where_eagers_do(program: Callable[..., torch.Tensor]) -> None:
    """Whoever scales gradients in place scales each of them once."""
    inputs = [torch.rand(4, requires_grad=True) for _ in range(2)]

    def scaled(call: Callable[..., torch.Tensor]) -> tuple[torch.Tensor, ...]:
        gradients = torch.autograd.grad(call(*inputs), inputs)
        if gradients[0].stride() == gradients[1].stride() == (1,):
            for gradient in gradients:
                gradient.mul_(0.5)
        return gradients

    expected = scaled(program)
    found = scaled(stagefold.compile(program, fullgraph=True))
    torch.testing.assert_close(found, expected)
    shared = [one.untyped_storage().data_ptr() == two.untyped_storage().data_ptr() for one, two in (found, expected)]
    assert not shared[0] or shared[1]


class Implicit(torch.autograd.Function):
    """Its backward differentiates by two saved tensors, one of which may come from the other."""

    @staticmethod
    def forward(ctx, y, v, w):
        x = y / 2
        ctx.save_for_backward(x, v, w)
        return x

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient):
        x, v, w = ctx.saved_tensors
        with torch.enable_grad():
            y = v * x.detach() * w
        return (gradient, *torch.autograd.grad(y, (v, w), -gradient, retain_graph=True))


@pytest.mark.parametrize("is_leaf", [True, False])
def test_gradients_by_saved_tensors_of_which_one_comes_from_the_other(is_leaf: bool) -> None:
    """Autograd walks on through the history of `v`, which lies outside of the graph, to `w`: the graph ends."""

    def program(y, v, w):
        return Implicit.apply(y, v, w) * 1

    found = []
    for run in (stagefold.compile(program), program):
        w, y = torch.tensor(0.7, requires_grad=True), torch.ones(4)
        v = torch.tensor(1.4, requires_grad=True) if is_leaf else w * 2
        run(y, v, w).sum().backward()
        found.append((w.grad, v.grad if is_leaf else None))
    assert found[0] == found[1]
    if not is_leaf:
        with pytest.raises(bytecap.errors.UnsupportedCall):
            stagefold.compile(program, fullgraph=True)(y, w * 2, w)


class DifferentiableOnce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.exp()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient):
        return gradient * ctx.saved_tensors[0].exp()


@pytest.mark.parametrize("outside", [lambda y: y, lambda y: y**2], ids=["itself", "its square"])
@pytest.mark.parametrize(
    "call",
    [
        lambda x: DifferentiableOnce.apply(x) ** 2,
        lambda x: DifferentiableOnce.apply(x.sin()),
        lambda x: DifferentiableOnce.apply(x) + x**3,
    ],
    ids=["inside", "behind", "beside"],
)
def test_a_gradient_that_is_differentiable_once(call, outside) -> None:
    """What depends on the input, or on the gradient that arrives, through it is no constant: to differentiate it is an
    error. The rest has its own."""
    found = []
    for run in (call, stagefold.compile(call)):
        x = torch.ones(3, requires_grad=True)
        (gradient,) = torch.autograd.grad(outside(run(x)).sum(), x, create_graph=True)
        try:
            gradient.sum().backward()
        except RuntimeError as error:
            found.append("differentiate twice" in str(error))
        else:
            found.append(x.grad)
    torch.testing.assert_close(*found)
