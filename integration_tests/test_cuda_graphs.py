"""mode="reduce-overhead": nothing that is held is overwritten, results and states as eager's.

Without an NVIDIA GPU a stand-in records (`stand_in.py`).
"""

from __future__ import annotations

import copy
import gc
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import stagefold
from codegen.errors import NotRecorded
from codegen.runtime import cuda_graphs
from integration_tests.zoo.devices import NEEDS_GPU

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("recordings")]


DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def compiled(function: Any, **more: Any) -> Any:
    return stagefold.compile(function, mode="reduce-overhead", **more)


def test_results_that_are_held_stay_what_they_were() -> None:
    model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 4096)).to(DEVICE)
    fast = compiled(model, fullgraph=True)
    inputs = [torch.randn(512, 64, device=DEVICE) for _ in range(8)]  # results of 8 MiB: too large to be copied
    with torch.no_grad():
        held = [fast(x) for x in inputs]
        expected = [model(x) for x in inputs]
        torch.testing.assert_close(held, expected, rtol=1e-4, atol=1e-5)
        del held
        for x, y in zip(inputs, expected, strict=True):
            torch.testing.assert_close(fast(x), y, rtol=1e-4, atol=1e-5)


def test_a_view_of_a_result_holds_it() -> None:
    fast = compiled(lambda x: x.mul(2), fullgraph=True)
    rows = [fast(torch.full((1 << 20,), float(k), device=DEVICE))[5:7] for k in range(6)]
    assert [row.tolist() for row in rows] == [[2.0 * k] * 2 for k in range(6)]


def test_results_come_back_as_inputs() -> None:
    step = compiled(lambda x: torch.sin(x) + x, fullgraph=True)
    x = y = torch.randn(1 << 19, device=DEVICE)
    for _ in range(9):
        x, y = step(x), torch.sin(y) + y
    torch.testing.assert_close(x, y)


def test_random_numbers_of_the_cpu_are_drawn_at_each_replay() -> None:
    def layers(x: torch.Tensor) -> torch.Tensor:
        for n in range(8):
            if torch.rand([]) < 0.0:  # layer drop that drops nothing
                continue
            x = torch.softmax(x @ x, -1) + n
        return x

    fast, x = compiled(layers, fullgraph=True), torch.randn(32, 32, device=DEVICE)
    for _ in range(4):
        torch.manual_seed(0)
        found, after = fast(x), torch.rand(3)
        torch.manual_seed(0)
        torch.testing.assert_close(found, layers(x), rtol=1e-4, atol=1e-5)
        assert torch.equal(after, torch.rand(3))


def test_what_literals_decide_on_the_cpu_is_recorded() -> None:
    def biased(x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        places = torch.arange(x.shape[-1])
        distance = (places[:, None] - places).abs().float().log1p().mul(4).long().clamp(max=15).to(x.device)
        scale = torch.sqrt(torch.tensor(x.shape[-1], dtype=torch.float))
        for _ in range(8):
            x = torch.softmax(x @ x / scale + F.embedding(distance, table).squeeze(-1), -1)
        return x[torch.tensor([3, 1])] + torch.tensor([[1.0]]).to(x.device)

    x, table = torch.randn(32, 32, device=DEVICE), torch.randn(16, 1, device=DEVICE, requires_grad=True)
    fast = compiled(biased, fullgraph=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error", NotRecorded)
        for _ in range(4):
            found, expected = fast(x, table), biased(x, table)
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
            gradients = [torch.autograd.grad(made.square().sum(), table)[0] for made in (found, expected)]
            torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("to_none", [True, False])
@pytest.mark.parametrize("accumulate", [1, 3])
def test_training_is_eagers(to_none: bool, accumulate: int) -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(
        nn.Linear(32, 256, bias=False), nn.BatchNorm1d(256), nn.ReLU(), nn.Dropout(0.3), nn.Linear(256, 10)
    ).to(DEVICE)
    model = copy.deepcopy(plain)
    ways = []
    for one, call in ((plain, plain), (model, compiled(model, fullgraph=True))):
        optimizer = torch.optim.AdamW(one.parameters(), lr=1e-2)
        torch.manual_seed(1)
        losses = []
        for _ in range(6):
            optimizer.zero_grad(set_to_none=to_none)
            for _ in range(accumulate):
                x, y = torch.randn(64, 32, device=DEVICE), torch.randint(0, 10, (64,), device=DEVICE)
                loss = F.cross_entropy(call(x), y)
                loss.backward()
                losses.append(loss.detach())
            optimizer.step()
        ways.append([*losses, *one.state_dict().values()])
    torch.testing.assert_close(ways[1], ways[0], rtol=2e-3, atol=2e-4)


def test_two_forwards_before_their_backwards() -> None:
    weight = torch.randn(256, 256, device=DEVICE, requires_grad=True)
    program = lambda x, w: torch.tanh(x @ w).square().sum()  # noqa: E731
    fast = compiled(program, fullgraph=True)
    for _ in range(4):
        inputs = [torch.randn(4096, 256, device=DEVICE) for _ in range(4)]
        losses = [fast(x, weight) for x in inputs]
        for x, loss in zip(inputs, losses, strict=True):
            (found,) = torch.autograd.grad(loss, weight)
            (expected,) = torch.autograd.grad(program(x, weight), weight)
            torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-2)


def test_dropout_draws_eagers_numbers() -> None:
    fast = compiled(lambda x: F.dropout(x, 0.5) + torch.rand_like(x), fullgraph=True)
    x = torch.ones(1000, device=DEVICE)
    for seed in range(5):
        torch.manual_seed(seed)
        first = fast(x), torch.rand(3, device=DEVICE)
        torch.manual_seed(seed)
        expected = F.dropout(x, 0.5) + torch.rand_like(x), torch.rand(3, device=DEVICE)
        torch.testing.assert_close(first, expected)


def test_new_sizes_and_other_parameters() -> None:
    model = nn.Linear(16, 16).to(DEVICE)
    fast = compiled(model, fullgraph=True)
    with torch.no_grad():
        for round_ in range(8):
            if round_ == 5:
                model.weight.data = torch.randn(16, 16, device=DEVICE)
            for rows in (2, 3, 5):
                x = torch.randn(rows, 16, device=DEVICE)
                torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-5)


