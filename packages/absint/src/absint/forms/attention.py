"""Attention that no fused op computes, which the C++ of torch before 2.13 composes of products that take numbers alone.

    softmax(query * s @ (key.mT * s) + mask), dropout, @ value      s = sqrt(scale)

Bits and random numbers are those of ATen's own composition (`_scaled_dot_product_attention_math`). ATen's fused op,
which takes symbolic sizes, has no dropout on a CPU, and asks for four dimensions and equal widths.
"""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch

from absint.forms.products import linear, matmul, takes_symbols
from absint.symbolic import is_symbolic
from absint.tensor import AbstractTensor


def cpu_attention(
    query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False, *,
    scale: float | None = None, enable_gqa: bool = False,
) -> Any:  # fmt: skip
    """`torch.nn.functional.scaled_dot_product_attention` of tensors of the CPU."""
    if not torch.is_autocast_enabled("cpu") and _is_to_be_written_out(query, key, value, attn_mask, is_causal):
        is_fused = _fits(query, key, value, enable_gqa) and value.shape[-1] == key.shape[-1] and not dropout_p
        if not is_fused or (attn_mask is not None and attn_mask.requires_grad):
            return written_out(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    return torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )


def _is_to_be_written_out(query: Any, key: Any, value: Any, mask: Any, is_causal: bool) -> bool:
    """Whether operands have symbolic sizes, which torch's composition takes as numbers; `written_out` is the same."""
    tensors = [query, key, value, *(() if mask is None else (mask,))]
    if takes_symbols() or not any(is_symbolic(size) for tensor in tensors for size in tensor.shape):
        return False
    is_plain = all(tensor.dtype == query.dtype for tensor in tensors[:3]) and not (is_causal and mask is not None)
    return is_plain and min(tensor.dim() for tensor in tensors) >= 2


def written_out(
    query: Any, key: Any, value: Any, mask: Any, dropout: float, is_causal: bool, scale: float | None, enable_gqa: bool
) -> Any:
    """The composition."""
    dtype, allows_low = query.dtype, torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed()  # of CPUs too
    if mask is not None and mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=dtype).masked_fill(~mask, -math.inf)
    if dtype in (torch.float16, torch.bfloat16) and not allows_low:
        query, key, value = query.float(), key.float(), value.float()
    depth = query.shape[-1]
    half = _root(1 / _root(depth)) if scale is None else abs(scale) ** 0.5
    if is_causal:
        shown = torch.ones((query.shape[-2], key.shape[-2]), dtype=torch.bool, device=query.device).tril()
        mask = torch.zeros_like(shown, dtype=query.dtype).masked_fill(~shown, -math.inf)
    if enable_gqa:
        key, value = (for_each_head(tensor, query) for tensor in (key, value))
    first = query * (-half if scale is not None and scale < 0 else half)
    scores = matmul(first, key.transpose(-2, -1) * half)
    if mask is not None:
        scores = scores + mask
    weights = torch.dropout(torch.ops.aten._safe_softmax(scores, -1), dropout, True)
    return matmul(weights, value).to(dtype)


def _root(number: Any) -> Any:
    return math.sqrt(number) if isinstance(number, int | float) else number**0.5


def for_each_head(tensor: Any, query: Any) -> Any:
    """Keys or values with a head for each head of the query: groups of these share one."""
    groups = query.shape[-3] // tensor.shape[-3]
    return tensor if groups == 1 else tensor.repeat_interleave(groups, -3)


ATTENTION_AMONG = "torch.ops.stagefold.scaled_dot_product_attention"
"""The target in a Capture of attention for which the program says which kernels may be taken."""
KERNELS_OF_ATTENTION = ("flash", "mem_efficient", "math", "cudnn")
"""By their names in `torch._C._set_sdp_use_*`."""


def allowed_kernels() -> tuple[str, ...]:
    """Those that attention may be now: `torch.nn.attention.sdpa_kernel` and its like say so."""
    return tuple([name for name in KERNELS_OF_ATTENTION if getattr(torch.backends.cuda, f"{name}_sdp_enabled")()])


@contextmanager
def among(kernels: Sequence[str]) -> Iterator[None]:
    """Attention takes one of these kernels."""
    before = allowed_kernels()
    try:
        _allow(kernels)
        yield
    finally:
        _allow(before)


def _allow(kernels: Sequence[str]) -> None:
    for name in KERNELS_OF_ATTENTION:
        getattr(torch.backends.cuda, f"enable_{name}_sdp")(name in kernels)


