"""What autograd users do with a bound program: it answers as eager does, or refuses with a code."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from msgspec.structs import replace

from absint.errors import RefusedWrite, UnsupportedTensor
from aotgrad import AotGrad, Options, PartitionStage, bind, bind_capture, bind_interpreted, cut, executor
from aotgrad.errors import (
    AliasedMutation,
    BackwardFailed,
    DoubleBackward,
    MetadataMutation,
    NoGraphForm,
    OtherOffset,
    ReplayFailed,
    UnsupportedOutput,
)
from aotgrad.function import repeated, visible_results
from aotgrad.testing import Tolerance, capture_by_torch_function, check_against_eager
from aotgrad.tracer.mode import TraceMode
from stagewire.errors import StageError
from stagewire.grad import SavedResult
from stagewire.graph import Arg, Node, Ref

Program = Callable[..., Any]


def leaves(*shapes: tuple[int, ...], seed: int = 1) -> list[torch.Tensor]:
    torch.manual_seed(seed)
    return [torch.randn(shape, requires_grad=True) for shape in shapes]


def compiled(program: Program, inputs: Sequence[torch.Tensor], **options: Any) -> Callable[..., tuple[Any, ...]]:
    """The program bound for inputs like these, which are left as they are."""
    copies = [t.detach().clone().requires_grad_(t.requires_grad) for t in inputs]
    given = [c if t.is_leaf else c * 1 for c, t in zip(copies, inputs, strict=True)]
    capture, found = capture_by_torch_function(program, given)
    assert len(found) == len(given), "the program reaches tensors that it is not given"
    return bind_capture(capture, Options(**options))


def without_capture(program: Program, inputs: Sequence[torch.Tensor]) -> Callable[..., tuple[Any, ...]]:
    """The program bound from its `Grad` alone, as in another process."""
    return bind_interpreted(AotGrad().run(capture_by_torch_function(program, inputs)[0]))


# Gradients that are asked for in unusual ways.


def two_paths(x, y):
    return (x.sin() * 2).sum(), y.exp(), (x * y).sum()


@pytest.mark.parametrize("used", [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2)], ids=str)
def test_gradient_is_none_where_eager_has_none(used: tuple[int, ...]) -> None:
    mine, theirs = leaves((3, 4), (3, 4)), leaves((3, 4), (3, 4))
    got, expected = compiled(two_paths, mine)(*mine), two_paths(*theirs)
    sum(got[i].sum() for i in used).backward()
    sum(expected[i].sum() for i in used).backward()
    for a, b in zip(mine, theirs, strict=True):
        assert (a.grad is None) == (b.grad is None)
        if b.grad is not None:
            torch.testing.assert_close(a.grad, b.grad)


def test_unused_input_has_no_gradient() -> None:
    x, y = leaves((3,), (3,))
    (out,) = compiled(lambda x, y: x * 2, [x, y])(x, y)
    out.sum().backward()
    assert y.grad is None
    assert torch.equal(x.grad, torch.full((3,), 2.0))


@pytest.mark.parametrize("use", [lambda y: y.detach() * 2, lambda y: (y > 0) * 2.0], ids=["detach", "mask"])
def test_a_program_that_no_gradient_reaches_gives_none(use: Program) -> None:
    """The second program has the first one's result as an input with a history, and no gradient for it."""
    x, w = leaves((3,), (3,))
    (y,) = compiled(lambda x: x.sin(), [x])(x)
    (out,) = compiled(lambda y, w: use(y) * w, [y, w])(y, w)
    out.sum().backward()
    assert x.grad is None
    torch.testing.assert_close(w.grad, use(x.detach().sin()))


def test_several_backward_calls() -> None:
    def program(x):
        return x.exp(), x.sin()

    (x,), (z,) = leaves((4,)), leaves((4,))
    a, b = compiled(program, [x])(x)
    c, d = program(z)
    a.sum().backward(retain_graph=True)
    c.sum().backward()
    b.sum().backward(retain_graph=True)
    d.sum().backward()
    torch.testing.assert_close(x.grad, z.grad)
    (a * b).sum().backward()
    with pytest.raises(RuntimeError, match="second time"):
        a.sum().backward()


