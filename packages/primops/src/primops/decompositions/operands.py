"""Operands made ready for prims: one dtype, one shape, one device; dimensions wrapped; reductions kept or not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from primops.builder import Builder, Value
from primops.errors import Decline
from primops.passes.fold_constants import in_dtype
from primops.prims.layouts import FLOATS, HALVES, INTEGERS
from stagewire.expr import Dim, Expr
from stagewire.types import TensorType, numel

Function = Callable[..., Any]
Table = dict[str, Function]


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


def opmath(dtype: str) -> str:
    """The dtype in which eager computes elementwise on `dtype`."""
    return "float32" if dtype in HALVES else dtype


def convert(p: Builder, x: Value, dtype: str) -> Value:
    """x in `dtype`; no node if it is that already."""
    return x if x.type.dtype == dtype else p.convert_element_type(x, str(dtype))


def to_device(p: Builder, x: Value, device: str) -> Value:
    """x on `device`, by a copy through ATen where it is elsewhere."""
    from primops.builder import Device

    if x.type.device == device:
        return x
    moved = TensorType(x.type.dtype, x.shape, x.type.stride, 0, device)
    return p.extern("aten._to_copy.default", (x,), (moved,), {"device": Device(device)})[0]  # type: ignore[return-value]


def broadcast(p: Builder, x: Value, shape: Sequence[Dim]) -> Value:
    """x repeated to `shape`, its dimensions aligned to the right; no node if it has that shape."""
    shape = tuple(shape)
    if x.type.shape == shape:
        return x
    lead = len(shape) - x.rank
    return p.broadcast_in_dim(x, shape, tuple(range(lead, len(shape))))


def broadcast_shape(*shapes: tuple[Dim, ...]) -> tuple[Dim, ...]:
    """The common shape of operands that broadcast together."""
    rank = max(map(len, shapes))
    common: list[Dim] = []
    for i in range(-rank, 0):
        sizes = [s[i] for s in shapes if len(s) >= -i and s[i] != 1]
        common.append(sizes[0] if sizes else 1)
    return tuple(common)


def literal(x: Any, dtype: str) -> Any:
    """The Python number `x` as a literal for tensors of `dtype`; a size expression is an int."""
    kind = type(x)
    if kind is Expr and dtype != "bool":
        return x
    if kind is not int and kind is not float and kind is not bool:
        raise Decline(f"{x!r} is no literal")
    if dtype in FLOATS:
        return float(x)
    if dtype == "bool":
        return bool(x)
    if kind is float:
        raise Decline(f"the float {x} for {dtype}")
    return int(x)


def operand(p: Builder, x: Any, dtype: str, shape: tuple[Dim, ...], compute: str | None = None) -> Any:
    """x converted to `dtype` (then to `compute`, where eager computes), moved and broadcast; numbers stay literals."""
    if type(x) is not Value:
        # What computes in another dtype takes the number itself, what does not (a comparison) takes it as stored.
        stored = in_dtype(x, dtype) if compute is None and dtype in HALVES and type(x) is float else x
        return literal(x if stored is None else stored, compute or dtype)
    x = convert(p, to_device(p, x, p.out.device), dtype)
    if compute is not None:
        x = convert(p, x, compute)
    return broadcast(p, x, shape)


def filled(p: Builder, x: Any, dtype: str, shape: tuple[Dim, ...]) -> Value:
    """x as a tensor of `dtype` and `shape`, numbers too."""
    value = operand(p, x, dtype, shape)
    return value if type(value) is Value else p.full(shape, value, dtype)


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


def per_count(p: Builder, x: Value, shape: Sequence[Dim], dims: Sequence[int]) -> Value:
    """x divided by the number of elements over `dims` of `shape`; a symbolic number is known while running."""
    count = count_of(shape, dims)
    if isinstance(count, int):
        return p.div(x, float(count))
    total = convert(p, p.full((), count, "int64"), x.dtype)
    return p.div(x, broadcast(p, total, x.shape))


def reduced(p: Builder, prim: str, x: Value, dims: tuple[int, ...], keepdim: bool = False) -> Value:
    """A reduction prim over `dims`; dimensions kept as size 1 on request; no node over no dimensions."""
    out = getattr(p, prim)(x, dims) if dims else x
    return kept(p, out, x.shape, dims) if keepdim else out


def kept(p: Builder, x: Value, shape: Sequence[Dim], dims: Sequence[int]) -> Value:
    """A reduced value with size 1 in place of the dimensions that were reduced from `shape`."""
    return reshape(p, x, tuple(1 if i in dims else n for i, n in enumerate(shape)))


def spread(p: Builder, x: Value, shape: Sequence[Dim], dims: Sequence[int]) -> Value:
    """A value reduced over `dims` repeated back to `shape`."""
    if not dims:
        return broadcast(p, x, shape)
    return p.broadcast_in_dim(x, tuple(shape), tuple(i for i in range(len(shape)) if i not in dims))


def along(p: Builder, x: Value, shape: Sequence[Dim], dim: int) -> Value:
    """A vector repeated to `shape`, lying along `dim`."""
    return p.broadcast_in_dim(x, tuple(shape), (dim,))


def reshape(p: Builder, x: Value, shape: Sequence[Dim]) -> Value:
    """x under another shape; no node if it has that shape."""
    shape = tuple(shape)
    return x if x.type.shape == shape else p.reshape(x, shape)


def permute(p: Builder, x: Value, dims: Sequence[int]) -> Value:
    """x with its dimensions reordered; no node for the identity."""
    return x if tuple(dims) == tuple(range(x.rank)) else p.permute(x, tuple(dims))


def is_float(dtype: str) -> bool:
    return dtype in FLOATS


def is_integer(dtype: str) -> bool:
    return dtype in INTEGERS
