"""Programs with views, writes and aliases: what the caller sees equals eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from aotgrad import AotGrad, bind_interpreted, cut, save_everything
from aotgrad.errors import BackwardFailed
from aotgrad.partition.stage import Options
from aotgrad.testing import capture_by_torch_function, check_against_eager

Program = Callable[..., Any]


def x46(grad: bool = True, leaf: bool = True) -> torch.Tensor:
    torch.manual_seed(7)
    x = torch.randn(4, 6, requires_grad=grad)
    return x if leaf or not grad else x * 1


def write_through_view_of_view(x):
    y = x * 2
    y.view(2, 12).view(24).add_(1)
    return y


def write_int_index(x):
    y = x.clone()
    y[0] = 1
    return y


def write_strided_slice(x):
    y = x.clone()
    y[1:3, ::2] = x[0, 0]
    return y


def write_ellipsis(x):
    y = x.clone()
    y[..., 2] = x[..., 3]
    return y


def views_of_what_became_a_row(x):
    y = x[0] * 2
    y.unsqueeze_(0)
    return y, y.flatten(), y[:, 1:].t()


def views_before_and_after_a_change_of_sizes(x):
    y = (x * 2).unsqueeze_(0)
    view = y[:, :2]
    view.add_(1)
    return view, view.mT, y


def write_transposed(x):
    y = x.clone()
    y.t().mul_(3)
    return y


def write_broadcast_copy(x):
    y = x.clone()
    y.copy_(x[0])
    return y * x


def write_as_strided(x):
    y = x.clone()
    y.as_strided((2, 3), (6, 2), 1).add_(5)
    return y


def write_out(x):
    o = torch.empty(4, 6)
    torch.add(x.detach(), 1, out=o)
    return o * x


def write_chunk_without_grad(x):
    y = x.detach().clone()
    a, b = y.chunk(2, 1)
    with torch.no_grad():
        a.mul_(b)
    return y * x


def write_diagonal(x):
    y = x.clone()
    y.diagonal().add_(1)
    return y


def write_index_put(x):
    y = x.clone()
    y[torch.tensor([0, 2])] = x[torch.tensor([1, 3])] * 2
    return y


def write_index_put_accumulate(x):
    y = x.clone()
    y.index_put_((torch.tensor([0, 0]),), x[:2], accumulate=True)
    return y


def write_bool_mask(x):
    y = x.clone()
    y[y > 0] = 0
    return y


def write_masked_fill(x):
    return x.masked_fill(x > 0, -1.0).masked_fill_(x < 0, 2.0)


def write_bfloat16_with_float32(x):
    y = x.to(torch.bfloat16)
    y.add_(x)
    return y.float()


def write_detached(x):
    y = x * 2
    y.detach().add_(1)
    return y + 1


def write_select_of_permuted(x):
    y = x.clone().view(2, 2, 6)
    y.permute(2, 0, 1).select(0, 1).mul_(2)
    return y


def write_expanded_clone(x):
    y = x[:1].expand(4, 6).clone()
    y[0].add_(1)
    return y


def transpose_in_place(x):
    y = x.clone()
    y.t_()
    y.add_(1)
    return y


def write_transposed_copy(x):
    y = torch.empty(6, 4)
    y.copy_(x.t())
    return y.view(24)


def fill_transposed(x):
    y = x.t().clone()
    y.fill_(3.0)
    return y.t().view(-1) * x.view(-1)


def write_activations(x):
    y = x * 1
    F.relu_(y)
    z = y + 1
    z.clamp_(min=1.1)
    return y, z


def unbind_outputs(x):
    y = x.clone()
    rows = y.unbind(0)
    return rows[0] + 1, y


def views_of_input(x):
    return x.view(-1), x.t(), x[1:]


def same_object_twice(x):
    y = x + 1
    return y, y, x


def outputs_share_base(x):
    y = x + 1
    return y, y.view(-1), y[0]


def outputs_share_hidden_base(x):
    y = x + 1
    return y.view(-1), y[0], y.detach()


def equal_outputs_stay_apart(x):
    return x + 1, x + 1, x * 2


def equal_values_one_of_them_viewed(x):
    return x.sin(), x.sin().chunk(2, 1)[0], x.sin().t()[::2]


def alias_of_scalar(x):
    return x.sum().movedim(0, -1), x[0, 0].movedim(0, -1)


def same_view_twice(x):
    v = x.view(-1)
    return v, v, x.view(-1)


def random_slopes(x):
    return F.rrelu(x, training=True), F.rrelu(x, training=False), torch.rrelu_(x * 2, training=True)


def random_slopes_of_columns(x):
    return F.rrelu(x.t(), training=True)


def imaginary_factors(x):
    return 1.5j * x, x.sin() + 1j * x.cos(), x.sum() / 2j


def checked_beside_literals(x):
    torch.gather(x, 0, torch.zeros(2, 3, dtype=torch.int64))
    return torch.linalg.cholesky(x @ x.mT + torch.eye(4, dtype=x.dtype))


def polygamma_in_place(x):
    y = x.abs() + 1
    return y.polygamma_(1)


def lazy_conjugates(x):
    return torch.fft.hfft(x), torch.view_as_complex(x.view(4, 3, 2)).conj().imag * 2


def history_without_gradient(x):
    return torch.linalg.vector_norm(x, ord=0) + 0, x * 2


def integer_outputs(x):
    return x.argmax(1), x.sum(), x > 0


def detached_output(x):
    return x.detach() * 2, x * 2, x.detach()


def no_grad_region(x):
    with torch.no_grad():
        y = x * 2
    return y * x


def random_stream(x):
    return F.dropout(x, 0.3) * torch.rand(4, 6) + torch.randn_like(x)


def dropout_of_transposed(x):
    return F.dropout(x.t(), 0.5)


def unused_random_numbers(x):
    torch.rand(3)
    return F.dropout(x, 0.5)


def expanded_output(x):
    return x.sum(1, keepdim=True).expand(4, 6), (x * 2).t()


def literal_tensors(x):
    return x * torch.tensor([1.0, 2, 3, 4, 5, 6]) + torch.tensor(2.0)


def strided_literal_tensors(x):
    numbers = torch.arange(24.0).view(6, 4)
    return x * numbers.t(), torch.tensor([[1j, 2], [3, 4]]).t() * x[0, 0], torch.tensor(2 + 1j) * x


def sorting(x):
    return x.cumsum(1), x.sort(1).values, x.topk(2, 1)[0]


def losses(x):
    return F.cross_entropy(x, torch.tensor([0, 1, 2, 3])), F.mse_loss(x, x * 2), F.smooth_l1_loss(x, x.detach() + 1)


def softmaxes(x):
    return x.softmax(1), x.log_softmax(0), torch.logsumexp(x, 1)


def complex_views(x):
    z = torch.view_as_complex(x.view(4, 3, 2).contiguous())
    return torch.view_as_real(z * z), z.abs()


def filled_zeros_and_a_view_of_them(x):
    y = torch.zeros(4, 6)
    y[:, 1:3] = x[:, 2:4]
    return y, y.view(-1)


def rows_of_filled_zeros(x):
    y = torch.zeros(4, 6)
    row = y[0]
    y.add_(x)
    return row, y[1:], y.t()


def copied_into_a_row_of_ones(x):
    y = torch.ones(4, 6)
    row = y[2]
    row.mul_(x[0])
    return row, y, y.detach()


def filled_likeness_and_a_view_of_it(x):
    y, z = torch.empty_like(x), torch.ones_like(x)
    y[...] = x * 2
    z.mul_(x)
    return y, y.view(-1), z[1], z[:, 2:]


def filled_numbers_and_a_view_of_them(x):
    y = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    y += x[1]
    return y, y.view(2, 3), y[1:]


def written_copy_without_history_and_views_of_it(x):
    y = x.clone().detach()
    row = y[1]
    y *= x
    return y.view(-1), y, row, y[2:].t(), y.detach()


def requires_grad_inside(x):
    y = (x * 2).detach()
    y.requires_grad_()
    return (y * x).sum()


def gather_scatter(x):
    index = torch.zeros(4, 6, dtype=torch.long)
    return x.scatter_add(1, index, x), x.gather(1, index[:, :2])


def batch_norm_without_statistics(x):
    return F.batch_norm(x, None, None, training=True)


def split_backward(x):
    a, b, c = x.split([1, 2, 3], 1)
    return a * 2 + c[:, :1], b.exp()


PURE = [value for value in list(globals().values()) if callable(value) and getattr(value, "__module__", "") == __name__]
PURE = [p for p in PURE if p.__name__ not in ("x46",) and not isinstance(p, type)]


@pytest.mark.parametrize("partition", [Options(), Options(save_everything)], ids=["min_cut", "save_all"])
@pytest.mark.parametrize("program", PURE, ids=lambda p: p.__name__)
def test_program_of_one_leaf(program: Program, partition: Options) -> None:
    torch.manual_seed(3)
    capture, inputs = capture_by_torch_function(program, [x46()])
    check_against_eager(capture, inputs, partition=partition)


@pytest.mark.parametrize("program", PURE, ids=lambda p: p.__name__)
def test_program_in_inference(program: Program) -> None:
    with torch.no_grad():
        capture, inputs = capture_by_torch_function(program, [x46()])
    grad = check_against_eager(capture, inputs)
    assert grad.backward is None


def mutate(x, b):
    x.add_(1)
    return x * 2


def mutate_and_return(x, b):
    return x.add_(1)


def mutate_slice_under_no_grad(x, b):
    with torch.no_grad():
        x.view(-1)[3:9].fill_(2.0)
    return x + b


def view_before_mutation(x, b):
    v = x[1:]
    x.mul_(2)
    return v + 1, v


def squeeze_of_unsqueeze(x, b):
    x.unsqueeze(0).squeeze(0).add_(1)
    return x


def buffer_becomes_differentiable(x, b):
    b.mul_(x)
    return b.sum()


def swap(x, b):
    y = x.detach().clone()
    c = y.clone()
    y.copy_(b)
    b.copy_(c)
    return y + b


def old_value_in_backward(x, b):
    y = b.clone() * x
    b.add_(1)
    return y


def old_value_recomputed(x, b):
    y = (b * 2) * x
    b.add_(1)
    return y


def write_non_dense_view(x, b):
    v = b[:, ::2].unsqueeze(0)
    v.add_(1)
    v.view(4, 3).mul_(2)
    return b * x


MUTATING = [
    mutate,
    mutate_and_return,
    mutate_slice_under_no_grad,
    view_before_mutation,
    squeeze_of_unsqueeze,
    buffer_becomes_differentiable,
    swap,
    old_value_in_backward,
    old_value_recomputed,
    write_non_dense_view,
]


@pytest.mark.parametrize("layout", ["contiguous", "transposed", "offset"])
@pytest.mark.parametrize("program", MUTATING, ids=lambda p: p.__name__)
def test_program_that_mutates_inputs(program: Program, layout: str) -> None:
    b = {
        "contiguous": lambda: torch.randn(4, 6),
        "transposed": lambda: torch.randn(6, 4).t(),
        "offset": lambda: torch.randn(6, 8)[1:5, 1:7],
    }[layout]()
    if program is write_non_dense_view and layout == "transposed":
        pytest.skip("the program's view(4, 3) is not a view of this layout")
    b_before, x = b.clone(), x46(leaf=False)
    capture, inputs = capture_by_torch_function(program, [x.detach().requires_grad_() * 1, b])
    b.detach().copy_(b_before)
    fresh = [x46(leaf=False), b.detach()]
    given = [fresh[i] if i < 2 else t for i, t in enumerate(inputs)]
    check_against_eager(capture, given)


def test_running_statistics_of_the_op_that_says_what_it_writes() -> None:
    def program(x, w, b, m, v):
        return torch.ops.aten._batch_norm_with_update(x, w, b, m, v, 0.2, 1e-5)[0] * 2

    inputs = [torch.randn(5, 3, 4), *(torch.randn(3, requires_grad=True) for _ in "wb"), torch.zeros(3), torch.ones(3)]
    capture, inputs = capture_by_torch_function(program, inputs)
    grad = check_against_eager(capture, inputs)
    assert len(grad.binding.mutations) == 2


@pytest.mark.parametrize("shape", [(), (0, 3), (1, 1), (1,)])
def test_odd_shapes(shape: tuple[int, ...]) -> None:
    def program(x):
        y = x * 2
        y.add_(1)
        return y, x.exp().sum(), y.reshape(-1)

    capture, inputs = capture_by_torch_function(program, [torch.randn(shape, requires_grad=True)])
    check_against_eager(capture, inputs)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, torch.complex64])
def test_dtypes(dtype: torch.dtype) -> None:
    def program(x):
        y = x * 2
        y[0] = y[1].clone() * x[0]
        return y, y.sum(0)

    capture, inputs = capture_by_torch_function(program, [torch.randn(3, 4, dtype=dtype, requires_grad=True)])
    check_against_eager(capture, inputs)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int8, torch.bool])
def test_integers_have_no_backward(dtype: torch.dtype) -> None:
    def program(x):
        y = x.clone()
        y[0] = 1
        return y, y.sum(), ~y

    capture, inputs = capture_by_torch_function(program, [torch.ones(3, 4, dtype=dtype)])
    grad = check_against_eager(capture, inputs)
    assert grad.backward is None


def test_a_backward_that_eager_refuses_is_refused() -> None:
    def program(x):
        y = x.sigmoid()
        y.mul_(2)
        return y

    capture, _ = capture_by_torch_function(program, [x46()])
    with pytest.raises(BackwardFailed, match="modified by an inplace operation"):
        AotGrad().run(capture)


def test_same_tensor_for_two_inputs() -> None:
    capture, _ = capture_by_torch_function(lambda x, y: x * y.exp(), [x46(), x46()])
    x = x46()
    check_against_eager(capture, [x, x])


def test_a_view_of_no_elements_returned_twice() -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x + x
        with torch.no_grad():
            x.add_(x)
        rest = y[1:]
        return rest, rest

    capture, inputs = capture_by_torch_function(program, [torch.ones(1, 4, requires_grad=True)])
    check_against_eager(capture, inputs)


@pytest.mark.parametrize(
    "look",
    [
        lambda x: x.unbind(),
        lambda x: x.unbind(-1)[3:1:-1],
        lambda x: x.split(2),
        lambda x: x.split(2, dim=1)[::2],
        lambda x: torch.split_with_sizes(x, [1, 3])[1:],
        lambda x: x.chunk(2, 1),
        lambda x: (x.t().unbind()[2].view(2, 2), x.t().unbind()[1]),
    ],
)
@pytest.mark.parametrize("of_result", [False, True])
def test_views_of_one_call_are_made_by_one_call(look, of_result) -> None:
    """As in eager their gradients come back through one node, and nobody may write into one of them."""

    def program(x: torch.Tensor) -> Any:
        x = x * 2 if of_result else x
        return (x, *look(x)) if of_result else look(x)

    capture, inputs = capture_by_torch_function(program, [x46()])
    check_against_eager(capture, inputs)
    for recorded in (True, False):
        view, eager = (call(x46(leaf=False))[-1] for call in (compiled(program), program))
        with torch.set_grad_enabled(recorded):
            if recorded:
                assert type(view.grad_fn) is type(eager.grad_fn)
                with pytest.raises(RuntimeError, match="returns multiple views"):
                    view.add_(1)
            else:
                torch.testing.assert_close(view.add_(1), eager.add_(1))


def compiled(program: Program) -> Program:
    capture, _ = capture_by_torch_function(program, [x46(leaf=False)])
    return bind_interpreted(cut(AotGrad().run(capture)))
