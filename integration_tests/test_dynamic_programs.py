"""The default backend at many sizes: one program serves them, forward and backward, and gives what eager gives."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers

import bytecap
import stagefold
from integration_tests.zoo.decoding import decode
from primops import Primops
from stagefold.backend import StagefoldBackend
from stagefold.backends import resolve_backend
from stagefold.errors import FixedSizes
from stagefold.options import parse_options
from stagewire.errors import StageError

functional = torch.nn.functional


def compiled(function: Any, **options: Any) -> tuple[Callable[..., Any], StagefoldBackend]:
    """The function behind the default backend, and the backend, which counts."""
    backend, _ = resolve_backend("stagefold", None, {"cache": False}, None)
    assert isinstance(backend, StagefoldBackend)
    return bytecap.optimize(function, backend, **options), backend


def last_rows(x: torch.Tensor) -> torch.Tensor:
    return x[x.shape[0] - 1] * x.shape[1] + x[-1, x.shape[1] // 2 :].sum()


def written(x: torch.Tensor) -> torch.Tensor:
    y = torch.zeros(x.shape[0] + 1, x.shape[1])
    y[1:] = x
    y[0, : x.shape[1] - 1] = x.mean(0)[1:]
    return y.relu_()


def views(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x.t(), x[1:], x.reshape(-1, 1), (x * 2).view(-1)[: x.shape[0]]


PROGRAMS: dict[str, Callable[[torch.Tensor], Any]] = {
    "softmax": lambda x: torch.softmax(x @ x.mT, -1) @ x,
    "mean": lambda x: x.sum(1) / x.shape[1] + x.mean(),
    "norm": lambda x: functional.layer_norm(x, (x.shape[1],)),
    "averages of what is there": lambda x: functional.avg_pool2d(x[None], 3, 2, 1, count_include_pad=False) * 2,
    "positions by floats": lambda x: (
        x * torch.arange(x.shape[1], -x.shape[1], -2.0, dtype=torch.int64) + torch.arange(1, x.shape[1] + 1, 1.0)
    ),
    "positions": lambda x: x + torch.arange(x.shape[1]) * torch.ones(x.shape[0], 1),
    "triangle": lambda x: torch.tril(x) + x.new_full((x.shape[0], 1), x.shape[0]),
    "joined": lambda x: torch.cat([x, x.flip(0), x[:, :1].expand(-1, 2).mT.repeat(1, 1).mT], 1),
    "attention": lambda x: functional.scaled_dot_product_attention(*[x[None, None, :, :3]] * 3, is_causal=True),
    "images": lambda x: functional.interpolate(x[None, None], scale_factor=2.0, mode="bilinear"),
    "last_rows": last_rows,
    "written": written,
    "views": views,
    "deviations": lambda x: (x.std(1), x.var(), torch.var_mean(x, 0)[0]),
    "quotients": lambda x: x / math.sqrt(x.shape[1]) + x.sum(1, True) * (1 / x.shape[0]) - x**2 * x.shape[1] ** -0.5,
    "halves": lambda x: x[:, : int(x.shape[1] / 2)] * 0.5 + x[:, : math.ceil(x.shape[1] * 0.5)].sum(),
    "spaced": lambda x: x * torch.linspace(0, 1, x.shape[1]) + torch.logspace(0, x.shape[0] / 64, x.shape[1]),
    "made": lambda x: torch.kron(x, torch.tensor([[x.shape[0], 0.5]])) / torch.tensor(x.shape[1]),
    "groups": lambda x: functional.conv1d(x[None], x[:, None, :2], groups=x.shape[0]).tanh(),
    "classes": lambda x: functional.one_hot(torch.arange(x.shape[0]), x.shape[0]).to(x.dtype) @ x,
    "sorted": lambda x: torch.take_along_dim(x, x.argsort(1) - 1, 1).cumsum(0),
    "pooled": lambda x: functional.max_pool1d(x[None], 3, 2, 1),
    "windows": lambda x: functional.max_pool2d(functional.relu(x)[None, None], 3, 2, 1)[0, 0] * 2,
    "framed": lambda x: torch.stft(x, 2, 1, window=torch.ones(2), center=False, return_complex=True).abs(),
    "scaled": lambda x: functional.interpolate(x[None, None], scale_factor=1.5, mode="bicubic"),
    "parts": lambda x: x[:, : int(x.shape[1] * 0.7)].sum() + x[: math.ceil(x.shape[0] * 0.8)] * round(x.shape[1] / 1.5),
    "roots": lambda x: x[:, : int(math.sqrt(x.shape[1] + 5))] * int(math.log2(x.shape[1] + 3)),
    "weighed": lambda x: torch.addmm(x[:, :1], x, x.mT[:, :1], alpha=1 / x.shape[1]) + x.add(x, alpha=x.shape[0] / 3),
    "filled": lambda x: x.clamp(max=1 / x.shape[1]) + torch.full_like(x, x.shape[0] / 3) * x.lt(x.shape[1] / 64),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_one_program_for_all_sizes_with_gradients(name: str) -> None:
    program = PROGRAMS[name]
    call, backend = compiled(program, dynamic=True, fullgraph=True)
    torch.manual_seed(0)
    for size in ((5, 4), (3, 7), (64, 9), (6, 17)):
        x = torch.randn(size)
        given, plain = x.clone().requires_grad_(), x.clone().requires_grad_()
        found, expected = call(given), program(plain)
        torch.testing.assert_close(found, expected)
        for values in (found, expected):
            parts = values if isinstance(values, tuple) else (values,)
            sum(part.square().sum() for part in parts).backward()
        torch.testing.assert_close(given.grad, plain.grad, rtol=1e-3, atol=1e-4)
    assert len(backend.reports) == 1
    assert backend.refused_sizes == 0


def test_ints_computed_of_sizes_as_floats() -> None:
    """They are sizes of their own; 0 and 1 have programs of their own, as for other sizes."""

    def program(x: torch.Tensor, y: torch.Tensor) -> tuple[Any, ...]:
        count = int(x.shape[0] * 0.29)
        return x[:count] * count, count, y.new_zeros(count, 2), torch.arange(round(x.shape[0] / 0.7))

    call, backend = compiled(program, dynamic=True)
    for rows in (100, 7, 10, 11, 13, 3, 4, 0, 1, 997, 200, 300):
        x = torch.randn(rows, 3)
        torch.testing.assert_close(call(x, torch.ones(2)), program(x, torch.ones(2)))
    assert len(backend.reports) <= 5


class Levels(torch.nn.Module):
    """A UNet of two levels: what comes up again is joined with what went down, so that edges are multiples of 4."""

    def __init__(self) -> None:
        super().__init__()
        sizes = ((3, 4), (4, 8), (8, 8), (16, 4), (8, 4))
        self.layers = torch.nn.ModuleList(
            torch.nn.Sequential(torch.nn.Conv2d(a, b, 3, padding=1), torch.nn.GroupNorm(2, b), torch.nn.SiLU())
            for a, b in sizes
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.layers[0](x)
        second = self.layers[1](functional.max_pool2d(first, 2))
        third = self.layers[2](functional.max_pool2d(second, 2))
        up = functional.interpolate(third, scale_factor=2.0)
        up = functional.interpolate(self.layers[3](torch.cat([up, second], 1)), scale_factor=2.0)
        return self.layers[4](torch.cat([up, first], 1))


def test_a_network_that_joins_levels() -> None:
    torch.manual_seed(0)
    network = Levels()
    call, backend = compiled(network, dynamic=True, fullgraph=True)
    parameters = tuple(network.parameters())
    for size in ((2, 3, 8, 8), (3, 3, 16, 16), (1, 3, 12, 12), (4, 3, 20, 20)):
        x = torch.randn(size)
        found, expected = call(x), network(x)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
        both = [torch.autograd.grad(result.square().sum(), parameters) for result in (found, expected)]
        torch.testing.assert_close(*both, rtol=1e-3, atol=1e-3)
    assert (len(backend.reports), backend.refused_sizes) == (2, 0)  # one image is a program of its own


def test_depthwise_convolutions_with_channels_last() -> None:
    """Inside of the program images lie channels last, its inputs and results as eager's; few windows are products."""
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 128, 3, 2, 1), torch.nn.ReLU(), torch.nn.Conv2d(128, 128, 3, 2, 1, groups=128),
        torch.nn.Hardswish(), torch.nn.Conv2d(128, 160, 1), torch.nn.BatchNorm2d(160),
        torch.nn.Conv2d(160, 160, 3, padding=1, groups=160),
    ).eval()  # fmt: skip
    call, backend = compiled(model.forward, dynamic=True)
    with torch.no_grad():
        for batch, size in ((2, 32), (3, 7), (2, 5), (4, 18), (5, 64)):
            x = torch.randn(batch, 3, size, size)
            found, expected = call(x), model(x)
            torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
            assert found.stride() == expected.stride()
    assert (len(backend.reports), backend.refused_sizes) == (1, 0)