def test_gradients_of_non_leaves_by_grad() -> None:
    x, y = leaves((4,), (4,))
    hidden = x * 3
    call = compiled(lambda h, y: (h * y).sum(), [hidden, y])
    got = torch.autograd.grad(call(hidden, y)[0], [hidden, y, x], retain_graph=True)
    expected = torch.autograd.grad((hidden * y).sum(), [hidden, y, x])
    torch.testing.assert_close(got, expected)


def test_hooks_on_inputs_and_outputs() -> None:
    seen: list[str] = []

    def double(name: str) -> Callable[[torch.Tensor], torch.Tensor]:
        def hook(gradient: torch.Tensor) -> torch.Tensor:
            seen.append(name)
            return gradient * 2

        return hook

    results = []
    for run in (compiled(lambda x: x.sin() * 2, leaves((4,))), lambda x: (x.sin() * 2,)):
        (x,) = leaves((4,))
        x.register_hook(double("input"))
        (out,) = run(x)
        out.register_hook(double("output"))
        out.sum().backward()
        results.append(x.grad)
    torch.testing.assert_close(*results)
    assert seen == ["output", "input"] * 2


def test_a_saved_input_changed_before_the_backward_is_an_error_as_in_eager() -> None:
    x, y = leaves((4,), (4,))
    hidden = x * 1
    (out,) = compiled(lambda h, y: h * y, [hidden, y])(hidden, y)
    hidden.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128])
@pytest.mark.parametrize("shape", [(8, 3, 16), (5,), (1,), (0, 4), (7, 8)], ids=str)
@pytest.mark.parametrize("value", [1.5, math.nan, -0.0])
def test_repeated_scalars_are_written_bit_by_bit(dtype: torch.dtype, shape: tuple[int, ...], value: float) -> None:
    x = torch.tensor([7, value], dtype=dtype)[1].expand(shape)
    found = repeated(x)
    assert found.is_contiguous()
    assert found.shape == x.shape
    assert str(found.tolist()) == str(x.tolist())  # tells zeros of both signs and nan apart


def test_tangents_of_other_strides_and_expanded() -> None:
    def program(x):
        return x * x, x.t().exp()

    (x,), (z,) = leaves((3, 4)), leaves((3, 4))
    got, expected = compiled(program, [x])(x), program(z)
    for pair in (got, expected):
        loss = (pair[0].t().contiguous().t() * torch.arange(12.0).view(4, 3).t()).sum() + pair[1].sum()
        loss.backward()
    torch.testing.assert_close(x.grad, z.grad)


def test_same_tensor_twice_and_views_of_one_base() -> None:
    def program(a, b):
        return a * b.exp()

    (x,), (z,) = leaves((4, 4)), leaves((4, 4))
    call = compiled(program, [x * 1, x * 1])
    for run, leaf in ((lambda a, b: call(a, b)[0], x), (program, z)):
        hidden = leaf * 2
        run(hidden, hidden).sum().backward()
        whole = leaf * 3
        run(whole.view(4, 4), whole.view(4, 4)).sum().backward()
    torch.testing.assert_close(x.grad, z.grad)


def test_non_differentiable_outputs() -> None:
    (x,) = leaves((3, 4))
    values, indices, mask, number = compiled(
        lambda x: (*x.max(1), x > 0, torch.tensor(3)), [x]
    )(x)  # fmt: skip
    assert [t.requires_grad for t in (values, indices, mask, number)] == [True, False, False, False]
    values.sum().backward()
    assert torch.equal(x.grad.sum(1), torch.ones(3))


def test_accumulation_into_existing_gradients() -> None:
    (x,) = leaves((3,))
    call = compiled(lambda x: x.exp().sum(), [x])
    call(x)[0].backward()
    first = x.grad.clone()
    call(x)[0].backward()
    torch.testing.assert_close(x.grad, 2 * first)


