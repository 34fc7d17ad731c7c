"""Floats that differ from call to call: one program for all values, which gives what eager gives, gradients too."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.attention.flex_attention import flex_attention

import bytecap
from bytecap.testing.breaking import each as after_each
from bytecap.testing.breaking import forced_breaks
from stagefold.backend import StagefoldBackend
from stagefold.backends import resolve_backend

functional = torch.nn.functional
VALUES = (0.5, 0.25, -3.0, 1.0, 0.0, 1e-3, math.inf, math.nan, 7.5)


def compiled(function: Any, **options: Any) -> tuple[Callable[..., Any], StagefoldBackend]:
    """The function behind the default backend, and the backend, which counts."""
    backend, _ = resolve_backend("stagefold", None, {"cache": False}, None)
    assert isinstance(backend, StagefoldBackend)
    return bytecap.optimize(function, backend, **options), backend


def in_place(x: torch.Tensor, f: float) -> torch.Tensor:
    y = x * 1
    y.mul_(f).add_(x, alpha=f).lerp_(x, f).addcmul_(x, x, value=f)
    return y.fill_(f) + y


def out(x: torch.Tensor, f: float) -> torch.Tensor:
    y = x.detach()
    return torch.mul(y, f, out=torch.empty_like(y)) + torch.add(y, f, out=torch.empty_like(y)) + x


def each(x: torch.Tensor, f: float) -> list[torch.Tensor]:
    rows = [x * 1, x + 1]
    torch._foreach_add_(rows, [x, x * 2], alpha=f)
    torch._foreach_addcdiv_(rows, [x, x], [x + 1, x + 2], [f, 2.0])
    return [*torch._foreach_mul(rows, f), *torch._foreach_sub(rows, rows, alpha=f), *rows]


PROGRAMS: dict[str, Callable[[torch.Tensor, float], Any]] = {
    "arithmetic": lambda x, f: (x * f + f) - (f - x) / 3 + (x / 2) % 5,
    "powers": lambda x, f: x**f + f**x,
    "comparisons": lambda x, f: x.lt(f) * x + torch.where(x > 0.5, x, f).masked_fill(x > 0.8, f),
    "clamped": lambda x, f: x.clamp(min=f) + x.clamp(max=f),
    "made": lambda x, f: x + torch.full((5,), f) * torch.tensor(f) + x.new_tensor(f) + torch.tensor([f, 1, 2, 3, f]),
    "numbers": lambda x, f: (x * (f + 1) * x.shape[0], f * 2 - 1, f),
    "scaled": lambda x, f: torch.add(x, x * 2, alpha=f) - torch.sub(x, x * x, alpha=f),
    "combined": lambda x, f: torch.addcmul(x, x, x, value=f) + torch.addcdiv(x, x, x + 1, value=f),
    "between": lambda x, f: torch.lerp(x, x * x, f),
    "activated": lambda x, f: functional.leaky_relu(x - 0.5, f) + functional.elu(x - 0.5, f),
    "thresholds": lambda x, f: functional.threshold(x, 0.5, f),
    "in_place": in_place,
    "out": out,
    "each": each,
}


def leaves(result: Any) -> list[Any]:
    return list(result) if isinstance(result, (tuple, list)) else [result]


def check(call: Callable[..., Any], program: Callable[..., Any], x: torch.Tensor, *given: Any) -> None:
    """Results and gradients are those of eager."""
    mine, other = x.clone().requires_grad_(), x.clone().requires_grad_()
    found, expected = leaves(call(mine, *given)), leaves(program(other, *given))
    torch.testing.assert_close(found, expected, equal_nan=True)
    wanted = [index for index, one in enumerate(expected) if isinstance(one, torch.Tensor) and one.requires_grad]
    if wanted:
        for row in (found, expected):
            sum(row[index].square().sum() for index in wanted).backward()  # type: ignore[union-attr]
        torch.testing.assert_close(mine.grad, other.grad, equal_nan=True)


@pytest.mark.parametrize("name", PROGRAMS)
def test_one_program_for_all_values(name: str) -> None:
    program = PROGRAMS[name]
    call, backend = compiled(program, fullgraph=True)
    torch.manual_seed(0)
    x = torch.rand(4, 5) + 0.1
    for value in VALUES:
        if name == "clamped" and math.isnan(value) and not x.clamp(min=value).isnan().all():
            continue  # torch 2.11 takes no notice of a bound that is nan, if it is no tensor
        check(call, program, x, value)
    assert len(backend.reports) == 2  # that of the first value, and one for all others
    assert not backend.refused_sizes


@pytest.mark.parametrize("name", ["arithmetic", "made", "activated"])
def test_at_once_where_all_is_dynamic(name: str) -> None:
    call, backend = compiled(PROGRAMS[name], fullgraph=True, dynamic=True)
    for rows, value in ((4, 0.5), (7, -2.0), (9, 0.0)):
        check(call, PROGRAMS[name], torch.rand(rows, 5), value)
    assert len(backend.reports) == 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, torch.complex64])
def test_dtypes(dtype: torch.dtype) -> None:
    def program(x: torch.Tensor, f: float) -> tuple[torch.Tensor, ...]:
        return x * f, x + f, f - x, x / f, x.add(x, alpha=f), torch.addcmul(x, x, x, value=f), torch.full_like(x, f)

    backend, _ = resolve_backend("stagefold", None, {"cache": False, "numerics": "eager"}, None)
    call = bytecap.optimize(program, backend, fullgraph=True)
    x = torch.rand(64, 5).to(dtype)  # (The last few of an odd number of halves eager rounds otherwise.)
    for value in (0.5, 1 / 3, -2.7, 1e-3):
        found, expected = call(x, value), program(x, value)
        # A float32 sum of products may be contracted; that of a half is rounded to it.
        is_half = dtype in (torch.bfloat16, torch.float16)
        if is_half and torch.backends.cpu.get_cpu_capability() == "DEFAULT":
            # Without vector instructions eager rounds alpha times an operand before it adds.
            found, expected = ((*each[:4], *each[5:]) for each in (found, expected))
        tolerance = {"rtol": 0.0, "atol": 0.0} if is_half else {}
        torch.testing.assert_close(found, expected, **tolerance)
    assert len(backend.reports) == 2  # type: ignore[attr-defined]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(64, 5), ()])
def test_halves_are_rounded_where_eager_rounds_them(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    def program(x: torch.Tensor, f: float) -> tuple[torch.Tensor, ...]:
        activated = functional.elu(x - 0.5, f), functional.leaky_relu(x - 0.5, f), functional.threshold(x, 0.5, f)
        return x % f, torch.fmod(x, f), x // f, x.lerp(x * x, f), torch.add(x, f), *activated

    backend, _ = resolve_backend("stagefold", None, {"cache": False, "numerics": "eager"}, None)
    call = bytecap.optimize(program, backend, fullgraph=True)
    x = torch.rand(shape).to(dtype)
    for value in (0.5, 1 / 3, -2.7, 1e-2):
        torch.testing.assert_close(call(x, value), program(x, value), rtol=0.0, atol=0.0)
    assert len(backend.reports) == 2  # type: ignore[attr-defined]


def test_integers_keep_their_dtypes_and_errors() -> None:
    def program(x: torch.Tensor, f: float) -> tuple[torch.Tensor, ...]:
        return x * f, x + f, x**f, x.lt(f), x.clamp(min=f)

    call, backend = compiled(program, fullgraph=True)
    for value in (0.5, 1.5, -2.0):
        for found, expected in zip(call(torch.arange(1, 6), value), program(torch.arange(1, 6), value), strict=True):
            torch.testing.assert_close(found, expected)
    assert len(backend.reports) == 2
    refused = compiled(lambda x, f: x.add(x, alpha=f))[0]
    for value in (0.5, 1.5, 2.5):
        with pytest.raises(RuntimeError, match="alpha"):
            refused(torch.arange(3), value)


QUESTIONS: dict[str, tuple[Callable[[torch.Tensor, float], Any], int]] = {
    "greater": (lambda x, f: x * f if f > 0.3 else x + f, 3),
    "truth": (lambda x, f: x * f if f else x, 3),
    "of_a_step": (lambda x, f: x * (1 / (1 - f)) if 2 * f + 1 < 1.9 else x * f, 3),
    "whole": (lambda x, f: x * int(f * 4) + round(f, 1), 7),
    "roots": (lambda x, f: x * math.sqrt(f) + math.exp(-f), 2),
    "least": (lambda x, f: x * min(f, 0.6), 3),
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_what_is_asked_of_a_float_is_guarded(name: str) -> None:
    program, most = QUESTIONS[name]
    call, backend = compiled(program, fullgraph=True)
    for value in (0.5, 0.25, 0.7, 0.9, 0.1, 0.45):
        check(call, program, torch.rand(3), value)
    assert len(backend.reports) <= most


IN_FUNCTIONS: dict[str, Callable[[torch.Tensor, float], Any]] = {
    "vmap": lambda x, f: torch.vmap(lambda row: f * torch.tanh(row / f))(x),
    "grad": lambda x, f: torch.func.grad(lambda y: (f * torch.tanh(y / f)).sum())(x),
    "cond": lambda x, f: torch.cond(x.sum() > 0, lambda: x * f, lambda: x / f),
    "flex_attention": lambda x, f: flex_attention(*[x[None, None]] * 3, lambda score, b, h, q, k: f * score),
}


@pytest.mark.parametrize("name", IN_FUNCTIONS)
def test_functions_in_the_graph_have_a_program_for_each_value(name: str) -> None:
    function = IN_FUNCTIONS[name]
    call, backend = compiled(function, fullgraph=True)
    for value in (2.0, 0.5, -1.5, 0.5):
        x = torch.rand(4, 8) + 0.5
        torch.testing.assert_close(call(x, value), function(x, value))
    assert len(backend.reports) == 3


def test_an_error_of_python_is_raised() -> None:
    call, _ = compiled(lambda x, f: x * (1 / f) + math.log(f))
    for value in (0.5, 0.25, 2.0):
        check(call, lambda x, f: x * (1 / f) + math.log(f), torch.rand(3), value)
    with pytest.raises(ZeroDivisionError):
        call(torch.rand(3), 0.0)
    with pytest.raises(ValueError, match="math domain"):
        call(torch.rand(3), -1.0)
    check(call, lambda x, f: x * (1 / f) + math.log(f), torch.rand(3), 4.0)


@pytest.mark.parametrize("fullgraph", [True, False])
def test_an_operator_without_a_form(fullgraph: bool) -> None:
    """A program for each value; where graphs may break, it runs plain between programs for all values."""

    def program(x: torch.Tensor, f: float) -> torch.Tensor:
        return functional.layer_norm(x * f, (5,), eps=f) * f

    call, backend = compiled(program, fullgraph=fullgraph)
    values = (0.5, 0.25, 0.7, 0.5, 0.1, 0.2, 0.3, 0.4)
    for value in values:
        check(call, program, torch.rand(3, 5), value)
    assert len(backend.reports) == (len(set(values)) if fullgraph else 4)


class Scaled(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(5, 5)
        self.factor = 0.5

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) * self.factor


def test_floats_of_modules_objects_and_containers() -> None:
    module, settings = Scaled(), {"rate": 0.1, "more": [0.5, 1.5]}

    def program(x: torch.Tensor) -> torch.Tensor:
        return module(x) * settings["rate"] + settings["more"][1]

    call, backend = compiled(program, fullgraph=True)
    for step in range(6):
        module.factor, settings["rate"], settings["more"] = 1.0 + step, 0.1 * step, [0.0, step / 2]
        check(call, program, torch.rand(3, 5))
    assert len(backend.reports) == 2


def test_a_float_that_the_program_counts_up() -> None:
    class Meter:
        def __init__(self) -> None:
            self.total = 0.0

    mine, other = Meter(), Meter()

    def count(meter: Meter, x: torch.Tensor) -> torch.Tensor:
        meter.total += 0.5
        return x * meter.total

    call, backend = compiled(count, fullgraph=True)
    for _ in range(5):
        torch.testing.assert_close(call(mine, torch.ones(3)), count(other, torch.ones(3)))
        assert mine.total == other.total
    assert len(backend.reports) == 2


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.RMSprop])
def test_a_learning_rate_that_is_scheduled(kind: Any) -> None:
    torch.manual_seed(0)
    mine = torch.nn.Linear(4, 3)
    other = copy.deepcopy(mine)
    optimizers = [kind(model.parameters(), lr=0.1) for model in (mine, other)]
    call, backend = compiled(optimizers[0].step)
    for rate in (0.1, 0.05, 0.025, 0.01, 0.005):
        for model, optimizer, step in ((mine, optimizers[0], call), (other, optimizers[1], optimizers[1].step)):
            optimizer.param_groups[0]["lr"] = rate
            optimizer.zero_grad()
            model(torch.ones(2, 4)).square().sum().backward()
            step()
    torch.testing.assert_close(list(mine.parameters()), list(other.parameters()))
    assert len(backend.reports) == 2


def test_a_gradient_of_a_gradient() -> None:
    call, _ = compiled(lambda x, f: (x**f * f).sum(), fullgraph=True)
    for value in (3.0, 2.5, 4.0):
        second = []
        for function in (call, lambda x, f: (x**f * f).sum()):
            x = torch.arange(1.0, 4.0, requires_grad=True)
            (first,) = torch.autograd.grad(function(x, value), x, create_graph=True)
            second.append(torch.autograd.grad(first.sum(), x)[0])
        torch.testing.assert_close(*second)


@pytest.mark.parametrize("count", range(2, 14, 2))
def test_floats_live_over_a_break(count: int) -> None:
    def program(x: torch.Tensor, f: float) -> tuple[torch.Tensor, float]:
        half = f / 2
        y = x * half
        z = y + half * f
        return z - f, half

    call, _ = compiled(program)
    with forced_breaks(after_each(count)):
        for value in (0.5, 0.25, 0.75, 1.0):
            found, expected = call(torch.ones(3), value), program(torch.ones(3), value)
            torch.testing.assert_close(found[0], expected[0])
            assert found[1] == expected[1]


OVERFLOWS: dict[str, tuple[Callable[[torch.Tensor, Any], Any], torch.dtype, tuple[Any, ...]]] = {
    "clamped floats": (lambda x, f: x.clamp(max=f), torch.float32, (0.5, 2.5, 1e300, math.inf, math.nan, 3.5)),
    "filled floats": (lambda x, f: x.masked_fill(x > 1, f), torch.float32, (0.5, 2.5, -1e300, math.inf)),
    "filled halves": (lambda x, f: torch.full_like(x, f), torch.float16, (0.5, 2.5, 7e4, -math.inf)),
    "scaled floats": (lambda x, f: torch.add(x, x, alpha=f), torch.float32, (0.5, 2.5, 1e300, math.nan)),
    "activated floats": (lambda x, f: functional.leaky_relu(x - 2, f), torch.float32, (0.5, 2.5, 1e300)),
    "products": (
        lambda x, f: torch.addmm(x.view(2, 2), x.view(2, 2), x.view(2, 2), alpha=f), torch.float32, (0.5, 2.5, 1e300)
    ),
    "a float in integers": (lambda x, f: x.masked_fill(x > 1, f), torch.int64, (1.5, 2.5, math.nan, math.inf, 1e30)),
    "clamped bytes": (lambda x, n: x.clamp(max=n), torch.int8, (3, 4, 127, 128, 2**40, -128, -129)),
    "filled bytes": (lambda x, n: x.fill_(n), torch.uint8, (3, 4, 255, 256, -1, -300)),
    "made integers": (lambda x, n: torch.tensor(n, dtype=x.dtype) + x, torch.int16, (3, 4, 2**15)),
    "scaled integers": (lambda x, n: torch.add(x, x, alpha=n), torch.int32, (3, 4, 2**31)),
    "filled halves by ints": (lambda x, n: x.masked_fill(x > 1, n), torch.float16, (3, 4, 65504, 70000)),
}  # fmt: skip
"""Program, dtype and numbers, some of which ATen does not convert to that dtype."""


def outcome(function: Callable[..., Any], *given: Any) -> Any:
    """The result, or what eager says of a number that it refuses."""
    try:
        return function(*given)
    except RuntimeError as error:
        return str(error)


@pytest.mark.filterwarnings("ignore:runs plain")
@pytest.mark.parametrize("name", OVERFLOWS)
def test_a_number_that_overflows_the_dtype_is_refused(name: str) -> None:
    """A program that was captured for all numbers computed with what the conversion made of them."""
    program, dtype, numbers = OVERFLOWS[name]
    run, _ = compiled(program)
    for number in numbers:
        x, y = torch.arange(4).to(dtype), torch.arange(4).to(dtype)
        expected, found = outcome(program, x, number), outcome(run, y, number)
        if isinstance(expected, str):
            assert found == expected
        else:
            torch.testing.assert_close(found, expected, equal_nan=True)
        torch.testing.assert_close(y, x, equal_nan=True)