def test_inputs_that_are_written() -> None:
    def program(x, y):
        x.add_(y)
        return x * 2, y

    fast = compiled(program, fullgraph=True)
    x, z = torch.zeros(100, device=DEVICE), torch.zeros(100, device=DEVICE)
    for k in range(6):
        y = torch.full((100,), float(k), device=DEVICE)
        torch.testing.assert_close(fast(x, y), program(z, y))
    torch.testing.assert_close(x, z)


@NEEDS_GPU
def test_what_cannot_be_recorded_runs() -> None:
    def program(x):
        return torch.bincount(x.long(), minlength=4).float() + x.sum()

    fast = compiled(program)
    x = torch.tensor([0.0, 1.0, 3.0, 3.0], device=DEVICE)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(4):
            torch.testing.assert_close(fast(x), program(x))
    torch.testing.assert_close(compiled(torch.sin)(x), torch.sin(x))


@NEEDS_GPU
def test_other_streams_and_threads() -> None:
    fast = compiled(lambda x: torch.relu(x) * 3, fullgraph=True)
    inputs = [torch.randn(1 << 16, device=DEVICE) for _ in range(4)]
    for x in inputs:
        fast(x)
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.testing.assert_close(fast(inputs[0]), torch.relu(inputs[0]) * 3)
    torch.cuda.synchronize()
    wrong: list[int] = []

    def work(number: int) -> None:
        for _ in range(50):
            if not torch.equal(fast(inputs[number]), torch.relu(inputs[number]) * 3):
                wrong.append(number)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert not wrong


@NEEDS_GPU
def test_a_users_own_recording() -> None:
    fast = compiled(lambda x: torch.relu(x) * 3, fullgraph=True)
    x = torch.randn(1000, device=DEVICE)
    for _ in range(3):
        fast(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = fast(x)
    x.copy_(torch.randn(1000, device=DEVICE))
    graph.replay()
    torch.testing.assert_close(y, torch.relu(x) * 3)


@NEEDS_GPU
def test_launches_are_replayed() -> None:
    """Twenty layers are one launch."""
    model = nn.Sequential(*(nn.Linear(16, 16) for _ in range(20))).to(DEVICE)
    fast = compiled(model, fullgraph=True)
    x = torch.randn(4, 16, device=DEVICE)
    with torch.no_grad():
        for _ in range(3):
            fast(x)
        activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=activities) as profile:
            fast(x)
            torch.cuda.synchronize()
    names = [event.name for event in profile.events()]
    assert names.count("cudaGraphLaunch") == 1
    assert sum("LaunchKernel" in name for name in names) <= 2  # the input is copied, and the result


def test_another_precision_of_products_is_recorded_anew(recorded: list[dict[str, int]]) -> None:
    """A recording holds the kernels of the precision that it was made under."""
    fast = compiled(lambda x, w: torch.relu(x @ w), fullgraph=True)
    x, w = torch.randn(32, 64, device=DEVICE), torch.randn(64, 64, device=DEVICE)
    before = torch.get_float32_matmul_precision()
    try:
        for precision, expected in (("highest", 1), ("high", 2), ("highest", 2), ("high", 2)):
            torch.set_float32_matmul_precision(precision)
            for _ in range(3):
                torch.testing.assert_close(fast(x, w), torch.relu(x @ w), rtol=1e-2, atol=1e-1)
            assert len(recorded) == expected
    finally:
        torch.set_float32_matmul_precision(before)


def test_replays_are_what_runs(recorded: list[dict[str, int]]) -> None:
    """From the third call on nothing is recorded any more, and nothing runs plain."""
    weight = torch.randn(64, 64, device=DEVICE, requires_grad=True)
    fast = compiled(lambda x, w: torch.tanh(x @ w).sum(), fullgraph=True)
    for step in range(6):
        weight.grad = None
        fast(torch.randn(32, 64, device=DEVICE), weight).backward()
        assert len(recorded) == (0, 2)[step > 0]


