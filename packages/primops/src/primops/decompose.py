"""One ATen call decomposed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from primops.builder import Builder, Value
from primops.decompositions import VIEWS
from primops.decompositions.operands import Function
from primops.errors import Decline, DecompositionFault
from primops.prims.layouts import SUPPORTED, same_layout
from stagewire.types import NoneType, TensorType, ValueType


def decompose_call(
    p: Builder, function: Function, target: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[Value | None, ...]:
    """The results of an ATen call over `p`, whose `results` are their types.

    Raises `Decline` where the call must stay with ATen, `DecompositionFault` for a fault of the decomposition.
    """
    operands = _values(args)
    _refuse_dtypes(p, operands)
    if _is_empty(p.results):
        if any(_may_be_indices(value) for value in operands):
            raise Decline("no elements, and indices that ATen may refuse all the same")
        return tuple(p.full(t.shape, False if t.dtype == "bool" else 0, t.dtype) for t in p.results)  # type: ignore[union-attr]
    try:
        made = function(p, *args, **kwargs)
    except (Decline, DecompositionFault):
        raise
    except Exception as error:
        raise DecompositionFault(f"{target}: {type(error).__name__}: {error}") from error
    values = made if type(made) is tuple else (made,)
    if len(values) != len(p.results):
        raise DecompositionFault(f"{target}: {len(values)} results instead of {len(p.results)}")
    return tuple(
        [_finish(p, value, type, target, value in operands) for value, type in zip(values, p.results, strict=True)]
    )


def _finish(p: Builder, value: Value | None, type: ValueType, target: str, is_operand: bool) -> Value | None:
    """Check a result against its stated type; a fresh result that is an operand itself becomes a copy of it."""
    if isinstance(type, NoneType) or value is None:
        if value is None and isinstance(type, NoneType):
            return None
        raise DecompositionFault(f"{target}: a result is {value} where the call's type is {type}")
    if not isinstance(type, TensorType) or value.type.dtype != type.dtype or value.type.shape != type.shape:
        raise DecompositionFault(f"{target}: the result {value} has another type than the call's {type}")
    if not is_operand or (target in VIEWS and same_layout(type.shape, value.type.stride, type.stride)):
        return value
    return p.clone(value)


def _values(args: Any) -> list[Value]:
    found: list[Value] = []
    for a in args:
        if type(a) is Value:
            found.append(a)
        elif type(a) is tuple:
            found.extend(v for v in a if type(v) is Value)
    return found


def _is_empty(results: tuple[ValueType, ...]) -> bool:
    return bool(results) and all(type(t) is TensorType and 0 in t.shape for t in results)


def _may_be_indices(value: Value) -> bool:
    return value.dtype in ("int32", "int64") and 0 not in value.shape


def _refuse_dtypes(p: Builder, operands: list[Value]) -> None:
    for t in p.results:
        if type(t) is TensorType and t.dtype not in SUPPORTED:
            raise Decline(f"{t.dtype} has no prims")
    for value in operands:
        if type(value.type) is not TensorType or value.type.dtype not in SUPPORTED:
            raise Decline(f"{value.type} has no prims")
