"""`torch.cond`, `while_loop`, `scan` and `map` in captured code: functions of the capture, or a clean refusal."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from bytecap import executor, interpret, optimize
from bytecap.errors import StageError
from bytecap.events import Captured
from bytecap.torch_capabilities import TORCH
from stagewire.capture import Capture
from stagewire.codec import decode, encode
from stagewire.parser import parse_document
from stagewire.printer import print_document
from stagewire.verify import verify

while_loop, scan, map_rows = TORCH.while_loop, TORCH.scan, TORCH.map
WEIGHT = nn.Parameter(torch.linspace(0.5, 1.5, 4))
X = torch.linspace(-1, 2, 12).view(3, 4)
BUFFER = torch.ones(4)
SEEN: list[Any] = []


def captured(program: Any, *args: Any) -> Capture:
    found = []

    def backend(capture: Capture, inputs: Any) -> Any:
        found.append(capture)
        return executor(capture)

    optimize(program, backend, fullgraph=True)(*args)
    (capture,) = found
    return capture


def every_op(x: torch.Tensor) -> Any:
    y = torch.cond(x.sum() > 0, lambda v: map_rows(lambda row: row * WEIGHT, v), lambda v: v, (x,))
    count, z = while_loop(lambda n, v: n < 4, lambda n, v: (n + 1, v * WEIGHT), (torch.tensor(0), y))
    return count, scan(lambda carry, row: (carry + row, carry * row), torch.zeros(4), z, reverse=True)


def test_documents() -> None:
    capture = captured(every_op, X)
    assert [node.target for node in capture.graph.nodes if node.target.startswith("custom.")] == [
        "custom.cond",
        "custom.while_loop",
        "custom.scan_2",
    ]
    verify(capture)
    assert parse_document(print_document(capture)) == capture
    again = decode(encode(capture))
    assert again == capture
    values = [WEIGHT if item.role == "parameter" else X for item in capture.inputs]
    y = X * WEIGHT
    z = y * WEIGHT**4
    sums = z.flip(0).cumsum(0)
    expected = torch.tensor(4), sums[-1], ((sums - z.flip(0)) * z.flip(0)).flip(0)
    torch.testing.assert_close(interpret(again, values), expected)


def test_what_the_functions_read_is_guarded() -> None:
    class Settings:
        factor = 2.0

    settings, events = Settings(), []
    call = optimize(
        lambda x: torch.cond(x.sum() > 0, lambda v: v * settings.factor, torch.sin, (x,)),
        lambda capture, inputs: executor(capture),
        fullgraph=True,
        on_event=events.append,
    )
    torch.testing.assert_close(call(X), X * 2)
    torch.testing.assert_close(call(-X), torch.sin(-X))
    assert sum(isinstance(event, Captured) for event in events) == 1
    settings.factor = 3.0
    torch.testing.assert_close(call(X), X * 3)
    assert sum(isinstance(event, Captured) for event in events) == 2


def test_a_predicate_that_is_known_is_no_op() -> None:
    def program(flag: bool, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(flag, lambda v: v + 1, lambda v: v * 2, (x,))

    call = optimize(program, lambda capture, inputs: executor(capture), fullgraph=True)
    for flag in (True, False, True):
        torch.testing.assert_close(call(flag, X), program(flag, X))
    capture = captured(program, True, X)
    assert [node.target for node in capture.graph.nodes] == ["operator.add"]
    assert not capture.functions


def test_numbers_that_are_carried_are_known() -> None:
    """The second example of torch's documentation, and one whose length is a size."""

    def program(x: torch.Tensor) -> Any:
        return while_loop(lambda i, v: 2 * i < v.shape[0], lambda i, v: (i + 1, v + i), (0, x))

    call = optimize(program, lambda capture, inputs: executor(capture), fullgraph=True)
    for count in (4, 7, 1):
        found = call(torch.zeros(count, 2))
        steps = (count + 1) // 2
        assert found[0] == steps
        assert found[1].unique().tolist() == [steps * (steps - 1) / 2]
    assert not captured(program, X).functions


def test_writes_without_gradients() -> None:
    """As torch allows: of operands and of what the functions close over, and not of what is carried."""

    def program(x: torch.Tensor, buffer: torch.Tensor) -> Any:
        with torch.no_grad():
            y = torch.cond(x.sum() > 0, lambda v: v.add_(buffer.mul_(2)), lambda v: v * 2, (x,))
            n, z = while_loop(
                lambda n, v: n < 3, lambda n, v: (n + buffer.add_(1).long()[0], v * 2), (torch.tensor(0), y)
            )
        return y + x, n, z + buffer

    call = optimize(program, lambda capture, inputs: executor(capture), fullgraph=True)
    x, buffer = X.clone(), torch.ones(4)
    found = call(x, buffer)
    y = X + 2
    assert torch.equal(x, y)
    assert torch.equal(buffer, torch.full((4,), 3.0))
    torch.testing.assert_close(found, (y * 2, torch.tensor(3), y * 2 + 3))
    x, buffer = -X, torch.ones(4)
    torch.testing.assert_close(call(x, buffer)[0], -3 * X)
    assert torch.equal(x, -X)


