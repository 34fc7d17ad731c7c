"""Kernels of all that the vocabulary of loops has: each op on each dtype that its record allows and torch computes.

Operands are values and numbers in any place; indices have quotients and remainders; what a section reads may depend on
few of its axes. A new op is drawn by itself, once `codegen.testing.reference` has its meaning.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from functools import cache
from typing import NoReturn

import torch
from hypothesis import strategies as st

from codegen.testing.exact import ROUNDED_ONCE
from codegen.testing.reference import OPS
from codegen.testing.strategies import SIZES, Drawing, T, graph_of
from stagewire.graph import NonFinite, Ref
from stagewire.loop import (
    Axis,
    AxisAtom,
    Compute,
    FloorDivAtom,
    Index,
    IndexValue,
    Kernel,
    LoopGraph,
    ModAtom,
    Operand,
    Reduce,
    Section,
    Statement,
    Store,
    Term,
)
from stagewire.loop_ops import CHECKS, DIVISIONS, INDEX_CHECKS, PREDICATES, TYPED, arity
from stagewire.loop_ops import OPS as LOOP_OPS
from stagewire.testing.ops import REAL, dtypes_of
from stagewire.types import ITEM_SIZE, DType

NUMBERS: tuple[Operand, ...] = (
    0, -0.0, 0.1, 0.5, 1, 2.0, 3, -0.5, -1, -2.0, 1e20, *map(NonFinite, ("inf", "-inf", "nan")),
)  # fmt: skip
WHOLE: tuple[Operand, ...] = (0, 1, 2, 3, -1, 7, 100)


@cache
def computed(dtype: DType) -> tuple[str, ...]:
    """The ops of one point that torch computes on a dtype."""
    allowed = [name for name, op in LOOP_OPS.items() if dtype in dtypes_of(op)]
    return tuple([name for name in allowed if name in (*TYPED, *CHECKS) or _takes(name, dtype)])


def _takes(name: str, dtype: DType) -> bool:
    one = torch.ones(1, dtype=getattr(torch, dtype))
    try:
        OPS[name](*[one.bool() if name == "where" and at == 0 else one for at in range(arity(name))])
    except (RuntimeError, TypeError):
        return False
    return True


def _nothing(strategy: object) -> NoReturn:
    raise AssertionError("everything is drawn by a number")


class _Computing(Drawing):
    """A kernel that stores each thing it computes; what is `exact` may be computed with again."""

    def __init__(self, order: random.Random, dtype: DType, axes: tuple[Axis, ...]) -> None:
        super().__init__(_nothing, dtype)
        self.axes, self.order = axes, order
        self.statements: list[Statement] = []
        self.exact: dict[DType, list[str]] = {}
        self.read: dict[DType, list[str]] = {}

    def choice(self, options: Sequence[T]) -> T:
        return self.order.choice(options)

    def take(self, statement: Statement, dtype: DType, *, exact: bool = True) -> None:
        """Add a statement that makes a value, and store this."""
        self.statements.append(statement)
        name, index = self.output(self.axes, dtype)
        result = statement.result  # type: ignore[union-attr]
        self.statements.append(Store(name, index, Ref(result)))
        if exact:
            self.exact.setdefault(dtype, []).append(result)

    def value(self, dtype: DType) -> Ref:
        """One that is exact."""
        return Ref(self.choice(self.exact[dtype]))

    def compute(self, ops: Collection[str]) -> None:
        """One of the ops: of values, and of each of the numbers in the place of one of them."""
        choice = self.choice
        dtype = choice((self.dtype, self.dtype, self.dtype, "bool"))
        op = choice([name for name in computed(dtype) if name in ops])
        operands: list[Operand] = [self.value(dtype) for _ in range(arity(op))]
        made: DType = "bool" if op in PREDICATES else dtype
        if op in ("signbit", "copysign", *TYPED):  # no computed nan, whose sign is anything
            operands = [Ref(choice(self.read[dtype])) for _ in operands]
        if op == "where":
            operands[0] = self.value("bool")
        if op in INDEX_CHECKS:
            operands[1] = choice((10, 10, 100, 3))
        if op == "check_range":
            operands[1:] = choice(((-100, 100), (-100, 100), (0, 1))) if dtype != "bool" else (0, 1)
        if op == "convert":
            made = choice(REAL)
        if op == "bitcast":
            made = choice([d for d in REAL if ITEM_SIZE[d] == ITEM_SIZE[dtype] and d != "bool"])
        is_exact = "float" not in dtype or op in ROUNDED_ONCE
        self.take(Compute(self.name("v"), op, tuple(operands), made), made, exact=is_exact)
        if op in (*CHECKS, *TYPED) or len(operands) == 1:
            return
        for number in (False, True) if dtype == "bool" else NUMBERS if "float" in dtype else WHOLE:
            for place in range(op == "where", len(operands)):
                if op not in DIVISIONS or place == 0 or number != 0:
                    given = tuple([number if at == place else one for at, one in enumerate(operands)])
                    self.take(Compute(self.name("v"), op, given, made), made, exact=False)

    def index(self) -> Index:
        """A linear form of axes, and of quotients and remainders of these by small and large numbers."""
        terms = []
        for axis in self.axes:
            step, divisor = self.choice(((1, 3), (2, 7), (-3, 4), (1 << 33, 1 << 33), (1 << 31, 1 << 30)))
            inner = Index(self.order.randint(-2, 5), (Term(step, AxisAtom(axis.name)),))
            atoms = AxisAtom(axis.name), FloorDivAtom(inner, divisor), ModAtom(inner, divisor)
            terms.append(Term(self.choice((1, -2, 16)), self.choice(atoms)))
        return Index(self.order.randint(-3, 3), tuple(terms))


def vocabulary_graph(
    order: random.Random, sizes: tuple[int, ...] = (*SIZES, 0), ops: Collection[str] = frozenset(LOOP_OPS) - {"philox"}
) -> LoopGraph:
    """A pointwise kernel that stores each of the things that it computes of values of one dtype."""
    axes = tuple(Axis(f"i{n}", order.choice(sizes)) for n in range(order.randint(0, 2)))
    dtype = order.choice((*REAL, *(kind for kind in REAL if "float" in kind)))
    d = _Computing(order, dtype, axes)
    for kind in ("bool", dtype, dtype):
        d.dtype = kind
        load = d.load(axes)
        d.take(load, kind)  # type: ignore[arg-type]
        d.read.setdefault(kind, []).append(load.result)  # type: ignore[arg-type]
    d.take(IndexValue(d.name("v"), d.index()), "int64")
    for _ in range(order.randint(2, 8)):
        d.compute(ops)
    return graph_of(d, (Kernel("kernel", axes, (Section((), tuple(d.statements)),)),))


def vocabulary_graphs() -> st.SearchStrategy[LoopGraph]:
    """By a number alone: hypothesis likes to draw the same choice again, but no number twice."""
    return st.integers(0, 2**64 - 1).map(lambda number: vocabulary_graph(random.Random(number)))


@st.composite
def hoisted_graphs(draw: st.DrawFn, sizes: tuple[int, ...] = SIZES, inner_sizes: tuple[int, ...] = SIZES) -> LoopGraph:
    """Sums over inner axes of what depends on some of the axes, and may raise; where no point runs, nothing does."""
    d = Drawing(draw, draw(st.sampled_from(("int64", "int32", "float32"))))
    outer = tuple(Axis(d.name("i"), draw(st.sampled_from(sizes))) for _ in range(draw(st.integers(0, 2))))
    inner = tuple(Axis(d.name("r"), draw(st.sampled_from(inner_sizes))) for _ in range(draw(st.integers(1, 2))))
    statements: list[Statement] = []
    values = []
    for number in range(draw(st.integers(1, 3))):
        among = outer if number == 0 or draw(st.booleans()) else (*outer, *inner)
        load = d.load(tuple(axis for axis in among if draw(st.booleans())))
        statements.append(load)
        values.append(load.result)
        if number == 0 or draw(st.booleans()):
            ops = sorted(DIVISIONS - {"fmod"}) if "int" in d.dtype else ["check_range"]
            op, result = draw(st.sampled_from(ops)), d.name("v")
            first, second = (Ref(draw(st.sampled_from(values))) for _ in "ab")
            operands = (first, -1, 1) if op == "check_range" else (first, second)
            statements.append(Compute(result, op, operands, d.dtype))  # type: ignore[arg-type]
            values.append(result)
    total = d.name("r")
    statements.append(Reduce((total,), "sum", Ref(values[-1]), d.dtype))  # type: ignore[arg-type]
    name, index = d.output(outer, d.dtype)
    sections = (Section(inner, tuple(statements)), Section((), (Store(name, index, Ref(total)),)))
    return graph_of(d, (Kernel("kernel", outer, sections),))