def test_checkpointed_and_custom_functions() -> None:
    class Scale(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            return gradient * 7

    x, z = leaves((3,))[0], leaves((3,))[0]
    out = Scale.apply(x * 1)
    (got,) = compiled(lambda h: h.sin(), [out])(out)
    got.sum().backward()
    Scale.apply(z * 1).sin().sum().backward()
    torch.testing.assert_close(x.grad, z.grad)


# Gradients of gradients.


def smooth(x, w):
    return F.softmax(F.layer_norm(torch.tanh(x @ w) ** 3, (5,)), -1)


def test_gradient_penalty() -> None:
    results = []
    for run in (compiled(smooth, leaves((3, 4), (4, 5))), lambda *i: (smooth(*i),)):
        x, w = leaves((3, 4), (4, 5))
        (out,) = run(x, w)
        (gradient,) = torch.autograd.grad(out.square().sum(), x, create_graph=True)
        (out.sum() + gradient.norm() ** 2).backward()
        results.append((x.grad, w.grad))
    torch.testing.assert_close(*results)


def test_hessian_vector_product() -> None:
    vector = torch.linspace(-1, 1, 12).view(3, 4)
    results = []
    for run in (compiled(smooth, leaves((3, 4), (4, 5))), lambda *i: (smooth(*i),)):
        x, w = leaves((3, 4), (4, 5))
        (gradient,) = torch.autograd.grad(run(x, w)[0][:, 0].sum(), x, create_graph=True)
        results.append(torch.autograd.grad((gradient * vector).sum(), [x, w]))
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)


def test_double_backward_keeps_the_random_numbers() -> None:
    def program(x):
        return F.dropout(x.sin() * x, 0.4).pow(2)

    results = []
    for run in (compiled(program, leaves((40,))), lambda x: (program(x),)):
        (x,) = leaves((40,))
        torch.manual_seed(11)
        (gradient,) = torch.autograd.grad(run(x)[0].sum(), x, create_graph=True)
        results.append((gradient.detach(), *torch.autograd.grad(gradient.square().sum(), x), torch.rand(2)))
    torch.testing.assert_close(*results)


def test_what_is_detached_is_constant_to_every_order() -> None:
    def program(x):
        with torch.no_grad():
            scale = x.exp()
        return (x**3 * x.detach() * scale).sum()

    results = []
    for run in (compiled(program, leaves((4,))), lambda x: (program(x),)):
        (x,) = leaves((4,))
        (first,) = torch.autograd.grad(run(x)[0], x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x, create_graph=True)
        results.append((first.detach(), second.detach(), *torch.autograd.grad(second.sum(), x)))
    torch.testing.assert_close(*results)


def test_batch_norm_in_a_gradient_penalty() -> None:
    """Its running statistics have moved on before the backward; the gradient does not depend on them."""

    def program(x, weight, mean, variance):
        return F.softplus(F.batch_norm(x, mean, variance, weight, None, True))

    def inputs() -> list[torch.Tensor]:
        return [*leaves((6, 3), (3,)), torch.zeros(3), torch.ones(3)]

    results = []
    for run in (compiled(program, inputs()), lambda *i: (program(*i),)):
        x, weight, mean, variance = inputs()
        (out,) = run(x, weight, mean, variance)
        (gradient,) = torch.autograd.grad(out.square().sum(), x, create_graph=True)
        (gradient.norm(dim=1) - 1).square().mean().backward()
        results.append((x.grad, weight.grad, mean, variance))
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)


def test_second_order_of_an_input_that_is_overwritten_behind_autograd() -> None:
    def program(x):
        with torch.no_grad():
            x.fill_(0.5)
        return x.sin()

    results = []
    for run in (compiled(program, leaves((4,))), lambda x: (program(x),)):
        (x,) = leaves((4,))
        (gradient,) = torch.autograd.grad(run(x)[0].sum(), x, create_graph=True)
        results.append(torch.autograd.grad(gradient.sum(), x))
    torch.testing.assert_close(*results)


def test_a_gradient_without_a_gradient_says_so_when_it_is_differentiated() -> None:
    def program(q):
        return F.scaled_dot_product_attention(q, q, q).sum()

    for run in (compiled(program, leaves((1, 1, 8, 16))), lambda q: (program(q),)):
        (q,) = leaves((1, 1, 8, 16))
        (gradient,) = torch.autograd.grad(run(q)[0], q, create_graph=True)
        with pytest.raises(RuntimeError, match="flash_attention_for_cpu_backward is not implemented"):
            gradient.sum().backward()


