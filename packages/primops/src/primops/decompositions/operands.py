"""Arguments of decompositions: shapes that broadcast, dimensions wrapped, counts, dtypes promoted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import Any

import torch

from absint import promote
from absint.meta import Meta
from primops.builder import Builder, Value
from primops.errors import Decline
from primops.prims.layouts import FLOATS
from stagewire.expr import Dim, Expr
from stagewire.types import TensorType, numel

Function = Callable[..., Any]
Table = dict[str, Function]


def by_name(*functions: Function) -> Table:
    """Decompositions that are called as their ops are: `aten.<name>.default`."""
    return {f"aten.{function.__name__}.default": function for function in functions}


def first_of(*functions: Function) -> Function:
    """The first decomposition that does not decline; what a declining one has emitted is dead."""

    def decomposition(p: Builder, *args: Any, **kwargs: Any) -> Any:
        for function in functions[:-1]:
            try:
                return function(p, *args, **kwargs)
            except Decline:
                continue
        return functions[-1](p, *args, **kwargs)

    return decomposition


def elementwise(compute: Function) -> Function:
    """An ATen op that is `compute` on its tensors, in the result's dtype; what else it takes goes there as it is."""

    @wraps(compute)
    def decomposition(p: Builder, *arguments: Any, **keywords: Any) -> Value:
        tensors = [a for a in arguments if type(a) is Value]
        others = [a for a in arguments if type(a) is not Value]
        return p.pointwise(lambda p, *xs: compute(p, *xs, *others, **keywords), *tensors)

    return decomposition


def broadcast_shape(*shapes: tuple[Dim, ...]) -> tuple[Dim, ...]:
    """The common shape of operands that broadcast together."""
    rank = max(map(len, shapes))
    common: list[Dim] = []
    for i in range(-rank, 0):
        sizes = [s[i] for s in shapes if len(s) >= -i and s[i] != 1]
        common.append(sizes[0] if sizes else 1)
    return tuple(common)


def wrap(dim: int, rank: int) -> int:
    """A dimension number in 0..rank-1; scalars count as rank 1."""
    return dim + max(rank, 1) if dim < 0 else dim


def wrap_all(dims: int | Sequence[int] | None, rank: int) -> tuple[int, ...]:
    """Dimension numbers wrapped and sorted; None or none at all mean every dimension."""
    if dims is None or (not isinstance(dims, int) and len(dims) == 0):
        return tuple(range(rank))
    if isinstance(dims, int):
        dims = (dims,)
    return () if rank == 0 else tuple(sorted({wrap(d, rank) for d in dims}))


def count_of(shape: Sequence[Dim], dims: Sequence[int]) -> Dim:
    """The number of elements over `dims`."""
    return numel(tuple(shape[d] for d in dims))


def literal_count(shape: Sequence[Dim], dims: Sequence[int]) -> int:
    """The same as a literal; a symbolic count is declined."""
    count = count_of(shape, dims)
    if not isinstance(count, int):
        raise Decline(f"the count {count} is symbolic")
    return count


def is_float(dtype: str) -> bool:
    return dtype in FLOATS


def result_type(operands: Iterable[Any]) -> str:
    """The common dtype of tensors (anything with `.type`) and Python numbers: `absint.promote`."""
    seen = [0 if isinstance(x, Expr) else x if isinstance(x, int | float) else _meta(x.type) for x in operands]
    return str(promote.result_type(seen)).removeprefix("torch.")


def _meta(type: TensorType) -> Meta:
    return Meta(type.shape, (), getattr(torch, type.dtype))  # type: ignore[arg-type]
