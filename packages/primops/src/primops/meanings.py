"""The reference meaning of each prim in eager torch: `MEANINGS[name](*arguments)`, arguments as in the record.

Readable rather than fast. Dtypes are names, values are torch tensors. A distribution with prims of its own registers
theirs, by "namespace.name", in the group of entry points `stagefold.meanings`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

import stagewire.types
from absint.philox import philox_state, uniform
from primops.prims import OPS
from stagewire.stage import Table

Meaning = Callable[..., Any]
DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in stagewire.types.DTYPES}
NAMES = {dtype: name for name, dtype in DTYPES.items()}


def _on_tensors(function: Callable[..., torch.Tensor]) -> Meaning:
    """Literals become 0-dim tensors of the dtype beside them."""

    def meaning(*operands: Any) -> torch.Tensor:
        like = next(x for x in operands if isinstance(x, torch.Tensor))
        return function(*[x if isinstance(x, torch.Tensor) else like.new_tensor(x) for x in operands])

    return meaning


def _fma(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    """Exact for float32 and narrower up to the double rounding of float64 arithmetic."""
    wide = x.to(torch.float64) * y.to(torch.float64) + z.to(torch.float64)
    return wide.to(x.dtype)


def _check_range(x: torch.Tensor, low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
    if not ((x >= low) & (x <= high)).all():
        raise RuntimeError("a value is out of the range that the operator takes")
    return x.clone()


def _broadcast_in_dim(x: torch.Tensor, shape: Sequence[int], broadcast_dimensions: Sequence[int]) -> torch.Tensor:
    placed = [1] * len(shape)
    for i, dim in enumerate(broadcast_dimensions):
        placed[dim] = x.shape[i]
    return x.reshape(placed).expand(*shape) if shape else x.reshape(())


def _slice(x: torch.Tensor, start: Sequence[int], stop: Sequence[int], step: Sequence[int]) -> torch.Tensor:
    return x[tuple(slice(a, b, k) for a, b, k in zip(start, stop, step, strict=True))]


def _pad(x: torch.Tensor, low: Sequence[int], high: Sequence[int], value: Any) -> torch.Tensor:
    shape = [a + n + b for a, n, b in zip(low, x.shape, high, strict=True)]
    out = torch.full(shape, value, dtype=x.dtype, device=x.device)
    out[tuple(slice(a, a + n) for a, n in zip(low, x.shape, strict=True))] = x
    return out


def _iota(length: int, start: Any, step: Any, dtype: str) -> torch.Tensor:
    wide = torch.int64 if isinstance(start, int) and isinstance(step, int) else torch.float64
    return (torch.arange(length, dtype=wide) * step + start).to(DTYPES[dtype])


def _reduction(function: Callable[..., torch.Tensor]) -> Meaning:
    return lambda x, dims: function(x, dim=tuple(dims)) if dims else x.clone()


def _prod(x: torch.Tensor, dims: Sequence[int]) -> torch.Tensor:
    for dim in sorted(dims, reverse=True):
        x = torch.prod(x, dim=dim, dtype=x.dtype)
    return x.clone()


def _var_mean(x: torch.Tensor, dims: Sequence[int], correction: Any) -> tuple[torch.Tensor, torch.Tensor]:
    if not dims:
        var = torch.full_like(x, 0.0 if correction < 1 else float("nan"))
        return torch.where(torch.isfinite(x), var, float("nan")), x.clone()
    return torch.var_mean(x, dim=tuple(dims), correction=correction)


def _scatter_add(x: torch.Tensor, dim: int, index: torch.Tensor, src: Any) -> torch.Tensor:
    if not isinstance(src, torch.Tensor):
        src = torch.full(index.shape, src, dtype=x.dtype, device=x.device)
    return torch.scatter_add(x, dim, index.long(), src)


def _long(x: torch.Tensor, indices: Sequence[Any], wrap: bool) -> list[torch.Tensor | None]:
    """The indices as int64; without `wrap`, a negative one is an IndexError."""
    for index, size in zip(indices, x.shape, strict=False):
        if not wrap and index is not None and (index < 0).any():
            raise IndexError(f"index {int(index.min())} is out of bounds for dimension with size {size}")
    return [None if i is None else i.long() for i in indices]


def _slice_scatter(x: torch.Tensor, src: torch.Tensor, start: Any, stop: Any, step: Any) -> torch.Tensor:
    out = x.clone()
    _slice(out, start, stop, step).copy_(src)
    return out


_TORCH_NAMES = {
    "floor_div": lambda x, y: torch.div(x, y, rounding_mode="floor"),
    "trunc_div": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "div": torch.true_divide,
    "shift_left": torch.bitwise_left_shift,
    "shift_right": torch.bitwise_right_shift,
    "fma": _fma,
    "check_range": _check_range,
    "erfinv": torch.special.erfinv,
    "digamma": torch.special.digamma,
}


def _aten(name: str) -> Meaning:
    """That of an operator of ATen with the same arguments."""
    function = getattr(torch.ops.aten, name).default
    return lambda *arguments: function(*[list(a) if isinstance(a, tuple) else a for a in arguments])


def _direct_conv(x: torch.Tensor, weight: torch.Tensor, stride: Sequence[int], dilation: Sequence[int]) -> torch.Tensor:
    rank = x.dim() - 2
    groups = x.shape[-1] if weight.dim() == rank + 1 else 1
    kernel = weight.reshape(*weight.shape[:rank], -1, weight.shape[-1]).movedim((-1, -2), (0, 1))
    none = [0] * rank
    made = torch.convolution(x.movedim(-1, 1), kernel, None, list(stride), none, list(dilation), False, none, groups)
    return made.movedim(1, -1)


def philox_uniform(seed: Tensor, offset: Tensor, shape: Sequence[int], threads: int, width: int, device: str) -> Tensor:
    """float32 in (0, 1], the elements being numbered in row-major order: what ATen's kernels for GPUs draw."""
    element = torch.arange(torch.Size(shape).numel(), device=device)
    return uniform(int(seed), int(offset), element, threads, width).reshape(tuple(shape))


