"""min() and max() of tensors are part of the graph where nobody can tell that Python gives one of its arguments."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves

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


def gives_an_argument(x: torch.Tensor) -> Any:
    return max(x)


def gives_one_of_what_it_gives(x: torch.Tensor) -> Any:
    first, second = x.sum(), x.mean()
    return first, max(first, second)


def gives_an_outside_tensor(x: torch.Tensor) -> Any:
    return x * 2, max(LOW, HIGH)


def gives_one_of_many(x: torch.Tensor) -> Any:
    items = [x.sum(), x[0], x[1:2].squeeze(), x.mean()]
    smallest = min(items)
    kept = {"smallest": smallest, "largest": max(smallest, *items), "next": smallest + 1}
    return [*items, kept, smallest]


GIVING = [gives_an_argument, gives_one_of_what_it_gives, gives_an_outside_tensor, gives_one_of_many]
CAPTURED = [*GIVING, of_outside_tensors, of_two, of_items, of_whole_numbers, nested]
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


def of_one_that_requires_grad(x: torch.Tensor) -> Any:
    return max(x.sum(), (x * LEAF).sum()).requires_grad


def of_leaves(x: torch.Tensor) -> Any:
    return max(LEAF, LEAF.view_as(LEAF) + 1).is_leaf


LEAF = torch.tensor(0.5, requires_grad=True)


def of_other_types(x: torch.Tensor) -> Any:
    return max(x.sum(), (x > 0).sum()), max(x.sum(), 3.0)


ZERO, ONE = torch.tensor(0.0), torch.tensor(1.0)
ZERO.label = ONE.label = "zero or one"  # type: ignore[attr-defined]


def of_labelled_tensors(x: torch.Tensor) -> Any:
    return x * 2, hasattr(max(ZERO, ONE), "label")


def asks_which_it_is(x: torch.Tensor) -> Any:
    first, second = x.sum(), x.mean()
    largest = max(first, second)
    return x * (2 if largest is first else 3)


def looks_it_up(x: torch.Tensor) -> Any:
    first, second = x.sum(), x.mean()
    return x * {first: 2, second: 3}[max(first, second)]


REFUSED = [of_one_that_requires_grad, of_leaves, asks_which_it_is, looks_it_up, gives_a_view, writes_the_result,
           writes_an_argument, of_other_types, of_labelled_tensors]  # fmt: skip


@pytest.mark.parametrize("program", REFUSED, ids=lambda program: program.__name__)
def test_what_could_tell_ends_the_graph(program: Any) -> None:
    with pytest.raises(CannotCapture, match="BC004"):
        optimize(program, backend, fullgraph=True)(torch.ones(3))
    compiled = optimize(program, backend)
    for data in DATA[:3]:
        x, twin = torch.tensor(data), torch.tensor(data)
        torch.testing.assert_close(compiled(x), program(twin))


@pytest.mark.parametrize("program", GIVING, ids=lambda program: program.__name__)
@pytest.mark.parametrize("data", DATA)
def test_what_leaves_is_the_chosen_tensor_itself(program: Any, data: list[float]) -> None:
    compiled = optimize(program, backend, fullgraph=True)
    compiled(torch.ones(3))
    x, twin = torch.tensor(data), torch.tensor(data)
    found, expected = compiled(x), program(twin)
    ours, theirs = ([*tree_leaves(result), LOW, HIGH] for result in (found, expected))
    same = [[one is other for one in items for other in items] for items in (ours, theirs)]
    assert same[0] == same[1]
    if program is gives_an_argument:
        found.add_(1), expected.add_(1)
        torch.testing.assert_close(x, twin, equal_nan=True)


def computes_with_it(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return max(x.sum(), y.sum()) * 2


def gives_it(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return max(x.sum().sqrt(), y.sum().sqrt())


@pytest.mark.parametrize("program", [computes_with_it, gives_it], ids=lambda program: program.__name__)
def test_gradients_go_to_the_chosen_one_alone(program: Any) -> None:
    fullgraph = program is gives_it
    if not fullgraph:
        with pytest.raises(CannotCapture, match="BC003"):
            optimize(program, backend, fullgraph=True)(*[torch.ones(3, requires_grad=True) for _ in range(2)])
    compiled = optimize(program, backend, fullgraph=fullgraph)
    for other in (0.0, 2.0):
        x, y = torch.ones(3, requires_grad=True), torch.full((3,), other, requires_grad=True)
        compiled(x, y).backward()
        chosen, unchosen = (x, y) if other < 1 else (y, x)
        assert chosen.grad is not None
        assert unchosen.grad is None


def test_outside_tensors_with_attributes_in_a_later_call() -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, bool]:
        largest = max(x, y)
        return largest * 2, hasattr(largest, "label")

    compiled = optimize(program, backend)
    labelled = torch.tensor(3.0)
    labelled.label = "three"  # type: ignore[attr-defined]
    for x, y in ((HIGH, LOW), (labelled, LOW), (LOW, labelled), (LOW, HIGH)):
        assert compiled(x, y) == program(x, y)
