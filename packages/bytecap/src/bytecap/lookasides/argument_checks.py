"""Which functions of torch are evaluated as Python instead (`checked_functions`), and for which arguments.

What torch refuses, and what it warns of, is left to torch: the call is then a node like others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from bytecap.context_types import Tracer
from bytecap.lookasides import checked_functions
from bytecap.nodes.torch_calls import call_torch, to_host
from bytecap.objects.arrays.tensors import TensorValue
from bytecap.objects.base import Value
from bytecap.objects.constant import NONE


def _fits_cov(x: Any, correction: Any = 1, fweights: Any = None, aweights: Any = None) -> bool:
    if x.dim() > 2 or x.dtype is torch.bool or type(correction) is not int:
        return False
    count = x.shape[1] if x.dim() == 2 else x.numel()
    if fweights is None and aweights is None:
        return count > correction
    whole = fweights is None or (fweights.dim() == 1 and not fweights.is_floating_point())
    real = aweights is None or (aweights.dim() == 1 and aweights.is_floating_point())
    return whole and real and count > 0 and all(w is None or w.numel() == count for w in (fweights, aweights))


def _fits_combinations(x: Any, r: Any = 2, with_replacement: Any = False) -> bool:
    return x.dim() == 1 and type(r) is int and r >= 0 and x.numel() ** max(r, 1) <= _MOST_CHOICES


# The choices are a constant of the graph.
_MOST_CHOICES = 1 << 16


def _fits_istft(
    x: Any, n_fft: Any, hop_length: Any = None, win_length: Any = None, window: Any = None, center: Any = True,
    normalized: Any = False, onesided: Any = None, length: Any = None, return_complex: Any = False,
) -> bool:  # fmt: skip
    if x.dtype not in (torch.complex64, torch.complex128) or x.dim() not in (2, 3) or 0 in x.shape:
        return False
    hop, width = hop_length or n_fft // 4, win_length or n_fft
    total = n_fft + hop * (x.shape[-1] - 1)
    start = n_fft // 2 if center else 0
    end = start + length if length is not None else total - start
    one_sided = x.shape[-2] != n_fft if onesided is None else onesided
    sizes = x.shape[-2] == (n_fft // 2 + 1 if one_sided else n_fft) and 0 < hop <= width <= n_fft
    fits = window is None or (window.dim() == 1 and window.numel() == width)
    kinds = window is None or window.is_floating_point() or (return_complex and window.is_complex())
    return sizes and fits and kinds and start < end <= total and not (return_complex and one_sided)


def _fits_quantile(
    x: Any, q: Any, dim: Any = None, keepdim: Any = False, *, interpolation: Any = "linear"
) -> bool:  # fmt: skip
    if x.dtype not in (torch.float32, torch.float64) or x.numel() == 0 or type(keepdim) is not bool:
        return False
    ndim = max(x.dim(), 1)
    levels = q.dim() < 2 and q.dtype is x.dtype if isinstance(q, torch.Tensor) else type(q) is float and 0 <= q <= 1
    along = dim is None or (type(dim) is int and -ndim <= dim < ndim)
    return levels and along and interpolation in ("linear", "lower", "higher", "midpoint", "nearest")


def _as_python(original: Any, python: Callable[..., Any], fits: Callable[..., bool]) -> Callable[..., Value]:
    def handler(tracer: Tracer, *args: Value, **kwargs: Value) -> Value:
        first = args[0] if args else kwargs.get("input")
        if isinstance(first, TensorValue) and _takes(tracer, fits, args, kwargs):
            return tracer.objects.wrap(python, None).call(tracer, list(args), kwargs)
        return call_torch(tracer, original, list(args), kwargs)

    return handler


def _takes(tracer: Tracer, fits: Callable[..., bool], args: Any, kwargs: dict[str, Value]) -> bool:
    known = {key: to_host(tracer, value) for key, value in kwargs.items()}
    if "input" in known:
        known["x"] = known.pop("input")
    try:
        return fits(*(to_host(tracer, arg) for arg in args), **known)
    except TypeError:
        return False  # arguments that torch does not take: its own error


def _inlined(original: Any) -> Callable[..., Value]:
    """A Python function that is a node elsewhere: its checks of data are branches that raise already."""

    def handler(tracer: Tracer, *args: Value, **kwargs: Value) -> Value:
        return tracer.evaluate.inline(tracer, tracer.objects.wrap(original, None), list(args), kwargs)

    return handler


def _resize(tracer: Tracer, tensor: Value, *sizes: Value, memory_format: Value = NONE) -> Value:
    """resize_ to no more elements than there are: another look at the same memory."""
    given = [to_host(tracer, size) for size in sizes]
    shape = tuple(given[0]) if len(given) == 1 and not isinstance(given[0], int) else tuple(given)
    if not isinstance(tensor, TensorValue) or not memory_format.is_none():
        return _resize_by_torch(tracer, tensor, sizes, memory_format)
    return _resized(tracer, tensor, shape) or _resize_by_torch(tracer, tensor, sizes, memory_format)


def _resize_by_torch(tracer: Tracer, tensor: Value, sizes: Any, memory_format: Value) -> Value:
    named = {} if memory_format.is_none() else {"memory_format": memory_format}
    return call_torch(tracer, torch.Tensor.resize_, [tensor, *sizes], named)


def _resize_as(tracer: Tracer, tensor: Value, other: Value, memory_format: Value = NONE) -> Value:
    if isinstance(tensor, TensorValue) and isinstance(other, TensorValue) and memory_format.is_none():
        made = _resized(tracer, tensor, tuple(other.abstract.shape))
        if made is not None:
            return made
    named = {} if memory_format.is_none() else {"memory_format": memory_format}
    return call_torch(tracer, torch.Tensor.resize_as_, [tensor, other], named)


def _resized(tracer: Tracer, tensor: TensorValue, shape: tuple[int, ...]) -> Value | None:
    """The tensor after resize_, or None where its memory would change."""
    x = tensor.abstract
    count = 1
    for size in shape:
        count *= size
    if x.requires_grad or not x.is_contiguous() or count > x.numel() or any(size < 0 for size in shape):
        return None
    if tuple(x.shape) == shape:
        return tensor
    strides = [1] * len(shape)
    for dim in range(len(shape) - 2, -1, -1):
        strides[dim] = strides[dim + 1] * max(shape[dim + 1], 1)
    sizes = [tracer.objects.fresh(shape), tracer.objects.fresh(tuple(strides))]
    return tensor.call_method(tracer, "as_strided_", sizes, {})


_PYTHON = (
    ("cov", checked_functions.cov, _fits_cov),
    ("corrcoef", checked_functions.corrcoef, _fits_cov),
    ("istft", checked_functions.istft, _fits_istft),
    ("quantile", checked_functions.quantile, _fits_quantile),
    ("nanquantile", checked_functions.nanquantile, _fits_quantile),
    ("combinations", checked_functions.combinations, _fits_combinations),
)
CHECKED_FUNCTIONS: dict[Any, Callable[..., Value]] = {
    **{
        original: _as_python(original, python, fits)
        for name, python, fits in _PYTHON
        for owner in (torch, torch.Tensor)
        if (original := getattr(owner, name, None)) is not None
    },
    F.gaussian_nll_loss: _inlined(F.gaussian_nll_loss),
    torch.Tensor.resize_: _resize,
    torch.Tensor.resize_as_: _resize_as,
    torch.resize_as_: _resize_as,
}
