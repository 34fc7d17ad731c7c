"""Calls with packed weights: `stagefold.convolution.default` of frozen programs, by oneDNN.

    call ::= (input, weight, bias?, stride, padding, dilation, groups, post, other?) -> convolution (+ other), then post

Each call site keeps its packed weight for as long as it is given the same one: the same memory, at the same version.
Where oneDNN has no kernels for a dtype on this processor, or is switched off, ATen's operators run one after the other.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from codegen.torch_capabilities import TORCH


class PackedConvolution:
    """A call site. Its weight is packed for the first input's size, and again when it has changed."""

    def __init__(self) -> None:
        self._kept: tuple[torch.Tensor, tuple[int, int], torch.Tensor] | None = None

    def __call__(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, stride: list[int], padding: list[int],
        dilation: list[int], groups: int, post: str = "none", other: torch.Tensor | None = None,
    ) -> torch.Tensor:  # fmt: skip
        if x.numel() == 0 or not torch.backends.mkldnn.enabled or not can_pack(weight.dtype):
            return plain_convolution(x, weight, bias, stride, padding, dilation, groups, post, other)
        packed = self._packed(x, weight, stride, padding, dilation, groups)
        x = x.contiguous(memory_format=torch.channels_last)
        operators = TORCH.convolve_packed
        if other is None:
            return operators.default(x, packed, bias, padding, stride, dilation, groups, post, [], "")
        other = other.contiguous(memory_format=torch.channels_last)
        follow = None if post == "none" else post
        return operators.binary(
            x, other, packed, bias, padding, stride, dilation, groups, "add", None, follow, [], None
        )

    def _packed(self, x: torch.Tensor, weight: torch.Tensor, *geometry: Any) -> torch.Tensor:
        if weight.is_inference():  # counts no versions
            return _pack(x, weight, *geometry)
        state = weight.data_ptr(), weight._version
        kept = self._kept
        if kept is None or kept[1] != state:  # while the weight is held here, no other can lie in its memory
            kept = self._kept = (weight.detach(), state, _pack(x, weight, *geometry))
        return kept[2]


_HALVES = {torch.bfloat16: "onednn_has_bfloat16", torch.float16: "onednn_has_float16"}


@cache
def can_pack(dtype: torch.dtype) -> bool:
    """Whether oneDNN takes weights of a dtype on this processor, as ATen says."""
    here = torch.backends.mkldnn.is_available() and TORCH.has("pack_convolution") and TORCH.has("convolve_packed")
    if dtype in _HALVES:
        return here and TORCH.has(_HALVES[dtype]) and getattr(TORCH, _HALVES[dtype])()
    return here and dtype is torch.float32


def _pack(
    x: torch.Tensor, weight: torch.Tensor, stride: list[int], padding: list[int], dilation: list[int], groups: int
) -> torch.Tensor:
    with torch.no_grad():
        return TORCH.pack_convolution(
            weight.detach().contiguous().to_mkldnn(), padding, stride, dilation, groups, list(x.shape)
        )


POSTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "none": lambda x: x,
    "relu": torch.relu,
    "swish": torch.nn.functional.silu,
    "hardswish": torch.nn.functional.hardswish,
}


def plain_convolution(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, stride: list[int], padding: list[int],
    dilation: list[int], groups: int, post: str = "none", other: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    """The same, one operator of ATen after the other."""
    result = torch.convolution(x, weight, bias, stride, padding, dilation, False, [0, 0], groups)
    return POSTS[post](result if other is None else result + other)
