"""The body of one kernel under construction: statements that see only what the kernel's meaning lets them see."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import strategies as st

from stagewire.graph import NonFinite, Ref
from stagewire.loop import (
    Atom,
    Axis,
    AxisAtom,
    Buffer,
    Compute,
    FloorDivAtom,
    Index,
    IndexValue,
    Load,
    ModAtom,
    Operand,
    Reduce,
    ReduceKind,
    Scan,
    ScanKind,
    Statement,
    Term,
    ValueAtom,
)
from stagewire.loop_ops import OPS, PREDICATES, TYPED, arity, scalar
from stagewire.testing.basics import Names
from stagewire.types import DType, TensorType
from stagewire.verify.ranges import extent

_REDUCTIONS: tuple[ReduceKind, ...] = ("sum", "max", "min", "argmax", "welford")
_SCANS: tuple[ScanKind, ...] = ("sum", "prod", "max", "min", "logaddexp")
_NUMBERS: st.SearchStrategy[Operand] = st.one_of(
    st.integers(-3, 9),
    st.sampled_from([0.5, -2.0, 1e300]),
    st.builds(NonFinite, st.sampled_from(["inf", "-inf", "nan"])),
)


class Body:
    """Statements of the section under construction, and the values that they and earlier sections leave visible."""

    def __init__(self, draw: st.DrawFn, axes: tuple[Axis, ...]) -> None:
        self.draw = draw
        self.outer = axes
        self.inner: tuple[Axis, ...] = ()
        self.names = Names(draw)
        self.names.taken |= {axis.name for axis in axes}
        self.statements: list[Statement] = []
        self.values: dict[str, DType] = {}
        self.lasting: dict[str, DType] = {}

    def enter(self, axes: tuple[Axis, ...]) -> None:
        """Begin a section over these inner axes."""
        self.values = dict(self.lasting if self.inner else self.values) | self.lasting
        self.inner = axes
        self.statements = []

    def define(self, make: Callable[[str], Statement], dtype: DType) -> None:
        """Add a statement with one result."""
        name = self.names.fresh()
        self.statements.append(make(name))
        self.values[name] = dtype

    def load(self, buffer: Buffer, kind: TensorType) -> None:
        """A load by the manner that this buffer allows."""
        dtype, axes = buffer.type.dtype, (*self.outer, *self.inner)
        if buffer.type.shape == kind.shape:
            terms = zip(buffer.type.stride, self.outer, strict=True)
            index = Index(0, tuple(Term(stride, AxisAtom(axis.name)) for stride, axis in terms))
            self.define(lambda name: Load(name, buffer.name, index, dtype), dtype)
        elif any(axis.size == 0 for axis in axes) or not extent(buffer.type):
            self._masked(buffer, axes)
        elif self.draw(st.booleans()):
            self.define(lambda name: Load(name, buffer.name, Index(), dtype), dtype)
        else:
            self.draw(st.sampled_from((self._masked, self._indirect)))(buffer, axes)

    def _masked(self, buffer: Buffer, axes: tuple[Axis, ...]) -> None:
        """Any index under a mask; `other` stands where the mask is false."""
        index = self._any_index(axes)
        self.define(lambda name: IndexValue(name, index), "int64")
        position = Ref(next(reversed(self.values)))
        limit = self.draw(st.integers(0, 9))
        self.define(lambda name: Compute(name, "lt", (position, limit), "bool"), "bool")
        mask = Ref(next(reversed(self.values)))
        other = self.draw(_NUMBERS)
        dtype = buffer.type.dtype
        self.define(lambda name: Load(name, buffer.name, index, dtype, mask, other), dtype)

    def _indirect(self, buffer: Buffer, axes: tuple[Axis, ...]) -> None:
        """A load at the place that a value names."""
        self.define(lambda name: IndexValue(name, self._any_index(axes)), "int64")
        atom = ValueAtom(next(reversed(self.values)))
        dtype = buffer.type.dtype
        self.define(lambda name: Load(name, buffer.name, Index(0, (Term(1, atom),)), dtype), dtype)

    def _any_index(self, axes: tuple[Axis, ...]) -> Index:
        terms: list[Term] = []
        for axis in axes:
            atom = AxisAtom(axis.name)
            whole = Index(self.draw(st.integers(0, 2)), (Term(self.draw(st.integers(1, 3)), atom),))
            divisor = self.draw(st.integers(1, 4))
            choices: tuple[Atom, ...] = (atom, FloorDivAtom(whole, divisor), ModAtom(whole, divisor))
            terms.append(Term(self.draw(st.sampled_from([1, -1, 2, 16])), self.draw(st.sampled_from(choices))))
        return Index(self.draw(st.sampled_from([0, 0, 1, -3])), tuple(terms))

    def compute(self) -> None:
        """Any op on values of one dtype that it takes, and numbers."""
        dtype: DType = self.draw(st.sampled_from(sorted(set(self.values.values())) or ["float32"]))
        taking = [op for op in OPS.values() if op.refusal((scalar(dtype),)) is None or op.name == "where"]
        op = self.draw(st.sampled_from(taking))
        dtypes: list[DType] = [dtype] * arity(op.name)
        if op.name == "where":
            dtypes[0] = "bool"
        result: DType = "bool" if op.name in PREDICATES else "float32" if op.name in TYPED else dtype
        operands = tuple(map(self.operand, dtypes))
        self.define(lambda name: Compute(name, op.name, operands, result), result)

    def operand(self, dtype: DType) -> Operand:
        """A value of this dtype, or a number."""
        fitting: list[Operand] = [Ref(name) for name, other in self.values.items() if other == dtype]
        if fitting and self.draw(st.sampled_from([True, True, False])):
            return self.draw(st.sampled_from(fitting))
        return self.draw(st.booleans() if dtype == "bool" else _NUMBERS)

    def reduce(self) -> None:
        """A reduction over the inner axes, visible to later sections."""
        reduction = self.draw(st.sampled_from(_REDUCTIONS))
        dtype: DType = "int64" if reduction == "argmax" else "float32"
        results = tuple(self.names.fresh() for _ in range(3 if reduction == "welford" else 1))
        self.statements.append(Reduce(results, reduction, self.operand("float32"), dtype))
        self.lasting |= dict.fromkeys(results, dtype)

    def scan(self) -> None:
        """A scan over the inner axes, visible to what follows in the section."""
        kind, operand = self.draw(st.sampled_from(_SCANS)), self.operand("float32")
        self.define(lambda name: Scan(name, kind, operand, "float32"), "float32")
