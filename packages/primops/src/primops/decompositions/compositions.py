"""Ops that are a few prims: rarer mathematics, selections and rearrangements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from primops.builder import Builder, Value, literal, opmath
from primops.decompositions.operands import Table, by_name, elementwise, is_float, wrap, wrap_all
from primops.decompositions.reductions import vector_norm, wide
from primops.decompositions.shape import diagonal, diagonal_scatter, flip, split, split_with_sizes, transpose, window
from primops.errors import Decline
from stagewire.expr import Dim

MOST_COMPARED = 64
"""`isin` with more test elements than this stays with ATen, which sorts."""


# --- mathematics ---------------------------------------------------------------------------------------------------
@elementwise
def special_entr(p: Builder, x: Value) -> Value:
    """-x log x; 0 at 0, -inf below."""
    positive = p.mul(p.neg(x), p.log(x))
    other = p.where(p.eq(x, 0.0), 0.0, p.where(p.isnan(x), x, -math.inf))
    return p.where(p.gt(x, 0.0), positive, other)


@elementwise
def logaddexp2(p: Builder, x: Value, y: Value) -> Value:
    greatest = p.maximum(x, y)
    tail = p.mul(p.log1p(p.exp2(p.neg(p.abs(p.sub(x, y))))), 1.0 / math.log(2.0))
    return p.where(p.logical_and(p.isinf(x), p.eq(x, y)), x, p.add(greatest, tail))


@elementwise
def logit_backward(p: Builder, grad: Value, x: Value, eps: float | None = None) -> Value:
    """grad / (x (1 - x)); outside of the clamp 0, outside of 0..1 nan."""
    slope = p.div(grad, p.mul(x, p.sub(1.0, x)))
    if eps is None or eps < 0:
        outside = p.logical_or(p.lt(x, 0.0), p.gt(x, 1.0))
        return p.where(outside, math.nan, slope)
    outside = p.logical_or(p.lt(x, float(eps)), p.gt(x, 1.0 - eps))
    return p.where(outside, 0.0, slope)


@elementwise
def celu(p: Builder, x: Value, alpha: float = 1.0) -> Value:
    return p.where(p.gt(x, 0.0), x, p.mul(p.expm1(p.div(x, alpha)), alpha))


@elementwise
def angle(p: Builder, x: Value) -> Value:
    """0 or pi by the sign of a real number."""
    return p.where(p.isnan(x), x, p.where(p.lt(x, 0.0), p.full(x.shape, math.pi, x.dtype), 0.0))


def round_decimals(p: Builder, x: Value, decimals: int = 0) -> Value:
    if not is_float(x.dtype) or decimals < 0:
        raise Decline("integers, or rounding left of the point")
    scale = float(10**decimals)
    return p.pointwise(lambda p, x: p.div(p.round(p.mul(x, scale)), scale), x)


def linalg_cross(p: Builder, x: Value, y: Value, dim: int = -1) -> Value:
    dim = wrap(dim, len(p.out.shape))

    def compute(p: Builder, x: Value, y: Value) -> Value:
        a, b = ([window(p, v, dim, i, i + 1) for i in range(3)] for v in (x, y))
        parts = [p.sub(p.mul(a[i], b[j]), p.mul(a[j], b[i])) for i, j in ((1, 2), (2, 0), (0, 1))]
        return p.cat(tuple(parts), dim)

    return p.pointwise(compute, x, y)


# --- reductions ----------------------------------------------------------------------------------------------------
def count_nonzero(p: Builder, x: Value, dim: int | Sequence[int] | None = None) -> Value:
    return p.reduced("sum", p.convert(p.convert(x, "bool"), "int64"), wrap_all(dim, x.rank))


def trace(p: Builder, x: Value) -> Value:
    return p.convert(p.sum(wide(p, diagonal(p, x)), (0,)), p.out.dtype)


def dist(p: Builder, x: Value, y: Value, ord: float = 2) -> Value:
    if x.shape != y.shape or x.dtype != y.dtype or x.dtype not in ("float32", "float64"):
        raise Decline("operands of different types")
    return vector_norm(p, p.sub(x, y), ord)


def aminmax(p: Builder, x: Value, dim: int | None = None, keepdim: bool = False) -> tuple[Value, ...]:
    if x.dtype == "bool":
        raise Decline("bool")
    dims = wrap_all(dim, x.rank)
    return tuple(p.reshape(p.reduced(name, x, dims), p.out.shape) for name in ("amin", "amax"))


def weight_norm(p: Builder, v: Value, g: Value, dim: int = 0) -> tuple[Value, Value]:
    """v scaled so that its norm over all dimensions but one is g; also those norms."""
    dims = tuple(i for i in range(v.rank) if i != wrap(dim, v.rank))
    inner, norms_type = opmath(v.dtype), p.results[1]
    wide = p.convert(v, inner)
    norms = p.sqrt(p.sum(p.mul(wide, wide), dims))
    scale = p.div(p.reshape(p.convert(g, inner), norms.shape), norms)
    weight = p.mul(wide, p.spread(scale, v.shape, dims))
    return p.convert(weight, v.dtype), p.reshape(p.convert(norms, norms_type.dtype), norms_type.shape)  # type: ignore[union-attr]


def weight_norm_backward(p: Builder, grad: Value, v: Value, g: Value, norms: Value, dim: int) -> tuple[Value, Value]:
    dims = tuple(i for i in range(v.rank) if i != wrap(dim, v.rank))
    inner = opmath(v.dtype)
    grad, wide = p.convert(grad, inner), p.convert(v, inner)
    total = p.sum(p.mul(grad, wide), dims)
    norms, gain = (p.reshape(p.convert(x, inner), total.shape) for x in (norms, g))
    slope = p.spread(p.div(total, p.mul(norms, norms)), v.shape, dims)
    inward = p.mul(p.sub(grad, p.mul(wide, slope)), p.spread(p.div(gain, norms), v.shape, dims))
    return p.convert(inward, v.dtype), p.reshape(p.convert(p.div(total, norms), g.dtype), g.shape)


# --- selections and rearrangements ---------------------------------------------------------------------------------
def isin(p: Builder, elements: Value, test_elements: Value, assume_unique: bool = False, invert: bool = False) -> Value:
    count = (
        math.prod(test_elements.shape) if all(isinstance(n, int) for n in test_elements.shape) else MOST_COMPARED + 1
    )  # type: ignore[arg-type]
    if count > MOST_COMPARED or elements.dtype != test_elements.dtype:
        raise Decline("many test elements, or another dtype")
    shape = (*elements.shape, count)
    tested = p.along(p.reshape(test_elements, (count,)), shape, elements.rank)
    found = p.any(p.eq(p.broadcast_in_dim(elements, shape, tuple(range(elements.rank))), tested), (elements.rank,))
    return p.logical_not(found) if invert else found


def masked_scatter(p: Builder, x: Value, mask: Value, source: Value) -> Value:
    """Where the mask holds, the elements of source one after the other."""
    shape = p.out.shape
    if 0 in source.shape or not all(isinstance(n, int) for n in (*shape, *source.shape)):
        raise Decline("an empty or symbolic source")
    count = math.prod(shape)  # type: ignore[arg-type]
    mask = p.broadcast(mask, shape)
    flags = p.reshape(mask, (count,))
    number = p.sub(p.cumsum(p.convert(flags, "int64"), 0), 1)
    elements = p.reshape(source, (math.prod(source.shape),))  # type: ignore[arg-type]
    chosen = p.index(elements, (p.where(flags, number, 0),), False)
    return p.where(mask, p.reshape(p.convert(chosen, p.out.dtype), shape), p.broadcast(x, shape))


def masked_scatter_backward(p: Builder, grad: Value, mask: Value, sizes: Sequence[Any]) -> Value:
    """The gradients where the mask holds, one after the other, then zeros."""
    if not all(isinstance(n, int) for n in (*grad.shape, *mask.shape, *sizes)):
        raise Decline("symbolic sizes")
    mask = p.broadcast(mask, grad.shape)
    count, kept = math.prod(grad.shape), math.prod(sizes)  # type: ignore[arg-type]
    flags = p.reshape(mask, (count,))
    number = p.sub(p.cumsum(p.convert(flags, "int64"), 0), 1)
    place = p.where(flags, p.minimum(number, kept), kept)  # one place more takes what nobody asks for
    zeros = p.full((kept + 1,), 0.0, grad.dtype)
    found = p.scatter(zeros, 0, place, p.reshape(grad, (count,)))
    return p.reshape(p.slice(found, (0,), (kept,), (1,)), p.out.shape)


def diag_embed(p: Builder, x: Value, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Value:
    zeros = p.full(p.out.shape, literal(0, x.dtype), x.dtype)
    return diagonal_scatter(p, zeros, x, offset, dim1, dim2)


def block_diag(p: Builder, tensors: Sequence[Value]) -> Value:
    dtype = p.out.dtype
    total = p.out.shape[1]
    rows: list[Value] = []
    column: Dim = 0
    for x in tensors:
        shape = (1,) * (2 - x.rank) + x.shape
        block = p.reshape(p.convert(x, dtype), shape)
        rows.append(p.pad(block, (0, column), (0, total - column - shape[1]), literal(0, dtype)))
        column = column + shape[1]
    return p.cat(tuple(rows), 0) if len(rows) > 1 else rows[0]


def narrow_copy(p: Builder, x: Value, dim: int, start: Dim, length: Dim) -> Value:
    dim = wrap(dim, x.rank)
    if not isinstance(start, int):
        raise Decline("a symbolic start")
    first = start + x.shape[dim] if start < 0 else start
    return window(p, x, dim, first, first + length)


def rot90(p: Builder, x: Value, k: int = 1, dims: Sequence[int] = (0, 1)) -> Value:
    a, b = dims
    match k % 4:
        case 1:
            return transpose(p, flip(p, x, (b,)), a, b)
        case 2:
            return flip(p, x, (a, b))
        case 3:
            return flip(p, transpose(p, x, a, b), (b,))
    return x


def channel_shuffle(p: Builder, x: Value, groups: Dim) -> Value:
    batch, channels, *rest = x.shape
    split_up = p.reshape(x, (batch, groups, channels // groups, *rest))
    order = (0, 2, 1, *range(3, 3 + len(rest)))
    return p.reshape(p.permute(split_up, order), x.shape)


def ldexp(p: Builder, x: Value, exponent: Value) -> Value:
    """x * 2 ** exponent, the power in the exponent's dtype."""
    if not is_float(x.dtype) or exponent.dtype != p.out.dtype or p.out.dtype not in ("float32", "float64"):
        raise Decline("exponents whose power may overflow where the product does not: whole or narrow ones")
    return p.pointwise(lambda p, x, exponent: p.mul(x, p.exp2(exponent)), x, exponent)


TABLE: Table = {
    **by_name(
        special_entr, logaddexp2, logit_backward, celu, angle, linalg_cross, count_nonzero, trace, dist,
        aminmax, masked_scatter, masked_scatter_backward, diag_embed, block_diag, narrow_copy, rot90,
        channel_shuffle,
    ),
    "aten.round.decimals": round_decimals,
    "aten.count_nonzero.dim_IntList": count_nonzero,
    "aten._weight_norm_interface.default": weight_norm,
    "aten._weight_norm_interface_backward.default": weight_norm_backward,
    "aten.isin.Tensor_Tensor": isin,
    "aten.unsafe_split.Tensor": split,
    "aten.unsafe_split_with_sizes.default": split_with_sizes,

    "aten.ldexp.Tensor": ldexp,
}  # fmt: skip
