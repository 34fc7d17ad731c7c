"""T1 to T4: types and literals, wherever they stand."""

from __future__ import annotations

import math
from functools import lru_cache

from stagewire.errors import ExprError
from stagewire.expr import Dim, Expr, polynomial_of, symbols_of
from stagewire.graph import Arg, Complex, Dict, DTypeArg, List, Slice, Tuple
from stagewire.scanner import is_expression
from stagewire.types import DTYPES, TensorType, ValueType, bytes_of
from stagewire.verify.fault import Fault, Faults, Path

Symbols = frozenset[str] | None
"""The declared symbols; None where a document declares none anywhere."""


def check_type(type: ValueType, symbols: Symbols, path: Path) -> Faults:
    if not isinstance(type, TensorType):
        return
    if len(type.shape) != len(type.stride):
        yield Fault("T1", f"{len(type.shape)} sizes but {len(type.stride)} strides", path)
    for dim in (*type.shape, *type.stride, type.storage_offset):
        if isinstance(dim, int) and dim < 0:
            yield Fault("T2", f"{dim} is negative", path)
        yield from check_dim(dim, symbols, path)


def byte_size(type: TensorType) -> Dim | None:
    """The bytes of all elements; None where a size has no meaning (T3 reports it)."""
    try:
        return bytes_of(type)
    except ExprError:
        return None


def check_dim(dim: Dim, symbols: Symbols, path: Path) -> Faults:
    """T3."""
    if isinstance(dim, int):
        return
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


def check_arg(arg: Arg, symbols: Symbols, path: Path) -> Faults:
    """T3 and T4 in an argument and all that it holds."""
    match arg:
        case Expr():
            yield from check_dim(arg, symbols, path)
        case int() if not -(2**63) <= arg < 2**64:
            yield Fault("T4", f"{arg} does not fit into 64 bits", path)
        case float() if not math.isfinite(arg):
            yield Fault("T4", f"{arg} is written as NonFinite", path)
        case Complex(real, imag):
            yield from check_arg(real, symbols, path)
            yield from check_arg(imag, symbols, path)
        case DTypeArg(name) if name not in DTYPES:
            yield Fault("T4", f"{name!r} is no dtype", path)
        case Tuple(items) | List(items):
            for item in items:
                yield from check_arg(item, symbols, path)
        case Dict(items):
            for _, item in items:
                yield from check_arg(item, symbols, path)
        case Slice(start, stop, step):
            for item in (start, stop, step):
                yield from check_arg(item, symbols, path)
        case _:
            return
