"""Where a compiled call raises, everything stands as eager leaves it: the exception and its class, inputs and their
versions, Python's effects, buffers, random numbers. The graph is undone, and the function runs plain."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import bytecap.driver.undo
import stagefold

Program = Callable[..., Any]


def observe(program: Program, arguments: list[Any]) -> dict[str, Any]:
    """What is left of a call that may raise."""
    torch.manual_seed(0)
    try:
        result, raised = program(*arguments), None
    except Exception as error:
        result, raised = None, (type(error), str(error), error.__traceback__ and _last_line(error))
    tensors = [value for value in arguments if isinstance(value, torch.Tensor)]
    return {
        "result": result.tolist() if isinstance(result, torch.Tensor) else result, "raised": raised,
        "values": [tensor.tolist() for tensor in tensors],
        "versions": [tensor._version for tensor in tensors], "random": torch.rand(1).item(),
    }  # fmt: skip


def _last_line(error: Exception) -> int:
    trace = error.__traceback__
    assert trace is not None
    while trace.tb_next is not None:
        trace = trace.tb_next
    return trace.tb_lineno


SIZE = 3000
"""Rows: enough for kernels that share one function and two threads."""


def arguments(bad: int | None) -> list[Any]:
    torch.manual_seed(1)
    at = torch.randperm(SIZE)
    if bad is not None:
        at[SIZE // 2] = bad
    return [torch.randn(SIZE, 8), torch.randn(SIZE, 8), at]


def add_then_read(x: torch.Tensor, t: torch.Tensor, at: torch.Tensor) -> Any:
    x.add_(1)
    return t[at]


def read_then_add(x: torch.Tensor, t: torch.Tensor, at: torch.Tensor) -> Any:
    rows = t[at]
    x.add_(1)
    return rows


def write_rows(x: torch.Tensor, t: torch.Tensor, at: torch.Tensor) -> Any:
    x[at] = t
    return t.sin()


def write_rows_and_read(x: torch.Tensor, t: torch.Tensor, at: torch.Tensor) -> Any:
    x.index_copy_(0, at, t)
    return x.mul_(2)[at]


def add_rows(x: torch.Tensor, t: torch.Tensor, at: torch.Tensor) -> Any:
    x.index_add_(0, at, t)
    t.neg_()
    return x.sum()


def scatter(x: torch.Tensor, t: torch.Tensor, at: torch.Tensor) -> Any:
    x.scatter_(0, at[:, None].expand(-1, 8), t)
    return x + 1


def index_that_is_computed(x: torch.Tensor, t: torch.Tensor, at: torch.Tensor) -> Any:
    x.mul_(2)
    rows = at + (x.sum() * 0).long()
    t.add_(x)
    return t[rows]


def divide(x: torch.Tensor, t: torch.Tensor, at: torch.Tensor) -> Any:
    x.add_(1)
    return at // (at - at[SIZE // 2])


def draw(x: torch.Tensor, t: torch.Tensor, at: torch.Tensor) -> Any:
    x.copy_(torch.rand_like(x))
    return torch.nn.functional.dropout(t, 0.5)[at]


def embedding_loss(x: torch.Tensor, t: torch.Tensor, at: torch.Tensor) -> Any:
    x.mul_(0.9).add_(t, alpha=0.1)
    return torch.nn.functional.cross_entropy(t, at % 8 + (at >= SIZE) * 8)


def in_a_handler(x: torch.Tensor, t: torch.Tensor, at: torch.Tensor) -> Any:
    x.add_(1)
    try:
        return t[at].sum().item()
    except IndexError:
        return x.sub_(2).sum().item()


def behind_a_break(x: torch.Tensor, t: torch.Tensor, at: torch.Tensor) -> Any:
    x.add_(1)
    if x.sum() > 1e9:
        return x
    t.mul_(x)
    return t[at]


PROGRAMS = (add_then_read, read_then_add, write_rows, write_rows_and_read, add_rows, scatter, index_that_is_computed,
            divide, draw, embedding_loss, in_a_handler, behind_a_break)  # fmt: skip


@pytest.fixture
def no_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inputs that are written are not copied before a call."""

    class Snapshot(bytecap.driver.undo.Snapshot):
        def __init__(self, written: Any, generators: Any) -> None:
            super().__init__(written, generators)
            if self.written:
                pytest.fail("a copy of what a call writes")

    monkeypatch.setattr(bytecap.driver.undo, "Snapshot", Snapshot)


@contextlib.contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_an_index_out_of_range(program: Program, count: int, no_copies: None) -> None:
    call = stagefold.compile(program)
    with threads(1):  # what ATen has written of a part when it raises depends on its threads
        expected = observe(program, arguments(SIZE + 5))
    with threads(count):
        observe(call, arguments(None))
    with threads(1):
        assert observe(call, arguments(SIZE + 5)) == expected
    assert expected["raised"] is not None or program is in_a_handler


