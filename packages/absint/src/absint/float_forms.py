"""Ops that are given open floats (`SizeFloat`), as ops on tensors: such a float is a double without dimensions.

    mul.Tensor(x, 1 / n)     mul.Tensor(x, number in the dtype of mul.Tensor(x, 0.5))
    fill_.Scalar(x, 1 / n)   copy_(x, fill.Tensor(x, number))

`number` is made by the mode (`AbstractMode.number`), in double precision, as Python computes. Precision and dtype of
the result are those that the op has with a Python float. Of an op that is not in the table the number is fixed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from absint.number_ranges import fixed_numbers, number_places
from absint.promote import ACC_DTYPE, float_dtype
from absint.symbolic.floats import SizeFloat
from absint.symbolic.size import unwrap

if TYPE_CHECKING:
    from torch._ops import OpOverload

    from absint.mode import AbstractMode

aten = torch.ops.aten
_FLOATS = frozenset((torch.SymFloat, SizeFloat))
# ATen computes these on halves with the number as it is, others with the number as a half.
_BY_NUMBERS = frozenset(("mul", "div", "floor_divide"))
_ARITHMETIC = _BY_NUMBERS | {"add", "sub", "rsub", "pow", "remainder", "fmod"}
_COMPARISONS = frozenset(("eq", "ne", "lt", "le", "gt", "ge"))
_CHOICES = frozenset(("where", "clamp", "clamp_min", "clamp_max", "fill", "masked_fill"))
_TAKES_TENSORS = _ARITHMETIC | _COMPARISONS | _CHOICES
_MAKES_TENSOR = frozenset(("full", "full_like", "new_full", "scalar_tensor"))
_OPERANDS = frozenset(("self", "other", "exponent", "value", "min", "max"))


def has_floats(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether an argument is an open float."""
    if not _FLOATS.isdisjoint(map(type, args)):
        return True
    return bool(kwargs) and not _FLOATS.isdisjoint(map(type, kwargs.values()))


def with_floats(mode: AbstractMode, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Answer an op with such arguments."""
    names = [argument.name for argument in func._schema.arguments[: len(args)]]
    given = {name: unwrap(value) for name, value in (*zip(names, args, strict=True), *kwargs.items())}
    stem = func._overloadpacket.__name__.removesuffix("_") if func.namespace == "aten" else ""
    has_form = stem in _TAKES_TENSORS or stem in _MAKES_TENSOR
    number_of = (lambda number: 0.5) if has_form else (lambda number: number.guard_float(__file__, 0))
    plain = {name: number_of(value) if type(value) is SizeFloat else value for name, value in given.items()}
    args, kwargs = tuple([plain.pop(name) for name in names]), plain
    with mode:
        if not has_form or not any(map(_is_open, given.values())):
            return func(*args, **kwargs)
        dtype = mode.result_types(mode.record(func), args, kwargs).dtype  # refuses what the op refuses
        fixed = fixed_numbers({name: given.get(name) for _, name in number_places(func)}, (dtype,))
        if fixed:
            given |= fixed
            return func(*[given.pop(name) for name in names], **given)
        if stem in _MAKES_TENSOR:
            memory, value = func(*args, **kwargs), next(filter(_is_open, given.values()))
            fill = aten.fill_.Tensor if func._schema.is_mutable else aten.fill.Tensor
            return fill(memory, _tensor(mode, value, memory.dtype, memory.device))
        made = _on_tensors(mode, stem, given, len(names), dtype)
        made = made if made.dtype is dtype else aten._to_copy.default(made, dtype=dtype)
        is_in_place = func._schema.is_mutable and "out" not in given
        return aten.copy_.default(given["self"], made) if is_in_place else made


def _is_open(value: Any) -> bool:
    return type(value) is SizeFloat


def _on_tensors(mode: AbstractMode, stem: str, given: dict[str, Any], positional: int, dtype: torch.dtype) -> Any:
    """The op of this name on its operands as tensors; arithmetic of halves is done in float32."""
    operands = {name: value for name, value in given.items() if name in _OPERANDS and value is not None}
    first = next(value for value in given.values() if isinstance(value, torch.Tensor))
    common = float_dtype(first.dtype) if stem in _COMPARISONS else dtype
    inner = ACC_DTYPE.get(common, common) if stem in _ARITHMETIC else common
    stored = inner if stem in _BY_NUMBERS else common

    def ready(value: Any) -> Any:
        return _tensor(mode, _tensor(mode, value, stored, first.device), inner, first.device)

    given = given | {name: ready(value) for name, value in operands.items()}
    if _is_open(given.get("alpha")):
        given["other"] = aten.mul.Tensor(given["other"], ready(given.pop("alpha")))
    args, kwargs = list(given.values())[:positional], dict(list(given.items())[positional:])
    return getattr(aten, stem)(*args, **kwargs)


def _tensor(mode: AbstractMode, value: Any, dtype: torch.dtype, device: torch.device) -> Any:
    """An operand in `dtype` (for complex ones: in theirs, where it is real)."""
    if dtype.is_complex and not (isinstance(value, torch.Tensor) and value.is_complex()):
        dtype = dtype.to_real()
    if _is_open(value):
        value = mode.number(value, device)
    elif not isinstance(value, torch.Tensor):
        return aten.full.default([], value, dtype=dtype, device=device)
    return value if value.dtype is dtype else aten._to_copy.default(value, dtype=dtype)