def test_double_backward_is_refused_without_the_capture() -> None:
    (x,) = leaves((3,))
    capture, _ = capture_by_torch_function(lambda x: x.exp(), [x])
    (out,) = bind_interpreted(AotGrad().run(capture))(x)
    with pytest.raises(DoubleBackward, match="create_graph"):
        torch.autograd.grad(out.sum(), x, create_graph=True)


def test_double_backward_is_refused_where_the_program_overwrote_what_it_depends_on() -> None:
    x, y = leaves((3,))[0], torch.zeros(3)

    def program(x, y):
        out = x * y.exp()
        y.add_(x.detach())
        return out

    (out,) = compiled(program, [x, y])(x, y)
    with pytest.raises(DoubleBackward, match="writes into"):
        torch.autograd.grad(out.sum(), x, create_graph=True)


def test_inputs_are_kept_for_a_second_order_only_if_gradients_depend_on_them() -> None:
    x, y, bias, factor = leaves((3,), (3,), (3,), (3,))
    capture, _ = capture_by_torch_function(lambda x, y, b, f: ((x + b).relu() + y) * f.exp(), [x, y, bias, factor])
    binding = cut(AotGrad().run(capture)).binding
    assert binding.gradient_inputs == (0, 1, 2, 3)
    capture, _ = capture_by_torch_function(lambda x, y, b, f: (x + b + y) * 2 + f.exp(), [x, y, bias, factor])
    assert cut(AotGrad().run(capture)).binding.gradient_inputs == (3,)


def test_a_kept_input_that_changed_is_an_error_for_the_second_order_only() -> None:
    x, bias = leaves((3,), (3,))
    call = compiled(lambda x, b: (x * 2 + b).softmax(-1)[0], [x, bias])
    (out,) = call(x, bias)
    with torch.no_grad():
        bias.add_(1)
    torch.autograd.grad(out, x, retain_graph=True)
    with pytest.raises(RuntimeError, match="modified in place"):
        torch.autograd.grad(out, x, create_graph=True)


# Modes.


def test_autocast_region() -> None:
    def program(x, w):
        return F.linear(x, w).exp().float(), (x @ w.t()).softmax(-1)

    given = leaves((3, 8), (5, 8))
    with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False):
        capture, inputs = capture_by_torch_function(program, given)
    assert capture.state.autocast == (("cpu", "bfloat16"),)
    grad = AotGrad().run(capture)
    theirs = leaves((3, 8), (5, 8))
    with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False):
        expected = program(*theirs)
    got = bind_interpreted(grad)(*inputs)
    for a, b in zip(got, expected, strict=True):
        assert a.dtype is b.dtype
        torch.testing.assert_close(a, b, rtol=0, atol=0)
    sum(o.sum() for o in got).backward()
    sum(o.sum() for o in expected).backward()
    torch.testing.assert_close([t.grad for t in given], [t.grad for t in theirs])


@pytest.mark.parametrize("ambient", ["inference", "autocast", "no_grad", "float64"])
def test_the_trace_does_not_depend_on_where_it_is_made(ambient: str) -> None:
    capture, _ = capture_by_torch_function(smooth, leaves((3, 4), (4, 5)))
    expected = AotGrad().run(capture)
    contexts = {
        "inference": torch.inference_mode,
        "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
        "no_grad": torch.no_grad,
        "float64": lambda: _default_dtype(torch.float64),
    }
    with contexts[ambient]():
        assert AotGrad().run(capture) == expected


class _default_dtype:
    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def __enter__(self) -> None:
        self.before = torch.get_default_dtype()
        torch.set_default_dtype(self.dtype)

    def __exit__(self, *error: object) -> None:
        torch.set_default_dtype(self.before)


def test_inference_mode_gives_inference_tensors() -> None:
    (x,) = leaves((3,))
    with torch.inference_mode():
        capture, inputs = capture_by_torch_function(lambda x: F.linear(x.view(1, 3), torch.ones(2, 3)), [x.detach()])
        (out,) = bind_interpreted(AotGrad().run(capture))(*inputs)
    assert out.is_inference()
    torch.testing.assert_close(out, F.linear(x.detach().view(1, 3), torch.ones(2, 3)))


def test_grad_mode_switched_inside() -> None:
    def program(x):
        torch._C._set_grad_enabled(False)
        y = x * 2
        torch._C._set_grad_enabled(True)
        return y * x, y

    capture, inputs = capture_by_torch_function(program, leaves((3,)))
    assert torch.is_grad_enabled()
    check_against_eager(capture, inputs)