def test_what_the_function_did_before_stands() -> None:
    """Lists, buffers of modules, the random stream."""
    found = []
    for compiled in (lambda f: f, stagefold.compile):
        x, log, norm = torch.zeros(3), [], torch.nn.BatchNorm1d(3)

        def program(x: torch.Tensor, index: torch.Tensor, log: list[str], norm: torch.nn.Module) -> torch.Tensor:
            x.add_(1)
            log.append("a")
            norm(torch.randn(4, 3))
            return x[index]

        torch.manual_seed(0)
        with pytest.raises(IndexError) as caught:
            compiled(program)(x, torch.tensor([7]), log, norm)
        found.append((type(caught.value), str(caught.value), x.tolist(), log, norm.running_mean.tolist(),
                      norm.num_batches_tracked.item(), torch.rand(1).item()))  # fmt: skip
    assert found[0] == found[1]


def test_inputs_that_share_memory() -> None:
    """Such a call runs the captured calls in eager: what they wrote is put back before the function runs plain."""

    def program(x: torch.Tensor, y: torch.Tensor, at: torch.Tensor, log: list[int]) -> torch.Tensor:
        x.add_(1)
        log.append(1)
        return y[at]

    call, found = stagefold.compile(program), []
    call(torch.zeros(4), torch.zeros(4), torch.tensor([1]), [])
    for run in (program, call):
        memory, log = torch.arange(6.0), []
        with pytest.raises(IndexError), pytest.warns() if run is call else contextlib.nullcontext():
            run(memory[:4], memory[2:], torch.tensor([9]), log)
        found.append((memory.tolist(), log))
    assert found[0] == found[1]


def test_a_training_step_that_fails_leaves_gradients_alone() -> None:
    table = torch.nn.Embedding(5, 3)
    step = stagefold.compile(lambda at: table(at).pow(2).sum())
    step(torch.tensor([1, 2])).backward()
    before = table.weight.grad.clone()
    with pytest.raises(IndexError, match="out of range"):
        step(torch.tensor([1, 7])).backward()
    assert table.weight.grad.equal(before)


def test_an_error_in_a_compiled_backward_is_the_programs() -> None:
    """A custom function whose backward reads rows that are not there."""

    class Rows(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x, at)
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> Any:
            x, at = ctx.saved_tensors
            return grad * x[at], None

    def program(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        return Rows.apply(x, at).sum()

    classes = []
    for run in (program, stagefold.compile(program)):
        x = torch.ones(3, requires_grad=True)
        with pytest.raises(IndexError) as caught:
            run(x, torch.tensor([0, 1, 9])).backward()
        classes.append(caught.type)
        assert x.grad is None
    assert issubclass(classes[1], classes[0])


UNUSED: dict[str, Program] = {
    "rows": lambda x, i: x[i],
    "written rows": lambda x, i: x.clone().index_put((i,), x[0]),
    "index_select": lambda x, i: x.index_select(0, i),
    "gather": lambda x, i: x.gather(0, i),
    "scatter": lambda x, i: x.scatter(0, i, 1.0),
    "index_add": lambda x, i: x.index_add(0, i, x[:1]),
    "index_copy": lambda x, i: x.index_copy(0, i, x[:1]),
    "index_fill": lambda x, i: x.index_fill(0, i, 1.0),
    "take": lambda x, i: x.take(i),
    "embedding": lambda x, i: torch.nn.functional.embedding(i, x[:, None]),
    "division": lambda x, i: 7 // (i - 9),
    "remainder": lambda x, i: i % (i - 9),
    "its size": lambda x, i: x[i].shape[0],
}


@pytest.mark.parametrize(("training", "dynamic"), [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize("name", UNUSED)
def test_a_result_that_nobody_uses(name: str, training: bool, dynamic: bool) -> None:
    """What may raise is not dropped: its operand is checked."""

    def program(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        UNUSED[name](x, i)
        return x * 2

    call = stagefold.compile(program, fullgraph=True, dynamic=dynamic)
    good, bad = torch.tensor([1]), torch.tensor([9])
    found = call(torch.ones(3, requires_grad=training), good)
    assert found.tolist() == [2.0] * 3
    expected = observe(program, [torch.ones(3, requires_grad=training), bad])
    assert expected["raised"] is not None
    assert observe(call, [torch.ones(3, requires_grad=training), bad]) == expected


def fill_and_read(x: torch.Tensor, i: torch.Tensor) -> Any:
    try:
        x.zero_()
        return x[i]
    except IndexError:
        return None


def rows_that_are_alike(x: torch.Tensor, i: torch.Tensor) -> Any:
    return x[:1].expand(3)[i]


def numbers(x: torch.Tensor, i: torch.Tensor) -> Any:
    return torch.full((3,), 2.0)[i] + x


@pytest.mark.parametrize("program", [fill_and_read, rows_that_are_alike, numbers], ids=lambda program: program.__name__)
def test_a_result_that_folds(program: Program) -> None:
    call = stagefold.compile(program, fullgraph=True)
    assert observe(call, [torch.ones(3), torch.tensor([2])]) == observe(program, [torch.ones(3), torch.tensor([2])])
    assert observe(call, [torch.ones(3), torch.tensor([9])]) == observe(program, [torch.ones(3), torch.tensor([9])])
