"""Functions whose C++ looks at data to check its arguments: one graph where they fit, torch's own error elsewhere."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from bytecap import executor, optimize
from bytecap.driver.stage import Options

W = torch.tensor([1, 2, 3, 1])
A = torch.tensor([0.5, 1.0, 2.0, 0.25])
PROGRAMS: dict[str, Callable[[Tensor], Any]] = {
    "covariance": lambda x: torch.cov(x),
    "of one row": lambda x: x[0].cov(correction=0),
    "weighted by frequency": lambda x: torch.cov(x, fweights=W),
    "weighted twice": lambda x: torch.cov(x, fweights=W, aweights=A),
    "weighted, no correction": lambda x: torch.cov(x, correction=0, aweights=A),
    "of integers": lambda x: torch.cov((x * 9).long()),
    "correlation": lambda x: torch.corrcoef(x),
    "correlation of a row": lambda x: torch.corrcoef(x[0]),
    "quantiles": lambda x: torch.quantile(x, torch.tensor([0.1, 0.75]), dim=0),
    "a quantile of all": lambda x: x.quantile(0.3, interpolation="midpoint"),
    "a quantile of numbers": lambda x: torch.nanquantile(torch.where(x > 0, x, torch.nan), 0.5, 1, True),
    "pairs": lambda x: torch.combinations(input=x[0]),
    "triples with repetition": lambda x: torch.combinations(x[1], r=3, with_replacement=True),
    "nothing together": lambda x: torch.combinations(x[1], r=0),
    "too many together": lambda x: torch.combinations(x[1], r=5),
    "gaussian likelihood": lambda x: F.gaussian_nll_loss(x, x * 2, x.square(), full=True),
}
RESIZED: dict[str, Callable[[Tensor], Any]] = {
    "fewer elements": lambda x: x.clone().resize_(2, 3) * 2,
    "the same size": lambda x: x.clone().resize_(3, 4).stride(),
    "as another": lambda x: torch.resize_as_(x.clone(), x[:2]) + 1,
    "to a number": lambda x: x.clone().resize_(()),
}


def captured(program: Callable[..., Any], *, fullgraph: bool = False) -> Callable[..., Any]:
    """The program under capture, whose graphs run in eager torch."""
    options = Options(allow_empty=True)
    return optimize(program, lambda capture, inputs: executor(capture), fullgraph=fullgraph, options=options)


@pytest.mark.parametrize("name", PROGRAMS)
def test_one_graph_with_torchs_result(name: str) -> None:
    same(PROGRAMS[name], torch.randn(3, 4))


@pytest.mark.parametrize("name", RESIZED)
def test_resized_in_its_own_memory(name: str) -> None:
    same(RESIZED[name], torch.randn(3, 4), gradient=False)


def same(program: Callable[..., Any], x: Tensor, gradient: bool = True) -> None:
    """One graph, with the result, the layout and the gradient of the program itself."""
    found = []
    for call in (program, captured(program, fullgraph=True)):
        given = x.clone().requires_grad_(gradient)
        result = call(given)
        if isinstance(result, Tensor) and result.requires_grad:
            result.abs().sum().backward()
        found.append((result, result.stride() if isinstance(result, Tensor) else None, given.grad))
    torch.testing.assert_close(found[1], found[0], rtol=1e-5, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("length", [None, 25])
@pytest.mark.parametrize(("width", "center"), [(16, True), (16, False), (12, True)])
def test_inverse_short_time_transform(length: int | None, width: int, center: bool) -> None:
    window = torch.hann_window(width) + 0.1
    spectrum = torch.stft(torch.randn(2, 60), 16, 4, width, window, center=center, return_complex=True)

    def program(z: Tensor) -> Tensor:
        return torch.istft(z, 16, 4, width, window, center, length=length)

    same(program, spectrum)


@pytest.mark.parametrize(
    "program",
    [
        lambda x: torch.cov(x, fweights=W - 2),
        lambda x: torch.cov(x, aweights=A * 0),
        lambda x: F.gaussian_nll_loss(x, x, x - 100),
        lambda x: torch.quantile(x, A),
        lambda x: torch.istft(torch.complex(x, x), 4, window=torch.zeros(4)),
    ],
    ids=["negative weights", "weights of no sum", "negative variance", "no quantile", "no window"],
)
def test_a_check_that_fails_raises_what_torch_raises(program: Callable[[Tensor], Any]) -> None:
    x = torch.randn(3, 4)
    with pytest.raises((RuntimeError, ValueError)) as expected:
        program(x)
    with pytest.raises(type(expected.value)) as found:
        captured(program)(x)
    assert str(found.value) == str(expected.value)


def test_no_degrees_of_freedom_is_warned_of() -> None:
    for program in (lambda x: torch.cov(x[:, :1]), lambda x: torch.cov(x, fweights=W, correction=9)):
        with pytest.warns(UserWarning, match="degrees of freedom"):
            expected = program(torch.ones(3, 4))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = captured(program)(torch.ones(3, 4))
        assert torch.equal(found, expected) or bool(found.isnan().all())
        assert any("degrees of freedom" in str(w.message) for w in caught)


def test_what_grows_is_torchs() -> None:
    program = captured(lambda x: x.clone().resize_(20).shape)
    assert program(torch.randn(3, 4)) == (20,)


CONTENTS: dict[str, tuple[Callable[[Tensor, Tensor], Any], Tensor]] = {
    "split at places": (lambda x, t: torch.tensor_split(x, t), torch.tensor([1, 2])),
    "split into sections": (lambda x, t: x.tensor_split(t, dim=1), torch.tensor(2)),
    "repeated": (lambda x, t: x.repeat_interleave(t, 0), torch.tensor([0, 2, 1])),
    "repeated alike": (lambda x, t: torch.repeat_interleave(x, t, dim=-1), torch.tensor([2])),
}


@pytest.mark.parametrize("name", CONTENTS)
def test_what_a_small_tensor_holds_is_assumed_and_checked(name: str) -> None:
    program, numbers = CONTENTS[name]
    x, compiled = torch.randn(3, 4), captured(CONTENTS[name][0], fullgraph=True)
    for given in (numbers, numbers + 1, numbers):
        torch.testing.assert_close(compiled(x, given), program(x, given), rtol=0, atol=0)


def test_what_the_program_wrote_is_not_assumed() -> None:
    def program(x: Tensor, numbers: Tensor) -> Any:
        numbers.add_(1)
        return x.repeat_interleave(numbers, 0)

    found = [call(torch.ones(2, 2), torch.tensor([1, 2])) for call in (program, captured(program))]
    assert torch.equal(*found)
