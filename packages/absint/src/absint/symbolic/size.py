"""`Size`: a symbolic size as Python code sees it.

It is a `torch.SymInt`, so that torch takes it wherever it takes a size, and it computes like an int: comparisons give
real bools, because what cannot be known is assumed by the hint and noted (`ShapeEnv`). Whatever needs the number itself
(`int(n)`, `range(n)`, an index) gets it, and the size is fixed from then on. Code that knows nothing of symbols is
therefore right on them, if less general.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch

from absint.symbolic import polynomial
from absint.symbolic.nodes import SizeNode
from absint.symbolic.polynomial import Polynomial, constant
from absint.symbolic.shape_env import ShapeEnv
from stagewire.expr import Dim

__all__ = ["Size", "dim_of", "hint_of", "is_symbolic", "is_unknown", "make_size", "size_of", "surely_equal", "unwrap"]


class Size(torch.SymInt):
    """An integer expression over size symbols.

    >>> env = ShapeEnv()
    >>> n = make_size(env, env.create("s0", hint=8))
    >>> n * 2 + 1, n == 1, n > 4, int(n)
    (2*s0 + 1, False, True, 8)
    >>> [f"{r.left} {r.operator} {r.right}" for r in env.relations]
    ['s0 >= 5', 's0 == 8']
    """

    node: SizeNode

    def __init__(self, node: SizeNode) -> None:
        self.node = node

    def __repr__(self) -> str:
        return str(self.node)

    def __hash__(self) -> int:
        return hash(self.node.hint)  # equal sizes are worth the same

    def __bool__(self) -> bool:
        node = self.node
        return not node.env.is_zero(node._value)

    def __int__(self) -> int:
        return self.node.int_()

    def __index__(self) -> int:
        return self.node.int_()

    def __float__(self) -> float:
        return float(self.node.int_())

    def __round__(self, ndigits: int | None = None) -> Any:
        return self

    __pos__ = __trunc__ = __floor__ = __ceil__ = __round__

    def __neg__(self) -> Any:
        return make_size(self.node.env, -self.node.value)

    def __invert__(self) -> Any:
        return -self - 1

    def __abs__(self) -> Any:
        return self if self >= 0 else -self

    def __format__(self, spec: str) -> str:
        return format(int(self), spec)

    def __add__(self, other: Any) -> Any:
        return _combine(self, other, Polynomial.__add__, operator.add)

    def __radd__(self, other: Any) -> Any:
        return _combine(self, other, Polynomial.__add__, operator.add)

    def __sub__(self, other: Any) -> Any:
        return _combine(self, other, Polynomial.__sub__, operator.sub)

    def __rsub__(self, other: Any) -> Any:
        return _combine(self, other, lambda a, b: b - a, _swapped(operator.sub))

    def __mul__(self, other: Any) -> Any:
        return _combine(self, other, Polynomial.__mul__, operator.mul)

    def __rmul__(self, other: Any) -> Any:
        return _combine(self, other, Polynomial.__mul__, operator.mul)

    def __floordiv__(self, other: Any) -> Any:
        return _combine(self, other, self.node.env.divide, operator.floordiv)

    def __rfloordiv__(self, other: Any) -> Any:
        env = self.node.env
        return _combine(self, other, lambda a, b: env.divide(b, a), _swapped(operator.floordiv))

    def __mod__(self, other: Any) -> Any:
        return _combine(self, other, self.node.env.remainder, operator.mod)

    def __rmod__(self, other: Any) -> Any:
        env = self.node.env
        return _combine(self, other, lambda a, b: env.remainder(b, a), _swapped(operator.mod))

    def __pow__(self, other: Any) -> Any:
        if type(other) is int and other >= 0:
            return make_size(self.node.env, polynomial.power(self.node.value, other))
        return int(self) ** unwrap_number(other)

    def __rpow__(self, other: Any) -> Any:
        return unwrap_number(other) ** int(self)

    def __truediv__(self, other: Any) -> Any:
        return NotImplemented if not _is_number(other) else int(self) / unwrap_number(other)

    def __rtruediv__(self, other: Any) -> Any:
        return NotImplemented if not _is_number(other) else unwrap_number(other) / int(self)

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def __eq__(self, other: object) -> bool:
        if isinstance(other, float) and other.is_integer():
            other = int(other)
        gap = _gap(self, other)
        return False if gap is None else self.node.env.is_zero(gap)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __ge__(self, other: Any) -> bool:
        gap = _gap(self, other)
        return int(self) >= other if gap is None else self.node.env.is_nonnegative(gap)

    def __le__(self, other: Any) -> bool:
        gap = _gap(self, other)
        return int(self) <= other if gap is None else self.node.env.is_nonnegative(-gap)

    def __lt__(self, other: Any) -> bool:
        return not self >= other

    def __gt__(self, other: Any) -> bool:
        return not self <= other

    def __sym_max__(self, other: Any) -> Any:
        return _combine(self, other, self.node.env.largest, max)

    def __sym_min__(self, other: Any) -> Any:
        return _combine(self, other, self.node.env.smallest, min)


for _name in ("and_", "or_", "xor", "lshift", "rshift"):
    _host: Callable[[Any, Any], Any] = getattr(operator, _name)
    _stem = _name.rstrip("_")
    setattr(Size, f"__{_stem}__", lambda self, other, host=_host: host(int(self), unwrap_number(other)))
    setattr(Size, f"__r{_stem}__", lambda self, other, host=_host: host(unwrap_number(other), int(self)))


def _swapped(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda left, right: function(right, left)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float, complex, torch.SymInt))


def unwrap_number(value: Any) -> Any:
    """A plain Python number."""
    return int(value) if isinstance(value, torch.SymInt) else value


def _polynomial(value: object) -> Polynomial | None:
    """What an int or a size is in polynomials, else None."""
    if isinstance(value, int):
        return constant(int(value))
    if isinstance(value, torch.SymInt) and isinstance(value.node, SizeNode):
        return value.node.value
    return None


def _combine(
    size: Size,
    other: Any,
    symbolic: Callable[[Polynomial, Polynomial], Polynomial],
    host: Callable[[Any, Any], Any],
) -> Any:
    second = _polynomial(other)
    if second is None:
        return host(int(size), other) if _is_number(other) else NotImplemented
    return make_size(size.node.env, symbolic(size.node.value, second))


def _gap(size: Size, other: object) -> Polynomial | None:
    second = _polynomial(other)
    return None if second is None else size.node.value - second


def make_size(env: ShapeEnv, value: Polynomial) -> Any:
    """The polynomial as a Python number: an int where it is one."""
    value = env.reduce(value)
    number = value.number
    return Size(SizeNode(env, value)) if number is None else number


def size_of(node: SizeNode) -> Any:
    """The Python number of a node."""
    return make_size(node.env, node._value)


def unwrap(value: Any) -> Any:
    """What C++ hands out for a size, as an int or a `Size`; a float that was computed of sizes is fixed."""
    if isinstance(value, torch.SymFloat):
        return value.node.guard_float("", 0)
    return size_of(value.node) if isinstance(value, torch.SymInt) and isinstance(value.node, SizeNode) else value


def is_symbolic(value: object) -> bool:
    """Whether it is a size that is no plain int."""
    return isinstance(value, torch.SymInt)


def is_unknown(value: object) -> bool:
    """Whether data decides the size."""
    return isinstance(value, torch.SymInt) and value.node.is_unknown


def dim_of(value: Any) -> Dim:
    """A size as documents write it."""
    if isinstance(value, torch.SymInt):
        return value.node.value.dim
    return int(value)


def surely_equal(left: Any, right: Any) -> bool:
    """Whether two sizes are equal by what is known; assumes nothing."""
    if type(left) is int and type(right) is int:
        return left == right
    node = (left if isinstance(left, torch.SymInt) else right).node
    gap = _polynomial(left) - _polynomial(right)  # type: ignore[operator]
    return bool(node.env.known_zero(gap))


def hint_of(value: Any) -> int:
    """What a size is worth now; assumes nothing."""
    return value.node.hint if isinstance(value, torch.SymInt) else value
