"""Interpolation and pooling of images with symbolic sizes: the operators that take them, with the sizes of the result.

interpolate(x, scale_factor=f)     aten.upsample(x, [floor(n * f)...], factors)
max_pool1d(x, k)                   max_pool2d(x.unsqueeze(-2), (1, k)).squeeze(-2)
"""

from __future__ import annotations

import math
from typing import Any

import torch

from absint.symbolic import is_symbolic
from absint.torch_capabilities import TORCH

aten = torch.ops.aten


def interpolate(
    input: Any,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Any:
    """`torch.nn.functional.interpolate`."""
    rank = input.dim() - 2
    name = _UPSAMPLING.get((mode, rank, bool(antialias)))
    is_open = any(is_symbolic(one) for one in (*input.shape, *(size if isinstance(size, (tuple, list)) else (size,))))
    is_odd = (size is None) == (scale_factor is None) or (recompute_scale_factor and scale_factor is None)
    is_odd = is_odd or any(len(one) != rank for one in (size, scale_factor) if isinstance(one, (tuple, list)))
    if not is_open or is_odd or name is None or ("nearest" in mode and align_corners is not None):
        options = (size, scale_factor, mode, align_corners, recompute_scale_factor, antialias)
        return torch.nn.functional.interpolate(input, *options)
    factors = [None] * rank if scale_factor is None else _each(scale_factor, rank)
    sizes = _each(size, rank)
    if size is None:
        sizes = [math.floor(one * float(factor)) for one, factor in zip(input.shape[2:], factors, strict=True)]
    if recompute_scale_factor:
        factors = [None] * rank
    align = () if "nearest" in mode else (bool(align_corners),)
    return getattr(aten, name).default(input, sizes, *align, *factors)


def _each(value: Any, rank: int) -> list[Any]:
    return list(value) if isinstance(value, (tuple, list)) else [value] * rank


def _pool_form(plain: Any) -> Any:
    """max_pool1d as a pooling of images of one row."""

    def form(
        input: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False,
        *rest: Any, **named: Any,
    ) -> Any:  # fmt: skip
        given = (kernel_size, stride, padding, dilation, ceil_mode)
        if not any(map(is_symbolic, input.shape)) or rest or any(named.values()) or input.dim() not in (2, 3):
            return plain(input, *given, *rest, **named)
        strides = kernel_size if stride is None or stride == () or stride == [] else stride
        kernel, steps, edge, gaps = (_each(one, 1)[0] for one in (kernel_size, strides, padding, dilation))
        if min(kernel, steps, gaps) < 1 or not 0 <= edge <= (gaps * (kernel - 1) + 1) // 2:
            return plain(input, *given)  # which refuses them
        image = input.unsqueeze(-2)
        found = aten.max_pool2d_with_indices(image, [1, kernel], [1, steps], [0, edge], [1, gaps], ceil_mode)
        return found[0].squeeze(-2)

    return form


_UPSAMPLING = {
    ("linear", 1, False): "upsample_linear1d",
    ("bilinear", 2, False): "upsample_bilinear2d",
    ("trilinear", 3, False): "upsample_trilinear3d",
    ("bicubic", 2, False): "upsample_bicubic2d",
    ("bilinear", 2, True): "_upsample_bilinear2d_aa",
    ("bicubic", 2, True): "_upsample_bicubic2d_aa",
    **{("nearest", rank, False): f"upsample_nearest{rank}d" for rank in (1, 2, 3)},
    **{("nearest-exact", rank, False): f"_upsample_nearest_exact{rank}d" for rank in (1, 2, 3)},
}

RESAMPLING_FORMS = {
    "torch.nn.functional.interpolate": interpolate,
    "torch.max_pool1d": _pool_form(torch.max_pool1d),
    "torch.nn.functional._max_pool1d": _pool_form(TORCH.max_pool1d),
}
