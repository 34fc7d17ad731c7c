"""The nodes behind `torch.SymInt` and `torch.SymBool`: what torch's C++ asks of a symbolic size.

C++ calls these methods by name (`torch/csrc/utils/python_symnode.h`). A question that C++ needs answered is one to the
`ShapeEnv`, which may assume the answer of the hint.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from absint.symbolic.shape_env import ShapeEnv
from stagewire.polynomial import ZERO, Polynomial, constant

if TYPE_CHECKING:
    from absint.symbolic.floats import SizeFloat


class Node:
    """What nodes of all kinds answer alike."""

    __slots__ = ("env",)
    env: ShapeEnv

    # C++ asks these of every node that it meets, several times: answered without a frame of Python.
    is_int: Callable[[], bool] = False.__bool__
    is_float: Callable[[], bool] = False.__bool__
    is_bool: Callable[[], bool] = False.__bool__
    is_nested_int: Callable[[], bool] = False.__bool__
    has_hint: Callable[[], bool] = True.__bool__

    def clone(self) -> Any:
        return self

    def wrap_int(self, number: int) -> SizeNode:
        return SizeNode(self.env, constant(number))

    def wrap_float(self, number: float) -> SizeFloat:
        from absint.symbolic.floats import SizeFloat, Term

        return SizeFloat(self.env, Term("number", (number,)))

    def wrap_bool(self, truth: bool) -> TruthNode:
        return TruthNode(self.env, lambda: truth, lambda: truth)

    def maybe_as_int(self) -> int | None:
        return None

    def is_constant(self) -> bool:
        return False

    def _graph_repr(self) -> str:
        return str(self)


class SizeNode(Node):
    """An integer expression of one `ShapeEnv`; `age`: that of the environment by which it is reduced."""

    __slots__ = ("_age", "_value")

    def __init__(self, env: ShapeEnv, value: Polynomial, age: int = -1) -> None:
        self.env = env
        self._value = value
        self._age = age

    @property
    def value(self) -> Polynomial:
        """The expression, by what is known now."""
        env = self.env
        if self._age != env.age:
            self._value = env.reduce(self._value)
            self._age = env.age
        return self._value

    def __str__(self) -> str:
        return self.value.text

    str = __str__

    is_int = True.__bool__

    def maybe_as_int(self) -> int | None:
        return (self._value if self._age == self.env.age else self.value).number

    def is_constant(self) -> bool:
        return self.value.number is not None

    @property
    def hint(self) -> int:
        """Its value at capture."""
        return self.env.hint(self._value)

    @property
    def is_unbacked(self) -> bool:
        """Whether data decides it."""
        return self.env.is_unbacked(self.value)

    def int_(self) -> int:
        return self.env.specialize(self._value)

    def guard_int(self, file: str, line: int) -> int:
        return self.env.specialize(self._value)

    def guard_float(self, file: str, line: int) -> float:
        return float(self.int_())

    def guard_bool(self, file: str, line: int) -> bool:
        return not self.env.is_zero(self._value)

    bool_ = int_

    def sym_float(self) -> SizeFloat:
        from absint.symbolic.floats import SizeFloat, Term

        return SizeFloat(self.env, Term("size", (self.value,)))

    def sym_int(self) -> SizeNode:
        return self

    floor = ceil = trunc = round = pos = sym_int

    def neg(self) -> SizeNode:
        return SizeNode(self.env, -self._value)

    def pow_by_natural(self, other: SizeNode) -> SizeNode:
        return SizeNode(self.env, self.value ** other.int_())

    pow = pow_by_natural

    def truediv(self, other: SizeNode) -> SizeFloat:
        return self.sym_float().truediv(other)  # type: ignore[attr-defined,no-any-return]

    int_truediv = truediv

    def sym_sum(self, parts: list[SizeNode]) -> SizeNode:
        total = ZERO
        for part in parts:
            total = total + part.value
        return SizeNode(self.env, total)

    def eq(self, other: SizeNode) -> TruthNode:
        gap = self._value - other._value
        return TruthNode(self.env, lambda: self.env.is_zero(gap), lambda: self.env.known_zero(gap))

    def ne(self, other: SizeNode) -> TruthNode:
        return self.eq(other).sym_not()

    def ge(self, other: SizeNode) -> TruthNode:
        gap = self._value - other._value
        return TruthNode(self.env, lambda: self.env.is_nonnegative(gap), lambda: self.env.known_nonnegative(gap))

    def le(self, other: SizeNode) -> TruthNode:
        return other.ge(self)

    def lt(self, other: SizeNode) -> TruthNode:
        return self.ge(other).sym_not()

    def gt(self, other: SizeNode) -> TruthNode:
        return other.lt(self)


def polynomial_of(value: Any) -> Polynomial | None:
    """What an int, a size or its node is in polynomials, else None."""
    if isinstance(value, int):
        return constant(int(value))
    node = value.node if isinstance(value, torch.SymInt) else value
    return node.value if isinstance(node, SizeNode) else None


OPERATIONS: dict[str, Callable[[ShapeEnv, Polynomial, Polynomial], Polynomial]] = {
    "add": lambda env, a, b: a + b, "sub": lambda env, a, b: a - b, "mul": lambda env, a, b: a * b,
    "floordiv": ShapeEnv.divide, "mod": ShapeEnv.remainder, "max": ShapeEnv.largest, "min": ShapeEnv.smallest,
}  # fmt: skip
"""Those that lead from sizes to sizes."""

for _name in ("add", "sub", "mul", "floordiv", "int_floordiv", "mod", "sym_max", "sym_min"):
    _rule = OPERATIONS[_name.removeprefix("int_").removeprefix("sym_")]
    setattr(SizeNode, _name, lambda self, other, rule=_rule: SizeNode(
        self.env, rule(self.env, self.value, other.value)
    ))  # fmt: skip


def _layout(predicate: str, rank: int | None) -> Callable[[SizeNode, list[SizeNode], list[SizeNode]], TruthNode]:
    """A question about a layout, asked with lists of nodes; no layout of another rank is one."""

    def ask(self: SizeNode, sizes: list[SizeNode], strides: list[SizeNode]) -> TruthNode:
        from absint import strides as rules
        from absint.symbolic.size import size_of

        if rank is not None and len(sizes) != rank:
            return self.wrap_bool(False)
        shape, steps = (tuple([size_of(node) for node in nodes]) for nodes in (sizes, strides))
        return TruthNode(self.env, lambda: bool(getattr(rules, predicate)(shape, steps)), lambda: None)

    return ask


for _name, _predicate, _rank in (
    ("is_contiguous", "is_contiguous", None),
    ("is_channels_last_contiguous_2d", "is_channels_last", 4),
    ("is_channels_last_contiguous_3d", "is_channels_last", 5),
    ("is_channels_last_strides_2d", "looks_channels_last", 4),
    ("is_channels_last_strides_3d", "looks_channels_last", 5),
    ("is_non_overlapping_and_dense", "is_dense", None),
):
    setattr(SizeNode, _name, _layout(_predicate, _rank))


class TruthNode(Node):
    """A condition on sizes.

    decide: its truth, perhaps assumed. known: its truth where it follows from what is known, else None.
    """

    __slots__ = ("decide", "known")

    def __init__(self, env: ShapeEnv, decide: Callable[[], bool], known: Callable[[], bool | None]) -> None:
        self.env = env
        self.decide = decide
        self.known = known

    is_bool = True.__bool__

    def is_constant(self) -> bool:
        return self.known() is not None

    def str(self) -> str:
        return f"condition, {self.known()}"

    __str__ = str

    def bool_(self) -> bool:
        return self.decide()

    def guard_bool(self, file: str, line: int) -> bool:
        return self.decide()

    expect_true = guard_size_oblivious = guard_bool

    def int_(self) -> int:
        return int(self.decide())

    def guard_or_true(self, file: str, line: int) -> bool:
        return self.known() is not False

    def statically_known_true(self, file: str, line: int) -> bool:
        return bool(self.known())

    guard_or_false = statically_known_true

    def sym_not(self) -> TruthNode:
        def known() -> bool | None:
            truth = self.known()
            return None if truth is None else not truth

        return TruthNode(self.env, lambda: not self.decide(), known)

    def sym_and(self, other: TruthNode) -> TruthNode:
        def known() -> bool | None:
            first, second = self.known(), other.known()
            return False if first is False or second is False else (first and second) or None

        return TruthNode(self.env, lambda: self.decide() and other.decide(), known)

    def sym_or(self, other: TruthNode) -> TruthNode:
        return self.sym_not().sym_and(other.sym_not()).sym_not()

    and_, or_ = sym_and, sym_or