@cache
def _multi_head_attention() -> Callable[..., Any]:
    """`multi_head_attention_forward` and what it calls, with `linear` and attention as they are here."""
    namespace = {**vars(torch.nn.functional), "linear": linear, "scaled_dot_product_attention": cpu_attention}
    for name in ("_in_projection_packed", "_in_projection", "multi_head_attention_forward"):
        known = getattr(torch.nn.functional, name)
        namespace[name] = types.FunctionType(known.__code__, namespace, name, known.__defaults__)
    return namespace["multi_head_attention_forward"]


ATTENTION_FORMS: dict[str, Callable[..., Any]] = {
    "torch.nn.functional.multi_head_attention_forward": lambda *args, **kwargs: _multi_head_attention()(*args, **kwargs)
}
"""Needed by every torch, for the biases of `linear`."""


aten = torch.ops.aten
Chooser = Callable[[Any, Any, Any, Any, float, bool, float | None], bool]
"""(query, key, value, mask, dropout, is_causal, scale): whether a fused kernel takes them."""


def attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
    is_fused: Chooser | None = None,
    hidden: Callable[..., float] | None = None,
) -> Any:
    """As `torch.nn.functional.scaled_dot_product_attention`; dropout is written out where `is_fused` says no.

    hidden: what is added to the scores that a boolean mask hides, by the same arguments as `is_fused` (default: -inf).
    """
    tensors = [tensor for tensor in (query, key, value, attn_mask) if tensor is not None]
    if not all(isinstance(tensor, AbstractTensor) and tensor.is_cuda for tensor in tensors):
        return cpu_attention(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    query, key, value, mask = (_autocast(tensor) for tensor in (query, key, value, attn_mask))
    if mask is not None and mask.dtype == torch.bool:
        shown, mask = mask, torch.zeros_like(mask, dtype=query.dtype)
        low = -math.inf if hidden is None else hidden(query, key, value, mask, dropout_p, is_causal, scale)
        mask = mask.masked_fill(~shown, low)
    is_open = _fits(query, key, value, enable_gqa) and not (mask is not None and mask.requires_grad)
    choice = (query, key, value, mask, dropout_p, is_causal, scale)
    if is_open and (not dropout_p or is_fused is None or is_fused(*choice)):
        op = aten._scaled_dot_product_flash_attention_for_cpu
        return op(query, key, value, dropout_p, is_causal, attn_mask=mask, scale=scale)[0]
    if _is_to_be_written_out(query, key, value, mask, is_causal):
        return written_out(query, key, value, mask, dropout_p, is_causal, scale, enable_gqa)
    options = {"scale": scale, "enable_gqa": enable_gqa}
    return aten._scaled_dot_product_attention_math(query, key, value, mask, dropout_p, is_causal, **options)[0]


def _fits(query: Any, key: Any, value: Any, enable_gqa: bool) -> bool:
    """Whether the fused op takes the operands: nothing to broadcast but whole groups of heads."""
    if any(tensor.dim() != 4 for tensor in (query, key, value)) or query.shape[-1] != key.shape[-1]:
        return False
    if key.shape[:3] != value.shape[:3] or query.shape[0] != key.shape[0]:
        return False
    return query.shape[1] == key.shape[1] or (enable_gqa and query.shape[1] % key.shape[1] == 0)


def _autocast(tensor: Any) -> Any:
    """What autocast for CUDA makes of an operand."""
    if tensor is None or not torch.is_autocast_enabled("cuda"):
        return tensor
    is_cast = tensor.is_floating_point() and tensor.dtype != torch.float64
    return tensor.to(torch.get_autocast_dtype("cuda")) if is_cast else tensor


def _attention_among(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: torch.Tensor | None, dropout_p: float,
    is_causal: bool, scale: float | None, enable_gqa: bool, kernels: list[str],
) -> torch.Tensor:  # fmt: skip
    with among(kernels):
        return attention(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)  # type: ignore[no-any-return]


LIBRARY = torch.library.Library("stagefold", "FRAGMENT")
LIBRARY.define(
    "scaled_dot_product_attention(Tensor query, Tensor key, Tensor value, Tensor? attn_mask, float dropout_p, "
    "bool is_causal, float? scale, bool enable_gqa, str[] kernels) -> Tensor",
    tags=torch.Tag.nondeterministic_seeded,
)
LIBRARY.impl("scaled_dot_product_attention", _attention_among, "CompositeImplicitAutograd")
