"""Attention of few keys, or beside a mask, by the kernel of FlexAttention; and of rows that are not dense in memory.

Documents are moved to a device for the trace and back; what eager would take there is patched in.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from absint.meta import Meta, contiguous
from aotgrad import AotGrad, bind_interpreted
from aotgrad.testing import capture_by_torch_function
from aotgrad.tracer.fused_attention import Kernels, kernels
from stagewire.codec import decode, encode
from stagewire.flex_attention import BACKWARD, FORWARD
from stagewire.grad import Grad

ELSEWHERE = "cuda:63"
EAGERS = "aotgrad.tracer.fused_attention._eagers"


def traced_elsewhere(program: Callable[..., Any], inputs: list[torch.Tensor], **options: Any) -> Grad:
    capture, _ = capture_by_torch_function(program, inputs)
    there = encode(capture).replace(b'"device":"cpu"', f'"device":"{ELSEWHERE}"'.encode())
    grad = AotGrad().run(decode(there, "capture"), AotGrad.Options(**options))
    back = encode(grad).replace(f'"{ELSEWHERE}"'.encode(), b'"cpu"')
    return decode(back, "grad")


def qkv(heads: int = 3, keys: int = 7) -> list[torch.Tensor]:
    torch.manual_seed(0)
    shapes = ((2, 5, 6, 8), (2, keys, heads, 8), (2, keys, heads, 8))
    return [torch.randn(shape).transpose(1, 2).requires_grad_() for shape in shapes]


MASKS = {
    "none": None,
    "whole": torch.linspace(-1, 1, 2 * 6 * 35).view(2, 6, 5, 7),
    "of_pairs": torch.linspace(-1, 1, 35).view(5, 7),
    "of_heads": torch.linspace(-1, 1, 6 * 35).view(1, 6, 5, 7),
    "of_keys": torch.linspace(-1, 1, 14).view(2, 1, 1, 7),
    "turned": torch.linspace(-1, 1, 70).view(2, 1, 7, 5).mT,
    "boolean": torch.arange(35).view(5, 7) % 3 > 0,
    "row_without_keys": torch.arange(35).view(5, 7) > 6,
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("heads", [6, 3], ids=["heads", "shared_keys"])
def test_means_the_same(heads: int, mask: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aotgrad.tracer.attention.kernels", lambda *_, **__: Kernels("flash", "flex"))

    def program(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *masks: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, *masks, scale=0.3, enable_gqa=heads != 6)

    given = [] if MASKS[mask] is None else [MASKS[mask]]
    mine, theirs = ([*qkv(heads), *given] for _ in range(2))
    grad = traced_elsewhere(program, mine)
    targets = [node.target for node in grad.joint.nodes]
    assert FORWARD in targets
    assert BACKWARD in targets
    out, expected = bind_interpreted(grad)(*mine)[0], program(*theirs)
    torch.testing.assert_close(out, expected)
    for result in (out, expected):
        result.square().sum().backward()
    for one, other in zip(mine[:3], theirs[:3], strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("eager", ["flash", "efficient", "cudnn", "math"])
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 1, 3), (2, 0, 1, 3)], ids=str)
def test_memory_has_eagers_order(order: tuple[int, ...], eager: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory-efficient kernel has the heads of a word together, whatever the query; others do as the query does."""
    monkeypatch.setattr("aotgrad.tracer.attention.kernels", lambda *_, **__: Kernels(eager, "flex"))

    def program(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v)

    back = [order.index(dim) for dim in range(4)]
    given = [torch.randn(2, 3, 5, 8).permute(order).contiguous().permute(back) for _ in range(3)]
    grad = traced_elsewhere(program, given)
    types = {value.name: value.type for node in grad.joint.nodes for value in node.results}
    wanted = {"math": (120, 40, 8, 1), "efficient": (120, 8, 24, 1)}.get(eager, given[0].stride())
    assert types[grad.joint.outputs[0].name].stride == wanted
    torch.testing.assert_close(bind_interpreted(grad)(*given)[0], program(*given))


def meta(keys: int, width: int = 64, dtype: torch.dtype = torch.bfloat16) -> Meta:
    return contiguous((8, 12, keys, width), dtype, torch.device(ELSEWHERE))


