"""On an NVIDIA GPU: autocast, attention as eager chooses it, streams, alignment (`nox -s gpu`)."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import stagefold
from codegen.runtime.triton_loader import TritonWrapper
from integration_tests.zoo.devices import ON_GPU

pytestmark = ON_GPU


def qkv(dtype: torch.dtype, heads: tuple[int, int] = (4, 4)) -> list[torch.Tensor]:
    torch.manual_seed(0)
    shapes = [(2, number, 128, 64) for number in (heads[0], heads[1], heads[1])]
    return [torch.randn(shape, device="cuda", dtype=dtype, requires_grad=True) for shape in shapes]


def check_gradients(program: Any, inputs: list[torch.Tensor], *more: Any, tolerance: float = 1e-4) -> None:
    """Results and gradients as eager's, the random stream at the same place."""
    found = []
    for function in (program, stagefold.compile(program, fullgraph=True)):
        torch.manual_seed(3)
        out = function(*inputs, *more)
        found.append((out, *torch.autograd.grad(out.float().square().sum(), inputs)))
    torch.testing.assert_close(found[1], found[0], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize(
    "mask",
    [None, torch.randn(2, 1, 128, 128), torch.rand(1, 1, 1, 128) > 0.3, torch.randn(128, 128)],
    ids=["none", "added", "boolean", "matrix"],
)
def test_attention(dtype: torch.dtype, mask: torch.Tensor | None) -> None:
    if mask is not None:
        mask = mask.cuda() if mask.dtype == torch.bool else mask.to("cuda", dtype)
    inputs, tolerance = qkv(dtype), 2e-2 if dtype is torch.bfloat16 else 1e-4
    check_gradients(
        lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, attn_mask=m), inputs, mask, tolerance=tolerance
    )


OPERANDS = {
    "one head for all": ((2, 4, 16, 8), (2, 1, 16, 8), (2, 1, 16, 8)),
    "one batch for all": ((2, 4, 16, 8), (1, 4, 16, 8), (1, 4, 16, 8)),
    "other heads of values": ((2, 4, 16, 8), (2, 4, 16, 8), (2, 1, 16, 8)),
    "other width of values": ((2, 4, 16, 16), (2, 4, 16, 16), (2, 4, 16, 8)),
}


