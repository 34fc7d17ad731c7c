"""Rules of dense linear algebra. LAPACK results are column-major where eager makes them so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from absint.errors import DataDependentError, TypeRuleError
from absint.kernels import Question
from absint.meta import Meta, contiguous
from absint.promote import complex_dtype, real_dtype, result_type
from absint.rules.constraint import Constraint, Refused, f32
from absint.rules.movement import like
from absint.rules.pointwise import broadcast, pointwise
from absint.rules.sizes import wrap_dim
from absint.rules.table import RuleTable
from absint.strides import contiguous_stride

__all__ = ["TABLE"]

TABLE = RuleTable()


def _column_major(shape: Sequence[int], like: Meta) -> Meta:
    """A batch of column-major matrices (`batched_matrix_contiguous_strides(shape, f_contig=true)`)."""
    shape = tuple(shape)
    rows = shape[-2] if shape[-2] > 1 else 1
    return Meta(shape, (*contiguous_stride(shape)[:-2], 1, rows), like.dtype, like.device)


def _fresh(shape: Sequence[int], like: Meta, dtype: torch.dtype | None = None) -> Meta:
    return contiguous(shape, dtype or like.dtype, like.device)


def _integers(shape: Sequence[int], like: Meta) -> Meta:
    return contiguous(shape, torch.int32, like.device)


def _square(matrix: Meta, name: str) -> None:
    if matrix.ndim < 2:
        raise TypeRuleError(f"{name}: The input tensor A must have at least 2 dimensions.")
    if matrix.shape[-1] != matrix.shape[-2]:
        raise TypeRuleError(
            f"{name}: A must be batches of square matrices, but they are {matrix.shape[-2]} by "
            f"{matrix.shape[-1]} matrices"
        )


# Distances.


@TABLE.rule("_cdist_forward")
def _cdist(x1: Meta, x2: Meta, p: float, compute_mode: int | None) -> Meta:
    if x1.shape[-1] != x2.shape[-1]:
        raise TypeRuleError("X1 and X2 must have the same number of columns")
    batch = broadcast(x1.shape[:-2], x2.shape[:-2])
    return _fresh((*batch, x1.shape[-2], x2.shape[-2]), x1)


@TABLE.rule("_euclidean_dist")
def _euclidean_dist(x1: Meta, x2: Meta) -> Meta:
    return _cdist(x1, x2, 2.0, None)


@TABLE.rule("_cdist_backward")
def _cdist_backward(grad: Meta, x1: Meta, x2: Meta, p: float, cdist: Meta) -> Meta:
    batch = broadcast(x1.shape[:-2], x2.shape[:-2])
    if 0 in batch or 0 in x1.shape[-2:] or 0 in x2.shape[-2:]:
        return _fresh(x1.shape, x1)
    return _fresh((*batch, *x1.shape[-2:]), x1)


@TABLE.rule("_pdist_forward")
def _pdist(self: Meta, p: float = 2.0) -> Meta:
    count = self.shape[0]
    return _fresh((count * (count - 1) // 2 if count > 1 else 0,), self)


@TABLE.rule("_pdist_backward")
def _pdist_backward(grad: Meta, self: Meta, p: float, pdist: Meta) -> Meta:
    return _fresh(self.shape, self)


@TABLE.rule("dist")
def _dist(self: Meta, other: Meta, p: Any = 2) -> Meta:
    return _fresh((), self, real_dtype(result_type((self, other))))


# Factorisations.


@TABLE.rule("linalg_inv_ex")
def _inv(A: Meta, *, check_errors: bool = False) -> tuple[Meta, Meta]:
    _square(A, "linalg.inv")
    return _column_major(A.shape, A), _integers(A.shape[:-2], A)


@TABLE.rule("linalg_cholesky_ex")
def _cholesky_ex(self: Meta, *, upper: bool = False, check_errors: bool = False) -> tuple[Meta, Meta]:
    _square(self, "linalg.cholesky")
    return _column_major(self.shape, self), _integers(self.shape[:-2], self)


@TABLE.rule("_linalg_det")
def _det(A: Meta) -> tuple[Meta, ...]:
    _square(A, "linalg.det")
    return _fresh(A.shape[:-2], A), _column_major(A.shape, A), _integers(A.shape[:-1], A)


@TABLE.rule("_linalg_slogdet")
def _slogdet(A: Meta) -> tuple[Meta, ...]:
    _square(A, "linalg.slogdet")
    batch = A.shape[:-2]
    logarithm = _fresh(batch, A, real_dtype(A.dtype))
    return _fresh(batch, A), logarithm, _column_major(A.shape, A), _integers(A.shape[:-1], A)


@TABLE.rule("_linalg_eigh")
def _eigh(A: Meta, UPLO: str = "L", compute_v: bool = True) -> tuple[Meta, Meta]:
    _square(A, "linalg.eigh")
    values = _fresh(A.shape[:-1], A, real_dtype(A.dtype))
    return values, _column_major(A.shape, A) if compute_v else _fresh((0,), A)


@TABLE.rule("linalg_eig")
def _eig(self: Meta) -> tuple[Meta, Meta]:
    _square(self, "linalg.eig")
    dtype = complex_dtype(real_dtype(self.dtype))
    vectors = _column_major(self.shape, self)
    return _fresh(self.shape[:-1], self, dtype), Meta(vectors.shape, vectors.stride, dtype, self.device)


@TABLE.rule("_linalg_svd")
def _svd(
    A: Meta, full_matrices: bool = False, compute_uv: bool = True, *, driver: str | None = None
) -> tuple[Meta, ...]:
    *batch, rows, columns = A.shape
    least = min(rows, columns)
    values = _fresh((*batch, least), A, real_dtype(A.dtype))
    if not compute_uv:
        return _fresh((0,), A), values, _fresh((0,), A)
    left = _column_major((*batch, rows, rows if full_matrices else least), A)
    right = _column_major((*batch, columns if full_matrices else least, columns), A)
    return left, values, right


@TABLE.rule("linalg_qr")
def _qr(A: Meta, mode: str = "reduced") -> tuple[Meta, Meta]:
    *batch, rows, columns = A.shape
    inner = rows if mode == "complete" else min(rows, columns)
    upper = _column_major((*batch, inner, columns), A)
    return (_fresh((0,), A) if mode == "r" else _column_major((*batch, rows, inner), A)), upper


@TABLE.rule("geqrf")
def _geqrf(self: Meta) -> tuple[Meta, Meta]:
    *batch, rows, columns = self.shape
    return _column_major(self.shape, self), _fresh((*batch, min(rows, columns)), self)


_REFLECTORS = Constraint(
    "C1", "there are at most as many reflectors as columns, and columns as rows, in batches of the same shape",
    lambda input, tau: (
        input.shape[-2] >= input.shape[-1] >= tau.shape[-1] and input.shape[:-2] == tau.shape[:-1]
    ),
    Refused("linalg_householder_product", (f32(3, 2), f32(3))),
)  # fmt: skip


@TABLE.rule("linalg_householder_product", requires=(_REFLECTORS,))
def _householder(input: Meta, tau: Meta) -> Meta:
    return _column_major(input.shape, input)


def _is_multiplied(self: Meta, input2: Meta, input3: Meta, left: bool = True, transpose: bool = False) -> bool:
    order = input3.shape[-2] if left else input3.shape[-1]
    return (
        self.shape[-2] == order
        and input2.shape[-1] == min(order, self.shape[-1])
        and self.shape[:-2] == input2.shape[:-1] == input3.shape[:-2]
    )


_MULTIPLIED = Constraint(
    "C1", "reflectors, their factors and the matrix fit, in batches of the same shape", _is_multiplied,
    Refused("ormqr", (f32(3, 2), f32(2), f32(2, 2))),
)  # fmt: skip


@TABLE.rule("ormqr", requires=(_MULTIPLIED,))
def _ormqr(self: Meta, input2: Meta, input3: Meta, left: bool = True, transpose: bool = False) -> Meta:
    return _column_major(input3.shape, input3)


@TABLE.rule("linalg_lu_factor_ex")
def _lu_factor(A: Meta, *, pivot: bool = True, check_errors: bool = False) -> tuple[Meta, ...]:
    *batch, rows, columns = A.shape
    return _column_major(A.shape, A), _integers((*batch, min(rows, columns)), A), _integers(batch, A)


@TABLE.rule("linalg_lu")
def _lu(A: Meta, *, pivot: bool = True) -> tuple[Meta, ...]:
    return _unpacked(A, pivot, True)


def _unpacked(matrix: Meta, with_permutation: bool, with_factors: bool) -> tuple[Meta, ...]:
    *batch, rows, columns = matrix.shape
    least = min(rows, columns)
    empty = _fresh((0,), matrix)
    permutation = _fresh((*batch, rows, rows), matrix) if with_permutation else empty
    if not with_factors:
        return permutation, empty, empty
    lower = _fresh((*batch, rows, least), matrix)
    return permutation, lower, _fresh((*batch, least, columns), matrix)


_PIVOTS_FIT = Constraint(
    "C1", "there is a pivot for each row or column, whichever are fewer",
    lambda LU_data, LU_pivots, unpack_data=True, unpack_pivots=True: not unpack_pivots or LU_pivots.shape == (
        *LU_data.shape[:-2], min(LU_data.shape[-2:])
    ),
    Refused("lu_unpack", (f32(4, 4), contiguous((3,), torch.int32))),
)  # fmt: skip


@TABLE.rule("lu_unpack", requires=(_PIVOTS_FIT,))
def _lu_unpack(
    LU_data: Meta, LU_pivots: Meta, unpack_data: bool = True, unpack_pivots: bool = True
) -> tuple[Meta, ...]:
    return _unpacked(LU_data, unpack_pivots, unpack_data)


@TABLE.rule("linalg_ldl_factor_ex")
def _ldl_factor(self: Meta, *, hermitian: bool = False, check_errors: bool = False) -> tuple[Meta, ...]:
    _square(self, "linalg.ldl_factor")
    return _column_major(self.shape, self), _integers(self.shape[:-1], self), _integers(self.shape[:-2], self)


@TABLE.rule("cholesky")
def _cholesky(self: Meta, upper: bool = False) -> Meta:
    _square(self, "cholesky")
    return _fresh(self.shape, self) if 0 in self.shape else _column_major(self.shape, self)


@TABLE.rule("cholesky_inverse")
def _cholesky_inverse(self: Meta, upper: bool = False) -> Meta:
    _square(self, "cholesky_inverse")
    return _column_major(self.shape, self)


@TABLE.rule("linalg_matrix_exp")
def _matrix_exp(self: Meta) -> Meta:
    _square(self, "linalg.matrix_exp")
    if self.shape[-1] == 1:
        return pointwise((self,), self.dtype)  # eager takes exp
    return like(self, None) if self.shape[-1] == 0 else _fresh(self.shape, self)


@TABLE.rule("linalg_lstsq")
def _lstsq(self: Meta, b: Meta, rcond: float | None = None, *, driver: str | None = None) -> tuple[Meta, ...]:
    if driver is None:
        driver = "gelsy" if self.device.type == "cpu" else "gels"
    rows, columns = self.shape[-2:]
    by_singular_values = driver in ("gelss", "gelsd")
    if by_singular_values and rows > columns:
        raise DataDependentError("whether linalg.lstsq returns residuals depends on the rank that it finds")
    is_vector = b.ndim == self.ndim - 1 and b.shape == self.shape[:-1]
    right = b.shape[-1] if not is_vector else 1
    batch = broadcast(self.shape[:-2], b.shape[: -1 if is_vector else -2])
    # A slice of what the kernel works on: column-major, with the rows of the larger side.
    work = contiguous_stride((*batch, right, max(rows, columns)))
    shape, stride = (*batch, columns, right), (*work[:-2], 1, work[-2])
    if is_vector:
        shape, stride = shape[:-1], stride[:-1]
    has_residuals = rows > columns and driver != "gelsy"
    residuals = (*batch, right) if has_residuals else (0,)
    rank = (0,) if driver == "gels" else self.shape[:-2]
    singular = (*self.shape[:-2], min(rows, columns)) if by_singular_values else (0,)
    return (
        Meta(shape, stride, self.dtype, self.device),
        _fresh(residuals, self, real_dtype(self.dtype)),
        _fresh(rank, self, torch.int64),
        _fresh(singular, self, real_dtype(self.dtype)),
    )


# Solvers.

_PIVOTS = contiguous((3,), torch.int32)


def _solution_shape(A: Meta, B: Meta, left: bool) -> tuple[int, ...]:
    batch = broadcast(A.shape[:-2], B.shape[:-2])
    inner = B.shape[-2] if left else B.shape[-1]
    if A.shape[-1] != inner:
        raise TypeRuleError(
            f"linalg.solve: Incompatible shapes of A and B for the equation ({list(A.shape)} and {list(B.shape)})"
        )
    return (*batch, *B.shape[-2:])


@TABLE.rule("_linalg_solve_ex")
def _solve(A: Meta, B: Meta, *, left: bool = True, check_errors: bool = False) -> tuple[Meta, ...]:
    _square(A, "linalg.solve")
    # B is a vector, or a batch of them, where its shape is that of A without the last dimension.
    is_vector = B.ndim == 1 or (B.ndim + 1 == A.ndim and B.shape == A.shape[:-1])
    shape = (*broadcast(A.shape[:-2], B.shape[:-1]), A.shape[-1]) if is_vector else _solution_shape(A, B, left)
    result = _column_major(shape, B) if left and len(shape) > 1 else _fresh(shape, B)
    return result, _column_major(A.shape, A), _integers(A.shape[:-1], A), _integers(A.shape[:-2], A)


def _solves(LU: Meta, pivots: Meta, B: Meta, *, left: bool = True, adjoint: bool = False) -> bool:
    return LU.shape[-1] == LU.shape[-2] == (B.shape[-2] if left else B.shape[-1])


_SQUARE_LU = Constraint(
    "C1", "LU is square, and of the size of B", _solves, Refused("linalg_lu_solve", (f32(3, 2), _PIVOTS, f32(3, 1)))
)
_PIVOT_EACH = Constraint(
    "C2", "there is a pivot for each row", lambda LU, pivots, B, **_: pivots.shape == LU.shape[:-1],
    Refused("linalg_lu_solve", (f32(4, 4), _PIVOTS, f32(4, 1))),
)  # fmt: skip


@TABLE.rule("linalg_lu_solve", requires=(_SQUARE_LU, _PIVOT_EACH))
def _lu_solve(LU: Meta, pivots: Meta, B: Meta, *, left: bool = True, adjoint: bool = False) -> Meta:
    batch = broadcast(LU.shape[:-2], B.shape[:-2])
    shape = (*batch, *B.shape[-2:])
    return _column_major(shape, B) if left else _fresh(shape, B)


@TABLE.rule("linalg_solve_triangular")
def _solve_triangular(self: Meta, B: Meta, *, upper: bool, left: bool = True, unitriangular: bool = False) -> Meta:
    return _column_major(_solution_shape(self, B, left), self)


def _is_square_for(self: Meta, A: Meta, *_: Any, **__: Any) -> bool:
    return A.shape[-1] == A.shape[-2] == self.shape[-2]


_TRIANGLE = Constraint(
    "C1", "A is square, and of the size of self", _is_square_for, Refused("triangular_solve", (f32(3, 1), f32(2, 2)))
)
_FACTOR = Constraint(
    "C1", "the factor is square, and of the size of self", _is_square_for,
    Refused("cholesky_solve", (f32(3, 1), f32(3, 2))),
)  # fmt: skip


@TABLE.rule("triangular_solve", requires=(_TRIANGLE,))
def _triangular_solve(
    self: Meta, A: Meta, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> tuple[Meta, Meta]:
    batch = broadcast(self.shape[:-2], A.shape[:-2])
    return _column_major((*batch, *self.shape[-2:]), self), _column_major((*batch, *A.shape[-2:]), A)


@TABLE.rule("cholesky_solve", requires=(_FACTOR,))
def _cholesky_solve(self: Meta, input2: Meta, upper: bool = False) -> Meta:
    batch = broadcast(self.shape[:-2], input2.shape[:-2])
    return _column_major((*batch, *self.shape[-2:]), self)


_LDL = Constraint(
    "C1", "LD is square, of the size of B, with a pivot for each row",
    lambda LD, pivots, B, hermitian=False: (
        LD.shape[-1] == LD.shape[-2] == B.shape[-2] and pivots.shape == LD.shape[:-1]
    ),
    Refused("linalg_ldl_solve", (f32(4, 4), _PIVOTS, f32(4, 1))),
)  # fmt: skip


@TABLE.rule("linalg_ldl_solve", requires=(_LDL,))
def _ldl_solve(LD: Meta, pivots: Meta, B: Meta, *, hermitian: bool = False) -> Meta:
    batch = broadcast(LD.shape[:-2], B.shape[:-2])
    return _column_major((*batch, *B.shape[-2:]), B)


# Products.


def _are_threes(self: Meta, other: Meta, *, dim: int = -1) -> bool:
    return all(one.ndim == self.ndim and one.shape[wrap_dim(dim, one.ndim)] == 3 for one in (self, other))


_THREES = Constraint(
    "C1", "both have three elements in the dimension", _are_threes, Refused("linalg_cross", (f32(5, 3), f32(5, 1)))
)


@TABLE.rule("linalg_cross", requires=(_THREES,))
def _cross(self: Meta, other: Meta, *, dim: int = -1) -> Meta:
    return _fresh(broadcast(self.shape, other.shape), self, result_type((self, other)))


@TABLE.rule("addbmm")
def _addbmm(self: Meta, batch1: Meta, batch2: Meta, *, beta: Any = 1, alpha: Any = 1) -> Meta:
    if batch1.ndim != 3 or batch2.ndim != 3 or batch1.shape[2] != batch2.shape[1]:
        raise TypeRuleError(f"addbmm of {list(batch1.shape)} and {list(batch2.shape)}")
    shape = (batch1.shape[1], batch2.shape[2])
    if broadcast(self.shape, shape) != shape:
        raise TypeRuleError(f"addbmm: {list(self.shape)} does not expand to {list(shape)}")
    return _fresh(shape, self)


@TABLE.rule("_trilinear")
def _trilinear(
    i1: Meta,
    i2: Meta,
    i3: Meta,
    expand1: Sequence[int],
    expand2: Sequence[int],
    expand3: Sequence[int],
    sumdim: Sequence[int],
    unroll_dim: int = 1,
) -> Meta:
    rank = i1.ndim + len(expand1)
    shape = (1,) * rank
    for operand, inserted in ((i1, expand1), (i2, expand2), (i3, expand3)):
        sizes = iter(operand.shape)
        shape = broadcast(shape, tuple([1 if dim in inserted else next(sizes) for dim in range(rank)]))
    return _fresh([size for dim, size in enumerate(shape) if dim not in sumdim], i1)


@TABLE.rule("renorm")
def _renorm(self: Meta, p: Any, dim: int, maxnorm: Any) -> Meta:
    return _fresh(self.shape, self)


@TABLE.rule("linalg_pinv.atol_rtol_tensor")
def _pinv(self: Meta, *, atol: Meta | None = None, rtol: Meta | None = None, hermitian: bool = False) -> Meta:
    return _fresh((*self.shape[:-2], self.shape[-1], self.shape[-2]), self)


TABLE.ask(*[name for name in TABLE if "_backward" not in name and "linalg_cross" not in name])
TABLE.ask("linalg_cross", question=Question(size=3))
