"""Special functions: operands promoted and broadcast, then one prim in the result's own dtype."""

from __future__ import annotations

import math
from typing import Any

from primops.builder import Builder, Value
from primops.decompositions.elementwise import pointwise
from primops.decompositions.operands import Function, Table, filled
from primops.prims.special import BINARY, UNARY, target_of


def _function(prim: str) -> Function:
    def decomposition(p: Builder, *operands: Any) -> Value:
        return getattr(p, prim)(*(filled(p, x, p.out.dtype, p.out.shape) for x in operands))

    return decomposition


def polygamma(p: Builder, n: int, x: Value) -> Value:
    return p.polygamma(n, filled(p, x, p.out.dtype, p.out.shape))


def mvlgamma(p: Builder, x: Value, order: int) -> Value:
    """log of the multivariate gamma function: lgamma at x, x - 1/2, ..., added up with order*(order-1)/4 * log(pi)."""

    def compute(p: Builder, x: Value) -> Value:
        total = p.lgamma(x)
        for i in range(1, order):
            total = p.add(total, p.lgamma(p.sub(x, i / 2)))
        return p.add(total, order * (order - 1) / 4 * math.log(math.pi)) if order > 1 else total

    return pointwise(p, compute, x)


TABLE: Table = {
    **{target_of(name): _function(name) for name in (*UNARY, *BINARY)},
    **{f"aten.{name}.default": _function(name) for name in ("gcd", "lcm")},
    "aten.frexp.Tensor": lambda p, x: p.frexp(x),
    "aten.polygamma.default": polygamma,
    "aten.mvlgamma.default": mvlgamma,
    **{
        f"{target_of(name).removesuffix('default')}{overload}": _function(name)
        for name in BINARY
        if "polynomial" in name
        for overload in ("x_scalar", "n_scalar")
    },
    **{f"aten.special_zeta.{overload}": _function("zeta") for overload in ("self_scalar", "other_scalar")},
}
