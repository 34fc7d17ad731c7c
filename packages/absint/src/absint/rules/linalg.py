"""Rules of dense linear algebra. LAPACK results are column-major where eager makes them so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from absint.errors import DataDependentError, TypeRuleError
from absint.kernels import Question
from absint.meta import Meta, contiguous
from absint.promote import result_type
from absint.rules.pointwise import broadcast, pointwise
from absint.rules.shapes import empty_like, fresh, wrap_dim
from absint.rules.table import Constraint, Refused, Rule, RuleTable, f32
from absint.strides import contiguous_stride

TABLE = RuleTable()
Shape = Sequence[int]
Metas = tuple[Meta, ...]
_PIVOTS = contiguous((3,), torch.int32)


def _by_columns(like: Meta, shape: Shape | None = None, dtype: torch.dtype | None = None) -> Meta:
    """A batch of column-major matrices (`batched_matrix_contiguous_strides(shape, f_contig=true)`)."""
    shape = like.shape if shape is None else tuple(shape)
    rows = shape[-2] if shape[-2] > 1 else 1
    return Meta(shape, (*contiguous_stride(shape)[:-2], 1, rows), dtype or like.dtype, like.device)


def _integers(like: Meta, shape: Shape) -> Meta:
    return fresh(like, shape, torch.int32)


def _real(like: Meta, shape: Shape) -> Meta:
    return fresh(like, shape, like.dtype.to_real())


def _batch(first: Meta, second: Meta) -> tuple[int, ...]:
    return broadcast(first.shape[:-2], second.shape[:-2])


def _square(matrix: Meta, name: str) -> Meta:
    if matrix.ndim < 2:
        raise TypeRuleError(f"{name}: The input tensor A must have at least 2 dimensions.")
    if matrix.shape[-1] != matrix.shape[-2]:
        raise TypeRuleError(f"{name}: matrices of {matrix.shape[-2]!r} by {matrix.shape[-1]!r} are not square")
    return matrix


# Distances and products.


def _cdist(x1: Meta, x2: Meta) -> Meta:
    if x1.shape[-1] != x2.shape[-1]:
        raise TypeRuleError("X1 and X2 must have the same number of columns")
    return fresh(x1, (*_batch(x1, x2), x1.shape[-2], x2.shape[-2]))


def _cdist_backward(x1: Meta, x2: Meta) -> Meta:
    batch = _batch(x1, x2)
    if 0 in batch or 0 in x1.shape[-2:] or 0 in x2.shape[-2:]:
        return empty_like(x1)
    return fresh(x1, (*batch, *x1.shape[-2:]))


_THREES = Constraint(
    "C1", "both have three elements in the dimension", lambda self, other, dim: all(
        one.ndim == self.ndim and one.shape[wrap_dim(dim, one.ndim)] == 3 for one in (self, other)
    ),
    Refused("linalg_cross", (f32(5, 3), f32(5, 1))),
)  # fmt: skip


def _addbmm(self: Meta, batch1: Meta, batch2: Meta) -> Meta:
    if batch1.ndim != 3 or batch2.ndim != 3 or batch1.shape[::2] != batch2.shape[:2]:
        raise TypeRuleError(f"addbmm of {list(batch1.shape)} and {list(batch2.shape)}")
    shape = (batch1.shape[1], batch2.shape[2])
    if broadcast(self.shape, shape) != shape:
        raise TypeRuleError(f"addbmm: {list(self.shape)} does not expand to {list(shape)}")
    return fresh(self, shape)


def _trilinear(
    i1: Meta, i2: Meta, i3: Meta, expand1: Shape, expand2: Shape, expand3: Shape, sumdim: Shape
) -> Meta:  # fmt: skip
    rank = i1.ndim + len(expand1)
    shape = (1,) * rank
    for operand, inserted in ((i1, expand1), (i2, expand2), (i3, expand3)):
        sizes = iter(operand.shape)
        shape = broadcast(shape, tuple([1 if dim in inserted else next(sizes) for dim in range(rank)]))
    return fresh(i1, [size for dim, size in enumerate(shape) if dim not in sumdim])


def _matrix_exp(self: Meta) -> Meta:
    _square(self, "linalg.matrix_exp")
    if self.shape[-1] == 1:
        return pointwise((self,), self.dtype)  # eager takes exp
    return empty_like(self) if self.shape[-1] == 0 else fresh(self)


def _pinv(self: Meta, atol: Meta | None, rtol: Meta | None) -> Meta:
    """There may be a tolerance for each matrix of a batch, or several for one; those of empty ones are not read."""
    batch = self.shape[:-2]
    for tolerance in () if 0 in self.shape else (atol, rtol):
        batch = batch if tolerance is None else broadcast(batch, tolerance.shape)
    return fresh(self, (*batch, self.shape[-1], self.shape[-2]))


TABLE.rows({
    "_cdist_forward _euclidean_dist": _cdist,
    "_cdist_backward": _cdist_backward,
    "_pdist_forward": lambda self: fresh(self, (self.shape[0] * (self.shape[0] - 1) // 2 if self.shape[0] > 1 else 0,)),
    "_pdist_backward renorm": lambda self: fresh(self),
    "dist": lambda self, other: fresh(pointwise((self, other)), (), result_type((self, other)).to_real()),
    "linalg_cross": Rule(
        lambda self, other: fresh(self, broadcast(self.shape, other.shape), result_type((self, other))), (_THREES,)
    ),
    "addbmm": _addbmm,
    "_trilinear": _trilinear,
    "linalg_matrix_exp": _matrix_exp,
    "linalg_pinv.atol_rtol_tensor": _pinv,
})  # fmt: skip


# Factorisations.


def _svd(A: Meta, full_matrices: bool, compute_uv: bool) -> Metas:
    *batch, rows, columns = A.shape
    least = min(rows, columns)
    values = _real(A, (*batch, least))
    if not compute_uv:
        return fresh(A, (0,)), values, fresh(A, (0,))
    left = _by_columns(A, (*batch, rows, rows if full_matrices else least))
    return left, values, _by_columns(A, (*batch, columns if full_matrices else least, columns))


def _qr(A: Meta, mode: str) -> Metas:
    *batch, rows, columns = A.shape
    inner = rows if mode == "complete" else min(rows, columns)
    upper = _by_columns(A, (*batch, inner, columns))
    return (fresh(A, (0,)) if mode == "r" else _by_columns(A, (*batch, rows, inner))), upper


_REFLECTORS = Constraint(
    "C1", "there are at most as many reflectors as columns, and columns as rows, in batches of the same shape",
    lambda input, tau: (
        input.shape[-2] >= input.shape[-1] >= tau.shape[-1] and input.shape[:-2] == tau.shape[:-1]
    ),
    Refused("linalg_householder_product", (f32(3, 2), f32(3))),
)  # fmt: skip


def _is_multiplied(self: Meta, input2: Meta, input3: Meta, left: bool) -> bool:
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
_PIVOTS_FIT = Constraint(
    "C1", "there is a pivot for each row or column, whichever are fewer",
    lambda LU_data, LU_pivots, unpack_pivots: not unpack_pivots or LU_pivots.shape == (
        *LU_data.shape[:-2], min(LU_data.shape[-2:])
    ),
    Refused("lu_unpack", (f32(4, 4), _PIVOTS)),
)  # fmt: skip


def _unpacked(matrix: Meta, pivot: bool, unpack_data: bool = True) -> Metas:
    *batch, rows, columns = matrix.shape
    least = min(rows, columns)
    empty = fresh(matrix, (0,))
    permutation = fresh(matrix, (*batch, rows, rows)) if pivot else empty
    if not unpack_data:
        return permutation, empty, empty
    return permutation, fresh(matrix, (*batch, rows, least)), fresh(matrix, (*batch, least, columns))


def _lstsq(self: Meta, b: Meta, driver: str | None) -> Metas:
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
    return (
        Meta(shape, stride, self.dtype, self.device),
        _real(self, (*batch, right) if has_residuals else (0,)),
        fresh(self, (0,) if driver == "gels" else self.shape[:-2], torch.int64),
        _real(self, (*self.shape[:-2], min(rows, columns)) if by_singular_values else (0,)),
    )


TABLE.rows({
    "linalg_inv_ex": lambda A: (_by_columns(_square(A, "linalg.inv")), _integers(A, A.shape[:-2])),
    "linalg_cholesky_ex": lambda self: (
        _by_columns(_square(self, "linalg.cholesky")), _integers(self, self.shape[:-2])
    ),
    "_linalg_det": lambda A: (
        fresh(_square(A, "linalg.det"), A.shape[:-2]), _by_columns(A), _integers(A, A.shape[:-1])
    ),
    "_linalg_slogdet": lambda A: (
        fresh(_square(A, "linalg.slogdet"), A.shape[:-2]), _real(A, A.shape[:-2]), _by_columns(A),
        _integers(A, A.shape[:-1]),
    ),
    "_linalg_eigh": lambda A, compute_v: (
        _real(_square(A, "linalg.eigh"), A.shape[:-1]), _by_columns(A) if compute_v else fresh(A, (0,))
    ),
    "linalg_eig": lambda self: (
        fresh(self, self.shape[:-1], made := _square(self, "linalg.eig").dtype.to_real().to_complex()),
        _by_columns(self, dtype=made),
    ),
    "_linalg_svd": _svd,
    "linalg_qr": _qr,
    "geqrf": lambda self: (_by_columns(self), fresh(self, (*self.shape[:-2], min(self.shape[-2:])))),
    "linalg_householder_product": Rule(lambda input: _by_columns(input), (_REFLECTORS,)),
    "ormqr": Rule(lambda input3: _by_columns(input3), (_MULTIPLIED,)),
    "linalg_lu_factor_ex": lambda A: (
        _by_columns(A), _integers(A, (*A.shape[:-2], min(A.shape[-2:]))), _integers(A, A.shape[:-2])
    ),
    "linalg_lu": lambda A, pivot: _unpacked(A, pivot),
    "lu_unpack": Rule(
        lambda LU_data, unpack_pivots, unpack_data: _unpacked(LU_data, unpack_pivots, unpack_data), (_PIVOTS_FIT,)
    ),
    "linalg_ldl_factor_ex": lambda self: (
        _by_columns(_square(self, "linalg.ldl_factor")), _integers(self, self.shape[:-1]),
        _integers(self, self.shape[:-2]),
    ),
    "cholesky": lambda self: fresh(self) if 0 in _square(self, "cholesky").shape else _by_columns(self),
    "cholesky_inverse": lambda self: _by_columns(_square(self, "cholesky_inverse")),
    "linalg_lstsq": _lstsq,
})  # fmt: skip


# Solvers.


def _solution_shape(A: Meta, B: Meta, left: bool) -> tuple[int, ...]:
    batch = _batch(A, B)
    inner = B.shape[-2] if left else B.shape[-1]
    if A.shape[-1] != inner:
        raise TypeRuleError(f"linalg.solve: A of {list(A.shape)} does not fit B of {list(B.shape)}")
    return (*batch, *B.shape[-2:])


def _solve(A: Meta, B: Meta, left: bool) -> Metas:
    _square(A, "linalg.solve")
    # B is a vector, or a batch of them, where its shape is that of A without the last dimension.
    is_vector = B.ndim == 1 or (B.ndim + 1 == A.ndim and B.shape == A.shape[:-1])
    shape = (*broadcast(A.shape[:-2], B.shape[:-1]), A.shape[-1]) if is_vector else _solution_shape(A, B, left)
    result = _by_columns(B, shape) if left and len(shape) > 1 else fresh(B, shape)
    return result, _by_columns(A), _integers(A, A.shape[:-1]), _integers(A, A.shape[:-2])


_SQUARE_LU = Constraint(
    "C1", "LU is square, and of the size of B",
    lambda LU, B, left: LU.shape[-1] == LU.shape[-2] == (B.shape[-2] if left else B.shape[-1]),
    Refused("linalg_lu_solve", (f32(3, 2), _PIVOTS, f32(3, 1))),
)  # fmt: skip
_PIVOT_EACH = Constraint(
    "C2", "there is a pivot for each row", lambda LU, pivots: pivots.shape == LU.shape[:-1],
    Refused("linalg_lu_solve", (f32(4, 4), _PIVOTS, f32(4, 1))),
)  # fmt: skip
_TRIANGLE = Constraint(
    "C1", "A is square, and of the size of self", lambda self, A, /: A.shape[-1] == A.shape[-2] == self.shape[-2],
    Refused("triangular_solve", (f32(3, 1), f32(2, 2))),
)  # fmt: skip
_FACTOR = replace(
    _TRIANGLE,
    text="the factor is square, and of the size of self",
    refused=Refused("cholesky_solve", (f32(3, 1), f32(3, 2))),
)
_LDL = Constraint(
    "C1", "LD is square, of the size of B, with a pivot for each row",
    lambda LD, pivots, B: LD.shape[-1] == LD.shape[-2] == B.shape[-2] and pivots.shape == LD.shape[:-1],
    Refused("linalg_ldl_solve", (f32(4, 4), _PIVOTS, f32(4, 1))),
)  # fmt: skip
TABLE.rows({
    "_linalg_solve_ex": _solve,
    "linalg_lu_solve": Rule(
        lambda LU, B, left: (_by_columns if left else fresh)(B, (*_batch(LU, B), *B.shape[-2:])),
        (_SQUARE_LU, _PIVOT_EACH),
    ),
    "linalg_solve_triangular": lambda self, B, left: (
        _by_columns(self, _solution_shape(_square(self, "linalg.solve_triangular"), B, left))
    ),
    "triangular_solve": Rule(
        lambda self, A: tuple([_by_columns(one, (*_batch(self, A), *one.shape[-2:])) for one in (self, A)]),
        (_TRIANGLE,),
    ),
    "cholesky_solve": Rule(
        lambda self, input2: _by_columns(self, (*_batch(self, input2), *self.shape[-2:])), (_FACTOR,)
    ),
    "linalg_ldl_solve": Rule(lambda LD, B: _by_columns(B, (*_batch(LD, B), *B.shape[-2:])), (_LDL,)),
})  # fmt: skip
TABLE.ask(" ".join(name for name in TABLE if "_backward" not in name and "linalg_cross" not in name))
TABLE.ask("linalg_cross", Question(size=3))
