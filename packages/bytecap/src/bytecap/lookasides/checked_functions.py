"""Functions of torch whose C++ looks at data to check its arguments, as Python: the checks become branches that raise.

Such a branch is no break (`data_checks`): the graph checks the condition, and where it does not hold the frame runs
plain, so that torch says itself what is wrong. Sources: Correlation.cpp, SpectralOps.cpp, Sorting.cpp and
TensorShape.cpp of ATen.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor


def cov(input: Tensor, *, correction: int = 1, fweights: Any = None, aweights: Any = None) -> Tensor:
    """torch.cov of at least two dimensions' worth of degrees of freedom."""
    x = input if input.dim() == 2 else input.reshape(1, -1)
    weights = fweights
    if fweights is not None and fweights.min() < 0:
        raise RuntimeError("cov(): fweights cannot be negative")
    if aweights is not None:
        if aweights.min() < 0:
            raise RuntimeError("cov(): aweights cannot be negative")
        weights = aweights if weights is None else weights * aweights
    if weights is None:
        total: Any = x.shape[1]
        x = x - (x.sum(1) / total).unsqueeze(1)
        return torch.true_divide(torch.mm(x, x.t().conj()), total - correction).squeeze()
    total = weights.sum()
    if total == 0:
        raise RuntimeError("cov(): weights sum to zero, can't be normalized")
    freedom = total - correction
    if aweights is not None and correction != 0:
        freedom = total - correction * (weights * aweights).sum() / total
    if freedom <= 0:
        raise RuntimeError("cov(): degrees of freedom is <= 0, of which torch warns")
    x = x - ((x * weights).sum(1) / total).unsqueeze(1)
    return torch.true_divide(torch.mm(x, (x * weights).t().conj()), freedom).squeeze()


def corrcoef(input: Tensor) -> Tensor:
    """torch.corrcoef."""
    c = cov(input)
    if c.dim() == 0:
        return c / c
    deviations = torch.sqrt(c.diag())
    if torch.is_complex(deviations):
        deviations = torch.real(deviations)
    c = c / deviations.view(-1, 1)
    c = c / deviations.view(1, -1)
    if torch.is_complex(c):
        return torch.complex(torch.real(c).clamp(-1, 1), torch.imag(c).clamp(-1, 1))
    return c.clamp(-1, 1)


def combinations(input: Tensor, r: int = 2, with_replacement: bool = False) -> Tensor:
    """torch.combinations: which elements go together follows from how many there are."""
    if r == 0:
        return input.new_empty(0)
    choose = itertools.combinations_with_replacement if with_replacement else itertools.combinations
    rows = list(choose(range(input.shape[0]), r))
    places = torch.tensor(rows, dtype=torch.int64, device=input.device).reshape(len(rows), r)
    return input[places]


