"""Interpolation and pooling of images with symbolic sizes: the operators that take them, with the sizes of the result.
Short-time Fourier transforms: frames by `unfold`, then one transform of all.

interpolate(x, scale_factor=f)     aten.upsample(x, [floor(n * f)...], factors)
max_pool1d(x, k)                   max_pool2d(x.unsqueeze(-2), (1, k)).squeeze(-2)

Source: aten/src/ATen/native/SpectralOps.cpp (stft), torch/functional.py (its padding).
"""

from __future__ import annotations

import math
from collections.abc import Callable
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


def stft(
    input: Any, n_fft: int, hop_length: int | None = None, win_length: int | None = None, window: Any = None,
    center: bool = True, pad_mode: str = "reflect", normalized: bool = False, onesided: bool | None = None,
    return_complex: bool | None = None, **rest: Any,
) -> Any:  # fmt: skip
    """`torch.stft`."""
    given = (hop_length, win_length, window, center, pad_mode, normalized, onesided, return_complex)
    is_open = any(map(is_symbolic, input.shape))
    if not is_open or return_complex is None or any(map(is_symbolic, (n_fft, *given))) or any(rest.values()):
        return torch.stft(input, n_fft, *given, **rest)
    hop, width = n_fft // 4 if hop_length is None else hop_length, n_fft if win_length is None else win_length
    is_number = input.is_floating_point() or input.is_complex()
    fits = is_number and input.dim() in (1, 2) and hop >= 1 and 0 < width <= n_fft
    if not fits or (window is not None and (window.dim() != 1 or window.shape[0] != width)):
        return torch.stft(input, n_fft, *given, **rest)  # which refuses them
    x = input if input.dim() == 2 else input.unsqueeze(0)
    if center:
        x = torch.nn.functional.pad(x.unsqueeze(0), (n_fft // 2, n_fft // 2), pad_mode).squeeze(0)
    if width < n_fft:
        left = (n_fft - width) // 2
        whole = torch.ones(width, dtype=input.dtype, device=input.device) if window is None else window
        window = torch.nn.functional.pad(whole, (left, n_fft - width - left))
    frames = x.unfold(-1, n_fft, hop)
    if window is not None:
        frames = frames * window
    is_complex = frames.is_complex()
    halves = not is_complex if onesided is None else onesided
    transform = torch.fft.rfft if halves and not is_complex else torch.fft.fft
    out = transform(frames, norm="ortho" if normalized else None).transpose(1, 2)
    out = out if input.dim() == 2 else out.squeeze(0)
    return out if return_complex else torch.view_as_real(out)


RESAMPLING_FORMS: dict[str, Callable[..., Any]] = {
    "torch.nn.functional.interpolate": interpolate,
    "torch.max_pool1d": _pool_form(torch.max_pool1d),
    "torch.nn.functional._max_pool1d": _pool_form(TORCH.max_pool1d),
    **dict.fromkeys(("torch.stft", "torch.functional.stft", "torch.Tensor.stft"), stft),
}