MEANINGS: dict[str, Meaning] = {
    "direct_conv": _direct_conv,
    **{f"max_pool{n}d{way}": _aten(f"max_pool{n}d_with_indices{way}") for n in (2, 3) for way in ("", "_backward")},
    "philox_state": philox_state,
    "philox_uniform": philox_uniform,
    **{
        name: _on_tensors(_TORCH_NAMES.get(name) or getattr(torch, name))
        for name, op in OPS.items()
        if op.family == "elementwise" and name != "where"
    },
    "where": lambda cond, x, y: _on_tensors(lambda x, y: torch.where(cond, x, y))(x, y),
    "convert_element_type": lambda x, dtype: x.to(DTYPES[dtype]),
    "bitcast": lambda x, dtype: x.view(DTYPES[dtype]),
    "broadcast_in_dim": _broadcast_in_dim,
    "permute": lambda x, dims: x.permute(*dims) if dims else x,
    "reshape": lambda x, shape: x.reshape(tuple(shape)),
    "slice": _slice,
    "flip": lambda x, dims: torch.flip(x, tuple(dims)),
    "cat": lambda tensors, dim: torch.cat(list(tensors), dim),
    "pad": _pad,
    "as_strided": lambda x, size, stride, offset: x.contiguous().clone().as_strided(size, stride, offset),
    "clone": torch.clone,
    "full": lambda shape, value, dtype: torch.full(tuple(shape), value, dtype=DTYPES[dtype]),
    "iota": _iota,
    "sum": lambda x, dims: torch.sum(x, dim=tuple(dims), dtype=x.dtype) if dims else x.clone(),
    "prod": _prod,
    "amax": _reduction(torch.amax),
    "amin": _reduction(torch.amin),
    "any": _reduction(torch.any),
    "all": _reduction(torch.all),
    "argmax": lambda x, dim: torch.argmax(x, dim),
    "argmin": lambda x, dim: torch.argmin(x, dim),
    "var_mean": _var_mean,
    "cumsum": lambda x, dim: torch.cumsum(x, dim, dtype=x.dtype),
    "cumprod": lambda x, dim: torch.cumprod(x, dim, dtype=x.dtype),
    "logcumsumexp": torch.logcumsumexp,
    "cummax": torch.cummax,
    "cummin": torch.cummin,
    "gather": lambda x, dim, index: torch.gather(x, dim, index.long()),
    "index": lambda x, indices, wrap: torch.ops.aten.index.Tensor(x, _long(x, indices, wrap)),
    "scatter": lambda x, dim, index, src: torch.scatter(x, dim, index.long(), src),
    "scatter_add": _scatter_add,
    "index_put": lambda x, indices, values, accumulate, wrap: torch.ops.aten.index_put.default(
        x, _long(x, indices, wrap), values, accumulate
    ),
    "slice_scatter": _slice_scatter,
}

BY_TARGET = Table("stagefold.meanings", {f"prims.{name}": meaning for name, meaning in MEANINGS.items()})