def test_texts_of_sizes() -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, str]:
        return x * 2, f"{x.shape[0]} rows of {x.shape[1]:>5}, {x.shape[1] + 1}" + str(x.shape[0] // 2)

    call, backend = compiled(program, dynamic=True, fullgraph=True)
    for size in ((5, 4), (3, 7), (64, 9)):
        found, expected = call(torch.ones(size)), program(torch.ones(size))
        torch.testing.assert_close(found[0], expected[0])
        assert found[1] == expected[1]
    assert len(backend.reports) == 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_halves_are_rounded_where_eager_rounds(dtype: torch.dtype) -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        third = x.shape[1] / 3
        return x + third, x * third, x / third, third - x, x.sub(x, alpha=third), x % third, x.clamp(third / 9, 0.8)

    call = stagefold.compile(program, dynamic=True, fullgraph=True, options={"numerics": "eager", "cache": False})
    torch.manual_seed(0)
    for width in (5, 7):
        x = torch.rand(64, width).to(dtype)
        for number, (found, expected) in enumerate(zip(call(x), program(x), strict=True)):
            if number == 4 and torch.backends.cpu.get_cpu_capability() == "DEFAULT":
                continue  # without vector instructions eager rounds alpha times an operand before it subtracts
            assert torch.equal(found, expected)


@pytest.mark.parametrize("cell", [torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN])
def test_recurrent_layers_of_several_batches(cell: Any) -> None:
    """As one graph: steps are written out where gradients are wanted, their number is fixed; oneDNN takes any."""
    torch.manual_seed(0)
    layer = cell(3, 4, 2, bidirectional=True)
    call, backend = compiled(layer, dynamic=True, fullgraph=True)
    for length, batch in ((5, 2), (5, 7), (5, 3), *([(9, 4), (4, 6)] if cell is torch.nn.LSTM else [])):
        x = torch.randn(length, batch, 3)
        with torch.no_grad():
            torch.testing.assert_close(call(x), layer(x))
    assert len(backend.reports) == 1
    call, backend = compiled(layer, dynamic=True, fullgraph=True)
    for batch in (2, 7, 3):
        x = torch.randn(5, batch, 3, requires_grad=True)
        y = x.detach().clone().requires_grad_()
        for function, given in ((call, x), (layer, y)):
            function(given)[0].square().sum().backward()
        torch.testing.assert_close(x.grad, y.grad)
    assert len(backend.reports) == (3 if cell is torch.nn.LSTM else 1)


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("cell", [torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN])
def test_recurrent_layers_of_any_number_of_steps(cell: Any, dynamic: bool | None) -> None:
    """The graph ends in front of a layer that would take a program for each number of steps."""
    torch.manual_seed(0)
    layer, last = cell(3, 4), torch.nn.Linear(4, 2)
    call, backend = compiled(lambda x: last(layer(x)[0]).relu(), dynamic=dynamic)
    parameters = (*layer.parameters(), *last.parameters())
    counts = []
    for length, batch in ((5, 2), (6, 2), (8, 3), (4, 7), (9, 5), (3, 4), (7, 6)):
        x = torch.randn(length, batch, 3)
        found, expected = call(x), last(layer(x)[0]).relu()
        torch.testing.assert_close(found, expected)
        for one, other in zip(
            torch.autograd.grad(found.sum(), parameters), torch.autograd.grad(expected.sum(), parameters), strict=True
        ):
            torch.testing.assert_close(one, other)
        counts.append(len(backend.reports))
    assert counts[3:] == counts[3:4] * 4
    assert counts[-1] <= (2 if dynamic else 7)


def test_decoding_200_tokens() -> None:
    torch.manual_seed(0)
    config = transformers.GPT2Config(n_layer=1, n_embd=16, n_head=2, vocab_size=50, n_positions=256)
    model = transformers.GPT2LMHeadModel(config).eval()
    call, backend = compiled(model)

    torch.testing.assert_close(decode(call, 200), decode(model, 200))
    assert len(backend.reports) == 3  # the prompt, the first token, all others


def test_generating_from_texts_of_several_lengths() -> None:
    torch.manual_seed(0)
    config = transformers.T5Config(
        vocab_size=50, d_model=16, d_kv=4, d_ff=32, num_layers=1, num_heads=2, decoder_start_token_id=0
    )
    model = transformers.T5ForConditionalGeneration(config).eval()
    other = copy.deepcopy(model)
    other.forward, backend = compiled(other.forward)
    for size in ((2, 7), (3, 9), (2, 12), (5, 4)):
        ids = torch.randint(1, 50, size)
        expected = model.generate(ids, max_new_tokens=8, do_sample=False)
        assert torch.equal(other.generate(ids, max_new_tokens=8, do_sample=False), expected)
    assert len(backend.reports) == 6  # torch.compile makes as many


@pytest.mark.parametrize(
    "program",
    [
        lambda x: (x.sin() * x.shape[-1]).sum(0),
        pytest.param(
            lambda x: functional.conv2d(x, torch.ones(1, 1, 3, 3), stride=2, padding=1).square(),
            marks=pytest.mark.skipif(
                torch.__version__ < "2.13", reason="its second derivative takes no symbolic sizes in torch's C++"
            ),
        ),
    ],
)
def test_gradients_of_gradients_at_other_sizes(program: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Their programs are made in the first backward: what they assume of the sizes nobody has guarded."""
    call, _ = compiled(program, dynamic=True)
    for size in (6, 9, 2, 3):
        x = torch.randn(4, 1, size, size + 1, requires_grad=True)
        found = []
        for function in (call, program):
            (gradient,) = torch.autograd.grad(function(x).square().sum(), x, create_graph=True)
            found.append(torch.autograd.grad(gradient.square().sum(), x)[0])
        torch.testing.assert_close(*found, rtol=1e-3, atol=1e-3)


class Unprepared(StageError):
    code = "XX001"
    needs_fixed_sizes = True


def failing(
    error: Exception, monkeypatch: pytest.MonkeyPatch, is_ours: bool = True, **options: Any
) -> tuple[Callable[..., Any], StagefoldBackend]:
    """x * 2 behind a back end one of whose stages raises on symbols."""
    run = Primops.run

    def stage(document: Any) -> Any:
        if document.binding.symbols:
            raise error
        return run(Primops(), document)

    monkeypatch.setattr(Primops, "run", lambda self, document, options=None: stage(document)) if is_ours else None
    stages = {} if is_ours else {"primops": stage}
    backend = StagefoldBackend(parse_options(None, {"cache": False, **options}), stages)
    return bytecap.optimize(lambda x: x * 2, backend, dynamic=True), backend


@pytest.mark.parametrize("is_fault", [False, True])
def test_what_a_stage_cannot_do_with_symbols_is_compiled_for_each_size(
    is_fault: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Silently where the stage says so; else with a warning that names the fault."""
    error = TypeError("'<' between 'int' and 'Expr'") if is_fault else Unprepared("no symbols")
    call, backend = failing(error, monkeypatch)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for size in (3, 4, 5):
            assert torch.equal(call(torch.ones(size)), torch.full((size,), 2.0))
    assert len(backend.reports) == 3
    assert backend.refused_sizes == 1
    found = [str(one.message) for one in told if one.category is FixedSizes]
    assert len(found) == is_fault
    assert all("TypeError: '<' between 'int' and 'Expr'" in message for message in found)


@pytest.mark.parametrize("is_ours", [True, False])
def test_a_fault_of_a_stage_is_raised_under_verify_or_if_it_is_none_of_ours(
    is_ours: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    call, _ = failing(TypeError("'<' between 'int' and 'Expr'"), monkeypatch, is_ours, verify=is_ours)
    with pytest.raises(TypeError, match="between 'int' and 'Expr'"):
        call(torch.ones(3))
    call, _ = failing(Unprepared("no symbols"), monkeypatch, is_ours, verify=is_ours)
    assert torch.equal(call(torch.ones(3)), torch.full((3,), 2.0))


def test_a_condition_that_the_gradient_needs_is_guarded() -> None:
    """Strides of a gradient depend on whether a derived size is 1: the capture need not know, the backward does."""
    model = torch.nn.Conv2d(2, 3, 3, padding=1, stride=2)
    call, _ = compiled(model, dynamic=True)
    for size in (8, 12, 2, 9, 3):
        x = torch.randn(4, 2, size, size + 1, requires_grad=True)
        y = x.detach().clone().requires_grad_()
        call(x).square().sum().backward()
        model(y).square().sum().backward()
        torch.testing.assert_close(x.grad, y.grad)


@pytest.mark.parametrize(("dynamic", "programs"), [(True, 1), (None, 2), (False, 3)])
def test_the_options_of_compile(dynamic: bool | None, programs: int) -> None:
    call, backend = compiled(lambda x: x * x.shape[0], dynamic=dynamic)
    for size in (3, 4, 5):
        assert torch.equal(call(torch.ones(size)), torch.full((size,), float(size)))
    assert len(backend.reports) == programs


def test_one_size_that_is_marked() -> None:
    call, backend = compiled(lambda x: x.relu() + 1)
    for size in (3, 4, 5):
        x = torch.ones(size, 2)
        stagefold.mark_dynamic(x, 0)
        assert torch.equal(call(x), x + 1)
    assert len(backend.reports) == 1
