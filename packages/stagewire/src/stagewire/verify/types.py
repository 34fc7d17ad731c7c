"""T1 to T4: types and literals, wherever they stand."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import msgspec

from stagewire.capture import Local
from stagewire.errors import ExprError
from stagewire.expr import Dim, Expr, polynomial_of, symbols_of
from stagewire.graph import DTypeArg, SourceLine
from stagewire.scanner import is_expression
from stagewire.types import DTYPES, ITEM_SIZE, TensorType, bytes_of, extent
from stagewire.verify.fault import Fault, Faults, Path

Symbols = frozenset[str] | None
"""The declared symbols; None where a document declares none anywhere."""


def check_parts(part: Any, symbols: Symbols, path: Path = ()) -> Faults:
    """T1 to T4 in a document, or a part of one, and in all that it holds."""
    pending = [(part, path)]
    while pending:
        part, path = pending.pop()
        inside: Iterable[tuple[str | int, Any]] = ()
        match part:
            case TensorType():
                yield from _check_type(part, symbols, path)
            case Expr():
                yield from _check_dim(part, symbols, path)
            case int() if not -(2**63) <= part < 2**64:
                yield Fault("T4", f"{part} does not fit into 64 bits", path)
            case float() if not math.isfinite(part):
                yield Fault("T4", f"{part} is written as NonFinite", path)
            case DTypeArg(name) if name not in DTYPES:
                yield Fault("T4", f"{name!r} is no dtype", path)
            case tuple():
                inside = enumerate(part)
            case dict():
                inside = part.items()
            case msgspec.Struct():
                inside = [(field, getattr(part, field)) for field in part.__struct_fields__]
        pending += [(one, (*path, step)) for step, one in inside if one and type(one) not in _PLAIN][::-1]


_PLAIN = frozenset((str, bytes, bool, SourceLine, Local))
"""What can break no such constraint, as nothing that is empty can."""


def _check_type(type: TensorType, symbols: Symbols, path: Path) -> Faults:
    if len(type.shape) != len(type.stride):
        yield Fault("T1", f"{len(type.shape)} sizes but {len(type.stride)} strides", path)
    for dim in (*type.shape, *type.stride, type.storage_offset):
        if isinstance(dim, Expr):
            yield from _check_dim(dim, symbols, path)
        elif dim < 0:
            yield Fault("T2", f"{dim} is negative", path)


def byte_size(type: TensorType) -> Dim | None:
    """The bytes of all elements; None where a size has no meaning (T3 reports it)."""
    try:
        return bytes_of(type)
    except ExprError:
        return None


def behind(window: TensorType, memory: TensorType) -> int | None:
    """The bytes of memory of known size that a window (a view) goes beyond; None where it lies inside."""
    if not is_laid_out(window) or not is_laid_out(memory) or 0 in window.shape:
        return None
    start = window.storage_offset * ITEM_SIZE[window.dtype] - memory.storage_offset * ITEM_SIZE[memory.dtype]
    size = bytes_reached(memory)
    return None if start >= 0 and start + bytes_reached(window) <= size else size  # type: ignore[operator]


def is_laid_out(type: TensorType) -> bool:
    """Whether sizes and strides are known numbers."""
    return type.is_static and len(type.shape) == len(type.stride)


def bytes_reached(type: TensorType) -> int:
    """How many bytes of memory a tensor that is laid out reaches over."""
    return extent(type) * ITEM_SIZE[type.dtype]  # type: ignore[return-value]


def _check_dim(dim: Expr, symbols: Symbols, path: Path) -> Faults:
    """T3."""
    if not _reads(dim.text):
        yield Fault("T3", f"{dim.text!r} is outside the grammar of sizes", path)
        return
    unknown = sorted(symbols_of(dim) - symbols) if symbols is not None else []
    if unknown:
        yield Fault("T3", f"{dim.text!r} uses the undeclared symbols {', '.join(unknown)}", path)


@lru_cache(maxsize=4096)
def _reads(text: str) -> bool:
    try:
        return is_expression(text) and polynomial_of(Expr(text)) is not None  # within the bounds of sizes
    except ExprError:
        return False