@pytest.mark.parametrize(
    ("keys", "width", "dtype", "mask", "rest", "taken"),
    [
        (192, 64, torch.bfloat16, False, {}, "flex"),
        (193, 64, torch.bfloat16, False, {}, "cudnn"),
        (1024, 64, torch.float16, True, {}, "flex"),
        (1025, 64, torch.float16, True, {}, "cudnn"),
        (128, 128, torch.bfloat16, False, {}, "flex"),
        (257, 128, torch.bfloat16, True, {}, "cudnn"),
        (64, 256, torch.bfloat16, False, {}, "cudnn"),
        (64, 64, torch.float32, False, {}, "cudnn"),
        (64, 64, torch.bfloat16, False, {"is_causal": True}, "cudnn"),
        (64, 64, torch.bfloat16, False, {"dropout": 0.1}, "cudnn"),
        (64, 64, torch.bfloat16, False, {"has_flex": False}, "cudnn"),
    ],
)
def test_where_it_is_taken(
    keys: int, width: int, dtype: torch.dtype, mask: bool, rest: dict[str, Any], taken: str, monkeypatch: Any
) -> None:
    monkeypatch.setattr(EAGERS, lambda *_: "cudnn")
    one = meta(keys, width, dtype)
    added = contiguous((8, 1, keys, keys), dtype, one.device) if mask else None
    options = {"is_causal": False, "scale": None, "dropout": 0.0, "has_flex": True} | rest
    assert kernels([one] * 3, added, **options) == Kernels("cudnn", taken)


def test_a_kernel_that_is_asked_for_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EAGERS, lambda *_: "flash")
    for backend, taken in ((SDPBackend.FLASH_ATTENTION, "flash"), (None, "flex")):
        with sdpa_kernel(backend) if backend is not None else nullcontext():
            assert kernels([meta(64)] * 3, None, False, None, 0.0, has_flex=True) == Kernels("flash", taken)


def test_attention_that_is_kept_is_eagers_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """In half precision, of few keys, where the kernel of FlexAttention is the quickest."""
    monkeypatch.setattr(EAGERS, lambda *_: "flash")
    found = []
    for choice in ("auto", "keep"):
        given = [one.detach().bfloat16() for one in qkv(6)]
        grad = traced_elsewhere(
            lambda q, k, v: F.scaled_dot_product_attention(q, k, v), given, written_attention=choice
        )
        found += [node.target for node in grad.joint.nodes if "attention" in node.target]
    assert found == [FORWARD, "aten._scaled_dot_product_flash_attention.default"]


def test_rows_that_are_not_dense_are_copied_for_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eager takes products and a softmax there, since none of its kernels takes such rows."""

    def eagers(metas: list[Meta], *_: Any) -> str:
        return "efficient" if all(one.stride[-1] == 1 for one in metas) else "math"

    def program(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v)

    monkeypatch.setattr(EAGERS, eagers)
    inputs = [torch.randn(2, 3, 8, 16).mT.requires_grad_() for _ in range(3)]
    grad = traced_elsewhere(program, inputs)
    joint = grad.joint
    (out,) = [value.type for node in joint.nodes for value in node.results if value.name == grad.joint.outputs[0].name]
    assert out.stride == (384, 128, 8, 1)
    makers = {value.name: node for node in joint.nodes for value in node.results}
    found = [node for node in joint.nodes if "_scaled_dot_product_efficient_attention" in node.target]
    assert len(found) == 2
    assert found[0].results[0].type.stride[-1] == 1
    for node, first in zip(found, (0, 1), strict=True):  # the backward begins with the gradient of the output
        for operand in node.args[first : first + 3]:
            assert makers[operand.name].target == "aten.clone.default"
            assert makers[operand.name].results[0].type.stride == (384, 128, 8, 1)


def test_a_kernel_that_may_not_be_used_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where products and a softmax are asked for, they are it for dense rows too."""
    monkeypatch.setattr(EAGERS, lambda *_: "math")
    one = contiguous((8, 12, 64, 64), torch.bfloat16, torch.device(ELSEWHERE))
    for turned in (False, True):
        given = Meta(one.shape, (*one.stride[:2], 1, 64), one.dtype, one.device) if turned else one
        assert kernels([given] * 3, None, False, None, 0.0, has_flex=True) == Kernels("math", None)
