"""Floats that differ from call to call: inputs of the graph, and the guards that questions about them become."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import bytecap
from bytecap.driver.executor import executor
from bytecap.guards import print_guard, print_source
from stagewire.capture import Capture, Equals


class Backend:
    """Runs captures in eager torch, and keeps them."""

    takes_symbols = True

    def __init__(self) -> None:
        self.captures: list[Capture] = []

    def __call__(self, capture: Capture, inputs: tuple[Any, ...]) -> Callable[..., Any]:
        assert all(
            isinstance(given, torch.Tensor)
            for given, item in zip(inputs, capture.inputs, strict=True)
            if item.role != "symbol"
        )
        self.captures.append(capture)
        return executor(capture)


def test_the_second_value_makes_it_an_input() -> None:
    backend = Backend()
    call = bytecap.optimize(lambda x, rate: x * rate + 2 * rate, backend, fullgraph=True)
    for value in (0.5, 0.25, -1.0, math.nan):
        torch.testing.assert_close(call(torch.ones(3), value), torch.ones(3) * value + 2 * value, equal_nan=True)
    first, second = backend.captures
    assert [item.role for item in first.inputs] == ["tensor"]
    assert [(item.value.name, item.role) for item in second.inputs] == [("x", "tensor"), ("rate", "number")]
    assert [node.target for node in second.graph.nodes] == [
        "torch.Tensor.item", "operator.mul", "torch.sym_float", "operator.mul", "operator.add",
    ]  # fmt: skip
    assert not any("rate" in print_guard(guard) for guard in second.guards if isinstance(guard, Equals))


@pytest.mark.parametrize(
    ("program", "guards"),
    [
        (lambda x, rate: x * rate if rate > 0.1 else x + 1, ["(rate > 0.1) is True"]),
        (lambda x, rate: x * rate if 1 - 2 * rate <= 0 else x + 1, ["((1.0 - (2.0 * rate)) <= 0.0) is False"]),
        (
            lambda x, rate: x * rate * int(rate * 4),
            ["type(math.trunc((rate * 4.0))) is int and math.trunc((rate * 4.0)) == 1"],
        ),
        (lambda x, rate: x * rate * math.sqrt(rate), ["(rate >= 0.0) is True"]),
        (lambda x, rate: x * rate * hash(rate), ["type(rate) is float and rate == 0.25"]),
        (lambda x, rate: torch.full_like(x, rate), ["((float.__abs__(rate) // 3.402823466385289e+38) > 0.0) is False"]),
    ],
)
def test_questions_are_guards(program: Callable[..., Any], guards: list[str]) -> None:
    backend = Backend()
    call = bytecap.optimize(program, backend, fullgraph=True)
    for value in (0.5, 0.25):
        torch.testing.assert_close(call(torch.ones(3), value), program(torch.ones(3), value))
    asked = [print_guard(guard) for guard in backend.captures[1].guards if isinstance(guard, Equals)]
    assert [guard for guard in asked if "rate" in guard] == guards


def test_its_absolute_value_asks_for_no_sign() -> None:
    def program(x: torch.Tensor, rate: float) -> tuple[torch.Tensor, float, str]:
        return x * abs(rate), abs(rate - 1), str(math.sqrt(abs(rate)))

    backend = Backend()
    call = bytecap.optimize(program, backend, fullgraph=True)
    for value in (0.5, 0.25, -4.0, -0.0):
        found, expected = call(torch.ones(3), value), program(torch.ones(3), value)
        assert found[0].tolist() == expected[0].tolist()
        assert found[1:] == expected[1:]
    assert len(backend.captures) == 2


def test_an_int_that_is_computed_of_it_is_a_size() -> None:
    backend = Backend()
    call = bytecap.optimize(lambda x, rate: x * int(rate * 8), backend, fullgraph=True)
    for value in (0.5, 0.25, 0.75, 3.9):
        torch.testing.assert_close(call(torch.ones(3), value), torch.ones(3) * int(value * 8))
    assert len(backend.captures) == 2
    (symbol,) = backend.captures[1].symbols
    assert symbol.source is not None
    assert print_source(symbol.source) == "math.trunc((rate * 8.0))"


def test_an_int_in_its_place_is_another_program() -> None:
    backend = Backend()
    call = bytecap.optimize(lambda x, rate: x * rate, backend, fullgraph=True)
    for value in (0.5, 0.25, 3, 0.75):
        found = call(torch.arange(3), value)
        assert found.dtype is (torch.arange(3) * value).dtype
        torch.testing.assert_close(found, torch.arange(3) * value)


def test_fixed_where_the_backend_takes_no_symbols() -> None:
    class Plain(Backend):
        takes_symbols = False

    backend = Plain()
    call = bytecap.optimize(lambda x, rate: x * rate, backend, fullgraph=True)
    for value in (0.5, 0.25, 0.75):
        torch.testing.assert_close(call(torch.ones(3), value), torch.ones(3) * value)
    assert len(backend.captures) == 3


def test_of_an_object_that_the_program_changes() -> None:
    class Meter:
        def __init__(self) -> None:
            self.total = 1.0

    def program(meter: Meter, x: torch.Tensor) -> tuple[torch.Tensor, float]:
        before = meter.total
        meter.total = before / 2
        return x * meter.total, before

    mine, other = Meter(), Meter()
    call = bytecap.optimize(program, Backend(), fullgraph=True)
    for _ in range(4):
        found, expected = call(mine, torch.ones(2)), program(other, torch.ones(2))
        torch.testing.assert_close(found, expected)
        assert mine.total == other.total


def test_a_name_like_those_of_sizes() -> None:
    def program(x: torch.Tensor, s0: float, s1: torch.Tensor, n: int) -> tuple[torch.Tensor, float]:
        return x * s0 + x.shape[0] + s1 * n, s0 * 2 + x.shape[0]

    backend = Backend()
    call = bytecap.optimize(program, backend, fullgraph=True)
    for rows, value in ((3, 0.5), (4, 0.25), (5, 0.75), (6, 1.5)):
        given = torch.ones(rows), value, torch.ones(2, rows), rows + 7
        torch.testing.assert_close(call(*given), program(*given))
    assert len(backend.captures) == 2


def test_a_text_of_it_fixes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    def program(x: torch.Tensor, rate: float) -> torch.Tensor:
        print(f"{rate:.2f} of {len(x)}, {rate * 2}")
        return x * rate

    backend = Backend()
    call = bytecap.optimize(program, backend, fullgraph=True)
    for value in (0.5, 0.25, 0.75, -1.0):
        torch.testing.assert_close(call(torch.ones(3), value), torch.ones(3) * value)
        assert capsys.readouterr().out == f"{value:.2f} of 3, {value * 2}\n"
    assert len(backend.captures) == 2
