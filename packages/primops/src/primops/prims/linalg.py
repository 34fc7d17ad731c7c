"""Linear algebra of dense real matrices: factorisations, solvers, and what is computed from them.

ATen (LAPACK) computes all of it. Dimensions in front of the last two are a batch.
"""

from __future__ import annotations

from collections.abc import Callable

from primops.prims.layouts import FLOATS, tensor
from primops.prims.record import Call, Constraint, Record, parameters
from stagewire.expr import Dim
from stagewire.types import TensorType

Sizes = tuple[Dim, ...]
Types = tuple[TensorType, ...]
_A = tensor("float32", (3, 3))
_B = tensor("float32", (3, 2))
_PIVOTS = tensor("int32", (3,))


# --- rules ---------------------------------------------------------------------------------------------------------


def _of(x: TensorType, shape: Sizes) -> TensorType:
    return tensor(x.dtype, shape, x.device)


def _numbers(x: TensorType, shape: Sizes) -> TensorType:
    return tensor("int32", shape, x.device)


def _like(x: TensorType, *_: object) -> Types:
    return (_of(x, x.shape),)


def _least(x: TensorType) -> Dim:
    """The smaller one of the last two sizes, which are known (decompositions see to it)."""
    rows, columns = x.shape[-2:]
    return min(rows, columns) if type(rows) is int and type(columns) is int else rows


def _and_info(x: TensorType, *_: object) -> Types:
    return _of(x, x.shape), _numbers(x, x.shape[:-2])


def _lu_factor(x: TensorType, pivot: bool) -> Types:
    return _of(x, x.shape), _numbers(x, (*x.shape[:-2], _least(x))), _numbers(x, x.shape[:-2])


def _lu(x: TensorType, pivot: bool) -> Types:
    batch, (rows, columns), k = x.shape[:-2], x.shape[-2:], _least(x)
    order = (*batch, rows, rows) if pivot else (0,)
    return _of(x, order), _of(x, (*batch, rows, k)), _of(x, (*batch, k, columns))


def _lu_unpack(lu: TensorType, pivots: TensorType, data: bool, order: bool) -> Types:
    whole = _lu(lu, order)
    return whole if data else (whole[0], _of(lu, (0,)), _of(lu, (0,)))


def is_vector(a: TensorType, b: TensorType) -> bool:
    """Whether the right-hand side is a vector for each matrix, as torch.linalg.solve understands it."""
    return len(b.shape) == 1 or (len(b.shape) == len(a.shape) - 1 and b.shape == a.shape[:-1])


def _solve(a: TensorType, b: TensorType, left: bool) -> Types:
    shape = (*a.shape[:-2], b.shape[-1]) if is_vector(a, b) else _broadcast(b, a)
    return _of(b, shape), _of(a, a.shape), _numbers(a, a.shape[:-1]), _numbers(a, a.shape[:-2])


def _broadcast(b: TensorType, a: TensorType) -> Sizes:
    """The shape of b over the batches of both."""
    mine, theirs = b.shape[:-2], a.shape[:-2]
    rank = max(len(mine), len(theirs))
    padded = [((1,) * (rank - len(sizes))) + sizes for sizes in (mine, theirs)]
    return (*(n if m == 1 else m for m, n in zip(*padded, strict=True)), *b.shape[-2:])


def _solve_triangular(a: TensorType, b: TensorType, *_: object) -> Types:
    return (_of(b, _broadcast(b, a)),)


def _cholesky_solve(b: TensorType, factor: TensorType, upper: bool) -> Types:
    return (_of(b, _broadcast(b, factor)),)


def _lu_solve(lu: TensorType, pivots: TensorType, b: TensorType, *_: object) -> Types:
    return (_of(b, _broadcast(b, lu)),)


def _eigh(x: TensorType, triangle: str, vectors: bool) -> Types:
    return _of(x, x.shape[:-1]), _of(x, x.shape if vectors else (0,))


def _svd(x: TensorType, full: bool, vectors: bool) -> Types:
    batch, (rows, columns), k = x.shape[:-2], x.shape[-2:], _least(x)
    left, right = (*batch, rows, rows if full else k), (*batch, columns if full else k, columns)
    return _of(x, left if vectors else (0,)), _of(x, (*batch, k)), _of(x, right if vectors else (0,))


