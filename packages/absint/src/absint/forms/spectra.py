"""Short-time Fourier transforms of signals with symbolic lengths: frames by `unfold`, then one transform of all.

Source: aten/src/ATen/native/SpectralOps.cpp (stft), torch/functional.py (its padding).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from absint.symbolic import is_symbolic


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


SPECTRAL_FORMS: dict[str, Callable[..., Any]] = {
    "torch.stft": stft,
    "torch.functional.stft": stft,
    "torch.Tensor.stft": stft,
}