# Inputs that share memory.


def test_mutated_input_that_shares_memory_is_refused_before_anything_changes() -> None:
    def program(a, b):
        a.add_(1)
        return b * 2

    call = without_capture(program, [torch.zeros(4), torch.zeros(4)])
    whole = torch.arange(8.0)
    for a, b in ((whole[:4], whole[2:6]), (whole[:4], whole[:4]), (whole[2:6], whole[:4])):
        with pytest.raises(AliasedMutation):
            call(a, b)
    assert torch.equal(whole, torch.arange(8.0))
    (out,) = call(whole[:4], whole[4:])
    assert torch.equal(out, torch.arange(4.0, 8.0) * 2)
    assert torch.equal(whole[:4], torch.arange(1.0, 5.0))
    with pytest.raises(AliasedMutation):
        call(whole[:4], whole[1:5])
    call(whole[:4], torch.ones(4))
    for a, b in ((whole[:4], whole[3:7]), (whole[4:], whole[3:7])):
        with pytest.raises(AliasedMutation):
            call(a, b)


def test_as_strided_without_offset_follows_the_input() -> None:
    call = compiled(lambda x: x.as_strided((2, 2), (1, 2)) * 1, [torch.zeros(4)])
    whole = torch.arange(8.0)
    assert torch.equal(call(whole[3:7])[0], whole[3:7].as_strided((2, 2), (1, 2)))


def test_as_strided_from_the_start_of_the_storage_is_refused_elsewhere() -> None:
    program, example = (lambda x: x.as_strided((2,), (1,), 1) * 1), [torch.zeros(4)]
    whole = torch.arange(8.0)
    assert torch.equal(compiled(program, example)(whole[3:7])[0], whole[1:3])
    call = without_capture(program, example)
    assert torch.equal(call(whole[:4])[0], whole[1:3])
    with pytest.raises(OtherOffset, match="starts at element 3 of its storage, not 0"):
        call(whole[3:7])


def test_read_inputs_may_share_memory() -> None:
    whole = torch.arange(8.0)
    call = compiled(lambda a, b: a + b, [torch.zeros(4), torch.zeros(4)])
    assert torch.equal(call(whole[:4], whole[2:6])[0], whole[:4] + whole[2:6])


# Refusals. The documents are made by hand: eager would refuse some, and the recording misses others.


def test_a_program_with_a_second_order_answer_trains_as_usual_when_its_inputs_change() -> None:
    x, y = leaves((3,))[0], torch.zeros(3)

    def program(x, y):
        y.add_(1)
        return x * y.exp(), y * x.sin()

    got = compiled(program, [x, y])
    a, b = got(x, y)
    got(x, y)  # the buffer moves on before the backward of the first call
    (a.sum() + b.sum()).backward()
    z, w = leaves((3,))[0], torch.ones(3)
    (z * w.exp() + w * z.sin()).sum().backward()
    torch.testing.assert_close(x.grad, z.grad)


CALLS: list[tuple[str, tuple[Arg, ...], type[StageError]]] = [
    ("torch.Tensor.set_", (Ref("x1"), Ref("x0")), MetadataMutation),
    ("torch.Tensor.resize_", (Ref("x1"), 2), MetadataMutation),
    ("torch.Tensor.resize_as_", (Ref("x1"), Ref("x0")), MetadataMutation),
    ("torch.Tensor.t_", (Ref("x1"),), MetadataMutation),
    ("torch.Tensor.unsqueeze_", (Ref("x1"), 0), MetadataMutation),
    ("torch.Tensor.squeeze_", (Ref("x1"),), MetadataMutation),
    ("torch.Tensor.requires_grad_", (Ref("x1"),), MetadataMutation),
    ("torch.Tensor.detach_", (Ref("x0"),), MetadataMutation),
    ("torch.Tensor.data.__set__", (Ref("x1"), Ref("x0")), NoGraphForm),
    ("torch.Tensor.grad.__set__", (Ref("x0"), Ref("x1")), NoGraphForm),
    ("torch.Tensor.retain_grad", (Ref("x0"),), NoGraphForm),
    ("torch.Tensor.backward", (Ref("x0"),), NoGraphForm),
    ("torch.Tensor.add_", (Ref("x0"), 1), ReplayFailed),
    ("torch.Tensor.numpy", (Ref("x1"),), StageError),
    ("torch.Tensor.item", (Ref("x2"),), StageError),
    ("torch.Tensor.nonzero", (Ref("x1"),), StageError),
]  # fmt: skip