def _qr(x: TensorType, mode: str) -> Types:
    batch, (rows, columns), k = x.shape[:-2], x.shape[-2:], _least(x)
    inner = rows if mode == "complete" else k
    return _of(x, (0,) if mode == "r" else (*batch, rows, inner)), _of(x, (*batch, inner, columns))


def _det(x: TensorType) -> Types:
    return _of(x, x.shape[:-2]), _of(x, x.shape), _numbers(x, x.shape[:-1])


def _slogdet(x: TensorType) -> Types:
    number, lu, pivots = _det(x)
    return number, number, lu, pivots


# --- constraints ---------------------------------------------------------------------------------------------------


def _matrices(*operands: object) -> str | None:
    first = next(x for x in operands if isinstance(x, TensorType))
    return None if len(first.shape) >= 2 else f"{list(first.shape)} is no matrix"


def _floats(*operands: object) -> str | None:
    bad = [x.dtype for x in operands if isinstance(x, TensorType) and x.dtype not in (*FLOATS, "int32")]
    return f"{bad[0]} is no float" if bad else None


def _square(x: TensorType, *_: object) -> str | None:
    rows, columns = x.shape[-2:]
    return f"{rows} rows and {columns} columns" if type(rows) is type(columns) is int and rows != columns else None


def _triangle(x: TensorType, triangle: str, vectors: bool) -> str | None:
    return None if triangle.upper() in ("L", "U") else f"no triangle {triangle!r}"


def _mode(x: TensorType, mode: str) -> str | None:
    return None if mode in ("reduced", "complete", "r") else f"no mode {mode!r}"


def _pivots(lu: TensorType, pivots: TensorType, *_: object) -> str | None:
    if pivots.dtype == "int32" and len(pivots.shape) == len(lu.shape) - 1:
        return None
    return f"pivots {pivots.dtype}{list(pivots.shape)} of {list(lu.shape)}"


L1 = Constraint("L1", "The operand has at least two dimensions.", _matrices, ("matrix_exp", (_PIVOTS,)))
L2 = Constraint("L2", "Matrices are floats.", _floats, ("qr", (tensor("int64", (3, 3)), "reduced")))
L3 = Constraint("L3", "The matrices are square.", _square, ("cholesky", (_B, False)))
L4 = Constraint("L4", "The triangle is L or U.", _triangle, ("eigh", (_A, "X", True)))
L5 = Constraint("L5", "The mode is reduced, complete or r.", _mode, ("qr", (_A, "full")))
L6 = Constraint(
    "L6",
    "The pivots are int32, a row for each matrix.",
    _pivots,
    ("lu_unpack", (_A, tensor("int64", (3,)), True, True)),
)

_ANY, _SQUARE = (L1, L2), (L1, L2, L3)
_M, _I = "f32[3, 3]", "i32[3]"


def _record(
    name: str, text: str, doc: str, rule: Callable[..., Types], constraints: tuple[Constraint, ...], example: str,
    target: str, results: str = "out", keywords: str = "",
) -> Record:  # fmt: skip
    call = Call(f"aten.{target}", tuple(keywords.split()))
    return Record(name, "linalg", parameters(text), doc, rule, constraints, f"{name}({example}", tuple(results.split()),
                  call)  # fmt: skip


