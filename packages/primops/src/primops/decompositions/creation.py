"""Tensors from nothing. Uninitialised ones are zeros: the same values in every run."""

from __future__ import annotations

from typing import Any

from primops.builder import Builder, Value, literal, opmath
from primops.decompositions.operands import Table, by_name
from primops.errors import Decline
from primops.prims.layouts import FLOATS
from stagewire.expr import Expr


def _filled(value: Any) -> Any:
    """zeros, ones, empty and their like; the result type has shape and dtype."""
    return lambda p, *_, **__: p.full(p.out.shape, literal(value, p.out.dtype), p.out.dtype)


def full(p: Builder, *arguments: Any, **_: Any) -> Value:
    """full and its like: the number comes last, the result type has shape and dtype."""
    return p.full(p.out.shape, _number(arguments[-1], p.out.dtype), p.out.dtype)


def _number(value: Any, dtype: str) -> Any:
    if dtype not in FLOATS and dtype != "bool" and type(value) is float:
        if value != value or value in (float("inf"), float("-inf")):
            raise Decline(f"{value} for {dtype}")
        value = int(value)
    return literal(value, dtype)


def arange(p: Builder, *arguments: Any, **_: Any) -> Value:
    """arange(end), arange(start, end), arange(start, end, step)."""
    start = arguments[0] if len(arguments) > 1 else 0
    step = arguments[2] if len(arguments) > 2 else 1
    dtype = p.out.dtype
    if dtype not in FLOATS:
        # eager truncates each float argument before it counts
        start, step = (x if type(x) is Expr else int(x) for x in (start, step))
    return p.iota(p.out.shape[0], start, step, dtype)


def linspace(p: Builder, start: Any, end: Any, steps: int, **_: Any) -> Value:
    """From both ends towards the middle, as eager, so that the last element is `end` exactly."""
    dtype = p.out.dtype
    if dtype not in FLOATS or type(start) not in (int, float) or type(end) not in (int, float):
        raise Decline(f"linspace of {dtype}")
    inner = opmath(dtype)
    if steps == 1:
        return p.full((1,), float(start), dtype)
    index = p.iota(steps, 0, 1, inner)
    step = (float(end) - float(start)) / (steps - 1)
    rising = p.add(p.mul(index, step), float(start))
    falling = p.sub(float(end), p.mul(p.sub(float(steps - 1), index), step))
    return p.convert(p.where(p.lt(index, float(steps // 2)), rising, falling), dtype)


def eye(p: Builder, n: int, m: int | None = None, **_: Any) -> Value:
    shape = p.out.shape
    row = p.broadcast_in_dim(p.iota(shape[0], 0, 1, "int64"), shape, (0,))
    column = p.broadcast_in_dim(p.iota(shape[1], 0, 1, "int64"), shape, (1,))
    return p.convert(p.eq(row, column), p.out.dtype)


TABLE: Table = {
    **{f"aten.{n}.default": _filled(0) for n in ("zeros", "zeros_like", "new_zeros", "_efficientzerotensor")},
    **{f"aten.{n}.default": _filled(1) for n in ("ones", "ones_like", "new_ones")},
    **{
        f"aten.{n}": _filled(0)
        for n in (
            "empty.memory_format", "empty_like.default", "new_empty.default", "empty_strided.default",
            "new_empty_strided.default", "empty_permuted.default", "zero.default",
        )
    },
    **{f"aten.{n}.default": full for n in ("full", "new_full", "full_like", "scalar_tensor")},
    **{f"aten.arange.{o}": arange for o in ("default", "start", "start_step")},
    **by_name(linspace, eye),
    "aten.eye.m": eye,
}  # fmt: skip
