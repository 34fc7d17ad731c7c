"""Interpolation to another size: nearest, linear and cubic. Positions are computed as ATen does, in the opmath dtype.

Source: `aten/src/ATen/native/UpSample.h` (`area_pixel_compute_scale`, `area_pixel_compute_source_index`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from primops.builder import Builder, Value, opmath
from primops.decompositions.operands import Function, Table
from primops.errors import Decline
from stagewire.expr import Dim
from stagewire.sizes import divides

CUBIC = -0.75
Taps = list[tuple[Value, Value]]
"""Indices of elements, and their weights."""


def _sizes(*sizes: Dim) -> None:
    if not all(isinstance(n, int) for n in sizes):
        raise Decline("a symbolic size")


def _sides(rank: int, sizes: Sequence[Dim], out: Sequence[Dim], scales: Sequence[float | None]) -> list[Any]:
    """(size, size of the result, scale or None) of each spatial dimension."""
    return list(zip(sizes[2:], out, (*scales, *(None,) * rank)[:rank], strict=True))


def _factor(size: Dim, out: Dim, scale: float | None) -> int | None:
    """How often each element repeats, if that is a whole number (whatever symbols are)."""
    factor = out // size if divides(size, out) else None
    return factor if isinstance(factor, int) and scale in (None, factor) else None


def _ratio(size: Dim, out: Dim, scale: float | None) -> float:
    if scale is not None and scale > 0:
        return 1.0 / scale
    _sizes(size, out)
    return size / out  # type: ignore[operator]


# --- nearest -------------------------------------------------------------------------------------------------------
def _nearest(rank: int, exact: bool) -> Function:
    def decomposition(p: Builder, x: Value, output_size: Sequence[Dim], *scales: float | None) -> Value:
        sides = _sides(rank, x.shape, output_size, scales)
        factors = [_factor(*side) for side in sides]
        if None not in factors:
            return _repeated(p, x, factors)  # type: ignore[arg-type]
        indices: list[Value | None] = [None, None]
        for i, (size, out, scale) in enumerate(sides):
            inner = "float64" if x.dtype == "float64" else "float32"
            position = p.iota(out, 0.5 if exact else 0.0, 1.0, inner)
            position = p.floor(p.mul(position, _ratio(size, out, scale)))
            position = p.minimum(p.convert(position, "int64"), size - 1)
            indices.append(p.broadcast_in_dim(position, tuple(output_size), (i,)))
        return p.index(x, tuple(indices), False)

    return decomposition


def _split(shape: Sequence[Dim], factors: Sequence[int]) -> tuple[tuple[Dim, ...], tuple[int, ...]]:
    """`shape` with each spatial size followed by its factor, and the places of the factors."""
    wide: list[Dim] = list(shape[:2])
    places: list[int] = []
    for size, factor in zip(shape[2:], factors, strict=True):
        wide += [size, factor]
        places.append(len(wide) - 1)
    return tuple(wide), tuple(places)


def _repeated(p: Builder, x: Value, factors: Sequence[int]) -> Value:
    if all(factor == 1 for factor in factors):
        return x
    wide, places = _split(x.shape, factors)
    kept = tuple(i for i in range(len(wide)) if i not in places)
    return p.reshape(p.broadcast_in_dim(x, wide, kept), p.out.shape)


def _nearest_backward(rank: int) -> Function:
    """Sums over the repetitions; factors that are not whole numbers stay with ATen."""

    def decomposition(
        p: Builder, grad: Value, output_size: Sequence[Dim], input_size: Sequence[Dim], *scales: float | None
    ) -> Value:
        factors = [_factor(*side) for side in _sides(rank, input_size, output_size, scales)]
        if None in factors:
            raise Decline("a size that is no multiple")
        wide, places = _split(input_size, factors)  # type: ignore[arg-type]
        inner = opmath(grad.dtype)
        return p.convert(p.sum(p.reshape(p.convert(grad, inner), wide), places), grad.dtype)

    return decomposition


# --- linear and cubic -----------------------------------------------------------------------------------------------
def _source(
    p: Builder, size: Dim, out: Dim, align_corners: bool, scale: float | None, dtype: str, cubic: bool = False
) -> Value:
    """The position in the source of each result element, a vector of floats."""
    if align_corners:
        _sizes(size, out)
        step = (size - 1) / (out - 1) if out > 1 else 0.0  # type: ignore[operator]
        return p.mul(p.iota(out, 0.0, 1.0, dtype), step)
    position = p.sub(p.mul(p.iota(out, 0.5, 1.0, dtype), _ratio(size, out, scale)), 0.5)  # type: ignore[arg-type]
    return position if cubic else p.maximum(position, 0.0)


def _interpolation(rank: int, taps_of: Callable[..., Taps], *, cubic: bool = False) -> Function:
    """taps_of: from the positions along a dimension to the elements there and their weights."""

    def decomposition(
        p: Builder, x: Value, output_size: Sequence[Dim], align_corners: bool, *scales: float | None
    ) -> Value:
        inner = opmath(x.dtype)
        if inner not in ("float32", "float64"):
            raise Decline(f"{x.dtype}")
        taps: list[Taps] = []
        for i, (size, out, scale) in enumerate(_sides(rank, x.shape, output_size, scales)):
            found = taps_of(p, _source(p, size, out, align_corners, scale, inner, cubic), size)
            taps.append([(p.along(j, output_size, i), p.along(w, p.out.shape, i + 2)) for j, w in found])
        return p.convert(_weighted(p, p.convert(x, inner), (), taps), x.dtype)

    return decomposition


def _weighted(p: Builder, x: Value, chosen: tuple[Value, ...], taps: Sequence[Taps]) -> Value:
    """The sum over the taps of the first dimension of weight times the sum over those of the others."""
    if not taps:
        return p.index(x, (None, None, *chosen), False)
    total: Value | None = None
    for index, weight in taps[0]:
        term = p.mul(_weighted(p, x, (*chosen, index), taps[1:]), weight)
        total = term if total is None else p.add(total, term)
    assert total is not None
    return total


def _linear(p: Builder, position: Value, size: Dim) -> Taps:
    """Two neighbours."""
    low = p.minimum(p.convert(p.floor(position), "int64"), size - 1)
    high = p.minimum(p.add(low, 1), size - 1)
    share = p.minimum(p.maximum(p.sub(position, p.convert(low, position.dtype)), 0.0), 1.0)
    return [(low, p.sub(1.0, share)), (high, share)]


def _near(p: Builder, t: Value) -> Value:
    """((A + 2) t - (A + 3)) t t + 1, for |t| <= 1."""
    return p.add(p.mul(p.mul(p.sub(p.mul(t, CUBIC + 2.0), CUBIC + 3.0), t), t), 1.0)


def _far(p: Builder, t: Value) -> Value:
    """((A t - 5 A) t + 8 A) t - 4 A, for 1 < |t| < 2."""
    return p.sub(p.mul(p.add(p.mul(p.sub(p.mul(t, CUBIC), 5 * CUBIC), t), 8 * CUBIC), t), 4 * CUBIC)


def _cubic(p: Builder, position: Value, size: Dim) -> Taps:
    """Keys' cubic convolution with A = -0.75 over 4 taps, the border repeated."""
    base = p.floor(position)
    t = p.sub(position, base)
    weights = (_far(p, p.add(t, 1.0)), _near(p, t), _near(p, p.sub(1.0, t)), _far(p, p.sub(2.0, t)))
    first = p.convert(base, "int64")
    indices = [p.minimum(p.maximum(p.add(first, offset), 0), size - 1) for offset in (-1, 0, 1, 2)]
    return list(zip(indices, weights, strict=True))


_NEAREST = ("upsample_nearest", "_upsample_nearest_exact")
TABLE: Table = {
    **{f"aten.{name}{n}d.default": _nearest(n, exact="exact" in name) for name in _NEAREST for n in (1, 2, 3)},
    **{f"aten.{name}{n}d_backward.default": _nearest_backward(n) for name in _NEAREST for n in (1, 2, 3)},
    "aten.upsample_linear1d.default": _interpolation(1, _linear),
    "aten.upsample_bilinear2d.default": _interpolation(2, _linear),
    "aten.upsample_trilinear3d.default": _interpolation(3, _linear),
    "aten.upsample_bicubic2d.default": _interpolation(2, _cubic, cubic=True),
}
