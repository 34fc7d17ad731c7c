"""Attention of few keys, or beside a mask, on an NVIDIA GPU: by the kernel of FlexAttention."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import stagefold
from integration_tests.zoo.devices import ON_GPU
from integration_tests.zoo.traces import traced

pytestmark = ON_GPU
HEADS = 4


def qkv(length: int, dtype: torch.dtype, keys: int | None = None) -> list[Tensor]:
    """(batch, length, heads * width) each."""
    torch.manual_seed(0)
    sizes = (length, keys or length, keys or length)
    return [torch.randn(3, size, HEADS * 32, device="cuda", dtype=dtype, requires_grad=True) for size in sizes]


def by_head(*given: Tensor) -> list[Tensor]:
    return [one.unflatten(-1, (4, 32)).transpose(1, 2) for one in given]


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    return scaled_dot_product_attention(*by_head(q, k, v), mask)


def distance(a: Tensor, b: Tensor) -> float:
    return float((a.detach().double() - b.detach().double()).norm() / b.detach().double().norm())


def check(program: Callable[..., Tensor], given: list[Tensor], directory: Path, **options: Any) -> list[str]:
    """Result and gradients as near to those in float64 as eager's are; the calls of attention that were made."""
    compiled = stagefold.compile(program, fullgraph=True, options={"trace_dir": directory, "cache": False}, **options)
    found = []
    for function, dtype in ((program, torch.float64), (program, None), (compiled, None)):
        tensors = [
            one.detach().to(dtype if one.is_floating_point() else None).requires_grad_(one.requires_grad)
            for one in given
        ]
        out = function(*tensors)
        weights = torch.linspace(-1, 1, out.numel(), device="cuda").view(out.shape).to(out.dtype)
        leaves = [one for one in tensors if one.requires_grad]
        found.append((out, *torch.autograd.grad(out, leaves, weights)))
    assert found[2][0].stride() == found[1][0].stride()
    for exact, eager, mine in zip(*found, strict=True):
        assert distance(mine, exact) < 1.5 * distance(eager, exact) + 2e-3
    (document,) = traced(directory, "grad")
    names = [node.target.split(".")[1] for node in document.joint.nodes if node.phase == "forward"]
    return [name for name in names if "attention" in name]


@pytest.mark.parametrize("dynamic", [None, True], ids=["fixed", "open"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("length", [2, 5, 49, 64, 130, 192])
def test_few_keys(length: int, dtype: torch.dtype, dynamic: bool | None, tmp_path: Path) -> None:
    made = check(attend, qkv(33, dtype, length), tmp_path, dynamic=dynamic)
    assert made == ["flex_attention"]


@pytest.mark.parametrize("dynamic", [None, True], ids=["fixed", "open"])
@pytest.mark.parametrize("shape", [(3, HEADS, 70, 257), (1, HEADS, 70, 257), (3, 1, 1, 257), (70, 257)])
@pytest.mark.parametrize("kind", ["added", "boolean"])
def test_masks(kind: str, shape: tuple[int, ...], dynamic: bool | None, tmp_path: Path) -> None:
    mask = torch.linspace(-3, 3, torch.Size(shape).numel(), device="cuda").view(shape).sin()
    mask = mask > -0.5 if kind == "boolean" else mask.bfloat16()
    made = check(attend, [*qkv(70, torch.bfloat16, 257), mask], tmp_path, dynamic=dynamic)
    assert made == ["flex_attention"]


def test_a_query_without_keys(tmp_path: Path) -> None:
    """It has what eager gives it."""
    mask = torch.ones(70, 70, dtype=torch.bool, device="cuda")
    mask[5:9] = False
    given = [*(one.detach() for one in qkv(70, torch.bfloat16)), mask]
    compiled = stagefold.compile(attend, fullgraph=True)
    expected = attend(*given)
    torch.testing.assert_close(compiled(*given), expected, rtol=2e-2, atol=2e-2, equal_nan=True)


def test_heads_that_share_keys(tmp_path: Path) -> None:
    def program(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = by_head(q, k, v)
        return scaled_dot_product_attention(q, k[:, :2], v[:, :2], enable_gqa=True)

    assert check(program, qkv(60, torch.bfloat16), tmp_path) == ["flex_attention"]


def test_windows(tmp_path: Path) -> None:
    """As Swin writes them out, with a mask for each window of an image."""
    bias, mask = torch.randn(HEADS, 49, 49, device="cuda"), torch.randn(3, 49, 49, device="cuda") * 5

    def program(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, mask: Tensor) -> Tensor:
        q, k, v = by_head(q, k, v)
        scores = (q * 0.3) @ k.mT + bias.unsqueeze(0)
        scores = scores.view(-1, mask.shape[0], *scores.shape[1:]) + mask[None, :, None]
        return scores.flatten(0, 1).softmax(-1) @ v

    given = [torch.cat([one, one.flip(0)]).detach().requires_grad_() for one in qkv(49, torch.bfloat16)]
    assert check(program, [*given, bias.bfloat16(), mask.bfloat16()], tmp_path) == ["flex_attention"]


@pytest.mark.parametrize("length", [64, 600])
def test_rows_that_are_not_dense(length: int, tmp_path: Path) -> None:
    """None of torch's kernels takes them; their copies it does."""

    def program(x: Tensor) -> Tensor:
        q, k, v = x.unflatten(1, (3, HEADS, 64)).transpose(-1, -2).unbind(1)
        return scaled_dot_product_attention(q, k, v)

    x = torch.randn(2, 3 * HEADS * 64, length, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    (made,) = check(program, [x], tmp_path)
    assert made == "flex_attention" if length == 64 else "_scaled_dot_product" in made


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 1, 3), (2, 0, 1, 3)], ids=str)
@pytest.mark.parametrize("kernel", [None, SDPBackend.MATH, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION])
def test_memory_has_eagers_order(kernel: SDPBackend | None, order: tuple[int, ...]) -> None:
    """Also where only one kernel may be taken, which it is."""
    torch.manual_seed(0)
    sizes, back = [(2, 3, 33, 64)[dim] for dim in order], [order.index(dim) for dim in range(4)]
    given = [torch.randn(sizes, device="cuda", dtype=torch.bfloat16).permute(back) for _ in range(3)]
    compiled = stagefold.compile(scaled_dot_product_attention, fullgraph=True, options={"cache": False})
    with sdpa_kernel(kernel) if kernel is not None else nullcontext():
        found, expected = compiled(*given), scaled_dot_product_attention(*given)
    assert found.stride() == expected.stride()
    torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)


def test_products_and_a_softmax_where_nothing_else_may_be(tmp_path: Path) -> None:
    with sdpa_kernel(SDPBackend.MATH):
        assert check(attend, qkv(64, torch.bfloat16), tmp_path) == []


def test_another_kernel_may_be_taken_later() -> None:
    """Which ones may be is guarded, and part of what a program is kept under."""
    given = [one.detach() for one in qkv(33, torch.bfloat16)]
    compiled = stagefold.compile(attend, fullgraph=True)
    for kernel in (None, SDPBackend.MATH, SDPBackend.EFFICIENT_ATTENTION, None):
        with sdpa_kernel(kernel) if kernel is not None else nullcontext():
            found, expected = compiled(*given), attend(*given)
        assert found.stride() == expected.stride(), kernel
        torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)
