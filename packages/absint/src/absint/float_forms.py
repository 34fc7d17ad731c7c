"""Ops that are given floats computed of symbolic sizes, as ops on tensors without dimensions.

    mul.Tensor(x, 1 / n)     mul.Tensor(x, number)._to_copy(dtype of mul.Tensor(x, 0.5))
    fill_.Scalar(x, 1 / n)   fill_.Tensor(x, number)

`number` is made by the mode (`AbstractMode.number`), in double precision, as Python computes. Precision and dtype of
the result are those that the op has with a Python float. An op that is not in the table takes the number of this call:
the sizes in it are fixed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from absint.symbolic.floats import SizeFloat
from absint.symbolic.size import unwrap

if TYPE_CHECKING:
    from torch._ops import OpOverload

    from absint.mode import AbstractMode

aten = torch.ops.aten
_FLOATS = frozenset((torch.SymFloat, SizeFloat))
_HALVES = frozenset((torch.float16, torch.bfloat16))


def has_floats(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether an argument is a float that was computed of sizes."""
    if not _FLOATS.isdisjoint(map(type, args)):
        return True
    return bool(kwargs) and not _FLOATS.isdisjoint(map(type, kwargs.values()))


def with_floats(mode: AbstractMode, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Answer an op with such arguments."""
    args, kwargs = tuple(map(_unwrapped, args)), {key: _unwrapped(value) for key, value in kwargs.items()}
    form = _FORMS.get(func._overloadpacket) if has_floats(args, kwargs) else None
    with mode:
        if form is None:
            return func(*map(_fixed, args), **{key: _fixed(value) for key, value in kwargs.items()})
        return form(mode, func, *args, **kwargs)


def _unwrapped(value: Any) -> Any:
    return unwrap(value) if type(value) is torch.SymFloat else value


def _fixed(value: Any) -> Any:
    return value.guard_float(__file__, 0) if type(value) is SizeFloat else value


def _as_if(mode: AbstractMode, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.dtype:
    """The dtype of the result, by the type rule of the op with plain floats; refuses what the op refuses."""
    record = mode.record(func)
    plain = tuple([0.5 if type(arg) is SizeFloat else arg for arg in args])
    named = {key: 0.5 if type(value) is SizeFloat else value for key, value in kwargs.items()}
    found: torch.dtype = mode.result_types(record, plain, named).dtype
    return found


def _tensor(mode: AbstractMode, value: Any, dtype: torch.dtype, device: torch.device) -> Any:
    """An operand in `dtype` (for complex ones: in theirs, where it is real)."""
    if dtype.is_complex and not (isinstance(value, torch.Tensor) and value.is_complex()):
        dtype = dtype.to_real()
    if isinstance(value, torch.Tensor):
        return value if value.dtype is dtype else aten._to_copy.default(value, dtype=dtype)
    if type(value) is SizeFloat:
        made = mode.number(value, device)
        return made if dtype is torch.float64 else aten._to_copy.default(made, dtype=dtype)
    return aten.full.default([], value, dtype=dtype, device=device)


# ATen computes these on halves with the number as it is, the others with the number as a half.
_OF_WHOLE_NUMBERS = frozenset(("mul", "div", "remainder", "fmod", "floor_divide"))


def _operand(mode: AbstractMode, value: Any, stored: torch.dtype, inner: torch.dtype, device: torch.device) -> Any:
    """An operand in `inner`, rounded to `stored` before."""
    made = _tensor(mode, value, stored, device)
    return made if stored is inner else _tensor(mode, made, inner, device)


def _arithmetic(mode: AbstractMode, func: OpOverload, *args: Any, alpha: Any = 1, **kwargs: Any) -> Any:
    """Binary operators: halves are computed in float32, and the result is rounded."""
    left, right = args[:2]
    alpha = args[2] if len(args) > 2 else alpha
    device = next(arg.device for arg in args if isinstance(arg, torch.Tensor))
    rest = {} if type(alpha) is int and alpha == 1 else {"alpha": alpha}
    dtype = _as_if(mode, func, (left, right), {**kwargs, **rest})
    inner = torch.float32 if dtype in _HALVES else dtype
    name = func._overloadpacket.__name__.removesuffix("_")
    stored = inner if name in _OF_WHOLE_NUMBERS else dtype
    first, second = (_operand(mode, side, stored, inner, device) for side in (left, right))
    if name == "rsub":
        name, first, second = "sub", second, first
    if rest:
        second = aten.mul.Tensor(second, _operand(mode, alpha, stored, inner, device))
    made = getattr(aten, name)(first, second, **kwargs)
    return _written(func, left, made if made.dtype is dtype else aten._to_copy.default(made, dtype=dtype))


def _written(func: OpOverload, target: Any, made: Any) -> Any:
    """What an op that writes into its first argument returns."""
    return aten.copy_.default(target, made) if func._schema.is_mutable else made


def _comparison(mode: AbstractMode, func: OpOverload, left: Any, right: Any) -> Any:
    _as_if(mode, func, (left, right), {})
    keeps = left.dtype.is_floating_point or left.dtype.is_complex
    inner = left.dtype if keeps else torch.get_default_dtype()
    first, second = (_tensor(mode, side, inner, left.device) for side in (left, right))
    made = getattr(aten, func._overloadpacket.__name__.removesuffix("_")).Tensor(first, second)
    return _written(func, left, made)


def _filled(mode: AbstractMode, func: OpOverload, *args: Any, **kwargs: Any) -> Any:
    """full, full_like, new_full: memory that is filled."""
    packet = func._overloadpacket
    *given, value = args
    kwargs = {key: option for key, option in kwargs.items() if option is not None}
    empty = {aten.full: aten.empty.memory_format, aten.full_like: aten.empty_like.default}.get(
        packet, aten.new_empty.default
    )
    memory = empty(*given, **kwargs)
    return aten.fill.Tensor(memory, _tensor(mode, value, memory.dtype, memory.device))


def _fill(mode: AbstractMode, func: OpOverload, target: Any, *args: Any) -> Any:
    """fill, masked_fill: the value in the dtype of the tensor."""
    _as_if(mode, func, (target, *args), {})
    value = _tensor(mode, args[-1], target.dtype, target.device)
    return func._overloadpacket.Tensor(target, *args[:-1], value)


def _where(mode: AbstractMode, func: OpOverload, condition: Any, left: Any, right: Any) -> Any:
    dtype = _as_if(mode, func, (condition, left, right), {})
    sides = [_tensor(mode, side, dtype, condition.device) for side in (left, right)]
    return aten.where.self(condition, *sides)


def _clamp(mode: AbstractMode, func: OpOverload, target: Any, *bounds: Any, **named: Any) -> Any:
    dtype = _as_if(mode, func, (target, *bounds), named)
    name = func._overloadpacket.__name__.removesuffix("_")
    device = target.device
    made = _tensor(mode, target, dtype, device)
    values = [None if bound is None else _tensor(mode, bound, dtype, device) for bound in bounds]
    options = {key: None if bound is None else _tensor(mode, bound, dtype, device) for key, bound in named.items()}
    return _written(func, target, getattr(aten, name).Tensor(made, *values, **options))


def _table() -> dict[Any, Callable[..., Any]]:
    names: dict[Callable[..., Any], str] = {
        _arithmetic: "add sub rsub mul div pow remainder fmod floor_divide",
        _comparison: "eq ne lt le gt ge",
        _fill: "fill masked_fill",
        _clamp: "clamp clamp_min clamp_max",
    }
    table: dict[Any, Callable[..., Any]] = {
        aten.full: _filled, aten.full_like: _filled, aten.new_full: _filled, aten.where: _where,
        aten.scalar_tensor: lambda mode, func, value, *, dtype=None, device=None, **_: aten._to_copy.default(
            mode.number(value, device or torch.device("cpu")), dtype=dtype or torch.get_default_dtype()
        ),
    }  # fmt: skip
    for form, stems in names.items():
        for stem in stems.split():
            table |= {getattr(aten, name): form for name in (stem, f"{stem}_") if hasattr(aten, name)}
    return table


_FORMS = _table()