def istft(
    input: Tensor, n_fft: int, hop_length: Any = None, win_length: Any = None, window: Any = None, center: bool = True,
    normalized: bool = False, onesided: Any = None, length: Any = None, return_complex: bool = False,
) -> Tensor:  # fmt: skip
    """torch.istft: frames added up where they overlap, over the windows added up likewise."""
    hop = n_fft // 4 if hop_length is None else hop_length
    width = n_fft if win_length is None else win_length
    frames, total = input.shape[-1], n_fft + hop * (input.shape[-1] - 1)
    if window is None:
        window = torch.ones(width, dtype=torch.empty(0, dtype=input.dtype).real.dtype, device=input.device)
    if width != n_fft:
        left = (n_fft - width) // 2
        window = torch.nn.functional.pad(window, (left, n_fft - width - left))
    batched = input if input.dim() == 3 else input.unsqueeze(0)
    norm = "ortho" if normalized else "backward"
    spectra = batched.transpose(1, 2)
    if return_complex:
        signals = torch.fft.ifft(spectra, norm=norm)
    else:
        signals = torch.fft.irfft(spectra[..., : n_fft // 2 + 1], n_fft, norm=norm)
    fold = torch.ops.aten.unfold_backward
    signals = fold(signals * window.view(1, 1, n_fft), [batched.shape[0], total], 1, n_fft, hop)
    envelope = fold(window.pow(2).expand(1, frames, n_fft), [1, total], 1, n_fft, hop)
    start = n_fft // 2 if center else 0
    end = start + length if length is not None else total - start
    signals, envelope = signals[:, start:end], envelope[:, start:end]
    if envelope.abs().min() < 1e-11:
        raise RuntimeError("window overlap add min: 1")
    signals = signals / envelope
    return signals if input.dim() == 3 else signals.squeeze(0)


def quantile(
    input: Tensor, q: Any, dim: Any = None, keepdim: bool = False, *, interpolation: str = "linear"
) -> Tensor:  # fmt: skip
    """torch.quantile: nan where there is one among the values."""
    values = _sorted_along(input, dim)
    last = values.shape[-1] - 1
    places, has_nan = torch.broadcast_tensors(_levels(input, q) * last, values.isnan().any(-1, True))
    return _at_places(input, values, places.masked_fill(has_nan, last), q, dim, keepdim, interpolation)


def nanquantile(
    input: Tensor, q: Any, dim: Any = None, keepdim: bool = False, *, interpolation: str = "linear"
) -> Tensor:  # fmt: skip
    """torch.nanquantile: of the values that are numbers."""
    values = _sorted_along(input, dim)
    places = _levels(input, q) * (values.isnan().logical_not().sum(-1, True) - 1)
    return _at_places(input, values, places.masked_fill(places < 0, 0), q, dim, keepdim, interpolation)


def _levels(input: Tensor, q: Any) -> Tensor:
    if not isinstance(q, Tensor):
        return torch.full((1,), q, dtype=input.dtype, device=input.device)
    if (q < 0).logical_or(q > 1).any():
        raise RuntimeError("quantile() q values must be in the range [0, 1]")
    return q if q.dim() else q.unsqueeze(0)


def _sorted_along(input: Tensor, dim: Any) -> Tensor:
    if dim is None:
        return input.flatten().sort()[0]
    moved = input.unsqueeze(-1).transpose(dim if dim >= 0 else dim + max(input.dim(), 1), -1) if input.dim() else input
    return moved.sort()[0] if input.dim() else input.reshape(1)


def _at_places(
    input: Tensor, values: Tensor, places: Tensor, q: Any, dim: Any, keepdim: bool, interpolation: str
) -> Tensor:
    """The values at fractional places of the last dimension, in the shape of the result."""
    if interpolation == "lower":
        places = places.floor()
    elif interpolation == "higher":
        places = places.ceil()
    elif interpolation == "nearest":
        places = places.round()
    below = places.long()
    found = values.gather(-1, below)
    if interpolation in ("linear", "midpoint"):
        weights = torch.full_like(places, 0.5) if interpolation == "midpoint" else places - below
        found = torch.lerp(found, values.gather(-1, places.ceil().long()), weights)
    shape = list(input.shape)
    if dim is None or not input.dim():
        shape = [1] * input.dim() if keepdim else []
    elif keepdim:
        shape[dim] = 1
    else:
        del shape[dim]
    if not isinstance(q, Tensor) or q.dim() == 0:
        return found.reshape(shape)
    return found.reshape(*shape, -1).movedim(-1, 0) if found.numel() else found.new_empty(found.shape[-1], *shape)


def tensor_split(input: Tensor, indices: Tensor, dim: int, known: Any) -> Any:
    """torch.tensor_split at `known`, which is what `indices` held when the program was captured."""
    if (indices != torch.tensor(known)).any():
        raise RuntimeError("the tensor is split elsewhere")
    return torch.tensor_split(input, known, dim)


def repeat_interleave(input: Tensor, repeats: Tensor, dim: Any, total: int) -> Tensor:
    """torch.repeat_interleave to `total` elements along `dim`, as many as there were when the program was captured."""
    if repeats.sum() != total:
        raise RuntimeError("there are more repetitions, or less")
    return torch.repeat_interleave(input, repeats, dim, output_size=total)
