"""Sums, means, variances, extrema and scans."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from primops.builder import Builder, Value, opmath
from primops.decompositions.operands import Function, Table, count_of, wrap, wrap_all
from primops.errors import Decline

Dims = int | Sequence[int] | None


def _total(prim: str) -> Function:
    """sum or prod: converted to the result's dtype first, halves in float32."""

    def decomposition(p: Builder, x: Value, dim: Dims = None, keepdim: bool = False, dtype: Any = None) -> Value:
        out = p.out.dtype
        x = p.convert(p.convert(x, out), opmath(out))
        return p.convert(p.reduced(prim, x, wrap_all(dim, x.rank), keepdim), out)

    return decomposition


def mean_dims(p: Builder, x: Value, dim: Dims = None, keepdim: bool = False, dtype: Any = None) -> Value:
    """The sum divided by the count."""
    out = p.out.dtype
    dims = wrap_all(dim, x.rank)
    total = p.reduced("sum", p.convert(p.convert(x, out), opmath(out)), dims, keepdim)
    return p.convert(p.per_count(total, x.shape, dims), out)


def _var_mean(p: Builder, x: Value, dim: Dims, correction: float | None, keepdim: bool) -> tuple[Value, Value]:
    """Both in the dtype that ATen's kernel adds up in: float64 on the CPU, where squares of float32 do not overflow."""
    dims = wrap_all(dim, x.rank)
    wide = "float64" if x.device == "cpu" else opmath(x.dtype)
    x, over = (x, dims) if x.rank else (p.reshape(x, (1,)), (0,))
    over = over or tuple(range(x.rank))
    count = count_of(x.shape, over)
    correction = 1 if correction is None else correction
    if wide == "float64" != x.dtype and isinstance(count, int) and count > 0:
        var, mean = _shifted_var_mean(p, x, over, count, correction)
    else:
        var, mean = p.var_mean(p.convert(x, wide), over, correction)
    if keepdim and dims:
        var, mean = (p.kept(v, x.shape, dims) for v in (var, mean))
    return var, mean


def _shifted_var_mean(
    p: Builder, x: Value, dims: tuple[int, ...], count: int, correction: float
) -> tuple[Value, Value]:
    """Variance and mean of float32 and narrower in float64, in one pass: by d = x - (the first of the points).

    var = (sum d^2 - (sum d)^2 / n) / (n - correction). The first is one of the points, so that its squared distance
    from the mean is at most n times the variance: what cancels loses at most a factor of n + 1 of float64's precision
    (at most 2e-16 * n * (n + 1) of the variance in all, mostly far less). Equal points give exactly 0.
    """
    stops = tuple(1 if at in dims else size for at, size in enumerate(x.shape))
    first = p.convert(p.slice(x, (0,) * x.rank, stops, (1,) * x.rank), "float64")
    deviation = p.sub(p.convert(x, "float64"), p.broadcast(first, x.shape))
    total = p.sum(deviation, dims)
    squares = p.sub(p.sum(p.mul(deviation, deviation), dims), p.div(p.mul(total, total), float(count)))
    var = p.div(p.maximum(squares, 0.0), float(max(0, count - correction)))
    return var, p.add(p.reshape(first, total.shape), p.div(total, float(count)))


def _deviation(*, root: bool, both: bool) -> Function:
    """Variance or its root, alone or with the mean."""

    def decomposition(
        p: Builder, x: Value, dim: Dims = None, correction: float | None = None, keepdim: bool = False
    ) -> Any:
        var, mean = _var_mean(p, x, dim, correction, keepdim)
        first = p.convert(p.sqrt(var) if root else var, p.out.dtype)
        return (first, p.convert(mean, p.out.dtype)) if both else first

    return decomposition


def _old_style(function: Function) -> Function:
    """var(x, unbiased) and var(x, dim, unbiased, keepdim)."""

    def decomposition(p: Builder, x: Value, *arguments: Any) -> Any:
        if len(arguments) == 0 or isinstance(arguments[0], bool):
            dim, unbiased, keepdim = None, *(arguments or (True,)), False
        else:
            dim, unbiased, keepdim = (*arguments, True, False)[:3] if len(arguments) == 1 else (*arguments, False)[:3]
        return function(p, x, dim, 1 if unbiased else 0, keepdim)

    return decomposition


def _extreme(name: str) -> Function:
    """amax and amin; bool by or and and."""

    def decomposition(p: Builder, x: Value, dim: Dims = (), keepdim: bool = False) -> Value:
        prim = {"amax": "any", "amin": "all"}[name] if x.dtype == "bool" else name
        return p.reduced(prim, x, wrap_all(dim, x.rank), keepdim)

    return decomposition


def _extreme_dim(name: str, argument: str) -> Function:
    """max.dim and min.dim: the value and its first index."""

    def decomposition(p: Builder, x: Value, dim: int, keepdim: bool = False) -> tuple[Value, Value]:
        if x.rank == 0:
            return x, p.full((), 0, "int64")
        if x.dtype == "bool":
            raise Decline("bool")
        dim = wrap(dim, x.rank)
        value, index = getattr(p, name)(x, (dim,)), getattr(p, argument)(x, dim)
        return (p.kept(value, x.shape, (dim,)), p.kept(index, x.shape, (dim,))) if keepdim else (value, index)

    return decomposition