class Mixed(nn.Module):
    """Products, a convolution, attention, a sort: what is between lies in every kind of memory, and so do results."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(32, 96), nn.Linear(32, 64)
        self.conv = nn.Conv1d(64, 64, 3, padding=1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        q, k, v = self.first(x).unflatten(-1, (3, 2, 16)).permute(2, 0, 3, 1, 4)
        x = torch.tanh(self.second(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)))
        y = torch.relu(self.conv(x.transpose(1, 2)))
        values, places = torch.sort(y.sum(1), -1)
        return y, values, places, torch.softmax(y, -1) @ x


def test_recordings_of_many_sizes_in_any_order() -> None:
    """What one recording leaves in memory that they share is not seen by another, nor by who holds results."""
    torch.manual_seed(0)
    plain = Mixed().to(DEVICE)
    model = copy.deepcopy(plain)
    fast = compiled(model, fullgraph=True, dynamic=False)
    inputs = [torch.randn(rows, 40, 32, device=DEVICE) for rows in (2, 7, 64, 16, 3)]
    order = torch.randint(0, len(inputs), (24,)).tolist()
    held: list[tuple[Any, Any]] = []
    for step, number in enumerate([*range(len(inputs)), *range(len(inputs)), *order]):
        ways = [one(inputs[number]) for one in (fast, plain)]
        if step % 3 == 0:
            held.append((ways[0], ways[1]))
        for way in ways:
            sum(one.square().mean() for one in way if one.is_floating_point()).backward()  # type: ignore[union-attr]
        for found, expected in held:
            torch.testing.assert_close(found, expected, rtol=2e-4, atol=2e-4)
        del held[:-4]
    for found, expected in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(found.grad, expected.grad, rtol=2e-3, atol=2e-3)


def test_what_is_saved_for_one_backward_lies_where_that_of_another_was() -> None:
    """Three sizes, each recorded in both directions: values saved in one slab, and one set of gradients."""
    gc.collect()
    memory = cuda_graphs.device_of_recordings(0).memory
    before = set(map(id, memory._blocks.values()))
    model = nn.Sequential(*(layer for _ in range(3) for layer in (nn.Linear(72, 72), nn.Tanh()))).to(DEVICE)
    fast = compiled(model, fullgraph=True, dynamic=False)
    for rows in (512, 384, 64, 512, 384, 64, 512, 384, 64):
        for parameter in model.parameters():
            parameter.grad = None
        fast(torch.randn(rows, 72, device=DEVICE)).square().sum().backward()
    new = [block for block in memory._blocks.values() if id(block) not in before]
    assert sum(block.kind == "saved" for block in new) <= 1
    assert sum(block.kind == "exact" and block.size == 72 * 72 * 4 for block in new) == 3


@NEEDS_GPU
def test_recordings_share_what_is_between() -> None:
    """Eight sizes need little more memory than the largest does alone: 200 MiB less than with pools of their own."""

    def reserved(sizes: list[int]) -> int:
        stagefold.reset()
        gc.collect()
        torch.cuda.empty_cache()
        before = torch.cuda.memory_reserved()
        model = nn.Sequential(*(layer for _ in range(8) for layer in (nn.Linear(1024, 1024), nn.GELU()))).to(DEVICE)
        fast = compiled(nn.Sequential(*model, nn.Linear(1024, 4).to(DEVICE)), fullgraph=True, dynamic=False)
        with torch.no_grad():
            for rows in (*sizes, *sizes, *sizes):
                fast(torch.randn(rows, 1024, device=DEVICE))
        torch.cuda.synchronize()
        gc.collect()
        torch.cuda.empty_cache()
        return torch.cuda.memory_reserved() - before

    alone, together = reserved([8192]), reserved([8192, *range(7168, 0, -1024)])
    copies = sum(range(1024, 8192, 1024)) * 1024 * 4  # inputs move, and each recording has its own copy of them
    assert together <= alone + copies + (64 << 20)


def test_a_cache_of_keys_and_values_is_written_where_it_is() -> None:
    def step(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        for number, (keys, values) in enumerate(caches):
            q, k, v = (x @ weights[number]).view(1, 1, 3, 4, 64).permute(2, 0, 3, 1, 4)
            keys.index_copy_(2, at, k)
            values.index_copy_(2, at, v)
            seen = torch.arange(32, device=DEVICE)[None] <= at
            x = x + F.scaled_dot_product_attention(q, keys, values, attn_mask=seen).transpose(1, 2).reshape(1, 1, 256)
        return x

    torch.manual_seed(0)
    weights = [torch.randn(256, 768, device=DEVICE) / 16 for _ in range(3)]
    tokens = torch.randn(12, 1, 1, 256, device=DEVICE)
    found = []
    with torch.no_grad():
        for run in (step, compiled(step, fullgraph=True)):
            caches = [tuple(torch.zeros(2, 1, 4, 32, 64, device=DEVICE)) for _ in weights]
            results = [run(token, torch.tensor([n], device=DEVICE)) for n, token in enumerate(tokens)]
            found.append((results, caches))
    torch.testing.assert_close(found[1], found[0], rtol=1e-3, atol=1e-3)
