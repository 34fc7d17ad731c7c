"""The body of one kernel under construction: statements that see only what the kernel's meaning lets them see."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import strategies as st

from stagewire import loop
from stagewire.graph import NonFinite, Ref
from stagewire.loop_ops import OPS, PREDICATES, TYPED, arity, scalar
from stagewire.testing.basics import Names
from stagewire.types import DType, TensorType, extent

_REDUCTIONS: tuple[loop.ReduceKind, ...] = ("sum", "max", "min", "argmax", "welford")
_SCANS: tuple[loop.ScanKind, ...] = ("sum", "prod", "max", "min", "logaddexp")
_NUMBERS: st.SearchStrategy[loop.Operand] = st.one_of(
    st.integers(-3, 9),
    st.sampled_from([0.5, -2.0, 1e300]),
    st.builds(NonFinite, st.sampled_from(["inf", "-inf", "nan"])),
)


class Body:
    """Statements of the section under construction, and the values that they and earlier sections leave visible."""

    def __init__(self, draw: st.DrawFn, axes: tuple[loop.Axis, ...]) -> None:
        self.draw = draw
        self.outer = axes
        self.inner: tuple[loop.Axis, ...] = ()
        self.names = Names(draw)
        self.names.taken |= {axis.name for axis in axes}
        self.statements: list[loop.Statement] = []
        self.values: dict[str, DType] = {}
        self.lasting: dict[str, DType] = {}

    def enter(self, axes: tuple[loop.Axis, ...]) -> None:
        """Begin a section over these inner axes."""
        self.values = dict(self.lasting if self.inner else self.values) | self.lasting
        self.inner = axes
        self.statements = []

    def define(self, make: Callable[[str], loop.Statement], dtype: DType) -> None:
        """Add a statement with one result."""
        name = self.names.fresh()
        self.statements.append(make(name))
        self.values[name] = dtype

    def load(self, buffer: loop.Buffer, kind: TensorType) -> None:
        """A load by the manner that this buffer allows."""
        dtype, axes = buffer.type.dtype, (*self.outer, *self.inner)
        if buffer.type.shape == kind.shape:
            terms = zip(buffer.type.stride, self.outer, strict=True)
            index = loop.Index(0, tuple(loop.Term(stride, loop.AxisAtom(axis.name)) for stride, axis in terms))
            self.define(lambda name: loop.Load(name, buffer.name, index, dtype), dtype)
        elif any(axis.size == 0 for axis in axes) or not extent(buffer.type):
            self._masked(buffer, axes)
        elif self.draw(st.booleans()):
            self.define(lambda name: loop.Load(name, buffer.name, loop.Index(), dtype), dtype)
        else:
            self.draw(st.sampled_from((self._masked, self._indirect)))(buffer, axes)

    def _masked(self, buffer: loop.Buffer, axes: tuple[loop.Axis, ...]) -> None:
        """Any index under a mask; `other` stands where the mask is false."""
        index = self._any_index(axes)
        self.define(lambda name: loop.IndexValue(name, index), "int64")
        position = Ref(next(reversed(self.values)))
        limit = self.draw(st.integers(0, 9))
        self.define(lambda name: loop.Compute(name, "lt", (position, limit), "bool"), "bool")
        mask = Ref(next(reversed(self.values)))
        other = self.draw(_NUMBERS)
        dtype = buffer.type.dtype
        self.define(lambda name: loop.Load(name, buffer.name, index, dtype, mask, other), dtype)

    def _indirect(self, buffer: loop.Buffer, axes: tuple[loop.Axis, ...]) -> None:
        """A load at the place that a value names."""
        self.define(lambda name: loop.IndexValue(name, self._any_index(axes)), "int64")
        atom = loop.ValueAtom(next(reversed(self.values)))
        dtype = buffer.type.dtype
        self.define(lambda name: loop.Load(name, buffer.name, loop.Index(0, (loop.Term(1, atom),)), dtype), dtype)

    def _any_index(self, axes: tuple[loop.Axis, ...]) -> loop.Index:
        terms: list[loop.Term] = []
        for axis in axes:
            atom = loop.AxisAtom(axis.name)
            whole = loop.Index(self.draw(st.integers(0, 2)), (loop.Term(self.draw(st.integers(1, 3)), atom),))
            divisor = self.draw(st.integers(1, 4))
            choices: tuple[loop.Atom, ...] = (atom, loop.FloorDivAtom(whole, divisor), loop.ModAtom(whole, divisor))
            terms.append(loop.Term(self.draw(st.sampled_from([1, -1, 2, 16])), self.draw(st.sampled_from(choices))))
        return loop.Index(self.draw(st.sampled_from([0, 0, 1, -3])), tuple(terms))

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
        self.define(lambda name: loop.Compute(name, op.name, operands, result), result)

    def operand(self, dtype: DType) -> loop.Operand:
        """A value of this dtype, or a number."""
        fitting: list[loop.Operand] = [Ref(name) for name, other in self.values.items() if other == dtype]
        if fitting and self.draw(st.sampled_from([True, True, False])):
            return self.draw(st.sampled_from(fitting))
        return self.draw(st.booleans() if dtype == "bool" else _NUMBERS)

    def reduce(self) -> None:
        """A reduction over the inner axes, visible to later sections."""
        reduction = self.draw(st.sampled_from(_REDUCTIONS))
        dtype: DType = "int64" if reduction == "argmax" else "float32"
        results = tuple(self.names.fresh() for _ in range(3 if reduction == "welford" else 1))
        self.statements.append(loop.Reduce(results, reduction, self.operand("float32"), dtype))
        self.lasting |= dict.fromkeys(results, dtype)

    def scan(self) -> None:
        """A scan over the inner axes, visible to what follows in the section."""
        kind, operand = self.draw(st.sampled_from(_SCANS)), self.operand("float32")
        self.define(lambda name: loop.Scan(name, kind, operand, "float32"), "float32")
