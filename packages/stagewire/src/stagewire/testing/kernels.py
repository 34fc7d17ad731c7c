"""The body of one kernel under construction: statements that see only what the kernel's meaning lets them see."""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

from hypothesis import strategies as st

from stagewire import loop
from stagewire.graph import NonFinite, Ref
from stagewire.loop_ops import PREDICATES, TYPED, arity, loop_op
from stagewire.testing.basics import Names
from stagewire.testing.ops import dtypes_of, example, one_of, point_ops
from stagewire.types import DType, TensorType, extent

_REDUCTIONS: tuple[loop.ReduceKind, ...] = get_args(loop.ReduceKind)
_SCANS: tuple[loop.ScanKind, ...] = get_args(loop.ScanKind)
_REDUCED: dict[loop.ReduceKind, tuple[DType, DType]] = {
    "any": ("bool", "bool"), "all": ("bool", "bool"), "argmax": ("float32", "int64"), "argmin": ("float32", "int64"),
    "xor_sum": ("int64", "int64"),
}  # fmt: skip
"""The dtypes of operand and result of a reduction, where these are not float32."""
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
        """Any op that a kernel may compute, on values of a dtype that it takes (converted where there are none)."""
        name = one_of(self.draw, point_ops(), len(self.values))
        op = loop_op(name)
        taken = dtypes_of(op)
        visible = [dtype for dtype in sorted(set(self.values.values())) if dtype in taken]
        dtype: DType = self.draw(st.sampled_from(visible or taken))
        takes_values = any(parameter.kind == "tensor" for parameter in op.parameters)
        if not visible and takes_values:
            self.define(lambda result: loop.Compute(result, "convert", (self.operand("float32"),), dtype), dtype)
        elif not visible and self.values:
            source = Ref(self.draw(st.sampled_from(sorted(self.values))))
            self.define(lambda result: loop.Compute(result, "convert", (source,), dtype), dtype)
        if "." in name:
            given = [
                arg if not isinstance(arg, Ref) else self.operand(dtype, number=parameter.kind != "tensor")
                for arg, parameter in zip(example(name).nodes[0].args, op.parameters, strict=False)
            ]
            operands: tuple[loop.Operand, ...] = tuple(given)  # type: ignore[arg-type]
            self.define(lambda result: loop.Compute(result, name, operands, dtype), dtype)
            return
        dtypes: list[DType] = [dtype] * arity(name)
        if name == "where":
            dtypes[0] = "bool"
        result: DType = "bool" if name in PREDICATES else "float32" if name in TYPED else dtype
        operands = tuple(map(self.operand, dtypes))
        self.define(lambda made: loop.Compute(made, name, operands, result), result)

    def operand(self, dtype: DType, *, number: bool = True) -> loop.Operand:
        """A value of this dtype, or a number (where `number` may stand, or where no value is seen)."""
        fitting: list[loop.Operand] = [Ref(name) for name, other in self.values.items() if other == dtype]
        if fitting and (not number or self.draw(st.sampled_from([True, True, False]))):
            return self.draw(st.sampled_from(fitting))
        return self.draw(st.booleans() if dtype == "bool" else _NUMBERS)

    def reduce(self) -> None:
        """A reduction over the inner axes, visible to later sections."""
        reduction = self.draw(st.sampled_from(_REDUCTIONS))
        taken, dtype = _REDUCED.get(reduction, ("float32", "float32"))
        results = tuple(self.names.fresh() for _ in range(3 if reduction == "welford" else 1))
        self.statements.append(loop.Reduce(results, reduction, self.operand(taken), dtype))
        self.lasting |= dict.fromkeys(results, dtype)

    def scan(self) -> None:
        """A scan over the inner axes, visible to what follows in the section."""
        kind, operand = self.draw(st.sampled_from(_SCANS)), self.operand("float32")
        self.define(lambda name: loop.Scan(name, kind, operand, "float32"), "float32")
