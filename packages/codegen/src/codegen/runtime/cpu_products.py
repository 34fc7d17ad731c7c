"""Convolutions and products on a CPU that are not ATen's calls: with packed weights, and convolutions of few windows.

Packed: `stagefold.convolution.default` and `stagefold.product.default` of frozen programs, by oneDNN.

    convolution ::= (input, weight, bias?, stride, padding, dilation, groups, post, other?)   (+ other), then post
    product     ::= (input, weight, bias?, turned)   input @ weight (+ bias); turned: of the weight's transpose

Each call site keeps its packed weight for as long as it is given the same one: the same memory, at the same version.
So a weight may be no view that the unit makes, which has a version of its own.
Where oneDNN has no kernels for a dtype on this processor, or is switched off, ATen's operators run one after the other.

Products: convolutions of symbolic sizes, as products of matrices in the calls that have few windows.

A program of one size has such convolutions as products beside its kernels, which write the rows of patches. A program
of many sizes calls ATen, whose kernels of oneDNN bring the weights into an order of their own before each call: that
takes longer than the convolution where there are few windows. So each run asks its sizes:

    count of windows > most ? call of ATen : product

The product of the forward is the executor's own (operators.h), that of the backward is here.
(`docs/performance.md`, "Convolutions as products and loops", has what was measured.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any, NamedTuple

import torch
from torch.nn.functional import fold, unfold

from absint.cpu_kernels import onednn_computes
from codegen.cpp import tuning
from codegen.torch_capabilities import TORCH
from stagewire.expr import Dim, Expr
from stagewire.graph import List, Ref
from stagewire.program import CallExtern
from stagewire.types import TensorType


class CallSite:
    """Its weight is packed for the first input's size, and again when it has changed."""

    def __init__(self) -> None:
        self._kept: tuple[torch.Tensor, tuple[int, int], torch.Tensor] | None = None

    def packed(
        self, pack: Callable[..., torch.Tensor], x: torch.Tensor, weight: torch.Tensor, *rest: Any
    ) -> torch.Tensor:
        """`pack(x, weight, *rest)`, kept while the weight is the same."""
        if weight.is_inference():  # counts no versions
            return pack(x, weight, *rest)
        state = weight.data_ptr(), weight._version
        kept = self._kept
        if kept is None or kept[1] != state:  # while the weight is held here, no other can lie in its memory
            kept = self._kept = (weight.detach(), state, pack(x, weight, *rest))
        return kept[2]


class PackedProduct(CallSite):
    """A product of two matrices, whose second one is a weight."""

    def __call__(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, turned: bool) -> torch.Tensor:
        if x.numel() == 0 or not torch.backends.mkldnn.enabled or not can_pack(weight.dtype, PRODUCTS):
            matrix = weight.t() if turned else weight
            return x.mm(matrix) if bias is None else torch.addmm(bias, x, matrix)
        packed = self.packed(_pack_matrix, x, weight, turned)
        return TORCH.multiply_packed(x, packed, bias, "none", [], "")  # type: ignore[no-any-return]


class PackedConvolution(CallSite):
    """A convolution in two dimensions."""

    def __call__(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, stride: list[int], padding: list[int],
        dilation: list[int], groups: int, post: str = "none", other: torch.Tensor | None = None,
    ) -> torch.Tensor:  # fmt: skip
        if x.numel() == 0 or not torch.backends.mkldnn.enabled or not can_pack(weight.dtype):
            return plain_convolution(x, weight, bias, stride, padding, dilation, groups, post, other)
        packed = self.packed(_pack, x, weight, stride, padding, dilation, groups)
        x = x.contiguous(memory_format=torch.channels_last)
        operators = TORCH.convolve_packed
        if other is None:
            return operators.default(x, packed, bias, padding, stride, dilation, groups, post, [], "")
        other = other.contiguous(memory_format=torch.channels_last)
        follow = None if post == "none" else post
        return operators.binary(
            x, other, packed, bias, padding, stride, dilation, groups, "add", None, follow, [], None
        )


CONVOLUTIONS = ("pack_convolution", "convolve_packed")
PRODUCTS = ("pack_product", "multiply_packed")


def can_pack(dtype: torch.dtype, operators: tuple[str, ...] = CONVOLUTIONS) -> bool:
    """Whether oneDNN takes weights of a dtype on this processor, as ATen says."""
    return all(map(TORCH.has, operators)) and onednn_computes(dtype)


def _pack_matrix(x: torch.Tensor, weight: torch.Tensor, turned: bool) -> torch.Tensor:
    with torch.no_grad():
        rows = weight.detach() if turned else weight.detach().t()
        return TORCH.pack_product(rows.contiguous(), x.shape[0])  # type: ignore[no-any-return]


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


class WindowProducts(NamedTuple):
    """`function` (None: what the executor has) in place of the call where `count` is at most `most`."""

    count: Dim
    most: int
    function: Callable[..., Any] | None


def window_products(call: CallExtern, types: Mapping[str, TensorType | None]) -> WindowProducts | None:
    """What to do in place of a call of ATen's convolution that has few windows; None where that is never better.

    types: of the unit's buffers.
    """
    match call.target, call.args:
        case "aten.convolution.default", (_, Ref(weight), *_, List((_, _)), False, _, 1):
            windows, most, function = call.result_types[:1], tuning.TUNED.product_windows, None
        case "aten.convolution_backward.default", (Ref(grad), _, Ref(weight), *_, List((_, _)), False, _, 1, _):
            windows, most, function = (types[grad],), tuning.TUNED.product_gradient_windows, convolution_backward  # type: ignore[assignment]
        case _:
            return None
    kernels = types[weight]
    if not windows or windows[0] is None or kernels is None or not all(isinstance(n, int) for n in kernels.shape):
        return None
    (made,) = windows
    if made.device != "cpu" or made.dtype != "float32" or len(made.shape) != 4:
        return None
    weights, taps = prod(kernels.shape), prod(kernels.shape[2:])  # type: ignore[arg-type]
    if weights < tuning.TUNED.product_weights or taps > tuning.TUNED.product_taps:
        return None
    if taps == 1 and weights >= tuning.TUNED.large_product_weights:
        most = tuning.TUNED.product_places
    count = made.shape[0] * made.shape[2] * made.shape[3]
    return WindowProducts(count, most, function) if isinstance(count, Expr) else None


def convolution_backward(
    grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, *geometry: Any
) -> tuple[torch.Tensor | None, ...]:
    """`aten.convolution_backward` in two dimensions, neither transposed nor in groups."""
    _, stride, padding, dilation, *_, output_mask = geometry
    if grad.numel() == 0:
        return torch.ops.aten.convolution_backward.default(grad, x, weight, *geometry)  # type: ignore[no-any-return]
    images, features, *out = grad.shape
    rows = grad.permute(0, 2, 3, 1).reshape(-1, features)
    image = kernel = bias = None
    if output_mask[0]:
        patches = rows.mm(weight.reshape(features, -1)).view(images, prod(out), -1).transpose(1, 2)
        image = fold(patches, x.shape[2:], weight.shape[2:], dilation, padding, stride)  # type: ignore[arg-type]
    if output_mask[1]:
        patches = unfold(x, weight.shape[2:], dilation, padding, stride)  # type: ignore[arg-type]
        kernel = rows.t().mm(patches.transpose(1, 2).reshape(rows.shape[0], -1)).view(weight.shape)
    if output_mask[2]:
        bias = rows.sum(0)
    return image, kernel, bias
