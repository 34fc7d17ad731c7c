"""Sums, means, variances, extrema and scans."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from primops.builder import Builder, Value, opmath
from primops.decompositions.operands import Function, Table, count_of, wrap, wrap_all
from primops.errors import Decline

Dims = int | Sequence[int] | None


def _total(prim: str) -> Function:
    """sum or prod."""
    return lambda p, x, dim=None, keepdim=False, dtype=None: p.convert(
        p.reduced(prim, wide(p, x), wrap_all(dim, x.rank), keepdim), p.out.dtype
    )


def wide(p: Builder, x: Value) -> Value:
    """x in the result's dtype; then halves in float32."""
    return p.convert(p.convert(x, p.out.dtype), opmath(p.out.dtype))


def mean_dims(p: Builder, x: Value, dim: Dims = None, keepdim: bool = False, dtype: Any = None) -> Value:
    """The sum divided by the count."""
    dims = wrap_all(dim, x.rank)
    return p.convert(p.per_count(p.reduced("sum", wide(p, x), dims, keepdim), x.shape, dims), p.out.dtype)


def _var_mean(p: Builder, x: Value, dim: Dims, correction: float | None, keepdim: bool) -> tuple[Value, Value]:
    """Both in the dtype that ATen's kernel adds up in: float64 on the CPU, where squares of float32 do not overflow."""
    dims = wrap_all(dim, x.rank)
    inner = "float64" if x.device == "cpu" else opmath(x.dtype)
    x, over = (x, dims) if x.rank else (p.reshape(x, (1,)), (0,))
    over = over or tuple(range(x.rank))
    count = count_of(x.shape, over)
    correction = 1 if correction is None else correction
    if inner == "float64" != x.dtype and isinstance(count, int) and count > 0:
        var, mean = _shifted_var_mean(p, x, over, count, correction)
    else:
        var, mean = p.var_mean(p.convert(x, inner), over, correction)
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


def _extreme(name: str, of_bools: str) -> Function:
    """amax and amin; bool by or and and."""
    return lambda p, x, dim=(), keepdim=False: p.reduced(
        of_bools if x.dtype == "bool" else name, x, wrap_all(dim, x.rank), keepdim
    )


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
    x = wide(p, x)
    greatest = p.reduced("amax", x, dims)
    greatest = p.where(p.isinf(greatest), 0.0, greatest)
    total = p.reduced("sum", p.exp(p.sub(x, p.spread(greatest, x.shape, dims))), dims)
    out = p.add(p.log(total), greatest)
    return p.convert(p.kept(out, x.shape, dims) if keepdim else out, p.out.dtype)


def _scan(prim: str) -> Function:
    def decomposition(p: Builder, x: Value, dim: int, dtype: Any = None) -> Value:
        x = wide(p, x)
        return p.convert(getattr(p, prim)(x, wrap(dim, x.rank)) if x.rank else x, p.out.dtype)

    return decomposition


_NORMS: dict[Any, tuple[str, Function]] = {
    float("inf"): ("amax", lambda p, x: p.abs(x)),
    float("-inf"): ("amin", lambda p, x: p.abs(x)),
    0: ("sum", lambda p, x: p.convert(p.ne(x, 0.0), x.dtype)),
    1: ("sum", lambda p, x: p.abs(x)),
    2: ("sum", lambda p, x: p.mul(x, x)),
}
"""By order, what is reduced of each element, and how; the root of the sum of squares is taken."""


def vector_norm(
    p: Builder, x: Value, ord: Any = 2, dim: Dims = None, keepdim: bool = False, dtype: Any = None
) -> Value:
    """(sum |x|^ord)^(1/ord), with the greatest for inf, the least for -inf, the count of non-zeros for 0."""
    order = 2 if ord is None else ord
    prim, each = _NORMS.get(order, ("sum", lambda p, x: p.pow(p.abs(x), float(order))))
    norm = p.reduced(prim, each(p, wide(p, x)), wrap_all(dim, x.rank), keepdim)
    if order not in _NORMS:
        norm = p.pow(norm, 1.0 / order)
    return p.convert(p.sqrt(norm) if order == 2 else norm, p.out.dtype)


_DEVIATIONS = {
    f"{name}{end}": _deviation(root=name == "std", both=bool(end)) for name in ("var", "std") for end in ("", "_mean")
}
_sum, _prod = _total("sum"), _total("prod")

TABLE: Table = {
    **{f"aten.sum.{o}": _sum for o in ("default", "dim_IntList")},
    **{f"aten.prod.{o}": _prod for o in ("default", "dim_int")},
    **{f"aten.mean.{o}": mean_dims for o in ("default", "dim")},
    "aten.nansum.default": lambda p, x, dim=None, keepdim=False, dtype=None: _sum(p, _no_nan(p, x), dim, keepdim),
    **{f"aten.{name}.correction": f for name, f in _DEVIATIONS.items()},
    **{f"aten.{name}.{o}": _old_style(f) for name, f in _DEVIATIONS.items() for o in ("default", "dim")},
    **{f"aten.{name}.default": _extreme("amax", "any") for name in ("amax", "max")},
    **{f"aten.{name}.default": _extreme("amin", "all") for name in ("amin", "min")},
    "aten.max.dim": _extreme_dim("amax", "argmax"),
    "aten.min.dim": _extreme_dim("amin", "argmin"),
    **{f"aten.{name}.default": _argument(name) for name in ("argmax", "argmin")},
    **{f"aten.{name}.{o}": _truth(name) for name in ("any", "all") for o in ("default", "dim", "dims")},
    "aten.logsumexp.default": logsumexp,
    **{f"aten.{name}.default": _scan(name) for name in ("cumsum", "cumprod")},
    "aten.logcumsumexp.default": lambda p, x, dim: p.logcumsumexp(x, wrap(dim, x.rank)),
    "aten.cummax.default": lambda p, x, dim: p.cummax(x, wrap(dim, x.rank)),
    "aten.cummin.default": lambda p, x, dim: p.cummin(x, wrap(dim, x.rank)),
    **{f"aten.norm.{o}": vector_norm for o in ("Scalar", "ScalarOpt_dim", "ScalarOpt_dim_dtype")},
    "aten.linalg_vector_norm.default": vector_norm,
}  # fmt: skip


def _no_nan(p: Builder, x: Value) -> Value:
    return p.where(p.isnan(x), 0.0, x) if x.dtype in ("float32", "float64", "bfloat16", "float16") else x