def writes_what_is_carried(x: torch.Tensor) -> Any:
    with torch.no_grad():
        return while_loop(lambda n, v: n < 3, lambda n, v: (n.add_(1), v * 2), (torch.tensor(0), x))[1] * 2


def writes_a_known_number(x: torch.Tensor) -> Any:
    count = torch.zeros(())
    with torch.no_grad():
        return torch.cond(x.sum() > 0, lambda v: v * count.add_(1), lambda v: v, (x,)), count


def cond(true_fn: Any, false_fn: Any = torch.sin) -> Any:
    return lambda x: torch.cond(x.sum() > 0, true_fn, false_fn, (x,)) * 2


def changes_a_list(v: torch.Tensor) -> torch.Tensor:
    SEEN.append(1)
    return v * 2


def changes_grad_mode(v: torch.Tensor) -> torch.Tensor:
    torch._C._set_grad_enabled(False)
    return v * 2


def changes_a_closure(x: torch.Tensor) -> Any:
    y = x * 2
    return torch.cond(x.sum() > 0, lambda: y.add_(1), lambda: y.sin())


def loop(body: Any, condition: Any = lambda n, v: n < 3) -> Any:
    return lambda x: while_loop(condition, body, (torch.tensor(0), x))[1] * 2


REFUSED = [
    (cond(changes_a_list), "a function of cond changes an object outside of it"),
    (cond(lambda v: v.add_(1)), "a function of cond writes a tensor that it did not make"),
    (changes_a_closure, "a function of cond writes a tensor that it did not make"),
    (cond(lambda v: BUFFER.mul_(2) * v), "a function of cond writes a tensor that it did not make"),
    (cond(changes_grad_mode), "a function of cond changes whether gradients are recorded"),
    (cond(lambda v: v.double()), "the functions of cond return a"),
    (cond(lambda v: v[:2]), "the functions of cond return a"),
    (cond(lambda v: (v * 2, 1), lambda v: (v * 3, 2)), "the functions of cond return trees of another form"),
    (cond(lambda v: [v * 2]), "the functions of cond return trees of another form"),
    (cond(lambda v: v * v.sum().item()), "item()"),
    (cond(lambda v: v[v > 0].sum()), "depends"),
    (lambda x: torch.cond(x > 0, torch.sin, torch.cos, (x,)), "a predicate of more than one element"),
    (lambda x: torch.vmap(cond(lambda v: v * 2))(x), "cond under a transform of torch.func"),
    (writes_what_is_carried, "a function of while_loop writes a tensor"),
    (writes_a_known_number, "a function of cond writes a tensor"),
    (lambda x: while_loop(lambda n, v: v.sum() < n, lambda n, v: (n, v + 1), (3, x))[1], "depends on data"),
    (lambda x: while_loop(lambda n, v: n < 200, lambda n, v: (n + 1, v + 1), (0, x))[1], "more than 100 steps"),
    (loop(lambda n, v: (n + 1.0, v)), "while_loop carries a"),
    (loop(lambda n, v: (n + 1,)), "the function of while_loop returns trees of another form"),
    (loop(lambda n, v: (n + 1, v.add_(1))), "a function of while_loop writes a tensor"),
    (loop(lambda n, v: (n + 1, v * 2), lambda n, v: n), "whose condition is no bool tensor"),
    (loop(lambda n, v: (n + 1, v * 2), lambda n, v: v > 1), "whose condition is no bool tensor"),
    (lambda x: scan(lambda c, r: (c + r, None), torch.zeros(4), x), "what a function of scan returns"),
    (lambda x: scan(lambda c, r: c + r, torch.zeros(4), x), "returns no pair of a carry and a row"),
    (lambda x: scan(lambda c, r: (c.double(), r * 2), torch.zeros(4), x), "scan carries a"),
    (lambda x: scan(lambda c, r: (c, r * 2), torch.zeros(4), x, dim=2), "along a dimension that xs have not"),
    (lambda x: map_rows(lambda r: r * 2, x[:0]), "map over xs of no rows"),
    (lambda x: map_rows(lambda r: r[0] + r[1], (x, x[:2])), "map over xs of no rows, or of differing numbers"),
    (lambda x: map_rows(lambda r: r[0], (x, 3)), "xs of map of something else than tensors"),
]


@pytest.mark.parametrize(("program", "text"), REFUSED, ids=range(len(REFUSED)))
def test_refusals(program: Any, text: str) -> None:
    seen = len(SEEN)
    call = optimize(program, lambda capture, inputs: executor(capture), fullgraph=True)
    with pytest.raises(StageError) as error:
        call(X.clone())
    assert text in str(error.value)
    assert error.value.code.startswith("BC")
    assert torch.equal(BUFFER, torch.ones(4))
    assert len(SEEN) == seen
    assert torch.is_grad_enabled()
