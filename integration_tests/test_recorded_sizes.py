"""mode="reduce-overhead" with sizes that change: a recording for each set of sizes, made when it comes again.

Without an NVIDIA GPU a stand-in records (`stand_in.py`).
"""

from __future__ import annotations

import copy
import gc
import random
import warnings
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import stagefold
from codegen.errors import NotRecorded
from codegen.runtime import cuda_graphs, result_memory

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("recordings")]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def compiled(function: Any, dynamic: bool | None = True, **more: Any) -> Any:
    options = {"cuda_graphs": True, **more}
    return stagefold.compile(function, options=options, fullgraph=True, dynamic=dynamic)


def test_a_recording_for_each_size_that_comes_again(recorded: list[dict[str, int]]) -> None:
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)).to(DEVICE)
    fast = compiled(model)
    with torch.no_grad():
        for round_ in range(4):
            for rows in (3, 5, 8):
                x = torch.randn(rows, 16, device=DEVICE)
                torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-5)
            assert len(recorded) == (0, 3)[round_ > 0]
    assert sorted(number for sizes in recorded for number in sizes.values()) == [3, 5, 8]


def test_the_first_size_that_changes_leaves_the_sizes_open(recorded: list[dict[str, int]]) -> None:
    fast = compiled(lambda x: torch.softmax(x, -1) * x.shape[0], dynamic=None)
    for rows in (4, 4, 6, 6, 7, 7, 4, 6):
        x = torch.randn(rows, 8, device=DEVICE)
        torch.testing.assert_close(fast(x), torch.softmax(x, -1) * rows)
    assert [tuple(sizes.values()) for sizes in recorded] == [(), (6,), (7,)]


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("rows_of_steps", [(8, 12, 5), (5, 8, 12, 30)])
def test_training_at_several_sizes_is_eagers(
    rows_of_steps: tuple[int, ...], dynamic: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(result_memory, "WORTH_SHARING", 256)
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(24, 96), nn.LayerNorm(96), nn.Tanh(), nn.Dropout(0.3), nn.Linear(96, 10)).to(DEVICE)
    model = copy.deepcopy(plain)
    ways = []
    for one, call in ((plain, plain), (model, compiled(model, dynamic))):
        optimizer = torch.optim.SGD(one.parameters(), lr=1e-2)
        torch.manual_seed(1)
        losses = []
        for step in range(18):
            rows = rows_of_steps[step % len(rows_of_steps)]
            optimizer.zero_grad()
            x, y = torch.randn(rows, 24, device=DEVICE), torch.randint(0, 10, (rows,), device=DEVICE)
            loss = F.cross_entropy(call(x), y)
            loss.backward()
            losses.append(loss.detach())
            optimizer.step()
        ways.append([*losses, *one.state_dict().values()])
    torch.testing.assert_close(ways[1], ways[0], rtol=2e-3, atol=2e-4)


def test_both_directions_are_recorded(recorded: list[dict[str, int]]) -> None:
    weight = torch.randn(16, 16, device=DEVICE, requires_grad=True)
    fast = compiled(lambda x, w: torch.tanh(x @ w).sum())
    for step in range(6):
        weight.grad = None
        x = torch.randn((4, 6)[step % 2], 16, device=DEVICE)
        fast(x, weight).backward()
        expected = torch.autograd.grad(torch.tanh(x @ weight).sum(), weight)[0]
        torch.testing.assert_close(weight.grad, expected, rtol=1e-4, atol=1e-4)
        assert len(recorded) == (0, 0, 2, 4, 4, 4)[step]


