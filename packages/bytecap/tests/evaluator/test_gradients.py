"""torch.autograd.grad in captured code: one node of the graph, refused where a history lies outside."""

import pytest
import torch

from bytecap import executor, optimize
from bytecap.errors import StageError, UnsupportedCall
from bytecap.testing.oracle import check


def leaf(requires_grad=True):
    return torch.linspace(0.1, 1, 6).view(2, 3).requires_grad_(requires_grad)


def energy_and_force(x):
    energy = x.sin().sum()
    return energy, -torch.autograd.grad(energy, x)[0]


def penalty(x):
    y = (x * 2).tanh()
    (gradient,) = torch.autograd.grad(
        outputs=y, inputs=[x], grad_outputs=torch.ones_like(y), create_graph=True, only_inputs=True
    )
    return (gradient.norm(2, dim=1) - 1).pow(2).mean()


def of_an_own_leaf(x):
    z = x.detach().requires_grad_()
    return torch.autograd.grad((z**3).sum(), z)[0] + x


def unused(x):
    other = torch.ones(3, requires_grad=True)
    first, second = torch.autograd.grad(x.sin().sum(), (x, other), allow_unused=True)
    return first, second


def materialized(x):
    other = torch.ones(3, requires_grad=True)
    return torch.autograd.grad(x.sin().sum(), (x, other), materialize_grads=True)


def twice(x):
    (first,) = torch.autograd.grad(x.sin().sum(), x, create_graph=True)
    return torch.autograd.grad((first * x.detach()).sum(), x)[0]


@pytest.mark.parametrize("make", [leaf, lambda: leaf() * 1], ids=["leaf", "computed"])
@pytest.mark.parametrize("program", [energy_and_force, penalty, of_an_own_leaf, unused, materialized, twice])
def test_gradients_are_captured_whole(program, make):
    report = check(lambda: (program, ((make(),), {})))
    targets = [node.target for node in report.captures[0].graph.nodes]
    assert "torch.autograd.grad" in targets


def not_used(x):
    return torch.autograd.grad(x.sin().sum(), torch.ones(3, requires_grad=True))


def freed(x):
    y = x.sin().sum()
    return torch.autograd.grad(y, x), torch.autograd.grad(y, x)


def no_scalar(x):
    return torch.autograd.grad(x.sin(), x)


def another_shape(x):
    return torch.autograd.grad(x.sin(), x, torch.ones(2))


@pytest.mark.parametrize("program", [not_used, freed, no_scalar, another_shape])
def test_exceptions_are_eagers(program):
    check(lambda: (program, ((leaf(),), {})), whole=False)


def test_a_history_from_outside_is_refused():
    def program(x, y):
        return torch.autograd.grad((x * y).sum(), x)[0]

    def run(function):
        x = leaf()
        return function(x, x.exp())

    compiled = optimize(program, lambda capture, inputs: executor(capture), fullgraph=True)
    with pytest.raises(UnsupportedCall, match="outside"):
        run(compiled)
    plainly = optimize(program, lambda capture, inputs: executor(capture), on_event=lambda event: None)
    torch.testing.assert_close(run(plainly), run(program))


def test_a_function_with_its_own_backward_is_refused():
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            return gradient * 2

    def program(x):
        return torch.autograd.grad(Double.apply(x).sum(), x)[0]

    with pytest.raises(StageError):
        optimize(program, lambda capture, inputs: executor(capture), fullgraph=True)(leaf())
    plainly = optimize(program, lambda capture, inputs: executor(capture), on_event=lambda event: None)
    torch.testing.assert_close(plainly(leaf()), program(leaf()))


def test_hooks_of_tensors_run_in_gradients_inside():
    def program(x):
        return torch.autograd.grad((x * x).sum(), x, create_graph=True)[0]

    def hooking(x):
        x.register_hook(lambda gradient: gradient * 2)
        return program(x)

    def hooked():
        made = leaf()
        made.register_hook(lambda gradient: gradient * 3)
        return made

    for function, arguments in ((program, (leaf, hooked, leaf)), (hooking, (leaf, leaf))):
        compiled = optimize(function, lambda capture, inputs: _unhooked(capture), on_event=lambda event: None)
        for make in arguments:
            torch.testing.assert_close(compiled(make()), function(make()))


def _unhooked(capture):
    """A backend that, as a compiled one, computes on other tensors than those with the hooks."""
    run = executor(capture)
    return lambda *tensors: run(*[tensor.view_as(tensor) for tensor in tensors])


def test_modules_of_the_compiler_are_not_imported():
    import subprocess
    import sys

    source = (
        "import sys, torch\nfrom bytecap import executor, optimize\n"
        "def f(x):\n    y = x.sin()\n    return torch.autograd.grad(y, x, torch.ones_like(y))[0]\n"
        "optimize(f, lambda capture, inputs: lambda *tensors: tensors)(torch.ones(2, requires_grad=True))\n"
        "assert 'torch._dynamo' not in sys.modules and 'torch.fx.experimental.symbolic_shapes' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", source], check=True, timeout=120)