@pytest.mark.parametrize(("target", "args", "error"), CALLS, ids=[call[0] for call in CALLS])
def test_a_call_without_graph_form_is_refused(target: str, args: tuple[Arg, ...], error: type[StageError]) -> None:
    given = [*leaves((4,)), torch.ones(4), torch.ones(())]
    capture, _ = capture_by_torch_function(lambda x, y, z: x * y * z, given)
    nodes = capture.graph.nodes
    results = (
        () if target.endswith(("__set__", "backward", "retain_grad")) else (replace(nodes[0].results[0], name="r"),)
    )
    call = Node(target, args, {}, results, nodes[0].line)
    document = replace(capture, graph=replace(capture.graph, nodes=(call, *nodes)))
    with pytest.raises(error) as raised:
        AotGrad().run(document)
    assert raised.value.code.startswith(("AG", "AI"))
    assert raised.value.fix


def test_expanded_input_that_is_written_is_refused() -> None:
    whole = torch.zeros(1, 4)

    def program(x):
        return x + 1

    capture, _ = capture_by_torch_function(program, [whole.expand(3, 4)])
    node = capture.graph.nodes[0]
    writing = replace(node, target="torch.Tensor.add_", args=(node.args[0], 1))
    broken = replace(capture, graph=replace(capture.graph, nodes=(writing,)))
    with pytest.raises(RefusedWrite):
        AotGrad().run(broken)


def test_history_through_which_no_gradient_comes() -> None:
    (x,) = leaves((3,))
    (out,) = compiled(lambda x: torch.linalg.vector_norm(x, ord=0) + 0, [x])(x)
    assert out.requires_grad
    out.backward()
    assert x.grad is None


def test_an_output_whose_history_torch_refuses_to_tell_is_refused() -> None:
    def program(x):
        y = x * 2
        first, _ = y.split(2)
        y.add_(1)
        return first

    document, _ = capture_by_torch_function(lambda x: (x * 2).split(2)[0], leaves((4,)))
    product, split = document.graph.nodes
    write = Node("torch.Tensor.add_", (Ref(product.results[0].name), 1), {}, (replace(product.results[0], name="w"),))
    document = replace(document, graph=replace(document.graph, nodes=(product, split, write)))
    with pytest.raises(BackwardFailed, match="output of a function that returns multiple views"):
        AotGrad().run(document)
    with pytest.raises(RuntimeError, match="multiple views"):
        program(leaves((4,))[0]).sum()


def test_a_leaf_made_by_the_program_is_refused() -> None:
    capture, _ = capture_by_torch_function(lambda x: torch.zeros_like(x, requires_grad=True), leaves((3,)))
    with pytest.raises(UnsupportedOutput, match="leaf that the program makes"):
        AotGrad().run(capture)


def test_gradients_under_no_grad_are_refused() -> None:
    def program(x):
        with torch.enable_grad():
            return x * 2

    with torch.no_grad():
        capture, _ = capture_by_torch_function(program, leaves((3,)))
    switched = Node("torch._C._set_grad_enabled", (True,), {}, ())
    document = replace(capture, graph=replace(capture.graph, nodes=(switched, *capture.graph.nodes)))
    with pytest.raises(UnsupportedOutput, match="enable_grad"):
        AotGrad().run(document)


def test_a_backward_that_torch_cannot_differentiate_is_refused() -> None:
    def program(x):
        y = x.exp()
        y.add_(1)
        return y

    capture, _ = capture_by_torch_function(program, leaves((3,)))
    with pytest.raises(BackwardFailed, match="modified by an inplace operation") as raised:
        AotGrad().run(capture)
    assert raised.value.code == "AG002"
    assert raised.value.hindering_result == capture.graph.nodes[0].results[0].name


