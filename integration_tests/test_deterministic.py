"""torch.use_deterministic_algorithms: sums in eager's order, and eager's refusals."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import stagefold
from integration_tests.zoo.devices import DEVICES


@pytest.fixture(autouse=True)
def deterministic(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def many_rows(device: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    rows, places = torch.randn(20_000, 8, generator=generator), torch.randint(0, 7, (20_000,), generator=generator)
    return torch.zeros(7, 8, device=device), places.to(device), rows.to(device)


PROGRAMS: dict[str, Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "index_add": lambda x, at, rows: x.index_add(0, at, rows * 2) + 1,
    "scatter_add": lambda x, at, rows: x.scatter_add(0, at[:, None].expand(-1, 8), rows * 2) + 1,
    "index_put": lambda x, at, rows: x.index_put((at,), rows * 2, accumulate=True) + 1,
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", PROGRAMS)
def test_sums_at_indices_have_eagers_bits(name: str, device: str) -> None:
    given, program = many_rows(device), PROGRAMS[name]
    fast = stagefold.compile(program, fullgraph=True)
    for _ in range(3):
        assert torch.equal(fast(*given), program(*given))


@pytest.mark.parametrize("device", DEVICES)
def test_gradients_of_rows_have_eagers_bits(device: str) -> None:
    _, places, rows = many_rows(device)
    table = torch.randn(7, 8, device=device, requires_grad=True)
    found = []
    for embed in (stagefold.compile(F.embedding, fullgraph=True), F.embedding):
        found.append(torch.autograd.grad((embed(places, table) * rows).sum(), table)[0])
    assert torch.equal(*found)


def test_a_program_is_compiled_for_each_state() -> None:
    given, program = many_rows("cpu"), PROGRAMS["index_add"]
    fast = stagefold.compile(program)
    for wanted in (False, True, False):
        torch.use_deterministic_algorithms(wanted)
        found, expected = fast(*given), program(*given)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-3)
        assert torch.equal(found, expected) or not wanted


def outcome(program: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> Any:
    try:
        return program(x)
    except RuntimeError as error:
        return str(error).partition(",")[0]


@pytest.mark.parametrize("device", DEVICES)
def test_scans_have_eagers_bits_or_its_refusal(device: str) -> None:
    x = torch.randn(2, 1 << 20, device=device)
    program = lambda x: x.cumsum(1) * 2  # noqa: E731
    expected, found = outcome(program, x), outcome(stagefold.compile(program), x)
    assert torch.equal(found, expected) if isinstance(expected, torch.Tensor) else found == expected


MADE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "empty": lambda x: torch.empty(3),
    "integers": lambda x: x.new_empty(2, dtype=torch.int32),
    "like": torch.empty_like,
    "strided": lambda x: torch.empty_strided((2, 2), (1, 2)),
}


@pytest.mark.parametrize("name", MADE)
def test_new_memory_is_filled_as_eager_fills_it(name: str) -> None:
    x = torch.ones(4)
    found = stagefold.compile(MADE[name], fullgraph=True)(x)
    torch.testing.assert_close(found, MADE[name](x), equal_nan=True)
