"""Writes into inputs are made where the input is: the same values, version counters and sharing as in eager."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable

import pytest
import torch

import stagefold
from codegen.stage import Codegen
from stagewire.loop import Loop
from stagewire.program import Program


def test_the_program_writes_where_the_input_is() -> None:
    def update(x: torch.Tensor, g: torch.Tensor) -> None:
        x.sub_(g * 0.5)

    storage = torch.zeros(30)
    x, g = storage[7:19].view(3, 4), torch.ones(3, 4)  # begins inside of its storage
    compiled = stagefold.compile(update)
    with torch.no_grad():
        for number in range(1, 4):
            before = x._version
            compiled(x, g)
            assert x._version == before + 1
            assert torch.equal(storage[7:19], torch.full((12,), -0.5 * number))
            assert storage[:7].count_nonzero() == storage[19:].count_nonzero() == 0
    elsewhere = torch.zeros(3, 4)
    compiled(elsewhere, g)
    assert torch.equal(elsewhere, torch.full((3, 4), -0.5))


@pytest.mark.parametrize("find", [torch.max, torch.min], ids=["max", "min"])
def test_positions_in_an_input_that_is_updated(find: Callable[..., tuple[torch.Tensor, torch.Tensor]]) -> None:
    def update(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return find(x.mul_(2).add_(1), 1)

    x = torch.randn(6, 40)
    expected, found = update(x.clone()), stagefold.compile(update, fullgraph=True)(x.clone())
    assert torch.equal(found[0], expected[0])
    assert torch.equal(found[1], expected[1])


def test_inputs_that_share_memory() -> None:
    def update(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(y)
        return y * 2

    compiled = stagefold.compile(update)
    for _ in range(2):
        assert torch.equal(compiled(torch.ones(4), torch.ones(4)), torch.full((4,), 2.0))
    both = torch.ones(4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert torch.equal(compiled(both, both.view(2, 2).view(4)), torch.full((4,), 4.0))
    assert torch.equal(both, torch.full((4,), 2.0))


def test_an_error_leaves_the_inputs_alone() -> None:
    def update(x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        picked = x[rows]
        x.mul_(2.0)
        return picked

    compiled = stagefold.compile(update)
    x = torch.arange(4.0)
    assert torch.equal(compiled(x, torch.tensor([1, 3])), torch.tensor([1.0, 3.0]))
    assert torch.equal(x, torch.arange(4.0) * 2)
    with pytest.raises(IndexError):
        compiled(x, torch.tensor([1, 9]))
    assert torch.equal(x, torch.arange(4.0) * 2)


def test_inference_tensors() -> None:
    with torch.inference_mode():
        x = torch.zeros(5)
        compiled = stagefold.compile(lambda x: x.add_(1.0))
        for _ in range(3):
            compiled(x)
        assert torch.equal(x, torch.full((5,), 3.0))


def write_rows(cache: torch.Tensor, at: torch.Tensor, new: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
    count.add_(1)
    cache.index_copy_(1, at, new)
    return cache.sum(1) * count


def test_rows_of_a_cache() -> None:
    caches = [torch.zeros(2, 300, 8) for _ in range(2)]
    counts = [torch.tensor(0), torch.tensor(0)]
    program = stagefold.compile(write_rows, fullgraph=True)
    for number in (0, 7, -1, 299):
        given = torch.tensor([number]), torch.randn(2, 1, 8)
        expected = write_rows(caches[0], given[0] % 300, given[1], counts[0])
        torch.testing.assert_close(program(caches[1], given[0] % 300, given[1], counts[1]), expected)
        assert torch.equal(*caches)
        assert torch.equal(*counts)


def test_a_row_out_of_range_changes_nothing_but_what_stands_before_it() -> None:
    cache, count = torch.zeros(2, 300, 8), torch.tensor(0)
    program = stagefold.compile(write_rows, fullgraph=True)
    program(cache, torch.tensor([3]), torch.ones(2, 1, 8), count)
    before = cache.clone()
    with pytest.raises(IndexError):
        program(cache, torch.tensor([300]), torch.ones(2, 1, 8), count)
    assert torch.equal(cache, before)
    assert count == 2, "as in eager"


WRITES: dict[str, Callable[[torch.Tensor, torch.Tensor, int], object]] = {
    "a slice": lambda x, y, n: x[:, n : n + 2].copy_(y[:, :2]),
    "from the end": lambda x, y, n: x[:, -n:].mul_(y[:, :1]),
    "a row": lambda x, y, n: x[n // 2].add_(y[0]),
    "a box": lambda x, y, n: x[1:3, n:].copy_(x[:2, n:] * 2),
    "two slices": lambda x, y, n: (x[:, :n].add_(1), x[:, 1:].mul_(2)),
    "two apart": lambda x, y, n: (x[:, 0].copy_(y[:, 0]), x[:, -1].copy_(y[:, 1])),
    "every other": lambda x, y, n: x[:, ::2].neg_(),
    "below a bound": lambda x, y, n: x.copy_(torch.where(torch.arange(x.shape[1]) < n * 3, y[:, :1], x)),
    "from a bound on": lambda x, y, n: x.copy_(torch.where(torch.arange(x.shape[1]) >= n - 3, y[:, :1], x)),
    "between bounds": lambda x, y, n: x.copy_(
        torch.where((torch.arange(x.shape[1]) > n) & (torch.arange(x.shape[1]) <= n + 2), x * 2, x)
    ),
    "empty": lambda x, y, n: x[:, n:n].add_(1),
    "diagonal": lambda x, y, n: x.diagonal().fill_(n),
    "to the transposed": lambda x, y, n: x.t()[n:].copy_(y.t()[n:]),
}


@pytest.mark.parametrize("dynamic", [False, True], ids=["fixed", "open"])
@pytest.mark.parametrize("name", WRITES)
def test_writes_to_parts(name: str, dynamic: bool) -> None:
    def update(x: torch.Tensor, y: torch.Tensor, n: int) -> torch.Tensor:
        WRITES[name](x, y, n)
        return y * 2

    program = stagefold.compile(update, fullgraph=True, dynamic=dynamic)
    torch.manual_seed(0)
    for rows, columns, n in ((4, 5, 2), (6, 9, 3), (3, 4, 4), (5, 7, 1)):
        if name == "a slice" and n + 2 > columns:
            continue
        memory = torch.randn(rows + 2, columns)
        y, ours, eagers = torch.randn(rows, columns), memory.clone()[1:-1], memory.clone()
        torch.testing.assert_close(program(ours, y, n), update(eagers[1:-1], y, n))
        torch.testing.assert_close(ours._base, eagers)  # nothing beside it is touched


def test_statistics_of_norms_in_training() -> None:
    torch.manual_seed(0)
    eager = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(8, 4, 3), torch.nn.BatchNorm2d(4, momentum=0.3),
    )  # fmt: skip
    ours = copy.deepcopy(eager)
    loops: list[Loop] = []

    def observed(document: Loop) -> Program:
        loops.append(document)
        return Codegen().run(document)

    compiled = stagefold.compile(ours, fullgraph=True, stages={"codegen": observed})
    addresses = [buffer.data_ptr() for buffer in ours.buffers()]
    for _ in range(3):
        x = torch.randn(2, 3, 12, 12)
        first, second = eager(x), compiled(x)
        torch.testing.assert_close(second, first)
        torch.testing.assert_close(list(ours.buffers()), list(eager.buffers()))
        assert [b._version for b in ours.buffers()] == [b._version for b in eager.buffers()]
        first.exp().sum().backward()
        second.exp().sum().backward()
    gradients = [[p.grad for p in one.parameters()] for one in (ours, eager)]
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-4)
    assert [buffer.data_ptr() for buffer in ours.buffers()] == addresses
    assert loops[0].backward is not None
    assert [mutation.in_place for mutation in loops[0].binding.mutations] == [True] * 6


def test_two_forwards_before_their_backwards() -> None:
    def scaled(x: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            state.mul_(2.0)
        return x * state

    compiled = stagefold.compile(scaled, fullgraph=True)
    x, state = torch.ones(3, requires_grad=True), torch.ones(3)
    first, second = compiled(x, state), compiled(x, state)
    assert torch.equal(state, torch.full((3,), 4.0))
    (first.sum() + second.sum()).backward()
    assert x.grad is not None
    assert torch.equal(x.grad, torch.full((3,), 2.0 + 4.0))