@pytest.mark.parametrize(
    "lookup",
    [
        lambda table, at: F.embedding(at, table, sparse=True),
        lambda table, at: F.embedding_bag(at[None], table, sparse=True, mode="sum"),
        lambda table, at: torch.gather(table, 0, at[:, None].expand(-1, 2), sparse_grad=True),
    ],
    ids=["embedding", "embedding_bag", "gather"],
)
def test_a_sparse_gradient_is_refused_with_the_name_of_the_call_that_has_it(lookup: Program) -> None:
    def program(table: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        return lookup(table.sin(), at).exp().sum() + lookup(table, at).cos().sum()

    capture, _ = capture_by_torch_function(program, [*leaves((5, 2)), torch.tensor([1, 3, 1])])
    with pytest.raises(UnsupportedTensor, match="sparse") as raised:
        AotGrad().run(capture)
    refused = next(node for node in capture.graph.nodes if node.results[0].name == raised.value.hindering_result)
    assert refused.target.rpartition(".")[2] in ("embedding", "embedding_bag", "gather")


# Layouts of inputs.


LAYOUTS = {
    "expanded": lambda: torch.randn(1, 6).expand(4, 6),
    "transposed": lambda: torch.randn(6, 4).t(),
    "strided": lambda: torch.randn(8, 12)[::2, ::2],
    "offset": lambda: torch.randn(7, 6)[3:],
    "empty": lambda: torch.randn(0, 6),
    "channels_last": lambda: torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_of_inputs(layout: str) -> None:
    def program(x):
        y = x * 2
        return y, y.transpose(0, 1), x.reshape(-1), x.sum(0, keepdim=True) * x, x.contiguous().exp(), x

    given = LAYOUTS[layout]().requires_grad_()
    capture, inputs = capture_by_torch_function(program, [given])
    check_against_eager(capture, inputs, tolerance=Tolerance())


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int64, torch.bool, torch.complex64], ids=str)
def test_dtype_changes(dtype: torch.dtype) -> None:
    def program(x):
        y = x.to(dtype)
        return y, y.sum(), (y + 1).to(torch.float32) * x

    capture, inputs = capture_by_torch_function(program, leaves((3, 4)))
    check_against_eager(capture, inputs)


def test_a_constant_travels_row_major_and_keeps_its_strides_in_the_graph() -> None:
    outside = torch.arange(6.0).view(2, 3).t()
    mode = TraceMode()
    with mode:
        lifted = mode.lift(outside)
        assert mode.lift(outside) is lifted
    assert lifted.stride() == (1, 3)
    assert mode.recorder.metas["constant"].stride == (2, 1)
    assert mode.recorder.metas[mode.content(lifted).name].stride == (1, 3)


def test_saved_tensors_are_let_go_while_the_backward_runs() -> None:
    (x,) = leaves((4,))
    capture, _ = capture_by_torch_function(lambda x: (x.exp().softmax(-1) * 2).sigmoid().softmax(-1), [x])
    grad = cut(AotGrad().run(capture), PartitionStage.Options("save_everything"))
    owners: list[list[int]] = []

    def backward(given: list[torch.Tensor]) -> Sequence[torch.Tensor]:
        owners.append([tensor._use_count() for tensor in given[: len(grad.binding.saved)]])
        return executor(grad.backward)(given)

    def held_by_others(retain_graph: bool) -> list[bool]:
        call = bind(grad.binding, executor(grad.forward), backward, takes_list=True)
        torch.autograd.grad(call(x)[0].square().sum(), x, retain_graph=retain_graph)
        own = [type(s) is SavedResult and s.result >= visible_results(grad.binding) for s in grad.binding.saved]
        assert sum(own) >= 3
        return [count > 1 for count, is_own in zip(owners.pop(), own, strict=True) if is_own]

    assert not any(held_by_others(retain_graph=False))
    assert all(held_by_others(retain_graph=True))


def test_a_backward_that_keeps_its_graph_keeps_its_saved_tensors() -> None:
    (x,) = leaves((4,))
    (out,) = compiled(lambda x: x.softmax(-1).exp(), [x])(x)
    first = torch.autograd.grad(out.sum(), x, retain_graph=True)
    second = torch.autograd.grad(out.sum(), x)
    torch.testing.assert_close(first, second)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(out.sum(), x)