def test_sizes_that_grow_leave_the_memory_of_the_largest(
    recorded: list[dict[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Smaller ones are recorded once more, in the memory of the largest; then nothing is recorded."""
    monkeypatch.setattr(result_memory, "WORTH_SHARING", 1 << 12)
    gc.collect()
    memory = cuda_graphs.device_of_recordings(0).memory
    before = {id(block) for block in memory._blocks.values()}

    def blocks() -> Counter[str]:
        every = [block for block in memory._blocks.values() if id(block) not in before and block.size > 1 << 12]
        return Counter(block.kind for block in every if block.kind in ("result", "saved", "between"))

    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64), nn.Tanh()).to(DEVICE)
    plain, fast = copy.deepcopy(model), compiled(model)
    for number, rows in enumerate([16] * 3 + [64] * 3 + [200] * 3 + [16, 64, 200] * 4):
        if number == 9:
            largest = blocks()
            assert largest["result"] == largest["saved"] == 1, "smaller ones are let go of"
        if number == 15:
            made = len(recorded)
        x = torch.randn(rows, 64, device=DEVICE)
        for one, call in ((plain, plain), (model, fast)):
            one.zero_grad()
            call(x).square().sum().backward()
        for found, expected in zip(model.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(found.grad, expected.grad, rtol=1e-3, atol=1e-3)
    assert len(recorded) == made
    assert blocks() == largest


@pytest.mark.parametrize("seed", range(4))
def test_programs_that_share_memory_come_to_rest(
    seed: int, recorded: list[dict[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has the largest block of another kind; results are held or not, trained or not, in any order."""
    monkeypatch.setattr(result_memory, "WORTH_SHARING", 64)
    draw = random.Random(seed)
    weight = torch.randn(32, 32, device=DEVICE, requires_grad=True)
    functions: list[Callable[[torch.Tensor], torch.Tensor]] = [
        lambda x: ((x @ weight).sin() @ weight).sum(0),
        lambda x: x.repeat(draw_rows, 1).cos() @ weight,
        lambda x: torch.softmax(x @ weight.t(), 1) @ weight,
        lambda x: torch.sort(x @ weight, 1).values.cumsum(0)[:2],
    ]
    draw_rows = draw.choice((2, 5))
    steps = [(k, draw.choice((16, 40, 90)), draw.random() < 0.5, draw.random() < 0.5) for k in range(4) for _ in "ab"]
    draw.shuffle(steps)
    fast = [compiled(one, dynamic=None) for one in functions]
    for round_ in range(12):
        held = []
        if round_ == 8:
            made = len(recorded)
        for number, rows, is_held, is_trained in steps:
            weight.grad = None
            x = torch.randn(rows, 32, device=DEVICE)
            with torch.set_grad_enabled(is_trained):
                y, expected = (call(x) for call in (fast[number], functions[number]))
                torch.testing.assert_close(y, expected, rtol=1e-3, atol=1e-3)
                if is_trained:
                    y.sum().backward()
            held += [(y.detach(), expected.detach())] if is_held else []
            del y
        for y, expected in held:
            torch.testing.assert_close(y, expected, rtol=1e-3, atol=1e-3)
    assert len(recorded) == made > 4


PROGRAMS: list[Callable[..., Any]] = [
    lambda x, n: (x.repeat(2, 1) + n, x.shape[0] * 2, x[: x.shape[0] // 2].sum(0)),
    lambda x, n: (torch.cat([x, x[:1]]).cumsum(0), x.t(), torch.arange(x.shape[0], device=x.device) * n),
    lambda x, n: (x.view(-1, 2, 4).transpose(0, 1), x.new_ones(n, x.shape[0]).cos(), x),
    lambda x, n: (F.pad(x, (0, n)).relu(), torch.sort(x, 0).values, x.mul(2)[1:]),
]


@pytest.mark.parametrize("copied", [-1, cuda_graphs.COPIED])
@pytest.mark.parametrize("seed", range(4))
def test_programs_at_any_sizes_and_results_that_are_held(
    seed: int, copied: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Results of all sizes, held for a while, are what they were; sizes and numbers among them."""
    monkeypatch.setattr(cuda_graphs, "COPIED", copied)
    monkeypatch.setattr(result_memory, "WORTH_SHARING", 64)
    draw = random.Random(seed)
    fast = [compiled(one) for one in PROGRAMS]
    held: list[tuple[Any, Any]] = []
    for _ in range(120):
        number, n = draw.randrange(len(PROGRAMS)), draw.choice((3, 5))
        x = torch.randn(draw.choice((2, 4, 6)), 8, device=DEVICE)
        held.append((fast[number](x, n), PROGRAMS[number](x, n)))
        for found, expected in held:
            torch.testing.assert_close(found, expected)
        if len(held) > 6:
            del held[draw.randrange(len(held))]


def test_random_numbers_are_eagers() -> None:
    fast = compiled(lambda x: F.dropout(x, 0.5) + torch.rand_like(x))
    for seed, rows in enumerate((40, 60, 40, 60, 40, 60, 40)):
        x = torch.ones(rows, 4, device=DEVICE)
        torch.manual_seed(seed)
        first = fast(x), torch.rand(3, device=DEVICE)
        torch.manual_seed(seed)
        expected = F.dropout(x, 0.5) + torch.rand_like(x), torch.rand(3, device=DEVICE)
        torch.testing.assert_close(first, expected)


def test_inputs_that_are_written_and_repeated_elements() -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(y)
        return x * 2

    fast = compiled(program)
    states = {rows: [torch.zeros(rows, 6, device=DEVICE) for _ in range(2)] for rows in (3, 4)}
    for k in range(12):
        rows = (3, 4)[k % 2]
        x, z = states[rows]
        y = torch.full((1, 6), float(k), device=DEVICE).expand(rows, 6)
        torch.testing.assert_close(fast(x, y), program(z, y))
        torch.testing.assert_close(x, z)


def test_more_sizes_than_are_kept_run_plain_with_one_warning(recorded: list[dict[str, int]]) -> None:
    fast = compiled(lambda x: (x * 3).sin(), recorded_sizes=2)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(4):
            for rows in (3, 4, 5, 6):
                x = torch.randn(rows, 2, device=DEVICE)
                torch.testing.assert_close(fast(x), (x * 3).sin())
    assert sorted(next(iter(sizes.values())) for sizes in recorded) == [3, 4]
    (warning,) = [one for one in seen if one.category is NotRecorded]
    assert "more than 2 sets of sizes" in str(warning.message)


def test_sizes_that_come_no_more_give_their_place(recorded: list[dict[str, int]]) -> None:
    fast = compiled(lambda x: (x * 3).sin(), recorded_sizes=2)
    gc.collect()
    addresses = cuda_graphs.device_of_recordings(0).addresses
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for rows in (3, 3, 4, 4, *[5] * 40):
            x = torch.randn(rows, 2, device=DEVICE)
            torch.testing.assert_close(fast(x), (x * 3).sin())
    assert [next(iter(sizes.values())) for sizes in recorded] == [3, 4, 5]
    del fast
    stagefold.reset()
    gc.collect()
    assert not addresses


def test_threads_that_hold_results_of_several_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_graphs, "COPIED", -1)
    fast = compiled(lambda x: (torch.sin(x) * 2, x.cos().sum(0)))
    fast(torch.randn(3, 8, device=DEVICE))

    def work(number: int) -> int:
        draw, held, wrong = random.Random(number), [], 0
        generator = torch.Generator(DEVICE).manual_seed(number)
        for _ in range(120):
            x = torch.randn(draw.choice((3, 5, 9)), 8, device=DEVICE, generator=generator)
            held.append((fast(x)[0], torch.sin(x) * 2))
            wrong += sum(not torch.allclose(found, expected, atol=1e-5) for found, expected in held)
            if len(held) > 2:
                del held[draw.randrange(3)]
        return wrong

    with ThreadPoolExecutor(4) as pool:
        assert not sum(pool.map(work, range(4)))


def test_what_data_decides_is_launched_and_the_explanation_says_why(recorded: list[dict[str, int]]) -> None:
    """Parts whose sizes data decides are launched, with a reason; the other parts are recorded."""

    def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.tanh(x * 2 + 1) * x
        chosen = y[y > 0]
        return y, (chosen * 2 + 1).cos() * chosen

    fast = compiled(program)
    with pytest.warns(NotRecorded, match="data decides sizes"):
        fast(torch.randn(30, device=DEVICE))
    for seed in range(8):
        x = torch.randn(30, device=DEVICE, generator=torch.Generator(DEVICE).manual_seed(seed))
        torch.testing.assert_close(fast(x), program(x))
    explanation = stagefold.explain(fast, x)
    (reason,) = [one for one in explanation.not_recorded if "data decides sizes" in one]
    assert f"no CUDA graph: {reason}" in str(explanation)
    assert recorded
    assert all(30 in sizes.values() for sizes in recorded)
