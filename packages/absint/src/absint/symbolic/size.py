"""`Size`: a symbolic size as Python code sees it.

It is a `torch.SymInt`, so that torch takes it wherever it takes a size, and it computes like an int: comparisons give
real bools, because what cannot be known is assumed by the hint and noted (`ShapeEnv`). Whatever needs the number itself
(`int(n)`, `range(n)`, an index) gets it, and the size is fixed from then on. Code that knows nothing of symbols is
therefore right on them, if less general.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import Any

import torch

from absint.errors import DataDependentError
from absint.symbolic.floats import OPERATORS, make_float
from absint.symbolic.nodes import OPERATIONS as SIZE_OPERATIONS
from absint.symbolic.nodes import SizeNode, polynomial_of
from absint.symbolic.shape_env import ShapeEnv
from stagewire import expr
from stagewire.expr import Dim
from stagewire.polynomial import Polynomial, constant


class Size(torch.SymInt):
    """An integer expression over size symbols.

    >>> env = ShapeEnv()
    >>> n = make_size(env, env.create("s0", hint=8))
    >>> str(n * 2 + 1), n == 1, n > 4, int(n)
    ('2*s0 + 1', False, True, 8)
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

    def __floordiv__(self, other: Any) -> Any:
        if type(other) is int:
            return make_size(self.node.env, self.node.env.divide(self.node.value, constant(other)))
        return _combine("floordiv", self, other, self)

    def __pow__(self, other: Any) -> Any:
        if type(other) is int and other >= 0:
            return make_size(self.node.env, self.node.value**other)
        return _in_floats(self, "pow", self, other)

    def __rpow__(self, other: Any) -> Any:
        return unwrap_number(other) ** int(self)

    def __truediv__(self, other: Any) -> Any:
        return _in_floats(self, "truediv", self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return _in_floats(self, "truediv", other, self)

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def __ne__(self, other: object) -> Any:
        equal = self._compare("eq", other)
        return equal if equal is NotImplemented else not equal

    def _compare(self, name: str, other: object) -> Any:
        """`self name other`. Type rules ask the same over and over: an answer, once given, stays."""
        node, side = self.node, other.node._value if type(other) is Size else other
        env, value = node.env, node._value
        if side is value:
            return name in _OF_EQUALS
        if env.unbacked or type(side) not in _EXACT:
            return self._find(name, other)
        key = (name, value, side)
        known = env.compared.get(key)
        if known is None:
            known = env.compared[key] = self._find(name, other)
        return known

    def _find(self, name: str, other: object) -> Any:
        second = polynomial_of(other)
        if second is None:
            return getattr(self.node.sym_float(), f"__{name}__")(other)
        return _COMPARISONS[name](self.node.env, self.node._value - second)


for _name in ("and_", "or_", "xor", "lshift", "rshift"):
    _host: Callable[[Any, Any], Any] = getattr(operator, _name)
    _stem = _name.rstrip("_")
    setattr(Size, f"__{_stem}__", lambda self, other, host=_host: host(int(self), unwrap_number(other)))
    setattr(Size, f"__r{_stem}__", lambda self, other, host=_host: host(unwrap_number(other), int(self)))


_EXACT = frozenset((int, Polynomial))
_OF_EQUALS = frozenset(("eq", "ge", "le"))
_COMPARISONS: dict[str, Callable[[ShapeEnv, Polynomial], bool]] = {  # of the difference of two sizes
    "eq": ShapeEnv.is_zero,
    "ge": ShapeEnv.is_nonnegative,
    "le": lambda env, gap: env.is_nonnegative(-gap),
    "lt": lambda env, gap: not env.is_nonnegative(gap),
    "gt": lambda env, gap: not env.is_nonnegative(-gap),
}


NUMBERS = (int, float, torch.SymInt, torch.SymFloat)
"""Classes of Python's numbers and of those with symbols; complex ones have none."""


def _is_number(value: object) -> bool:
    return isinstance(value, (*NUMBERS, complex))


def unwrap_number(value: Any) -> Any:
    """A plain Python number; the ragged size of a jagged tensor, which is none, as it is."""
    if isinstance(value, torch.SymInt):
        return int(value) if isinstance(value.node, SizeNode) else value
    return float(value) if isinstance(value, torch.SymFloat) else value


def _exact(name: str, operation: Callable[[Any, Any], Any]) -> Callable[[Size, Any], Any]:
    """An operation that is one on polynomials."""

    def apply(self: Size, other: Any) -> Any:
        side = other.node._value if type(other) is Size else other
        if type(side) not in _EXACT:
            return _combine(name, self, other, self)
        return make_size(self.node.env, operation(self.node._value, side))

    return apply


def _combine(name: str, left: Any, right: Any, size: Size) -> Any:
    """An operation on sizes, of which `size` is one; with another kind of number it leaves the integers."""
    first, second = polynomial_of(left), polynomial_of(right)
    if first is None or second is None:
        return _in_floats(size, name, left, right)
    return make_size(size.node.env, SIZE_OPERATIONS[name](size.node.env, first, second))


for _name in ("add", "sub", "mul"):
    setattr(Size, f"__{_name}__", _exact(_name, getattr(operator, _name)))
    setattr(Size, f"__r{_name}__", getattr(Size, f"__{_name}__"))
for _name in ("sub", "floordiv", "mod"):
    setattr(Size, f"__r{_name}__", lambda self, other, name=_name: _combine(name, other, self, self))
for _name, _method in (("mod", "__mod__"), ("max", "__sym_max__"), ("min", "__sym_min__")):
    setattr(Size, _method, lambda self, other, name=_name: _combine(name, self, other, self))
for _name in _COMPARISONS:
    setattr(Size, f"__{_name}__", lambda self, other, name=_name: self._compare(name, other))


def _in_floats(size: Size, name: str, left: Any, right: Any) -> Any:
    """An operation that leaves the integers, or one with another kind of number."""
    if not _is_number(left) or not _is_number(right):
        return NotImplemented
    if name in OPERATORS:
        made = make_float(size.node.env, name, left, right)
        if made is not NotImplemented:
            return made
    return _HOSTS[name](unwrap_number(left), unwrap_number(right))


_HOSTS: dict[str, Callable[..., Any]] = {**OPERATORS, "min": min, "max": max}


def make_size(env: ShapeEnv, value: Polynomial) -> Any:
    """The polynomial as a Python number: an int where it is one, else the one `Size` of what it reads now."""
    made = env.sizes.get(value)
    if made is None:
        reduced = env.reduce(value)
        number = reduced.number
        made = env.kept_sizes.get(reduced) if number is None else number
        if made is None:
            made = env.kept_sizes[reduced] = Size(SizeNode(env, reduced, env.age))
        env.sizes[value] = made
    return made


def layout_key(numbers: Iterable[Any]) -> tuple[int, ...]:
    """What tells lists of sizes apart, for who keeps them: there is one `Size` of each expression."""
    return tuple([number if type(number) is int else ~id(number) for number in numbers])


def size_of(node: SizeNode) -> Any:
    """The Python number of a node."""
    return make_size(node.env, node._value)


def unwrap(value: Any) -> Any:
    """What C++ hands out for a size, or for a float that was computed of sizes, as Python computes with it."""
    if isinstance(value, torch.SymFloat):
        return value.node.term.operands[0] if value.node.is_constant() else value.node
    return size_of(value.node) if isinstance(value, torch.SymInt) and isinstance(value.node, SizeNode) else value


def is_symbolic(value: object) -> bool:
    """Whether it is a size that is no plain int."""
    return isinstance(value, torch.SymInt)


def is_unbacked(value: object) -> bool:
    """Whether data decides the size."""
    return isinstance(value, torch.SymInt) and value.node.is_unbacked


def dim_of(value: Any) -> Dim:
    """A size as documents write it."""
    if type(value) is Size or isinstance(value, torch.SymInt):
        return expr.dim_of(value.node.value)
    return int(value)


def known_negative(value: Any) -> bool:
    """Is `value < 0`; of what data decides only what follows from its range, else `DataDependentError`."""
    if not is_unbacked(value):
        return bool(value < 0)
    is_nonnegative = value.node.env.known_nonnegative(value.node.value)
    if is_nonnegative is None:
        raise DataDependentError(f"whether {value} < 0 depends on data")
    return not is_nonnegative


def sym_min(left: Any, right: Any) -> Any:
    """The lesser one, as an expression where neither surely is; assumes nothing."""
    return _either(left, right, "__sym_min__", min)


def sym_max(left: Any, right: Any) -> Any:
    """The greater one, as an expression where neither surely is; assumes nothing."""
    return _either(left, right, "__sym_max__", max)


def _either(left: Any, right: Any, method: str, host: Callable[[int, int], int]) -> Any:
    size, number = (left, right) if is_symbolic(left) else (right, left)
    return getattr(size, method)(number) if is_symbolic(size) else host(left, right)


def surely_equal(left: Any, right: Any) -> bool:
    """Whether two sizes are equal by what is known; assumes nothing."""
    if type(left) is int and type(right) is int:
        return left == right
    node = (left if isinstance(left, torch.SymInt) else right).node
    first, second = polynomial_of(left), polynomial_of(right)
    return first is second or bool(node.env.known_zero(first - second))  # type: ignore[operator]


def hint_of(value: Any) -> int:
    """What a size is worth now; assumes nothing."""
    return value.node.hint if isinstance(value, torch.SymInt) else value
