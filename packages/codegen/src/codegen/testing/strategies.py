"""Hypothesis strategies for loop graphs of a kernel: strided, broadcast, reversed, windows, masked, indirect, reduced.

Every graph that these draw is valid and has defined results; inputs are made by `sample_inputs`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import torch
from hypothesis import assume
from hypothesis import strategies as st
from msgspec.structs import replace

from codegen.testing.reference import span
from stagewire.expr import Expr
from stagewire.graph import Ref
from stagewire.loop import (
    Axis,
    AxisAtom,
    Buffer,
    Compute,
    FloorDivAtom,
    Index,
    IndexValue,
    Kernel,
    Load,
    LoopGraph,
    Reduce,
    Scan,
    ScanKind,
    Section,
    Statement,
    Store,
    Term,
    ValueAtom,
)
from stagewire.testing.symbolic import BASE, instantiated, symbolised
from stagewire.types import TensorType, contiguous
from stagewire.verify.loops import check_loop_graph

T = TypeVar("T")
SIZES = (1, 2, 3, 5, 8, 17, 33, 64, 100)
FLOATS = ("float32", "float32", "float32", "bfloat16", "float64", "float16")
FLOAT_UNARY = ("neg", "abs", "exp", "tanh", "sigmoid", "erf", "floor", "sqrt", "rsqrt", "sin", "log1p", "sign")
FLOAT_BINARY = ("add", "sub", "mul", "maximum", "minimum", "div", "fmax", "atan2")
STEADY_UNARY, STEADY_BINARY = ("neg", "abs", "tanh", "sigmoid", "erf"), ("mul", "maximum", "minimum", "fmax")
"""Of floats that are rounded one way or another: nothing here makes more of the difference."""
INT_UNARY = ("neg", "abs", "bitwise_not", "sign")
INT_BINARY = ("add", "sub", "mul", "maximum", "minimum", "bitwise_and", "bitwise_xor", "bitwise_or")
FLOAT_REDUCTIONS = ("sum", "max", "min", "welford", "argmax", "argmin", "any", "all", "prod")
INT_REDUCTIONS = ("sum", "max", "min", "argmax", "argmin", "any", "xor_sum")


class Drawing:
    """State of one drawing: buffers so far and a supply of names."""

    def __init__(self, draw: st.DrawFn, dtype: str) -> None:
        self.draw, self.dtype = draw, dtype
        self.buffers: list[Buffer] = []
        self.count = 0

    def choice(self, options: Sequence[T]) -> T:
        return self.draw(st.sampled_from(options))

    def name(self, prefix: str) -> str:
        self.count += 1
        return f"{prefix}{self.count}"

    def load(self, axes: tuple[Axis, ...]) -> Load:
        """A load from a new input: permuted, broadcast, reversed or in windows that overlap, over `axes`."""
        left, order = list(axes), []
        while left:
            order.append(self.choice(left))
            left.remove(order[-1])
        overlapping = self.choice((False, False, False, True))
        constant, step, terms = 0, self.choice((1, 1, 1, 2)), []
        shape, stride = [], []
        for axis in order:
            manner = self.choice(("straight", "straight", "straight", "reversed", "broadcast"))
            if manner == "broadcast":
                continue
            terms.append(Term(-step if manner == "reversed" else step, AxisAtom(axis.name)))
            constant += step * (axis.size - 1) if manner == "reversed" else 0
            shape.append(axis.size)
            stride.append(step)
            step = step + 1 if overlapping else step * axis.size
        name = self.name("x")
        type_ = TensorType(self.dtype, tuple(reversed(shape)), tuple(reversed(stride)))  # type: ignore[arg-type]
        self.buffers.append(Buffer(name, type_, "input"))
        return Load(self.name("v"), name, Index(constant, tuple(terms)), self.dtype)  # type: ignore[arg-type]

    def output(self, axes: tuple[Axis, ...], dtype: str) -> tuple[str, Index]:
        """A new contiguous output over `axes`, and the index of the present point."""
        name = self.name("y")
        type_ = contiguous(dtype, tuple(axis.size for axis in axes))  # type: ignore[arg-type]
        self.buffers.append(Buffer(name, type_, "kernel"))
        terms = tuple(Term(step, AxisAtom(axis.name)) for axis, step in zip(axes, type_.stride, strict=True))
        return name, Index(0, terms)

    def arithmetic(self, values: list[str], steady: bool = False) -> tuple[list[Statement], str]:
        """A few computations on `values`; the name of the last."""
        is_float = "float" in self.dtype
        unary, binary = (FLOAT_UNARY, FLOAT_BINARY) if is_float else (INT_UNARY, INT_BINARY)
        if steady:
            unary, binary = STEADY_UNARY, STEADY_BINARY
        statements: list[Statement] = []
        for _ in range(self.draw(st.integers(0, 3))):
            result = self.name("v")
            kind = self.draw(st.sampled_from(("unary", "binary", "where", "literal")))
            a, b = self.draw(st.sampled_from(values)), self.draw(st.sampled_from(values))
            if kind == "unary":
                op = self.draw(st.sampled_from(unary))
                statements.append(Compute(result, op, (Ref(a),), self.dtype))  # type: ignore[arg-type]
            elif kind == "where":
                test = self.name("m")
                statements.append(Compute(test, "gt", (Ref(a), 0), "bool"))
                statements.append(Compute(result, "where", (Ref(test), Ref(a), Ref(b)), self.dtype))  # type: ignore
            else:
                op = self.draw(st.sampled_from(binary))
                other = Ref(b) if kind == "binary" else (0.75 if is_float else 3)
                statements.append(Compute(result, op, (Ref(a), other), self.dtype))  # type: ignore[arg-type]
            values.append(result)
        return statements, values[-1]


@st.composite
def pointwise_graphs(draw: st.DrawFn, sizes: tuple[int, ...] = SIZES) -> LoopGraph:
    """All axes parallel, one section."""
    d = Drawing(draw, draw(st.sampled_from((*FLOATS, "int64", "int32", "uint8", "int8"))))
    axes = tuple(Axis(d.name("i"), draw(st.sampled_from(sizes))) for _ in range(draw(st.integers(0, 3))))
    loads = [d.load(axes) for _ in range(draw(st.integers(1, 3)))]
    body, last = d.arithmetic([load.result for load in loads])
    name, index = d.output(axes, d.dtype)
    kernel = Kernel("kernel", axes, (Section((), (*loads, *body, Store(name, index, Ref(last)))),))
    return graph_of(d, (kernel,))


@st.composite
def reduction_graphs(draw: st.DrawFn, sizes: tuple[int, ...] = SIZES, inner_sizes: tuple[int, ...] = ()) -> LoopGraph:
    """Outer axes, a reduction over inner axes, then a section that uses its result at every inner point again."""
    d = Drawing(draw, draw(st.sampled_from((*FLOATS, "int64", "int32"))))
    is_float = "float" in d.dtype
    outer = tuple(Axis(d.name("i"), draw(st.sampled_from(sizes))) for _ in range(draw(st.integers(0, 2))))
    lengths = st.sampled_from(inner_sizes or sizes)
    inner = tuple(Axis(d.name("r"), draw(lengths)) for _ in range(draw(st.integers(1, 2))))
    load = d.load(draw(st.permutations((*outer, *inner))))
    reduction = draw(st.sampled_from(FLOAT_REDUCTIONS if is_float else INT_REDUCTIONS))
    dtype = "int64" if reduction.startswith("arg") else "bool" if reduction in ("any", "all") else d.dtype
    results = tuple(d.name("r") for _ in range(3 if reduction == "welford" else 1))
    sections = [Section(inner, (load, Reduce(results, reduction, Ref(load.result), dtype)))]  # type: ignore[arg-type]
    stores: list[Statement] = []
    for result in results:
        name, index = d.output(outer, dtype)
        stores.append(Store(name, index, Ref(result)))
    sections.append(Section((), tuple(stores)))
    if dtype == d.dtype and draw(st.booleans()):
        again = tuple(Axis(d.name("s"), axis.size) for axis in inner)
        other = d.load((*outer, *again))
        body, last = d.arithmetic([other.result, results[0]])
        name, index = d.output((*outer, *again), d.dtype)
        sections.append(Section(again, (other, *body, Store(name, index, Ref(last)))))
    return graph_of(d, (Kernel("kernel", outer, tuple(sections)),))


@st.composite
def scan_graphs(draw: st.DrawFn, sizes: tuple[int, ...] = SIZES) -> LoopGraph:
    """Outer axes, a scan along one or two inner ones between arithmetic, perhaps with a reduction of what it gives."""
    d = Drawing(draw, draw(st.sampled_from((*FLOATS, "int64", "int32", "int16"))))
    outer = tuple(Axis(d.name("i"), draw(st.sampled_from(sizes))) for _ in range(draw(st.integers(0, 2))))
    inner = tuple(Axis(d.name("r"), draw(st.sampled_from(sizes))) for _ in range(draw(st.integers(1, 2))))
    load = d.load(draw(st.permutations((*outer, *inner))))
    before, operand = d.arithmetic([load.result])
    kinds: tuple[ScanKind, ...] = ("sum", "max", "min", *(("prod", "logaddexp") if "float" in d.dtype else ()))
    scan = Scan(d.name("c"), draw(st.sampled_from(kinds)), Ref(operand), d.dtype)  # type: ignore[arg-type]
    rounds = "float" in d.dtype and scan.scan not in ("max", "min")
    after, last = d.arithmetic([scan.result, load.result], steady=rounds)
    name, index = d.output((*outer, *inner), d.dtype)
    statements = (load, *before, scan, *after, Store(name, index, Ref(last)))
    if draw(st.booleans()):
        return graph_of(d, (Kernel("kernel", outer, (Section(inner, statements),)),))
    top = Reduce((d.name("r"),), "max", Ref(scan.result), d.dtype)  # type: ignore[arg-type]
    total, place = d.output(outer, d.dtype)
    sections = (Section(inner, (*statements, top)), Section((), (Store(total, place, Ref(top.results[0])),)))
    return graph_of(d, (Kernel("kernel", outer, sections),))


@st.composite
def indirect_graphs(draw: st.DrawFn) -> LoopGraph:
    """Rows of a table picked by an index tensor, or added into a table; `wrap_index` is given negative ones too."""
    d = Drawing(draw, draw(st.sampled_from(("float32", "float64", "int64"))))
    rows, width, count = (draw(st.sampled_from(SIZES)) for _ in range(3))
    i, j = Axis("i", count), Axis("j", width)
    d.buffers.append(Buffer("place", contiguous("int64", (count,)), "input"))
    scatter = draw(st.booleans())
    picked = [
        Load("raw", "place", Index(0, (Term(1, AxisAtom("i")),)), "int64"),
        Compute("row", draw(st.sampled_from(("check_index", "wrap_index"))), (Ref("raw"), rows), "int64"),
    ]
    column = draw(st.sampled_from((AxisAtom("j"), FloorDivAtom(Index(1, (Term(2, AxisAtom("j")),)), 2))))
    far = Index(0, (Term(width, ValueAtom("row")), Term(1, column)))
    near = Index(0, (Term(width, AxisAtom("i")), Term(1, column)))
    sizes = (count, rows) if scatter else (rows, count)
    d.buffers.append(Buffer("x", contiguous(d.dtype, (sizes[0], width)), "input"))  # type: ignore[arg-type]
    d.buffers.append(Buffer("y", contiguous(d.dtype, (sizes[1], width)), "kernel"))  # type: ignore[arg-type]
    load = Load("v", "x", near if scatter else far, d.dtype)  # type: ignore[arg-type]
    store = Store("y", far if scatter else near, Ref("v"), "atomic_add" if scatter else "set")
    outer, inner = draw(st.sampled_from((((i, j), ()), ((j,), (i,)), ((i,), (j,))))) if scatter else ((i, j), ())
    kernels = [Kernel("move", outer, (Section(inner, (*picked, load, store)),))]
    if scatter:
        flat = Axis("z", rows * width)
        zero = Store("y", Index(0, (Term(1, AxisAtom("z")),)), 0)
        kernels.insert(0, Kernel("clear", (flat,), (Section((), (zero,)),)))
    return graph_of(d, tuple(kernels))


@st.composite
def masked_graphs(draw: st.DrawFn) -> LoopGraph:
    """A padded copy, perhaps transposed: loads under a mask that index arithmetic decides."""
    d = Drawing(draw, draw(st.sampled_from(FLOATS)))
    length, low, high = draw(st.sampled_from(SIZES)), draw(st.integers(0, 4)), draw(st.integers(0, 4))
    rows = draw(st.sampled_from(SIZES))
    i, j = Axis("i", rows), Axis("j", low + length + high)
    shape, steps = draw(st.sampled_from((((rows, length), (length, 1)), ((length, rows), (1, rows)))))
    d.buffers.append(Buffer("x", contiguous(d.dtype, shape), "input"))  # type: ignore[arg-type]
    place = Index(-low * steps[1], tuple(Term(step, AxisAtom(axis)) for step, axis in zip(steps, "ij", strict=True)))
    name, index = d.output((i, j), d.dtype)
    body: tuple[Statement, ...] = (
        IndexValue("at", Index(-low, (Term(1, AxisAtom("j")),))),
        Compute("from", "ge", (Ref("at"), 0), "bool"),
        Compute("to", "lt", (Ref("at"), length), "bool"),
        Compute("inside", "logical_and", (Ref("from"), Ref("to")), "bool"),
        Load("v", "x", place, d.dtype, Ref("inside"), draw(st.sampled_from((1.5, 0.1, 0)))),  # type: ignore[arg-type]
        Store(name, index, Ref("v")),
    )
    return graph_of(d, (Kernel("pad", (i, j), (Section((), body),)),))


def graphs() -> st.SearchStrategy[LoopGraph]:
    """Any of the above."""
    return st.one_of(pointwise_graphs(), reduction_graphs(), indirect_graphs(), masked_graphs())


def graph_of(d: Drawing, kernels: tuple[Kernel, ...]) -> LoopGraph:
    inputs = tuple(b.name for b in d.buffers if b.role == "input")
    outputs = tuple(Ref(b.name) for b in d.buffers if b.role == "kernel")
    return LoopGraph(buffers=tuple(d.buffers), inputs=inputs, outputs=outputs, steps=kernels)


def sample_inputs(graph: LoopGraph, seed: int) -> dict[str, torch.Tensor]:
    """Flat memory for every input: normal floats with a few special values, small integers (for most seeds without 0,
    which nothing can be divided by), valid indices."""
    generator = torch.Generator().manual_seed(seed)
    types = {buffer.name: buffer.type for buffer in graph.buffers}
    kernels = [step for step in graph.steps if isinstance(step, Kernel)]
    statements = [statement for kernel in kernels for section in kernel.sections for statement in section.statements]
    truncates = any(getattr(s, "op", "") == "convert" and "int" in s.dtype for s in statements)  # type: ignore[union-attr]
    found = {}
    for name in graph.inputs:
        dtype, length = getattr(torch, types[name].dtype), span(types[name])
        if name == "place":
            rows = types["y"].shape[0] if any(len(k.axes) == 1 for k in graph.steps) else types["x"].shape[0]  # type: ignore
            wraps = any(getattr(s, "op", "") == "wrap_index" for s in statements)
            found[name] = torch.randint(-rows if wraps else 0, rows, (length,), generator=generator)  # type: ignore
        elif dtype.is_floating_point:
            tensor = torch.randn(length, generator=generator)
            if length > 8 and seed % 3 == 0 and not truncates:
                special = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan])
                tensor[torch.randperm(length, generator=generator)[:5]] = special
            found[name] = tensor.to(dtype)
        else:
            most = 2 if seed % 3 == 1 else 9
            low = 0 if dtype in (torch.uint8, torch.bool) else -most
            drawn = torch.randint(low, 2 if dtype == torch.bool else most + 1, (length,), generator=generator)
            found[name] = (drawn if seed % 3 == 1 or dtype == torch.bool else drawn + (drawn == 0)).to(dtype)
    return found


@st.composite
def symbolic_graphs(
    draw: st.DrawFn, scans: bool = False, kernels: st.SearchStrategy[LoopGraph] | None = None
) -> LoopGraph:
    """A kernel (scans: with a scan) over sizes such as n, 2*n, n + 1 and n*n, n being an input that is an integer.

    kernels: what to make symbolic of, over sizes such as BASE for n and BASE - 2 for n - 2, which may be 0.
    """
    sizes = (1, 2, 3, 5, BASE, BASE, BASE)
    kinds = (scan_graphs(sizes),) if scans else (pointwise_graphs(sizes), reduction_graphs(sizes))
    graph = symbolised(draw(st.one_of(*kinds) if kernels is None else kernels))
    graph = replace(graph, inputs=("n", *graph.inputs), symbols=("n",))
    assume(any(isinstance(size, Expr) for buffer in graph.buffers for size in buffer.type.shape))
    for n in SYMBOL_VALUES:  # what reads as a multiple of n by chance touches memory of others
        assume(not list(check_loop_graph(at_value(graph, n))))
    return graph


SYMBOL_VALUES = (2, 5, 70)


def at_value(graph: LoopGraph, n: int) -> LoopGraph:
    """The graph with a number for n, which is no input of it."""
    return replace(instantiated(graph, {"n": n}), inputs=graph.inputs[1:], symbols=())
