"""Complex numbers as pairs of reals, and Fourier transforms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from primops.builder import Builder, Value
from primops.decompositions.operands import Table, broadcast, wrap
from primops.errors import Decline


def _dims(x: Value, dims: Sequence[int]) -> tuple[int, ...]:
    if not dims or 0 in x.shape:
        raise Decline("no dimension to transform, or no element")
    return tuple(wrap(d, x.rank) for d in dims)


def complex_(p: Builder, real: Value, imag: Value) -> Value:
    return p.complex(broadcast(p, real, p.out.shape), broadcast(p, imag, p.out.shape))


def fft_r2c(p: Builder, x: Value, dim: Sequence[int], normalization: int, onesided: bool) -> Value:
    return p.fft_r2c(x, _dims(x, dim), normalization, onesided)


def fft_c2r(p: Builder, z: Value, dim: Sequence[int], normalization: int, last_dim_size: Any) -> Value:
    return p.fft_c2r(z, _dims(z, dim), normalization, last_dim_size)


def fft_c2c(p: Builder, z: Value, dim: Sequence[int], normalization: int, forward: bool) -> Value:
    return p.fft_c2c(z, _dims(z, dim), normalization, forward)


def conj(p: Builder, z: Value) -> Value:
    return p.conj(z)


TABLE: Table = {
    "aten.complex.default": complex_,
    "aten.view_as_real.default": lambda p, z: p.view_as_real(z),
    "aten.view_as_complex.default": lambda p, x: p.view_as_complex(x),
    "aten._conj_physical.default": conj,
    "aten._conj.default": conj,
    "aten._fft_r2c.default": fft_r2c,
    "aten._fft_c2r.default": fft_c2r,
    "aten._fft_c2c.default": fft_c2c,
}
