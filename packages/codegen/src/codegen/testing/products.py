"""Hypothesis strategy for loop graphs of one product of matrices and a kernel that uses it, laid out in many ways.

The numbers in the inputs are to be small integers (`whole_inputs`): then every sum is exact, in any order.
"""

from __future__ import annotations

import math

import torch
from hypothesis import strategies as st

from codegen.testing.reference import span
from stagewire.graph import Arg, Ref
from stagewire.loop import (
    Axis,
    AxisAtom,
    Buffer,
    Compute,
    Extern,
    FloorDivAtom,
    Free,
    Index,
    Kernel,
    Load,
    LoopGraph,
    ModAtom,
    Section,
    Statement,
    Step,
    Store,
    Term,
)
from stagewire.types import TensorType, contiguous

SIZES = st.sampled_from((1, 2, 5, 16, 17, 33, 48))


@st.composite
def product_graphs(draw: st.DrawFn) -> LoopGraph:
    """mm, addmm, bmm or baddbmm; nothing behind it, or a kernel over its elements or over some of them."""
    plan = _Plan(draw)
    plan.product()
    kinds = ("none", "axes", "pieces", "part", "rows", *(["flat", "flat"] if plan.is_packed else []))
    kind = draw(st.sampled_from(kinds))
    is_kept = kind == "none" or draw(st.booleans())
    outputs: list[Arg] = [] if kind == "none" else plan.kernel(kind, ["x", "w", "bias", *([] if is_kept else ["p"])])
    if is_kept:
        outputs.append(Ref("p"))
    elif not any(buffer.reuse == "p" for buffer in plan.buffers):
        if draw(st.booleans()):
            outputs.append(plan.heir())
        else:
            plan.steps.append(Free("p"))
    taken = {buffer.reuse for buffer in plan.buffers}
    plan.steps += [
        Free(name) for name in plan.ending if name not in taken and draw(st.sampled_from((True, True, False)))
    ]
    inputs = tuple(buffer.name for buffer in plan.buffers if buffer.role == "input")
    return LoopGraph(buffers=tuple(plan.buffers), inputs=inputs, outputs=tuple(outputs), steps=tuple(plan.steps))


def whole_inputs(graph: LoopGraph, seed: int) -> dict[str, torch.Tensor]:
    """Flat memory for every input: small integers."""
    generator = torch.Generator().manual_seed(seed)
    types = {buffer.name: buffer.type for buffer in graph.buffers}
    return {
        name: torch.randint(-2, 3, (span(types[name]),), generator=generator).to(getattr(torch, types[name].dtype))
        for name in graph.inputs
    }