def _argument(name: str) -> Function:
    def decomposition(p: Builder, x: Value, dim: int | None = None, keepdim: bool = False) -> Value:
        if x.rank == 0:
            return p.full((), 0, "int64")
        if x.dtype == "bool":
            raise Decline("bool")
        dim = None if dim is None else wrap(dim, x.rank)
        index = getattr(p, name)(x, dim)
        return p.kept(index, x.shape, tuple(range(x.rank)) if dim is None else (dim,)) if keepdim else index

    return decomposition


def _truth(name: str) -> Function:
    """any and all of any dtype; uint8 stays uint8. No dimensions at all are none, not every one."""

    def decomposition(p: Builder, x: Value, dim: Dims = None, keepdim: bool = False) -> Value:
        dims = () if dim == () else wrap_all(dim, x.rank)
        return p.convert(p.reduced(name, p.convert(x, "bool"), dims, keepdim), p.out.dtype)

    return decomposition


def logsumexp(p: Builder, x: Value, dim: Dims, keepdim: bool = False) -> Value:
    dims = wrap_all(dim, x.rank)
    if any(x.shape[d] == 0 for d in dims):
        return p.full(p.out.shape, float("-inf"), p.out.dtype)  # the logarithm of an empty sum
    x = p.convert(p.convert(x, p.out.dtype), opmath(p.out.dtype))
    greatest = p.reduced("amax", x, dims)
    greatest = p.where(p.isinf(greatest), 0.0, greatest)
    total = p.reduced("sum", p.exp(p.sub(x, p.spread(greatest, x.shape, dims))), dims)
    out = p.add(p.log(total), greatest)
    return p.convert(p.kept(out, x.shape, dims) if keepdim else out, p.out.dtype)


def _scan(prim: str) -> Function:
    def decomposition(p: Builder, x: Value, dim: int, dtype: Any = None) -> Value:
        out = p.out.dtype
        x = p.convert(p.convert(x, out), opmath(out))
        return p.convert(getattr(p, prim)(x, wrap(dim, x.rank)) if x.rank else x, out)

    return decomposition


def vector_norm(
    p: Builder, x: Value, ord: Any = 2, dim: Dims = None, keepdim: bool = False, dtype: Any = None
) -> Value:
    """(sum |x|^ord)^(1/ord), with the greatest for inf, the least for -inf, the count of non-zeros for 0."""
    dims = wrap_all(dim, x.rank)
    out = p.out.dtype
    x = p.convert(p.convert(x, out), opmath(out))
    if ord == float("inf") or ord == float("-inf"):
        norm = p.reduced("amax" if ord > 0 else "amin", p.abs(x), dims, keepdim)
    elif ord == 0:
        norm = p.reduced("sum", p.convert(p.ne(x, 0.0), x.dtype), dims, keepdim)
    elif ord == 1:
        norm = p.reduced("sum", p.abs(x), dims, keepdim)
    elif ord == 2:
        norm = p.sqrt(p.reduced("sum", p.mul(x, x), dims, keepdim))
    else:
        norm = p.pow(p.reduced("sum", p.pow(p.abs(x), float(ord)), dims, keepdim), 1.0 / ord)
    return p.convert(norm, out)


def norm(p: Builder, x: Value, ord: Any = 2, dim: Dims = None, keepdim: bool = False, dtype: Any = None) -> Value:
    return vector_norm(p, x, 2 if ord is None else ord, dim, keepdim)


_DEVIATIONS = {
    "var": _deviation(root=False, both=False),
    "std": _deviation(root=True, both=False),
    "var_mean": _deviation(root=False, both=True),
    "std_mean": _deviation(root=True, both=True),
}
_sum, _prod = _total("sum"), _total("prod")

TABLE: Table = {
    **{f"aten.sum.{o}": _sum for o in ("default", "dim_IntList")},
    **{f"aten.prod.{o}": _prod for o in ("default", "dim_int")},
    **{f"aten.mean.{o}": mean_dims for o in ("default", "dim")},
    "aten.nansum.default": lambda p, x, dim=None, keepdim=False, dtype=None: _sum(p, _no_nan(p, x), dim, keepdim),
    **{f"aten.{name}.correction": f for name, f in _DEVIATIONS.items()},
    **{f"aten.{name}.{o}": _old_style(f) for name, f in _DEVIATIONS.items() for o in ("default", "dim")},
    **{f"aten.{name}.default": _extreme("amax") for name in ("amax", "max")},
    **{f"aten.{name}.default": _extreme("amin") for name in ("amin", "min")},
    "aten.max.dim": _extreme_dim("amax", "argmax"),
    "aten.min.dim": _extreme_dim("amin", "argmin"),
    **{f"aten.{name}.default": _argument(name) for name in ("argmax", "argmin")},
    **{f"aten.{name}.{o}": _truth(name) for name in ("any", "all") for o in ("default", "dim", "dims")},
    "aten.logsumexp.default": logsumexp,
    **{f"aten.{name}.default": _scan(name) for name in ("cumsum", "cumprod")},
    "aten.logcumsumexp.default": lambda p, x, dim: p.logcumsumexp(x, wrap(dim, x.rank)),
    "aten.cummax.default": lambda p, x, dim: p.cummax(x, wrap(dim, x.rank)),
    "aten.cummin.default": lambda p, x, dim: p.cummin(x, wrap(dim, x.rank)),
    "aten.linalg_vector_norm.default": vector_norm,
    "aten.norm.Scalar": lambda p, x, ord=2: norm(p, x, ord),
    "aten.norm.ScalarOpt_dim": norm,
}  # fmt: skip


def _no_nan(p: Builder, x: Value) -> Value:
    return p.where(p.isnan(x), 0.0, x) if x.dtype in ("float32", "float64", "bfloat16", "float16") else x
