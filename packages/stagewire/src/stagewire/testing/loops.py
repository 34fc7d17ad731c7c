"""Strategies for loop graphs that verify: pointwise, masked, indirect and reducing kernels, externs, views, reuse."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from stagewire import loop
from stagewire.graph import Arg, Ref
from stagewire.testing.basics import Names, args, argument_names, names, qualified_names, source_lines, tensor_types
from stagewire.testing.graphs import EFFECTS
from stagewire.testing.kernels import Body
from stagewire.types import ITEM_SIZE, DType, TensorType, ValueType, contiguous_stride

loop_dtypes: st.SearchStrategy[DType] = st.sampled_from(("float32", "float32", "bfloat16", "int64", "bool"))


@st.composite
def loop_graphs(
    draw: st.DrawFn,
    inputs: Sequence[ValueType] | None = None,
    symbols: Sequence[str] = (),
    least_steps: int = 0,
    most_steps: int = 5,
) -> loop.LoopGraph:
    """One direction over inputs of these types (of any types, where not given); every step verifies.

    `least_steps` and `most_steps` bound the attempts: one that finds nothing to free or to reuse adds no step.
    """
    kinds = draw(st.lists(tensor_types(symbols, loop_dtypes), max_size=2)) if inputs is None else inputs
    plan = _Plan(draw, symbols)
    taken = tuple(plan.add(kind, "input").name for kind in kinds if isinstance(kind, TensorType))
    makers = (
        plan.kernel,
        plan.kernel,
        plan.reduction,
        plan.reduction,
        plan.in_place,
        plan.in_place,
        plan.extern,
        plan.view,
        plan.free,
    )
    for _ in range(draw(st.integers(least_steps, most_steps))):
        draw(st.sampled_from(makers))()
    readable = [buffer.name for buffer in plan.readable]
    outputs: list[Arg] = (
        [Ref(name) for name in draw(st.lists(st.sampled_from(readable), max_size=3))] if readable else []
    )
    outputs += draw(st.lists(args([], symbols), max_size=1))
    return loop.LoopGraph(
        buffers=tuple(plan.buffers),
        inputs=taken,
        outputs=tuple(outputs),
        steps=tuple(plan.steps),
        decisions=tuple(draw(st.lists(_decisions, max_size=2))),
    )


_decisions: st.SearchStrategy[loop.Decision] = st.builds(
    loop.Decision,
    st.sampled_from(["fused", "refused", "inlined", "materialised", "reused"]),
    st.lists(names, max_size=2).map(tuple),
    st.sampled_from(["", "reads the same data", "not one\nshape"]),
    st.integers(0, 10**6),
)


def result_types(graph: loop.LoopGraph) -> tuple[TensorType | None, ...]:
    """The types of the outputs; None for a literal."""
    types = {buffer.name: buffer.type for buffer in graph.buffers}
    return tuple(types[output.name] if isinstance(output, Ref) else None for output in graph.outputs)


class _Plan:
    """A loop graph under construction: its buffers, its steps, and what may be read at this point."""

    def __init__(self, draw: st.DrawFn, symbols: Sequence[str]) -> None:
        self.draw, self.symbols = draw, symbols
        self.buffer_names, self.kernel_names = Names(draw), Names(draw)
        self.buffers: list[loop.Buffer] = []
        self.steps: list[loop.Step] = []
        self.readable: list[loop.Buffer] = []

    def add(self, kind: TensorType, role: Any, base: str | None = None, reuse: str | None = None) -> loop.Buffer:
        """A buffer that may be read from now on."""
        buffer = loop.Buffer(self.buffer_names.fresh(), kind, role, base, reuse)
        self.buffers.append(buffer)
        self.readable.append(buffer)
        return buffer

    def drop(self, buffer: loop.Buffer) -> None:
        """The buffer, and every view of it, may no longer be read."""
        self.readable = [other for other in self.readable if buffer.name not in (other.name, other.base)]

    def kernel(self) -> None:
        """A pointwise kernel into a new buffer; its loads are at the same place, broadcast, masked or indirect."""
        kind = self.draw(tensor_types(self.symbols, loop_dtypes, row_major=True))
        axes = self._axes(kind)
        body = Body(self.draw, axes)
        for buffer in self._some(self.readable, 2):
            body.load(buffer, kind)
        for _ in range(self.draw(st.integers(1, 5))):
            body.compute()
        target = self.add(kind, "kernel")
        statements = (*body.statements, loop.Store(target.name, place(kind, axes), body.operand(kind.dtype)))
        self._finish(axes, (loop.Section((), statements),), target)

    def reduction(self) -> None:
        """A kernel whose sections reduce (and perhaps scan) in turn, and one that stores what they found."""
        kind = self.draw(tensor_types(self.symbols, loop_dtypes, row_major=True))
        axes = self._axes(kind)
        body = Body(self.draw, axes)
        sections = []
        for _ in range(self.draw(st.sampled_from((2, 1, 2, 3, 2, 3)))):
            inner = (loop.Axis(body.names.fresh(), self.draw(st.integers(0, 5))),)
            body.enter(inner)
            for buffer in self._some(self.readable, 1):
                body.load(buffer, kind)
            if self.draw(st.booleans()):
                body.scan()
            body.compute()
            body.reduce()
            sections.append(loop.Section(inner, tuple(body.statements)))
        body.enter(())
        body.compute()
        target = self.add(kind, "kernel")
        store = loop.Store(target.name, place(kind, axes), body.operand(kind.dtype))
        self._finish(axes, (*sections, loop.Section((), (*body.statements, store))), target)

    def in_place(self) -> None:
        """A kernel into the memory of a buffer that it reads for the last time, at the same index."""
        old = self._one([b for b in self.readable if b.role in ("kernel", "extern") and _is_row_major(b.type)])
        if old is None:
            return
        dtype = self.draw(loop_dtypes.filter(lambda other: ITEM_SIZE[other] == ITEM_SIZE[old.type.dtype]))
        self.drop(old)
        target = self.add(TensorType(dtype, old.type.shape, old.type.stride), "kernel", reuse=old.name)
        axes = self._axes(old.type)
        body = Body(self.draw, axes)
        where = place(old.type, axes)
        body.define(lambda name: loop.Load(name, old.name, where, old.type.dtype), old.type.dtype)
        statements = (*body.statements, loop.Store(target.name, where, body.operand(dtype)))
        self._finish(axes, (loop.Section((), statements),), target)

    def extern(self) -> None:
        """A call that makes buffers of its own."""
        arg = args([buffer.name for buffer in self.readable], self.symbols)
        target, line = self.draw(qualified_names), self.draw(st.one_of(st.none(), source_lines))
        arguments = tuple(self.draw(st.lists(arg, max_size=3)))
        keywords = self.draw(st.dictionaries(argument_names, arg, max_size=1))
        results: list[str] = []
        for kept in self.draw(st.lists(st.booleans(), min_size=1, max_size=2)):
            kind = self.draw(tensor_types(self.symbols, loop_dtypes))
            results.append(self.add(kind, "extern").name if kept else "")
        self.steps.append(loop.Extern(target, arguments, keywords, tuple(results), line, self.draw(EFFECTS)))

    def view(self) -> None:
        """A window on a buffer: its dimensions in another order."""
        base = self._one([buffer for buffer in self.readable if buffer.role != "view"])
        if base is None:
            return
        order = self.draw(st.permutations(range(len(base.type.shape))))
        shape = tuple(base.type.shape[dim] for dim in order)
        stride = tuple(base.type.stride[dim] for dim in order)
        kind = TensorType(base.type.dtype, shape, stride, base.type.storage_offset, base.type.device)
        self.add(kind, "view", base=base.name)

    def free(self) -> None:
        """The end of a buffer."""
        buffer = self._one([b for b in self.readable if b.role in ("kernel", "extern")])
        if buffer is not None:
            self.steps.append(loop.Free(buffer.name))
            self.drop(buffer)

    def _axes(self, kind: TensorType) -> tuple[loop.Axis, ...]:
        supply = Names(self.draw)
        return tuple(loop.Axis(supply.fresh(), size) for size in kind.shape)

    def _one(self, buffers: list[loop.Buffer]) -> loop.Buffer | None:
        return self.draw(st.sampled_from(buffers)) if buffers else None

    def _some(self, buffers: list[loop.Buffer], most: int) -> list[loop.Buffer]:
        return self.draw(st.lists(st.sampled_from(buffers), max_size=most)) if buffers else []

    def _finish(self, axes: tuple[loop.Axis, ...], sections: tuple[loop.Section, ...], target: loop.Buffer) -> None:
        line = self.draw(st.one_of(st.none(), source_lines))
        self.steps.append(loop.Kernel(self.kernel_names.fresh(), axes, sections, (target.name,), line))


def place(kind: TensorType, axes: tuple[loop.Axis, ...]) -> loop.Index:
    """The index of the element that stands at the point of `axes`."""
    terms = zip(kind.stride, axes, strict=True)
    return loop.Index(0, tuple(loop.Term(stride, loop.AxisAtom(axis.name)) for stride, axis in terms))


def _is_row_major(kind: TensorType) -> bool:
    return kind.stride == contiguous_stride(kind.shape) and kind.storage_offset == 0
