"""Products of matrices and vectors as sums of products, where that is at least as fast as a library's product.

Those of depth 1 have no sum. A vector, or one row of a matrix, uses each element of the other operand once, so that
its time is that of reading this: a kernel that multiplies and adds up reads as fast, and fuses with its neighbours.
So does a kernel of few rows in half precision, a tile of the GPU's tensor cores, where the other operand is large.
Products of one row are left to ATen on CPUs, where the executor calls the library itself.
"""

from __future__ import annotations

from typing import Any

from primops.builder import Builder, Value, opmath
from primops.decompositions.operands import Table
from primops.errors import Decline
from primops.prims.layouts import FLOATS
from stagewire.expr import Dim
from stagewire.literals import HALVES


def addr(p: Builder, x: Value, left: Value, right: Value, beta: Any = 1, alpha: Any = 1) -> Value:
    """beta * x + alpha * outer(left, right)."""
    dtype = p.out.dtype
    column = p.reshape(p.convert(left, dtype), (*left.shape, 1))
    row = p.reshape(p.convert(right, dtype), (1, *right.shape))
    return _product(p, column, row, x, beta, alpha)


def added_matrices(p: Builder, x: Value | None, left: Value, right: Value, beta: Any = 1, alpha: Any = 1) -> Value:
    """beta * x + alpha * left @ right, of matrices or batches of them."""
    _expect_few_rows(p, left)
    return _product(p, left, right, x, beta, alpha)


def matrix_and_vector(p: Builder, left: Value, right: Value) -> Value:
    """left @ right, where right is a vector."""
    return p.reshape(_product(p, left, _column(p, right)), p.out.shape)


def added_matrix_and_vector(p: Builder, x: Value, left: Value, right: Value, beta: Any = 1, alpha: Any = 1) -> Value:
    """beta * x + alpha * left @ right, where right is a vector."""
    shape = p.out.shape
    if left.shape[:1] != shape:
        raise Decline("one number, and a matrix without rows")
    return p.reshape(_product(p, left, _column(p, right), _column(p, p.broadcast(x, shape)), beta, alpha), shape)


def _column(p: Builder, x: Value) -> Value:
    return p.reshape(x, (*x.shape, 1))


FEW_ROWS = 16
"""Of half precision: those of the tensor cores' smallest tile."""
LEAST_SIDE = 64
"""Elements of a row and of a column of the other operand: smaller products are ATen's."""


def _expect_few_rows(p: Builder, left: Value) -> None:
    sizes = rows, columns, depth = *p.out.shape[-2:], left.shape[-1]
    if depth == 1:
        return
    if not p.out.device.startswith("cuda"):
        raise Decline("more than a column on a CPU")
    if 1 in (rows, columns):
        return
    if p.out.dtype not in HALVES or not all(isinstance(size, int) for size in sizes):
        raise Decline("more than a row")
    few, many = sorted((rows, columns))
    if few > FEW_ROWS or min(many, depth) < LEAST_SIDE:
        raise Decline("more than a few rows")


def _product(p: Builder, left: Value, right: Value, added: Value | None = None, beta: Any = 1, alpha: Any = 1) -> Value:
    """alpha * left @ right + beta * added: (*batch, rows, depth) @ (*batch, depth, columns)."""
    if p.out.dtype not in FLOATS:
        raise Decline(p.out.dtype)
    inner = opmath(p.out.dtype)
    *batch, rows, depth = left.shape
    columns = right.shape[-1]
    result: tuple[Dim, ...] = (*batch, rows, columns)
    left, right = p.convert(left, inner), p.convert(right, inner)
    if depth == 1:
        total = p.mul(p.broadcast(left, result), p.broadcast(right, result))
    else:
        last = len(batch)
        places = tuple(range(last))
        left = p.broadcast_in_dim(left, (*result, depth), (*places, last, last + 2))
        right = p.permute(right, (*places, last + 1, last))
        total = p.sum(
            p.mul(left, p.broadcast_in_dim(right, (*result, depth), (*places, last + 1, last + 2))), (last + 2,)
        )
    total = total if alpha == 1 else p.mul(total, float(alpha))
    if added is not None and beta != 0:
        kept = p.operand(added, p.out.dtype, result, inner)
        total = p.add(kept if beta == 1 else p.mul(kept, float(beta)), total)
    return p.convert(total, p.out.dtype)


TABLE: Table = {
    "aten.addr.default": addr,
    **{f"aten.{name}.default": lambda p, left, right: added_matrices(p, None, left, right) for name in ("mm", "bmm")},
    **{f"aten.{name}.default": added_matrices for name in ("addmm", "baddbmm")},
    **{
        f"aten.{name}.default": lambda p, x, y: matrix_and_vector(p, p.reshape(x, (1, *x.shape)), y)
        for name in ("dot", "vdot")
    },
    "aten.mv.default": matrix_and_vector,
    "aten.addmv.default": added_matrix_and_vector,
}
