"""hypothesis strategies: Prim graphs whose arithmetic is exact, and arrays for their inputs.

Values are small integers, whatever the dtype, so that every order of adding and every way of fusing gives the same
bits: a pass preserves the meaning exactly or it is wrong. `Scenario.graph` has strange layouts on purpose: permuted,
expanded and gapped inputs, permuted outputs, sizes 0 and 1, rank 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
from hypothesis import strategies as st

from loopir.numpy_ops import Array, rounded
from loopir.pipeline import KERNEL_PASSES, PASSES
from loopir.stage import Options
from stagewire.grad import Binding, BoundInput, Fresh
from stagewire.graph import Arg, DTypeArg, Graph, List, Node, Ref, Value
from stagewire.prim import Prim
from stagewire.types import DType, TensorType, contiguous_stride, numel

Draw = Callable[[st.SearchStrategy[Any]], Any]
LARGEST = 2**20
SIZES = (1, 2, 3, 4, 6, 8, 12)
FLOATS: tuple[DType, ...] = ("float64", "float32")


@dataclass(frozen=True)
class Scenario:
    """A graph and arrays for its inputs; `indexed`: of inputs that are indices, the range that they are in."""

    graph: Graph
    inputs: tuple[Array, ...]
    indexed: dict[str, tuple[int, int]] = field(default_factory=dict)

    def document(self) -> Prim:
        """The graph as a forward-only document."""
        types = [value.type for value in self.graph.inputs]
        bound = tuple(BoundInput(v.name, t) for v, t in zip(self.graph.inputs, types, strict=True))  # type: ignore[arg-type]
        outputs = tuple(Fresh(n) for n in range(len(self.graph.outputs)))
        return Prim(binding=Binding(inputs=bound, outputs=outputs), forward=self.graph)


@dataclass
class _Builder:
    """The graph so far; `bounds` is the largest magnitude that a value can have."""

    draw: Draw
    device: str = "cpu"
    sizes: tuple[int, ...] = SIZES
    indexed: dict[str, tuple[int, int]] = field(default_factory=dict)
    inputs: list[Value] = field(default_factory=list)
    arrays: list[Array] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    types: dict[str, TensorType] = field(default_factory=dict)
    bounds: dict[str, int] = field(default_factory=dict)

    def pick(self, *, dtype: str | None = None, floating: bool = False, rank: int = 0) -> str:
        """A value of a kind; a new input where there is none."""
        found = [
            n for n, t in self.types.items()
            if (dtype is None or t.dtype == dtype) and (not floating or t.dtype in FLOATS) and len(t.shape) >= rank
        ]  # fmt: skip
        if not found:
            shape = self.draw(st.lists(st.sampled_from(self.sizes), min_size=max(rank, 1), max_size=max(rank, 3)))
            return self.input(dtype or "float64", tuple(shape))
        return found[-1] if self.draw(st.booleans()) else self.draw(st.sampled_from(found))

    def input(self, dtype: str, shape: tuple[int, ...]) -> str:
        """A new graph input in some layout."""
        name = f"x{len(self.inputs)}"
        type = TensorType(dtype, shape, self.layout(shape, gaps=True), device=self.device)  # type: ignore[arg-type]
        self.inputs.append(Value(name, type))
        seed = self.draw(st.integers(0, 2**16))
        values = np.random.default_rng(seed).integers(-3, 4, shape)
        self.arrays.append(rounded(repeated(values, type), dtype))
        self.types[name], self.bounds[name] = msgspec.structs.replace(type), 3
        return name

    def indices(self, shape: tuple[int, ...], size: int, wrap: bool = False) -> str:
        """An input of valid indices into a dimension; `wrap`: negative ones too."""
        name = self.input("int64", shape)
        seed = self.draw(st.integers(0, 2**16))
        low = -size if wrap else 0
        self.indexed[name] = low, size
        self.arrays[-1] = repeated(np.random.default_rng(seed).integers(low, size, shape), self.types[name])
        self.bounds[name] = size
        return name

    def layout(self, shape: tuple[int, ...], gaps: bool = False) -> tuple[int, ...]:
        """Strides: contiguous mostly, else permuted, or (inputs) with gaps or repeated."""
        kinds = ("contiguous", "contiguous", "permuted", *(("gapped", "expanded") if gaps else ()))
        kind = self.draw(st.sampled_from(kinds))
        if kind == "contiguous" or not shape:
            return contiguous_stride(shape)  # type: ignore[return-value]
        order = self.draw(st.permutations(range(len(shape))))
        packed = contiguous_stride(tuple(shape[d] for d in order))
        stride = [0] * len(shape)
        for d, step in zip(order, packed, strict=True):
            stride[d] = step * (2 if kind == "gapped" else 1)  # type: ignore[call-overload]
        if kind == "expanded":
            stride[self.draw(st.integers(0, len(shape) - 1))] = 0
        return tuple(stride)

    def add(self, prim: str, args: tuple[Arg, ...], dtype: str, shape: tuple[int, ...], bound: int = 3) -> str:
        """Append a call of a prim; the name of its result."""
        name = f"v{len(self.nodes)}"
        type = TensorType(dtype, shape, self.layout(shape), device=self.device)  # type: ignore[arg-type]
        target = prim if "." in prim else f"prims.{prim}"
        self.nodes.append(Node(target, args, {}, (Value(name, type),)))
        self.types[name], self.bounds[name] = type, bound
        if bound > LARGEST and dtype != "bool":
            return self.add("remainder", (Ref(name), 7), dtype, shape, 7)
        return name

    def like(self, name: str) -> str:
        """A value of the same dtype and shape."""
        type = self.types[name]
        same = [n for n, t in self.types.items() if (t.dtype, t.shape) == (type.dtype, type.shape)]
        return self.draw(st.sampled_from(same))


def repeated(values: Array, type: TensorType) -> Array:
    """The array with one value along each dimension of stride 0."""
    for d, step in enumerate(type.stride):
        if step == 0 and values.shape[d]:
            values = np.broadcast_to(np.take(values, [0], d), values.shape)
    return values


def _unary(b: _Builder) -> None:
    x = b.pick(floating=True)
    op = b.draw(st.sampled_from(("neg", "abs", "sign", "floor", "ceil", "round")))
    b.add(op, (Ref(x),), b.types[x].dtype, b.types[x].shape, b.bounds[x])


def _binary(b: _Builder) -> None:
    x = b.pick(floating=True)
    y: Arg = b.draw(st.integers(-2, 3)) if b.draw(st.booleans()) else Ref(b.like(x))
    other = b.bounds[y.name] if isinstance(y, Ref) else 3
    op = b.draw(st.sampled_from(("add", "sub", "mul", "maximum", "minimum")))
    bound = b.bounds[x] * other if op == "mul" else b.bounds[x] + other
    b.add(op, (Ref(x), y), b.types[x].dtype, b.types[x].shape, bound)


def _heavy(b: _Builder) -> None:
    """Arithmetic that is not worth doing twice."""
    x = b.pick(floating=True)
    y = b.add("remainder", (Ref(x), b.draw(st.sampled_from((3, 5, 7)))), b.types[x].dtype, b.types[x].shape, 7)
    b.add("fmod", (Ref(y), 4), b.types[x].dtype, b.types[x].shape, 4)


def _choose(b: _Builder) -> None:
    x = b.pick(floating=True)
    y = b.like(x)
    condition = b.add(b.draw(st.sampled_from(("lt", "ge", "eq"))), (Ref(x), Ref(y)), "bool", b.types[x].shape)
    b.add("where", (Ref(condition), Ref(x), b.draw(st.sampled_from((Ref(y), 0, 2.0)))), b.types[x].dtype,
          b.types[x].shape, max(b.bounds[x], b.bounds[y]))  # fmt: skip


def _cast(b: _Builder) -> None:
    x = b.pick()
    dtypes = ("float64", "float32", "int64", "bool") + (("bfloat16", "float16") if b.bounds[x] <= 100 else ())
    dtype = b.draw(st.sampled_from(dtypes))
    y = b.add("convert_element_type", (Ref(x), DTypeArg(dtype)), dtype, b.types[x].shape, b.bounds[x])
    if dtype in ("bfloat16", "float16", "int64"):
        b.add("convert_element_type", (Ref(y), DTypeArg("float32")), "float32", b.types[x].shape, b.bounds[x])


def _reduce(b: _Builder) -> None:
    x = b.pick(floating=True, rank=1)
    shape = b.types[x].shape
    dims = b.draw(st.sets(st.integers(0, len(shape) - 1), min_size=1))
    op = b.draw(st.sampled_from(("sum", "sum", "amax", "amin")))
    if op != "sum" and any(shape[d] == 0 for d in dims):
        op = "sum"
    kept = tuple(n for d, n in enumerate(shape) if d not in dims)
    bound = b.bounds[x] * max(1, math.prod(shape[d] for d in dims)) if op == "sum" else b.bounds[x]
    y = b.add(op, (Ref(x), List(tuple(sorted(dims)))), b.types[x].dtype, kept, bound)
    if b.draw(st.booleans()):  # back to the shape of the operand, as softmax and layer norm do
        places = List(tuple(d for d in range(len(shape)) if d not in dims))
        b.add("broadcast_in_dim", (Ref(y), List(shape), places), b.types[x].dtype, shape, b.bounds[y])


def _position(b: _Builder) -> None:
    x = b.pick(floating=True, rank=1)
    shape = b.types[x].shape
    dim = b.draw(st.integers(0, len(shape) - 1))
    if shape[dim]:
        kept = tuple(n for d, n in enumerate(shape) if d != dim)
        b.add(b.draw(st.sampled_from(("argmax", "argmin"))), (Ref(x), dim), "int64", kept, LARGEST)


def _broadcast(b: _Builder) -> None:
    x = b.pick()
    shape = b.types[x].shape
    if len(shape) > 3:
        return
    place = b.draw(st.integers(0, len(shape)))
    size = b.draw(st.sampled_from((*b.sizes[:5], b.sizes[-1])))
    whole = tuple(n if n != 1 or b.draw(st.booleans()) else 2 for n in shape)
    result = (*whole[:place], size, *whole[place:])
    places = tuple(d if d < place else d + 1 for d in range(len(shape)))
    b.add("broadcast_in_dim", (Ref(x), List(result), List(places)), b.types[x].dtype, result, b.bounds[x])


def _permute(b: _Builder) -> None:
    x = b.pick(rank=1)
    dims = tuple(b.draw(st.permutations(range(len(b.types[x].shape)))))
    shape = tuple(b.types[x].shape[d] for d in dims)
    b.add("permute", (Ref(x), List(dims)), b.types[x].dtype, shape, b.bounds[x])


def _reshape(b: _Builder) -> None:
    x = b.pick()
    count = numel(b.types[x].shape)
    assert isinstance(count, int)
    shape: list[int] = []
    rest = count
    while rest > 1 and len(shape) < 3:
        shape.append(b.draw(st.sampled_from([n for n in range(1, rest + 1) if rest % n == 0])))
        rest //= shape[-1]
    shape.append(rest)
    b.add("reshape", (Ref(x), List(tuple(shape))), b.types[x].dtype, tuple(shape), b.bounds[x])


def _slice(b: _Builder) -> None:
    x = b.pick(rank=1)
    bounds = []
    for size in b.types[x].shape:
        start = b.draw(st.integers(0, size))
        bounds.append((start, b.draw(st.integers(start, size)), b.draw(st.integers(1, 2))))
    start, stop, step = (List(t) for t in zip(*bounds, strict=True))
    shape = tuple(len(range(*one)) for one in bounds)
    y = b.add("slice", (Ref(x), start, stop, step), b.types[x].dtype, shape, b.bounds[x])
    if b.draw(st.booleans()):
        z = b.add("neg", (Ref(y),), b.types[x].dtype, shape, b.bounds[x]) if b.types[x].dtype in FLOATS else y
        b.add("slice_scatter", (Ref(x), Ref(z), start, stop, step), b.types[x].dtype, b.types[x].shape, b.bounds[x])


def _flip(b: _Builder) -> None:
    x = b.pick(rank=1)
    dims = b.draw(st.sets(st.integers(0, len(b.types[x].shape) - 1)))
    b.add("flip", (Ref(x), List(tuple(sorted(dims)))), b.types[x].dtype, b.types[x].shape, b.bounds[x])


def _cat(b: _Builder) -> None:
    x = b.pick(rank=1)
    pieces = [x, b.like(x), *([b.like(x)] if b.draw(st.booleans()) else [])]
    shape = b.types[x].shape
    dim = b.draw(st.integers(0, len(shape) - 1))
    result = tuple(n * len(pieces) if d == dim else n for d, n in enumerate(shape))
    b.add("cat", (List(tuple(Ref(p) for p in pieces)), dim), b.types[x].dtype, result, max(b.bounds[p] for p in pieces))


def _pad(b: _Builder) -> None:
    x = b.pick(floating=True, rank=1)
    edges = [(b.draw(st.integers(0, 2)), b.draw(st.integers(0, 2))) for _ in b.types[x].shape]
    low, high = zip(*edges, strict=True)
    shape = tuple(n + a + z for n, (a, z) in zip(b.types[x].shape, edges, strict=True))
    b.add("pad", (Ref(x), List(low), List(high), b.draw(st.sampled_from((0.0, 2.0)))), b.types[x].dtype, shape,
          b.bounds[x] + 2)  # fmt: skip


def _gather(b: _Builder) -> None:
    x = b.pick(floating=True, rank=1)
    shape = b.types[x].shape
    dim = b.draw(st.integers(0, len(shape) - 1))
    if not shape[dim]:
        return
    wanted = tuple(b.draw(st.integers(1, 3)) if d == dim else n for d, n in enumerate(shape))
    where = b.indices(wanted, shape[dim])
    b.add("gather", (Ref(x), dim, Ref(where)), b.types[x].dtype, wanted, b.bounds[x])


def _index(b: _Builder) -> None:
    x = b.pick(floating=True, rank=1)
    shape = b.types[x].shape
    chosen = b.draw(st.sets(st.integers(0, len(shape) - 1), min_size=1, max_size=2))
    if any(shape[d] == 0 for d in chosen):
        return
    common = tuple(b.draw(st.lists(st.sampled_from((1, 2, 5)), max_size=2)))
    wrap = b.draw(st.booleans())
    indices = tuple(Ref(b.indices(common, shape[d], wrap)) if d in chosen else None for d in range(len(shape)))
    adjacent = max(chosen) - min(chosen) + 1 == len(chosen)
    first = min(chosen) if adjacent else 0
    rest = tuple(n for d, n in enumerate(shape) if d not in chosen)
    result = (*rest[:first], *common, *rest[first:])
    y = b.add("index", (Ref(x), List(indices), wrap), b.types[x].dtype, result, b.bounds[x])
    if b.draw(st.booleans()):
        bound = b.bounds[x] + b.bounds[y] * max(math.prod(result), 1)
        b.add("index_put", (Ref(x), List(indices), Ref(y), True, wrap), b.types[x].dtype, shape, bound)


def _create(b: _Builder) -> None:
    size = b.draw(st.sampled_from(b.sizes))
    if b.draw(st.booleans()):
        b.add("iota", (size, b.draw(st.integers(-2, 2)), b.draw(st.integers(-2, 2)), DTypeArg("float64")), "float64",
              (size,), 30)  # fmt: skip
    else:
        b.add("full", (List((size, 2)), b.draw(st.integers(-2, 2)), DTypeArg("float64")), "float64", (size, 2))


def _product(b: _Builder) -> None:
    """An extern: its operand must get exactly the stated layout."""
    x = b.pick(floating=True, rank=2)
    if len(b.types[x].shape) != 2 or b.bounds[x] > 1000:
        return
    shape = b.types[x].shape
    turned = b.add("permute", (Ref(x), List((1, 0))), b.types[x].dtype, shape[::-1], b.bounds[x])
    bound = b.bounds[x] ** 2 * max(shape[1], 1)
    b.add("aten.mm.default", (Ref(x), Ref(turned)), b.types[x].dtype, (shape[0], shape[0]), bound)


def _clone(b: _Builder) -> None:
    x = b.pick()
    b.add("clone", (Ref(x),), b.types[x].dtype, b.types[x].shape, b.bounds[x])


STEPS: tuple[Callable[[_Builder], None], ...] = (
    _unary, _binary, _binary, _heavy, _choose, _cast, _reduce, _reduce, _position, _broadcast, _permute, _reshape,
    _slice, _flip, _cat, _pad, _gather, _index, _create, _product, _clone,
)  # fmt: skip


@st.composite
def selections(draw: Draw) -> Options:
    """Any of the passes, in their order."""
    passes = tuple(p for p in PASSES if draw(st.booleans(), label=p.name))
    return Options(passes=passes, kernel_passes=tuple(p for p in KERNEL_PASSES if draw(st.booleans(), label=p.name)))


@st.composite
def prim_scenarios(
    draw: Draw, steps: tuple[Callable[[_Builder], None], ...] = STEPS, most: int = 10, among: tuple[int, ...] = SIZES
) -> Scenario:
    """A Prim graph of up to `most` drawn steps (some add two or three nodes), and arrays for its inputs."""
    builder = _Builder(draw, draw(st.sampled_from(("cpu", "cpu", "cuda:0"))), among)
    rank = draw(st.integers(0, 3))
    sizes = st.sampled_from((*among, 0)) if draw(st.integers(0, 9)) == 0 else st.sampled_from(among)
    builder.input(draw(st.sampled_from(FLOATS)), tuple(draw(sizes) for _ in range(rank)))
    for step in draw(st.lists(st.sampled_from(steps), min_size=1, max_size=most)):
        step(builder)
        if sum(math.prod(t.shape) for t in builder.types.values()) > 20_000 * max(among):
            break
    names = list(builder.types) if builder.nodes else []
    made = [name for name in names if name not in {v.name for v in builder.inputs}]
    outputs = dict.fromkeys(draw(st.lists(st.sampled_from(made), max_size=3)) + made[-1:]) if made else {}
    graph = Graph(tuple(builder.inputs), tuple(builder.nodes), tuple(Ref(name) for name in outputs))
    return Scenario(graph, tuple(builder.arrays), builder.indexed)