class _Plan:
    """A graph under construction."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.dtype = draw(st.sampled_from(("float32", "float16", "bfloat16")))
        self.batch = draw(st.sampled_from((None, None, 1, 3)))
        self.m, self.n, self.k = draw(SIZES), draw(SIZES), draw(SIZES)
        self.buffers: list[Buffer] = []
        self.steps: list[Step] = []

        self.ending: list[str] = []

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.m, self.n) if self.batch is None else (self.batch, self.m, self.n)

    def add(self, name: str, type_: TensorType, role: str = "input", **fields: str | None) -> str:
        self.buffers.append(Buffer(name, type_, role, **fields))  # type: ignore[arg-type]
        return name

    # ---- the product

    def product(self) -> None:
        """The call, of inputs, of a buffer that a kernel makes, or of windows."""
        draw, lead = self.draw, () if self.batch is None else (self.batch,)
        pad = draw(st.sampled_from((0, 0, 3)))
        self.is_packed = pad == 0
        steps = (self.n + pad, 1) if self.batch is None else (self.m * (self.n + pad), self.n + pad, 1)
        operands = [self.operand("x", (*lead, self.m, self.k)), self.operand("w", (*lead, self.k, self.n))]
        name = "mm" if self.batch is None else "bmm"
        args, kwargs = tuple(Ref(one) for one in operands), {}
        if draw(st.booleans()):
            name = "addmm" if self.batch is None else "baddbmm"
            wanted = draw(st.sampled_from((self.shape, self.shape[-1:], (1, self.n), (self.m, 1))))
            args = (Ref(self.operand("bias", wanted)), *args)
            kwargs = draw(st.sampled_from(({}, {}, {"alpha": 2}, {"beta": 0}, {"alpha": -1, "beta": 2})))
        self.add("p", TensorType(self.dtype, self.shape, steps), "extern")
        self.steps.append(Extern(f"aten.{name}.default", args, kwargs, ("p",)))

    def operand(self, name: str, shape: tuple[int, ...]) -> str:
        """A buffer of this shape: packed, turned, with gaps, or the same matrix for each of the batch."""
        kind = self.draw(st.sampled_from(("packed", "packed", "turned", "gaps", "made", "same")))
        if kind == "made":
            return self.made(name, shape)
        order = list(range(len(shape)))
        if kind == "turned" and len(shape) > 1:
            order[-2:] = order[:-3:-1]
        steps, step = [0] * len(shape), 2 if kind == "gaps" else 1
        for axis in reversed(order):
            steps[axis] = 0 if kind == "same" and axis == 0 and len(shape) == 3 else step
            step *= shape[axis]
        return self.add(name, TensorType(self.dtype, shape, tuple(steps)))

    def made(self, name: str, shape: tuple[int, ...]) -> str:
        """A buffer that a kernel of the graph writes, so that its memory may be taken over."""
        type_ = contiguous(self.dtype, shape)
        self.add(f"{name}_given", type_)
        self.add(name, type_, "kernel")
        at = Index(0, (Term(1, AxisAtom("i")),))
        op, number = self.draw(st.sampled_from((("maximum", 0.0), ("mul", 2.0), ("add", 1.0))))
        statements = (
            Load("v", f"{name}_given", at, self.dtype),
            Compute("u", op, (Ref("v"), number), self.dtype),
            Store(name, at, Ref("u")),
        )
        self.steps.append(Kernel(f"make_{name}", (Axis("i", math.prod(shape)),), (Section((), statements),)))
        self.ending.append(name)
        return name

    def heir(self) -> Arg:
        """What a later kernel makes in the memory of the product."""
        type_ = next(buffer.type for buffer in self.buffers if buffer.name == "p")
        self.add("z", type_, "kernel", reuse="p")
        at = Index(0, (Term(1, AxisAtom("i")),))
        self.steps.append(Kernel("later", (Axis("i", span(type_)),), (Section((), (Store("z", at, 3.0),)),)))
        return Ref("z")

    # ---- the kernel

    def kernel(self, kind: str, dead: list[str]) -> list[Arg]:
        """A kernel that reads the product, and what it writes, perhaps in the memory of what is then dead."""
        axes, at = self.loops(kind)
        read = "p"
        if self.draw(st.booleans()):
            read = self.add("window", next(b.type for b in self.buffers if b.name == "p"), "view", base="p")
        statements: list[Statement] = [Load("v", read, at, self.dtype), *self.body(axes, at)]
        values = self.draw(st.sampled_from((("u",), ("u", "flag"), ("u", "small"))))
        stores = [self.stored(value, axes, at, dead) for value in values]
        self.steps.append(Kernel("kernel", axes, (Section((), (*statements, *stores)),)))
        return [Ref(store.buffer) for store in stores]

    def loops(self, kind: str) -> tuple[tuple[Axis, ...], Index]:
        """Axes, and where in the product each point is."""
        made = next(buffer.type for buffer in self.buffers if buffer.name == "p")
        names, sizes, steps = "bcij"[-len(self.shape) :], list(self.shape), list(made.stride)
        if kind == "flat":
            return (Axis("i", math.prod(sizes)),), Index(0, (Term(1, AxisAtom("i")),))
        rows = [(name, size, step) for name, size, step in zip(names, sizes, steps, strict=True)]
        if kind == "pieces":
            name, size, step = rows.pop(self.draw(st.integers(0, len(rows) - 1)))
            least = next(n for n in (2, 3, 5, 11, 17, 1) if size % n == 0)
            rows += [(f"{name}0", size // least, step * least), (f"{name}1", least, step)]
            rows = self.draw(st.permutations(rows))
        if kind == "part":
            rows[-1] = rows[-1][0], max(1, rows[-1][1] - 1), rows[-1][2]
        if kind == "rows":
            rows.append(("again", 2, 0))
        return tuple(Axis(name, size) for name, size, _ in rows), Index(
            0, tuple(Term(step, AxisAtom(name)) for name, _, step in rows if step)
        )

    def body(self, axes: tuple[Axis, ...], at: Index) -> list[Statement]:
        """Values u, flag and small out of v, another buffer and an index."""
        draw, dtype = self.draw, self.dtype
        places = [at, Index(0, (Term(1, ModAtom(at, self.n)),)), Index(0, (Term(1, FloorDivAtom(at, self.n)),))]
        place = draw(st.sampled_from([*places, Index(0, (Term(1, AxisAtom(axes[-1].name)),))]))
        length = span(self.buffers[0].type) + span(contiguous("bool", (max(self.shape) * 4,)))
        self.add("other", contiguous(dtype, (length + math.prod(self.shape) * 4 + self.n * 4,)))
        loads: list[Statement] = [Load("o", "other", place, dtype)]
        if draw(st.booleans()):
            loads = [
                Compute("inside", "ge", (Ref("v"), 0.0), "bool"),
                Load("o", "other", place, dtype, Ref("inside"), draw(st.sampled_from((0.0, 1.5)))),
            ]
        operation = draw(st.sampled_from(("add", "mul", "maximum")))
        return [
            *loads,
            Compute("u", operation, (Ref("v"), Ref("o")), dtype),
            Compute("flag", "gt", (Ref("u"), 1.0), "bool"),
            Compute("small", "convert", (Ref("u"),), "float16"),
        ]

    def stored(self, value: str, axes: tuple[Axis, ...], at: Index, dead: list[str]) -> Store:
        """The store of a value in a new buffer."""
        dtype = {"u": self.dtype, "flag": "bool", "small": "float16"}[value]
        type_ = contiguous(dtype, tuple(axis.size for axis in axes))
        index = Index(0, tuple(Term(step, AxisAtom(axis.name)) for step, axis in zip(type_.stride, axes, strict=True)))
        free = [
            buffer.name
            for buffer in self.buffers
            if buffer.name in dead and buffer.role != "input" and value == "u" and span(buffer.type) == span(type_)
            if buffer.name != "p" or set(index.terms) == set(at.terms)
        ]
        reuse = self.draw(st.sampled_from([None, *free]))
        self.add(f"y_{value}", type_, "kernel", reuse=reuse)
        return Store(f"y_{value}", index, Ref(value))
