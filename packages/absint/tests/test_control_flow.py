"""Control flow of a Capture: Python's own, with gradients as torch's ops have them."""

from __future__ import annotations

import pytest
import torch

from absint.errors import DataDependentError
from absint.functions import custom_functions
from absint.mode import AbstractMode
from stagewire.capture import CustomFunction, Transform
from stagewire.graph import Graph, Node, Ref, Value
from stagewire.types import contiguous


def value(name: str, *shape: int) -> Value:
    return Value(name, contiguous("float32", shape))


def graph(inputs: str, *nodes: str, outputs: str) -> Graph:
    """Nodes are `result function argument...`, of tensors of two elements."""
    made = []
    for node in nodes:
        result, target, *args = node.split()
        made.append(Node(target, tuple(float(a) if a[0].isdigit() else Ref(a) for a in args), {}, (value(result, 2),)))
    return Graph(
        tuple(value(name, 2) for name in inputs.split()), tuple(made), tuple(Ref(name) for name in outputs.split())
    )


def function(kind: str, first: Graph, second: Graph | None, **options: int) -> CustomFunction:
    outputs = len(first.outputs)
    operands = 1 if kind == "cond" else options["arguments"]
    transform = Transform(kind=kind, outputs=outputs, **{"arguments": 0, **options})  # type: ignore[arg-type]
    return CustomFunction(
        name=kind, operands=operands, results=outputs, forward=first, second=second, transform=transform
    )


COND = function(
    "cond",
    graph("x w", "y operator.mul x w", outputs="y"),
    graph("x w", "y torch.sin x", outputs="y"),
)
WHILE = function(
    "while_loop",
    graph("x w", "y operator.mul x w", outputs="y"),
    graph("x w", "s torch.sum x", "c operator.lt s 100.0", outputs="c"),
    arguments=1,
)
SCAN = function(
    "scan",
    graph("c r w", "d operator.add c r", "e operator.mul d w", outputs="d e"),
    None,
    arguments=2,
    carried=1,
    length=3,
)


def applied(function: CustomFunction, *operands: torch.Tensor) -> tuple[torch.Tensor, ...]:
    *given, captured = operands
    (apply,) = custom_functions((function,)).values()
    return apply(*given, captured)  # type: ignore[no-any-return]


def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.tensor([1.0, 2.0], requires_grad=True), torch.tensor([3.0, 2.0], requires_grad=True)


@pytest.mark.parametrize("holds", [True, False])
def test_cond_gives_zeros_to_what_is_not_used(holds: bool) -> None:
    x, w = inputs()
    (y,) = applied(COND, torch.tensor([holds]), (x, w))
    torch.testing.assert_close(y, x * w if holds else x.sin())
    to_x, to_w = torch.autograd.grad(y.sum(), (x, w))
    torch.testing.assert_close(to_x, w if holds else x.cos())
    torch.testing.assert_close(to_w, x if holds else torch.zeros(2))


def test_cond_whose_results_need_no_grad_by_themselves() -> None:
    x, w = inputs()
    (y,) = applied(COND, torch.tensor(False), (x.detach(), w))
    assert y.requires_grad
    assert torch.autograd.grad(y.sum(), w)[0].tolist() == [0, 0]
    with torch.no_grad():
        assert not applied(COND, torch.tensor(False), (x.detach(), w))[0].requires_grad


def test_while_loop() -> None:
    x, w = inputs()
    (y,) = applied(WHILE, x, (w,))
    torch.testing.assert_close(y, x * w**4)  # 1 + 2, 3 + 4, 9 + 8, 27 + 16, 81 + 32
    torch.testing.assert_close(torch.autograd.grad(y.sum(), w)[0], 4 * x * w**3)


def test_while_loop_of_no_steps_gives_new_tensors() -> None:
    x, w = inputs()
    (y,) = applied(WHILE, x * 100, (w,))
    torch.testing.assert_close(y, x * 100)
    assert torch.autograd.grad(y.sum(), w)[0].tolist() == [0, 0]
    start = torch.full((2,), 50.0)
    assert applied(WHILE, start, (w,))[0].data_ptr() != start.data_ptr()


def test_scan() -> None:
    rows = torch.arange(6.0).view(3, 2).requires_grad_()
    x, w = inputs()
    carry, found = applied(SCAN, x, rows, (w,))
    expected = x + rows.cumsum(0)
    torch.testing.assert_close((carry, found), (expected[-1], expected * w))
    torch.testing.assert_close(torch.autograd.grad(found.sum(), rows)[0], torch.stack([w * 3, w * 2, w]))


def test_abstract_tensors_have_rows_and_no_data() -> None:
    with AbstractMode():
        x, p = torch.ones(2), torch.rand(2).sum() > 1
        assert [tuple(y.shape) for y in applied(SCAN, x, torch.ones(3, 2), (x,))] == [(2,), (3, 2)]
        with pytest.raises(DataDependentError):
            applied(COND, p, (x, x))
