"""Programs run plain and captured: torch.autograd.Function, whose own backward must be the one that runs."""

from __future__ import annotations

import pytest
import torch

from bytecap import executor, optimize
from bytecap.errors import CannotCapture
from bytecap.testing import check
from bytecap.testing.comparison import differences
from stagewire.codec import decode, encode
from stagewire.verify import verify

FACTOR = 3.0
SEEN: list[str] = []


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * 5 * x


class StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, steps=2):
        ctx.steps = steps
        return (x * steps).round()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.steps, None


class TwoResults(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a * b, a + b

    @staticmethod
    def backward(ctx, of_product, of_sum):
        a, b = ctx.saved_tensors
        to_a = to_b = None
        if ctx.needs_input_grad[0]:
            to_a = of_product * b + 2 * of_sum
        if ctx.needs_input_grad[1]:
            to_b = of_product * a + 3 * of_sum
        return to_a, to_b


class WithIndices(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        indices, result = x.argmax(1), x.exp()
        ctx.mark_non_differentiable(indices)
        ctx.save_for_backward(result)
        return result, indices

    @staticmethod
    def backward(ctx, gradient, of_indices):
        (result,) = ctx.saved_tensors
        return gradient * result * 2


class Apart(torch.autograd.Function):
    @staticmethod
    def forward(x, scale=3.0):
        return x * scale

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.scale = inputs[1]
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx, gradient):
        (result,) = ctx.saved_tensors
        return gradient * ctx.scale * 7 + result, None


class Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * x.cos() * 2


class InPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x.add_(1)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 3


class Reversal(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, alpha):
        ctx.alpha = alpha
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient.neg() * ctx.alpha, None


class Identity(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 11


class ReadsGlobal(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * FACTOR


class Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight)
        ctx.shape = bias.shape
        return torch.nn.functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        return gradient @ weight, gradient.t() @ x, gradient.sum(0).view(ctx.shape)


class Chosen(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, function):
        ctx.function, ctx.plain = function, x
        return function(x)

    @staticmethod
    def backward(ctx, gradient):
        return ctx.function(gradient) * ctx.plain, None


class InMixedPrecision(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.float32)
    def forward(ctx, x):
        return x * 2

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx, gradient):
        return gradient * 7


class Noting(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        SEEN.append("backward")
        return gradient * 2


class Branching(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient if gradient.sum() > 0 else gradient * 3


class ToldWhatIsMissing(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        return x * 2, x * 3

    @staticmethod
    def backward(ctx, first, second):
        return first * 100 if second is None else first + second


class Module(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.activation = Square.apply

    def forward(self, x):
        with torch.no_grad():
            before = Square.apply(x)
        return self.activation(self.linear(x)) + before


def leaf(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3)).requires_grad_()


PROGRAMS = {
    "intermediate": (lambda x: Square.apply(x * 2) + 1, (3, 4)),
    "leaf": (Square.apply, (3, 4)),
    "nested": (lambda x: Square.apply(Square.apply(x)), (3, 4)),
    "default argument": (lambda x: StraightThrough.apply(x) * x, (3, 4)),
    "number": (lambda x: StraightThrough.apply(x, 3) * x, (3, 4)),
    "two results": (TwoResults.apply, (3, 4), (3, 4)),
    "one of two results": (lambda a, b: TwoResults.apply(a, b.detach())[1], (3, 4), (3, 4)),
    "indices": (WithIndices.apply, (3, 4)),
    "setup_context": (lambda x: Apart.apply(x), (3, 4)),
    "once": (lambda x: Once.apply(x) * 2, (3, 4)),
    "in place": (lambda x: InPlace.apply(x * 1) * 2, (3, 4)),
    "view": (lambda x: Reversal.apply(x * 2, 0.5) * 2, (3, 4)),
    "identity": (lambda x: Identity.apply(x) * x, (3, 4)),
    "global": (ReadsGlobal.apply, (3, 4)),
    "three operands": (Linear.apply, (3, 4), (2, 4), (2,)),
    "function": (lambda x: Chosen.apply(x, torch.tanh), (3, 4)),
    "mixed precision": (InMixedPrecision.apply, (3, 4)),
    "an instance that is made": (lambda x: Square().apply(x) + 1, (3, 4)),
    "no gradient": (lambda x: Square.apply(x.detach()), (3, 4)),
}


def with_gradients(function):
    """The results, and the gradients of their sum."""

    def run(*tensors):
        results = function(*tensors)
        results = results if isinstance(results, tuple) else (results,)
        differentiable = [result for result in results if result.requires_grad]
        total = sum((result * result).sum() for result in differentiable)
        gradients = torch.autograd.grad(total, tensors, allow_unused=True) if differentiable else ()
        return results, gradients

    return run


@pytest.mark.parametrize("name", PROGRAMS)
def test_own_backward(name):
    function, *shapes = PROGRAMS[name]
    captures = []

    def backend(capture, inputs):
        verify(capture)
        assert decode(encode(capture)) == capture
        captures.append(capture)
        return executor(capture)

    compiled = with_gradients(optimize(function, backend, fullgraph=True))
    for _ in range(2):
        expected = with_gradients(function)(*[leaf(*shape) for shape in shapes])
        found = compiled(*[leaf(*shape) for shape in shapes])
        assert differences(expected, found) == []
    assert len(captures) == 1
    assert all(function.backward is not None or name == "no gradient" for function in captures[0].functions)
    assert captures[0].functions


def test_an_instance_that_is_made_is_called_as_in_plain_code():
    def program(x):
        try:
            return Square()(x)
        except RuntimeError as error:
            return x * 2, str(error)

    check(lambda: (program, ((leaf(3),), {})))


def test_module():
    def make():
        torch.manual_seed(1)
        return Module(), ((torch.ones(2, 4),), {})

    check(make)


def test_what_the_backward_reads_is_guarded(monkeypatch):
    compiled = with_gradients(optimize(ReadsGlobal.apply, lambda capture, inputs: executor(capture), fullgraph=True))
    compiled(leaf(3))
    monkeypatch.setitem(globals(), "FACTOR", 7.0)
    assert differences(with_gradients(ReadsGlobal.apply)(leaf(3)), compiled(leaf(3))) == []


def test_second_gradient():
    def second(function, x):
        (first,) = torch.autograd.grad(function(x).sum(), x, create_graph=True)
        return torch.autograd.grad(first.sum(), x)

    compiled = optimize(Square.apply, lambda capture, inputs: executor(capture), fullgraph=True)
    assert differences(second(Square.apply, leaf(3)), second(compiled, leaf(3))) == []
    compiled = optimize(Once.apply, lambda capture, inputs: executor(capture), fullgraph=True)
    messages = []
    for function in (Once.apply, compiled):
        with pytest.raises(RuntimeError) as raised:
            second(function, leaf(3))
        messages.append(str(raised.value))
    assert messages[0] == messages[1]


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (Noting, "the backward of Noting changes an object outside of it"),
        (Branching, "depends on its content"),
        (ToldWhatIsMissing, "with 2 results"),
    ],
)
def test_refused_backward(function, says):
    def program(x):
        results = function.apply(x)
        return results[0] if isinstance(results, tuple) else results

    with pytest.raises(CannotCapture, match=says):
        optimize(program, lambda capture, inputs: executor(capture), fullgraph=True)(leaf(3))
    SEEN.clear()
    plain = with_gradients(optimize(program, lambda capture, inputs: executor(capture), on_event=lambda event: None))
    assert differences(with_gradients(program)(leaf(3)), plain(leaf(3))) == []
    assert (["backward"] * 2 if function is Noting else []) == SEEN


def test_escaping_tensor_is_refused():
    class Escaping(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            Escaping.store.append(x * 2)
            return x * 3

        @staticmethod
        def backward(ctx, gradient):
            return gradient

    Escaping.store = []
    with pytest.raises(CannotCapture, match="used outside of it"):
        optimize(lambda x: Escaping.apply(x), lambda capture, inputs: executor(capture), fullgraph=True)(leaf(3))