RECORDS: tuple[Record, ...] = (
    _record("cholesky", "x: tensor, upper: bool",
            "The triangular factor of a symmetric positive definite matrix; info is not 0 where it is none.",
            _and_info, _SQUARE, f"x: {_M}, false) -> {_M}, i32[]", "linalg_cholesky_ex.default", "factor info",
            "upper"),
    _record("cholesky_solve", "b: tensor, factor: tensor, upper: bool",
            "The solution of A x = b, where factor is the Cholesky factor of A.", _cholesky_solve, _ANY,
            f"b: f32[3, 2], factor: {_M}, false) -> f32[3, 2]", "cholesky_solve.default"),
    _record("cholesky_inverse", "factor: tensor, upper: bool", "The inverse of A, where factor is its Cholesky factor.",
            _like, _SQUARE, f"factor: {_M}, false) -> {_M}", "cholesky_inverse.default"),
    _record("inverse", "x: tensor", "The inverse; info is not 0 where there is none.", _and_info, _SQUARE,
            f"x: {_M}) -> {_M}, i32[]", "linalg_inv_ex.default", "inverse info"),
    _record("solve", "a: tensor, b: tensor, left: bool",
            "The solution of a x = b (of x a = b unless left), the LU factors of a, pivots, and info, which is not 0 "
            "where there is no solution.", _solve, _SQUARE,
            f"a: {_M}, b: f32[3, 2], true) -> f32[3, 2], {_M}, {_I}, i32[]", "_linalg_solve_ex.default",
            "solution lu pivots info", "left"),
    _record("solve_triangular", "a: tensor, b: tensor, upper: bool, left: bool, unitriangular: bool",
            "The solution of a x = b (of x a = b unless left) for a triangular a; its diagonal is 1 if unitriangular.",
            _solve_triangular, _SQUARE, f"a: {_M}, b: f32[3, 2], true, true, false) -> f32[3, 2]",
            "linalg_solve_triangular.default", keywords="upper left unitriangular"),
    _record("lu_factor", "x: tensor, pivot: bool",
            "Both factors of a P L U factorisation in one matrix, the rows that were exchanged (the first is 1), and "
            "info.", _lu_factor, _ANY, f"x: {_M}, true) -> {_M}, {_I}, i32[]", "linalg_lu_factor_ex.default",
            "lu pivots info", "pivot"),
    _record("lu_unpack", "lu: tensor, pivots: tensor, data: bool, order: bool",
            "The three matrices of a factorisation; without data the factors, without order P are empty.", _lu_unpack,
            (L1, L6), f"lu: {_M}, pivots: {_I}, true, true) -> {_M}, {_M}, {_M}", "lu_unpack.default", "p l u"),
    _record("lu", "x: tensor, pivot: bool", "The matrices of x = P L U; P is empty without pivoting.", _lu, _ANY,
            f"x: {_M}, true) -> {_M}, {_M}, {_M}", "linalg_lu.default", "p l u", "pivot"),
    _record("lu_solve", "lu: tensor, pivots: tensor, b: tensor, left: bool, adjoint: bool",
            "The solution of A x = b (of x A = b unless left, for the transpose of A if adjoint) for a factorised A.",
            _lu_solve, (L1, L6), f"lu: {_M}, pivots: {_I}, b: f32[3, 2], true, false) -> f32[3, 2]",
            "linalg_lu_solve.default", keywords="left adjoint"),
    _record("eigh", "x: tensor, triangle: word, vectors: bool",
            "The eigenvalues of a symmetric matrix in ascending order, and its eigenvectors as columns (empty without "
            "vectors); only one triangle is read.", _eigh, (*_SQUARE, L4), f"x: {_M}, L, true) -> f32[3], {_M}",
            "_linalg_eigh.default", "values vectors"),
    _record("svd", "x: tensor, full: bool, vectors: bool",
            "The singular value decomposition U S V; U and V are empty without vectors, square if full.", _svd, _ANY,
            "x: f32[3, 2], false, true) -> f32[3, 2], f32[2], f32[2, 2]", "_linalg_svd.default", "u s v"),
    _record("qr", "x: tensor, mode: word", "The QR factorisation; Q is square if complete, and empty for r.", _qr,
            (*_ANY, L5), "x: f32[3, 2], reduced) -> f32[3, 2], f32[2, 2]", "linalg_qr.default", "q r"),
    _record("matrix_exp", "x: tensor", "The exponential of each matrix.", _like, _SQUARE, f"x: {_M}) -> {_M}",
            "linalg_matrix_exp.default"),
    _record("householder_product", "x: tensor, tau: tensor",
            "The first columns of the product of Householder reflections: columns of x, scaled by tau.", _like, _ANY,
            "x: f32[3, 2], tau: f32[2]) -> f32[3, 2]", "linalg_householder_product.default"),
    _record("det", "x: tensor", "The determinant, and the LU factors and pivots that gave it.", _det, _SQUARE,
            f"x: {_M}) -> f32[], {_M}, {_I}", "_linalg_det.default", "det lu pivots"),
    _record("slogdet", "x: tensor", "Sign and logarithm of the magnitude of the determinant, LU factors and pivots.",
            _slogdet, _SQUARE, f"x: {_M}) -> f32[], f32[], {_M}, {_I}", "_linalg_slogdet.default",
            "sign logabsdet lu pivots"),
)  # fmt: skip
