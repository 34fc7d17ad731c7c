"""Sorting, selection by rank, and search."""

from __future__ import annotations

from typing import Any

from primops.builder import Builder, Value
from primops.decompositions.operands import Function, Table, reshape, wrap
from primops.errors import Decline
from primops.prims.layouts import FLOATS

Pair = tuple[Value, Value]


def sort(p: Builder, x: Value, dim: int = -1, descending: bool = False) -> Pair:
    return p.sort(x, False, wrap(dim, x.rank), descending)


def sort_stable(p: Builder, x: Value, *, stable: bool | None, dim: int = -1, descending: bool = False) -> Pair:
    return p.sort(x, bool(stable), wrap(dim, x.rank), descending)


def topk(p: Builder, x: Value, k: Any, dim: int = -1, largest: bool = True, sorted: bool = True) -> Pair:
    return p.topk(x, k, wrap(dim, x.rank), largest, sorted)


def _kept(p: Builder, made: Pair) -> Pair:
    """Both results in the shapes that ATen gives: the dimension stays as size 1 with keepdim."""
    first, second = p.results
    return reshape(p, made[0], first.shape), reshape(p, made[1], second.shape)  # type: ignore[union-attr]


def kthvalue(p: Builder, x: Value, k: Any, dim: int = -1, keepdim: bool = False) -> Pair:
    if x.rank == 0:
        raise Decline("a scalar")
    return _kept(p, p.kthvalue(x, k, wrap(dim, x.rank)))


def _selection(prim: str) -> Function:
    def decomposition(p: Builder, x: Value, dim: int = -1, keepdim: bool = False) -> Pair:
        if x.rank == 0 or x.shape[wrap(dim, x.rank)] == 0:
            raise Decline("a scalar, or nothing to choose from")
        return _kept(p, getattr(p, prim)(x, wrap(dim, x.rank)))

    return decomposition


def _of_all(prim: str) -> Function:
    """median() and nanmedian() of all elements: along the one dimension of the flattened operand."""

    def decomposition(p: Builder, x: Value) -> Value:
        count: Any = 1
        for size in x.shape:
            count = count * size
        if count == 0:
            raise Decline("nothing to choose from")
        return getattr(p, prim)(reshape(p, x, (count,)), 0)[0]

    return decomposition


def _search(p: Builder, boundaries: Value, values: Any, right: bool) -> Value:
    if type(values) is not Value or values.dtype != boundaries.dtype:
        raise Decline("values of another dtype, which ATen has rules of its own for")
    return p.searchsorted(boundaries, values, p.out.dtype == "int32", bool(right))


def searchsorted(
    p: Builder, boundaries: Value, values: Any, *, out_int32: bool = False, right: bool = False,
    side: str | None = None, sorter: Value | None = None,
) -> Value:  # fmt: skip
    if sorter is not None:
        raise Decline("boundaries sorted through a permutation")
    return _search(p, boundaries, values, right or side == "right")


def bucketize(p: Builder, values: Any, boundaries: Value, *, out_int32: bool = False, right: bool = False) -> Value:
    return _search(p, boundaries, values, right)


def histc(p: Builder, x: Value, bins: int = 100, min: float = 0, max: float = 0) -> Value:
    if x.dtype not in FLOATS:
        raise Decline("counts of integers")
    return p.histc(x, bins, min, max)


TABLE: Table = {
    "aten.histc.default": histc,
    "aten.sort.default": sort,
    "aten.sort.stable": sort_stable,
    "aten.topk.default": topk,
    "aten.kthvalue.default": kthvalue,
    "aten.median.dim": _selection("median"),
    "aten.nanmedian.dim": _selection("nanmedian"),
    "aten.mode.default": _selection("mode"),
    "aten.median.default": _of_all("median"),
    "aten.nanmedian.default": _of_all("nanmedian"),
    "aten.searchsorted.Tensor": searchsorted,
    "aten.bucketize.Tensor": bucketize,
}