@pytest.mark.parametrize("masked", [False, True], ids=["all", "padded"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("shapes", OPERANDS.values(), ids=OPERANDS)
def test_attention_of_different_sizes(shapes: tuple[tuple[int, ...], ...], dtype: torch.dtype, masked: bool) -> None:
    torch.manual_seed(0)
    mask = torch.ones(2, 1, 16, 16, dtype=torch.bool, device="cuda").tril()
    mask[1, :, :, 11:] = False
    if dtype is torch.float32:
        mask[0, :, 3] = False  # (in half precision what such a row gives depends on the kernel)
    inputs = [torch.randn(shape, device="cuda", dtype=dtype, requires_grad=True) for shape in shapes]
    check_gradients(
        lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, attn_mask=m),
        inputs,
        mask if masked else None,
        tolerance=2e-2 if dtype is torch.bfloat16 else 1e-4,
    )


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("last", [False, True])
def test_embedding_bag(mode: str, last: bool) -> None:
    """The kernel of the device gives its side results in other shapes than that of the CPU."""
    table = torch.randn(50, 8, device="cuda", requires_grad=True)
    indices, offsets = torch.randint(0, 50, (24,), device="cuda"), torch.tensor([0, 5, 5, 24], device="cuda")
    check_gradients(
        lambda w, i, o: F.embedding_bag(i, w, o, mode=mode, include_last_offset=last), [table], indices, offsets
    )


def test_memory_of_the_cpu_beside() -> None:
    """Kernels on both devices in one graph, and numbers of the CPU in kernels of the GPU."""

    def program(x, host):
        chance = torch.rand([])
        scaled = host * 2 + 1
        y = torch.relu(x * 3) + chance
        return y * scaled.sum(), scaled.cos() * chance, (chance < 2).float()

    x, host = torch.randn(64, 33, device="cuda"), torch.randn(5, 7)
    for rounds in range(3):
        torch.manual_seed(rounds)
        expected = program(x, host)
        torch.manual_seed(rounds)
        torch.testing.assert_close(stagefold.compile(program, fullgraph=True)(x, host), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_grouped_causal_attention(dtype: torch.dtype) -> None:
    def program(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

    check_gradients(program, qkv(dtype, (8, 2)))


@pytest.mark.parametrize("masked", [False, True], ids=["causal", "mask with a gradient"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_attention_with_dropout_is_eagers(dtype: torch.dtype, masked: bool) -> None:
    """A kernel of the device draws the mask; it gets the same seed."""

    def program(q, k, v, *masks):
        return F.scaled_dot_product_attention(q, k, v, *masks, dropout_p=0.2, is_causal=not masks)

    inputs = qkv(dtype)
    if masked:
        inputs.append(torch.randn(2, 4, 128, 128, device="cuda", dtype=dtype, requires_grad=True))
    check_gradients(program, inputs)


def test_autocast() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 64)).cuda()
    x = torch.randn(8, 64, device="cuda")

    def program(x):
        with torch.autocast("cuda", torch.bfloat16):
            y = model(x)
            attended = F.scaled_dot_product_attention(*[y.view(1, 2, 4, 64).float()] * 3)
            return y, torch.softmax(y, -1), y.sum() / y.numel(), model[1](model[0](x)), attended

    # The first product is summed in another order than cuBLAS does: its bfloat16 results may be neighbours of eager's.
    close = partial(torch.testing.assert_close, rtol=1.6e-2, atol=4e-3)
    close(stagefold.compile(program, fullgraph=True)(x), program(x))
    compiled = stagefold.compile(lambda x: model(x), fullgraph=True)
    with torch.autocast("cuda", torch.bfloat16):
        close(compiled(x), model(x))
    assert compiled(x).dtype == torch.float32


def test_training_under_autocast() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 10)).cuda()
    x, y = torch.randn(16, 64, device="cuda"), torch.randint(0, 10, (16,), device="cuda")

    def loss(x, y):
        with torch.autocast("cuda", torch.bfloat16):
            return F.cross_entropy(model(x), y)

    found = []
    for function in (loss, stagefold.compile(loss, fullgraph=True)):
        model.zero_grad()
        function(x, y).backward()
        found.append([parameter.grad for parameter in model.parameters()])
    torch.testing.assert_close(found[1], found[0], rtol=2e-2, atol=1e-3)


def test_another_stream_and_an_unaligned_input() -> None:
    compiled = stagefold.compile(lambda x: (torch.softmax(x * 2, -1) @ x.t()).relu(), fullgraph=True)
    memory = torch.randn(64 * 64 + 1, device="cuda")
    for x in (memory[1:].view(64, 64), memory[:-1].view(64, 64)):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            found = [compiled(x) for _ in range(20)]
        stream.synchronize()
        expected = (torch.softmax(x * 2, -1) @ x.t()).relu()
        for result in found:
            torch.testing.assert_close(result, expected)


def test_in_a_cuda_graph() -> None:
    compiled = stagefold.compile(lambda x: torch.softmax(x * 2, -1) @ x, fullgraph=True)
    x = torch.randn(64, 64, device="cuda")
    compiled(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = compiled(x)
    x.copy_(torch.randn(64, 64))
    graph.replay()
    torch.testing.assert_close(result, torch.softmax(x * 2, -1) @ x)


def test_numbers_on_the_cpu_and_on_a_gpu() -> None:
    compiled = stagefold.compile(lambda count, scale: (count + 1, scale * 2), fullgraph=True)
    count, scale = compiled(torch.tensor(3), torch.tensor(2.5, device="cuda"))
    assert (count.device.type, count.item()) == ("cpu", 4)
    assert (scale.device.type, scale.item()) == ("cuda", 5.0)


def test_inputs_at_odd_addresses_take_the_fast_way(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Any, *inputs: Any) -> None:
        raise AssertionError("each kernel would be launched from Python")

    monkeypatch.setattr(TritonWrapper, "__call__", refuse)
    memory, other = torch.randn(100, 7, device="cuda"), torch.randn(7, 5, device="cuda", requires_grad=True)
    program = stagefold.compile(lambda x, w: (x.sin() @ w).relu(), fullgraph=True)
    for row in range(8):
        x = memory[row : row + 4]
        torch.testing.assert_close(program(x, other), (x.sin() @ other).relu())


def test_a_library_gives_results_at_odd_addresses() -> None:
    """They are copied: kernels read several elements at a time."""

    @torch.library.custom_op("tests_gpu::odd", mutates_args=())
    def odd(x: torch.Tensor) -> torch.Tensor:
        return x.new_empty(x.numel() + 1)[1:].view_as(x).copy_(x)

    @odd.register_fake
    def _(x: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(x)

    def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = odd(x.sin())
        return y * 2, y.t() @ x

    x = torch.randn(64, 96, device="cuda", dtype=torch.bfloat16)
    compiled = stagefold.compile(program, fullgraph=True)
    for _ in range(2):
        torch.testing.assert_close(compiled(x), program(x))
