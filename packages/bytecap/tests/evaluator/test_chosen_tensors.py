"""min() and max() of tensors are part of the graph where nobody can tell that Python gives one of its arguments."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from bytecap import executor, optimize
from bytecap.errors import CannotCapture


def backend(capture: Any, inputs: Any) -> Any:
    return executor(capture)


def of_two(x: torch.Tensor) -> Any:
    return max(x.sum(), x.abs().mean()) * 2, min(x.sum(), x[0] * 2)


def of_items(x: torch.Tensor) -> Any:
    return x / max(x), min(each * 2 for each in x), max(list(x.unbind())) + 1


def of_whole_numbers(x: torch.Tensor) -> Any:
    whole = (x.nan_to_num() * 3).long()
    return max(whole.sum(), whole.max(), whole[0] + 1), min(whole > 1, key=None) | (x[0] > 0)


def nested(x: torch.Tensor) -> Any:
    return max(min(x.sum(), x[0] + 1), min(x[1] + 1, x[2] + 1))


LOW, HIGH = torch.tensor(-0.5), torch.tensor(1.5)


def of_outside_tensors(x: torch.Tensor) -> Any:
    return x * max(LOW, HIGH), min(HIGH, LOW) + x, max(x[:1], -x[1:2]) * 2


CAPTURED = [of_outside_tensors, of_two, of_items, of_whole_numbers, nested]
DATA = ([1.0, 2.0, 3.0], [-1.0, -2.0, -3.0], [0.0, -0.0, 0.0], [float("nan"), 1.0, 2.0], [1.0, float("nan"), 0.0],
        [float("inf"), -float("inf"), 1.0], [2.0, 2.0, 2.0])  # fmt: skip


@pytest.mark.parametrize("program", CAPTURED, ids=lambda program: program.__name__)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_one_graph_gives_what_python_gives(program: Any, dtype: torch.dtype) -> None:
    captures = []
    compiled = optimize(program, lambda capture, inputs: captures.append(capture) or executor(capture), fullgraph=True)
    for data in DATA:
        x = torch.tensor(data, dtype=dtype)
        torch.testing.assert_close(compiled(x), program(x), rtol=0, atol=0, equal_nan=True)
    assert len(captures) == 1


def gives_an_argument(x: torch.Tensor) -> Any:
    return max(x)


def gives_one_of_what_it_gives(x: torch.Tensor) -> Any:
    first, second = x.sum(), x.mean()
    return first, max(first, second)


def gives_a_view(x: torch.Tensor) -> Any:
    first, second = x.sum(), x.mean()
    return [first[None], max(first, second).view(1)]


def writes_the_result(x: torch.Tensor) -> Any:
    first, second = x.sum(), x.mean()
    max(first, second).add_(1)
    return first * 2, second * 2


def writes_an_argument(x: torch.Tensor) -> Any:
    first, second = x.sum(), x.mean()
    largest = max(first, second)
    first.add_(100)
    return largest * 2


def of_other_types(x: torch.Tensor) -> Any:
    return max(x.sum(), (x > 0).sum()), max(x.sum(), 3.0)


ZERO, ONE = torch.tensor(0.0), torch.tensor(1.0)
ZERO.label = ONE.label = "zero or one"  # type: ignore[attr-defined]


def of_labelled_tensors(x: torch.Tensor) -> Any:
    return x * 2, hasattr(max(ZERO, ONE), "label")


def gives_an_outside_tensor(x: torch.Tensor) -> Any:
    return x * 2, max(LOW, HIGH)


def asks_which_it_is(x: torch.Tensor) -> Any:
    first, second = x.sum(), x.mean()
    largest = max(first, second)
    return x * (2 if largest is first else 3)


def looks_it_up(x: torch.Tensor) -> Any:
    first, second = x.sum(), x.mean()
    return x * {first: 2, second: 3}[max(first, second)]


REFUSED = [gives_an_outside_tensor, asks_which_it_is, looks_it_up, gives_an_argument, gives_one_of_what_it_gives,
           gives_a_view, writes_the_result, writes_an_argument, of_other_types, of_labelled_tensors]  # fmt: skip


@pytest.mark.parametrize("program", REFUSED, ids=lambda program: program.__name__)
def test_what_could_tell_ends_the_graph(program: Any) -> None:
    with pytest.raises(CannotCapture, match="BC004"):
        optimize(program, backend, fullgraph=True)(torch.ones(3))
    compiled = optimize(program, backend)
    for data in DATA[:3]:
        x, twin = torch.tensor(data), torch.tensor(data)
        found, expected = compiled(x), program(twin)
        torch.testing.assert_close(found, expected)
        if program is gives_an_argument:
            found.add_(1), expected.add_(1)
            assert torch.equal(x, twin)
        if program is gives_one_of_what_it_gives:
            assert (found[0] is found[1]) == (expected[0] is expected[1])


def test_gradients_go_to_the_chosen_one_alone() -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return max(x.sum(), y.sum()) * 2

    with pytest.raises(CannotCapture, match="BC004"):
        optimize(program, backend, fullgraph=True)(torch.ones(3, requires_grad=True), torch.zeros(3))
    x, y = torch.ones(3, requires_grad=True), torch.zeros(3, requires_grad=True)
    optimize(program, backend)(x, y).backward()
    assert x.grad is not None
    assert y.grad is None


def test_outside_tensors_with_attributes_in_a_later_call() -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, bool]:
        largest = max(x, y)
        return largest * 2, hasattr(largest, "label")

    compiled = optimize(program, backend)
    labelled = torch.tensor(3.0)
    labelled.label = "three"  # type: ignore[attr-defined]
    for x, y in ((HIGH, LOW), (labelled, LOW), (LOW, labelled), (LOW, HIGH)):
        assert compiled(x, y) == program(x, y)
