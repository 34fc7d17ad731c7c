"""Whether numbers that are not known yet fit the dtype that ATen converts them to.

    x.fill_(n)          of int8: -128 <= n <= 127, a guard
    x.clamp(max=rate)   of float32: abs(rate) <= 3.4e38, an infinity or nan, a guard

Eager refuses a number that overflows. One that lies outside now is fixed instead, and ATen's kernel is asked about it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch

from absint.meta import Meta, leaves
from absint.promote import is_integral
from absint.symbolic.floats import Term
from absint.symbolic.size import is_unbacked, unwrap

if TYPE_CHECKING:
    from torch._ops import OpOverload

_NUMBER_TYPES = frozenset(("number", "Optional[number]"))
_OPEN = (torch.SymInt, torch.SymFloat)


@lru_cache(1 << 12)
def number_places(func: OpOverload) -> tuple[tuple[int, str], ...]:
    """Position and name of the arguments that are a `Scalar` to ATen (not a size, a dimension, a tensor)."""
    arguments = enumerate(func._schema.arguments)
    return tuple([(at, argument.name) for at, argument in arguments if str(argument.type) in _NUMBER_TYPES])


def fits(number: Any, dtype: torch.dtype) -> bool:
    """Whether an open number converts to `dtype` without overflow, from now on in all calls.

    True also where nothing can be asked: of a number that data decides, or that no guard can read.
    """
    number = unwrap(number)
    if isinstance(number, torch.SymInt):
        if dtype in _HOLDS_ANY_INT or is_unbacked(number):
            return True
        low, high = _range(dtype)
        return bool(number >= int(low) and number <= int(high))
    term, questions = number.node.term, number.node.env.questions
    if dtype in _HOLDS_ANY_FLOAT or not term.has_floats or number.node.is_unbacked or not questions.can_ask(term):
        return True
    low, high = _range(dtype)
    if is_integral(dtype):
        return bool(number >= low and number <= high)
    # One question, which infinities and nan pass: nan // x is nan, and so is inf // x.
    overflow = Term("number", (math.nextafter(high, math.inf),))
    return not questions.ask(Term("floordiv", (Term("abs", (term,)), overflow)), float.__gt__, 0.0)


def fixed_numbers(numbers: Mapping[str, Any], dtypes: Iterable[torch.dtype]) -> dict[str, Any]:
    """By name, as they are now, those of `numbers` that are open and do not fit one of `dtypes`."""
    return {
        name: int(number) if isinstance(number, torch.SymInt) else float(number)
        for name, number in numbers.items()
        if isinstance(number, _OPEN) and not all(fits(number, dtype) for dtype in dtypes)
    }


def checked_numbers(func: OpOverload, rule: Callable[..., Any]) -> Callable[..., Any]:
    """The rule of an overload, behind which its open numbers fit the dtypes of its results."""
    places = number_places(func)
    if not places:
        return rule

    def call(*args: Any, **kwargs: Any) -> Any:
        made = rule(*args, **kwargs)
        given = {name: args[at] if at < len(args) else kwargs.get(name) for at, name in places}
        dtypes = {leaf.dtype for leaf in leaves(made) if isinstance(leaf, Meta)}
        fixed = fixed_numbers(given, dtypes)
        if not fixed:
            return made
        # ATen's kernel is asked about the numbers that they are now.
        names = [argument.name for argument in func._schema.arguments]
        args = tuple([fixed.get(name, value) for name, value in zip(names, args, strict=False)])
        return rule(*args, **{name: fixed.get(name, value) for name, value in kwargs.items()})

    return call


_HOLDS_ANY_FLOAT = frozenset((torch.float64, torch.complex128, torch.bool))
_HOLDS_ANY_INT = _HOLDS_ANY_FLOAT | {torch.int64, torch.float32, torch.bfloat16, torch.complex64}
# (The largest double below 2**63.)
_LARGEST_LONG = float(2**63 - 1024)


def _range(dtype: torch.dtype) -> tuple[float, float]:
    """The least and the largest number of a dtype."""
    if dtype is torch.bool:
        return 0, 1
    if dtype.is_floating_point or dtype.is_complex:
        limits = torch.finfo(dtype)
        return limits.min, limits.max
    limits = torch.iinfo(dtype)
    return float(limits.min), min(float(limits.max), _LARGEST_LONG)
