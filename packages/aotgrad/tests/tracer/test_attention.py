"""Attention as it is traced for another device, run here: documents are moved to a device for the trace and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from aotgrad import AotGrad, bind_interpreted
from aotgrad.testing import capture_by_torch_function
from stagewire.codec import decode, encode
from stagewire.grad import Grad

ELSEWHERE = "cuda:63"
"""A device that no machine has, so that no kernel of it is chosen."""


def moved(document: Any, kind: str, before: str, after: str) -> Any:
    return decode(encode(document).replace(f'"device":"{before}"'.encode(), f'"device":"{after}"'.encode()), kind)


def traced_elsewhere(program: Callable[..., Any], inputs: list[torch.Tensor]) -> Grad:
    capture, _ = capture_by_torch_function(program, inputs)
    grad = AotGrad().run(moved(capture, "capture", "cpu", ELSEWHERE))
    assert not any("for_cpu" in node.target for node in grad.joint.nodes)
    types = [v.type for node in grad.joint.nodes for v in node.results]
    assert all(kind.device == ELSEWHERE or not kind.shape for kind in types), (
        "only 0-dim tensors mix with other devices"
    )
    back = encode(moved(grad, "grad", ELSEWHERE, "cpu"))
    there, here = (f'{{"kind":"device","name":"{name}"}}'.encode() for name in (ELSEWHERE, "cpu"))
    return decode(back.replace(there, here), "grad")


def qkv(dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    torch.manual_seed(0)
    shapes = ((2, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 8))
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]


BOOLEAN = (torch.arange(35).view(5, 7) % 3 > 0).expand(2, 1, 5, 7)
ADDED = torch.linspace(-1, 1, 35).view(5, 7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "options",
    [{}, {"is_causal": True}, {"scale": 0.3}, {"attn_mask": BOOLEAN}, {"attn_mask": ADDED}],
    ids=["plain", "causal", "scaled", "boolean_mask", "added_mask"],
)
def test_attention_written_out(options: dict[str, Any], dtype: torch.dtype) -> None:
    mask = options.get("attn_mask")
    if mask is not None and mask.dtype != torch.bool:
        mask = mask.to(dtype)
    rest = {key: value for key, value in options.items() if key != "attn_mask"}
    masks = [] if mask is None else [mask]

    def program(q, k, v, *masks):
        out = F.scaled_dot_product_attention(q, k, v, *masks, **rest)
        return out.transpose(1, 2).reshape(2, 5, 24)

    mine, theirs = qkv(dtype), qkv(dtype)
    (out,) = bind_interpreted(traced_elsewhere(program, [*mine, *masks]))(*mine, *masks)
    expected = program(*theirs, *masks)
    tolerance = {"rtol": 2e-2, "atol": 2e-2} if dtype is torch.bfloat16 else {"rtol": 1e-4, "atol": 1e-5}
    torch.testing.assert_close(out, expected, **tolerance)
    for result in (out, expected):
        (result * torch.linspace(0, 1, 24, dtype=dtype)).sum().backward()
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a.grad, b.grad, **tolerance)


def test_the_cpu_keeps_its_fused_attention() -> None:
    capture, _ = capture_by_torch_function(F.scaled_dot_product_attention, qkv())
    targets = [node.target for node in AotGrad().run(capture).joint.nodes if node.phase == "forward"]
    assert targets == ["aten._scaled_dot_product_flash_attention_for_cpu.default"]


def test_grouped_heads() -> None:
    def program(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)

    def inputs():
        torch.manual_seed(1)
        return [torch.randn(2, heads, 5, 8, requires_grad=True) for heads in (4, 2, 2)]

    def written_out(q, k, v):
        return torch._scaled_dot_product_flash_attention_for_cpu(q, k, v)[0]

    mine, theirs = inputs(), inputs()
    (out,) = bind_interpreted(traced_elsewhere(written_out, mine))(*mine)
    expected = program(*theirs)
    torch.testing.assert_close(out, expected)
    for result in (out, expected):
        (result * torch.linspace(0, 1, 8)).sum().backward()
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a.grad, b.grad)


WITHOUT_KEYS = torch.ones(2, 1, 5, 6, dtype=torch.bool).tril().index_fill(2, torch.tensor([3]), False)
SHAPES = {
    "one head for all": ((2, 4, 5, 8), (2, 1, 6, 8), (2, 1, 6, 8)),
    "one batch for all": ((2, 4, 5, 8), (1, 4, 6, 8), (1, 4, 6, 8)),
    "other heads of values": ((2, 4, 5, 8), (2, 4, 6, 8), (2, 1, 6, 8)),
    "other width of values": ((2, 4, 5, 8), (2, 4, 6, 8), (2, 4, 6, 12)),
}


@pytest.mark.parametrize("masked", [False, True], ids=["all", "a row without keys"])
@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES)
def test_operands_of_different_sizes(shapes: tuple[tuple[int, ...], ...], masked: bool) -> None:
    """What eager broadcasts, and rows of a mask that forbid every key: zeros."""

    def inputs() -> list[torch.Tensor]:
        torch.manual_seed(1)
        return [torch.randn(shape, requires_grad=True) for shape in shapes]

    mine, theirs = inputs(), inputs()
    masks = [WITHOUT_KEYS] if masked else []
    (out,) = bind_interpreted(traced_elsewhere(F.scaled_dot_product_attention, [*mine, *masks]))(*mine, *masks)
    expected = F.scaled_dot_product_attention(*theirs, *masks)
    torch.testing.assert_close(out, expected)
    for result in (out, expected):
        (result * torch.linspace(0, 1, result.shape[-1])).sum().backward()
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a.grad, b.grad)


def test_conversions_keep_the_device() -> None:
    mine, theirs = [[torch.ones(3, dtype=torch.bfloat16, requires_grad=True)] for _ in range(2)]

    def program(x):
        return x.float().pow(3), F.one_hot(x.detach().long(), 4)

    assert_same = torch.testing.assert_close
    found = bind_interpreted(traced_elsewhere(program, mine))(*mine)
    for result, expected in zip(found, program(*theirs), strict=True):
        assert_same(result, expected)
        if result.requires_grad:
            result.sum().backward()
            expected.sum().backward()
    assert_same(mine[0].grad, theirs[0].grad)
