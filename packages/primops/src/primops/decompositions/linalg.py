"""Linear algebra as the prims of the family "linalg": what has no flags left that change the kind of the results."""

from __future__ import annotations

from typing import Any

from primops.builder import Builder, Value, type_of
from primops.decompositions.operands import Function, Table
from primops.errors import Decline
from primops.prims.layouts import FLOATS
from stagewire.types import TensorType


def exactly(function: Function) -> Function:
    """The decomposition, declined where its types are not those of the call: sizes that are not known, say."""

    def decomposition(p: Builder, *args: Any, **kwargs: Any) -> Any:
        made = function(p, *args, **kwargs)
        found = [type_of(v) for v in (made if type(made) is tuple else (made,))]
        stated = [(t.dtype, t.shape) if isinstance(t, TensorType) else None for t in p.results]
        if [(t.dtype, t.shape) for t in found] != stated:
            raise Decline("the types of the results depend on more than the operands' types")
        return made

    return decomposition


def _matrix(x: Value) -> None:
    if x.dtype not in FLOATS or x.rank < 2 or any(type(n) is not int for n in x.shape[-2:]):
        raise Decline("no matrix of floats of known sizes")


def _unchecked(check_errors: bool) -> None:
    if check_errors:
        raise Decline("an error that depends on data")


def cholesky(p: Builder, x: Value, *, upper: bool = False, check_errors: bool = False) -> Any:
    _unchecked(check_errors)
    _matrix(x)
    return p.cholesky(x, upper)


def inverse(p: Builder, x: Value, *, check_errors: bool = False) -> Any:
    _unchecked(check_errors)
    _matrix(x)
    return p.inverse(x)


def solve(p: Builder, a: Value, b: Value, *, left: bool = True, check_errors: bool = False) -> Any:
    _unchecked(check_errors)
    _matrix(a)
    return p.solve(a, b, left)


def solve_triangular(
    p: Builder, a: Value, b: Value, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Value:
    _matrix(a)
    return p.solve_triangular(a, b, upper, left, unitriangular)


def lu_factor(p: Builder, x: Value, *, pivot: bool = True, check_errors: bool = False) -> Any:
    _unchecked(check_errors)
    _matrix(x)
    return p.lu_factor(x, pivot)


def lu_unpack(p: Builder, lu: Value, pivots: Value, unpack_data: bool = True, unpack_pivots: bool = True) -> Any:
    _matrix(lu)
    return p.lu_unpack(lu, pivots, unpack_data, unpack_pivots)


def lu(p: Builder, x: Value, *, pivot: bool = True) -> Any:
    _matrix(x)
    return p.lu(x, pivot)


def lu_solve(p: Builder, lu: Value, pivots: Value, b: Value, *, left: bool = True, adjoint: bool = False) -> Value:
    _matrix(lu)
    return p.lu_solve(lu, pivots, b, left, adjoint)


def eigh(p: Builder, x: Value, UPLO: str = "L", compute_v: bool = True) -> Any:
    _matrix(x)
    return p.eigh(x, UPLO, compute_v)


def svd(
    p: Builder, x: Value, full_matrices: bool = False, compute_uv: bool = True, *, driver: str | None = None
) -> Any:
    if driver is not None:
        raise Decline("a driver of its own")
    _matrix(x)
    return p.svd(x, full_matrices, compute_uv)


def qr(p: Builder, x: Value, mode: str = "reduced") -> Any:
    _matrix(x)
    return p.qr(x, mode)


def _of_matrix(prim: str) -> Function:
    def decomposition(p: Builder, x: Value, *rest: Any) -> Any:
        _matrix(x)
        return getattr(p, prim)(x, *rest)

    return decomposition


TABLE: Table = {
    name: exactly(function)
    for name, function in {
        "aten.linalg_cholesky_ex.default": cholesky,
        "aten.cholesky_solve.default": lambda p, b, factor, upper=False: _of_matrix("cholesky_solve")(
            p, b, factor, upper
        ),
        "aten.cholesky_inverse.default": lambda p, x, upper=False: _of_matrix("cholesky_inverse")(p, x, upper),
        "aten.linalg_inv_ex.default": inverse,
        "aten._linalg_solve_ex.default": solve,
        "aten.linalg_solve_triangular.default": solve_triangular,
        "aten.linalg_lu_factor_ex.default": lu_factor,
        "aten.lu_unpack.default": lu_unpack,
        "aten.linalg_lu.default": lu,
        "aten.linalg_lu_solve.default": lu_solve,
        "aten._linalg_eigh.default": eigh,
        "aten._linalg_svd.default": svd,
        "aten.linalg_qr.default": qr,
        "aten.linalg_matrix_exp.default": _of_matrix("matrix_exp"),
        "aten.linalg_householder_product.default": _of_matrix("householder_product"),
        "aten._linalg_det.default": _of_matrix("det"),
        "aten._linalg_slogdet.default": _of_matrix("slogdet"),
    }.items()
}
