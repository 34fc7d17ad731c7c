"""A Prim graph under construction, whose arithmetic is exact, and arrays for its inputs.

Values are small integers, whatever the dtype, so that every order of adding and every way of fusing gives the same
bits. Layouts are strange on purpose: permuted, expanded and gapped inputs, permuted results.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
from hypothesis import strategies as st

from loopir.numpy_ops import Array, rounded
from stagewire.grad import Binding, BoundInput, Fresh, Mutation
from stagewire.graph import Arg, Graph, Node, Ref, Value
from stagewire.prim import Prim
from stagewire.types import DType, TensorType, contiguous_stride

Draw = Callable[[st.SearchStrategy[Any]], Any]
LARGEST = 2**20
SIZES = (1, 2, 3, 4, 6, 8, 12)
FLOATS: tuple[DType, ...] = ("float64", "float32")
HOSTILE = (np.nan, np.inf, -np.inf, -0.0)


@dataclass(frozen=True)
class Scenario:
    """A graph and arrays for its inputs.

    indexed: of inputs that are indices, the range that they are in. close: numbers of the outputs whose arithmetic is
    not exact. updates: (input, output) of each output that is the new value of an input.
    """

    graph: Graph
    inputs: tuple[Array, ...]
    indexed: dict[str, tuple[int, int]] = field(default_factory=dict)
    close: frozenset[int] = frozenset()
    updates: tuple[tuple[int, int], ...] = ()

    def document(self) -> Prim:
        """The graph as a forward-only document."""
        updated, results = ({pair[k] for pair in self.updates} for k in (0, 1))
        values = enumerate(self.graph.inputs)
        bound = tuple(BoundInput(v.name, v.type, mutated=n in updated) for n, v in values)  # type: ignore[arg-type]
        outputs = tuple(Fresh(n) for n in range(len(self.graph.outputs)) if n not in results)
        mutations = tuple(Mutation(number, result) for number, result in self.updates)
        return Prim(binding=Binding(inputs=bound, outputs=outputs, mutations=mutations), forward=self.graph)


def assert_same(found: Sequence[object], expected: Sequence[object], close: Collection[int] = ()) -> None:
    """Arrays of the same dtypes and values: bit for bit, but for the outputs of these numbers."""
    for number, (have, want) in enumerate(zip(found, expected, strict=True)):
        assert isinstance(have, np.ndarray)
        assert isinstance(want, np.ndarray)
        assert have.dtype == want.dtype
        if number in close:
            np.testing.assert_allclose(have, want, rtol=1e-4, atol=1e-6)
        else:
            np.testing.assert_array_equal(have, want)


@dataclass
class Builder:
    """The graph so far.

    bounds: the largest magnitude that a value can have. leaves: values that no step may use, since their arithmetic is
    not exact. hostile: floats among the inputs may be nan, inf or -0.0.
    """

    draw: Draw
    device: str = "cpu"
    sizes: tuple[int, ...] = SIZES
    hostile: bool = False
    indexed: dict[str, tuple[int, int]] = field(default_factory=dict)
    inputs: list[Value] = field(default_factory=list)
    arrays: list[Array] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    types: dict[str, TensorType] = field(default_factory=dict)
    bounds: dict[str, int] = field(default_factory=dict)
    leaves: dict[str, TensorType] = field(default_factory=dict)

    def pick(self, *, dtype: str | None = None, floating: bool = False, rank: int = 0) -> str:
        """A value of a kind; a new input where there is none."""
        found = [
            n for n, t in self.types.items()
            if (dtype is None or t.dtype == dtype) and (not floating or t.dtype in FLOATS) and len(t.shape) >= rank
        ]  # fmt: skip
        if not found:
            shape = self.draw(st.lists(st.sampled_from(self.sizes), min_size=max(rank, 1), max_size=max(rank, 3)))
            few = [self.draw(st.sampled_from(self.sizes[:3])) for _ in shape[3:]]
            return self.input(dtype or "float64", (*few, *shape[: 3 - len(few)], *shape[3:]))
        return found[-1] if self.draw(st.booleans()) else self.draw(st.sampled_from(found))

    def input(self, dtype: str, shape: tuple[int, ...]) -> str:
        """A new graph input in some layout."""
        name = f"x{len(self.inputs)}"
        type = TensorType(dtype, shape, self.layout(shape, gaps=True), device=self.device)  # type: ignore[arg-type]
        self.inputs.append(Value(name, type))
        seed = self.draw(st.integers(0, 2**16))
        random = np.random.default_rng(seed)
        values = random.integers(-3, 4, shape)
        if self.hostile and dtype in FLOATS:
            values = np.where(random.random(shape) < 0.2, random.choice(HOSTILE, shape), values)
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

    def add(
        self, prim: str, args: tuple[Arg, ...], dtype: str, shape: tuple[int, ...], bound: int = 3, **kwargs: Arg
    ) -> str:
        """Append a call; the name of its result."""
        (name,) = self.call(prim, args, ((dtype, shape),), **kwargs)
        self.types[name], self.bounds[name] = self.leaves.pop(name), bound
        if bound > LARGEST and dtype != "bool":
            return self.add("remainder", (Ref(name), 7), dtype, shape, 7)
        return name

    def call(
        self, prim: str, args: tuple[Arg, ...], kinds: Sequence[tuple[str, tuple[int, ...]]], **kwargs: Arg
    ) -> list[str]:
        """Append a call of a prim or of ATen, whose results are leaves; their names."""
        values = [
            Value(
                f"v{len(self.nodes)}" + (f"_{k}" if k else ""),
                TensorType(dtype, shape, self.layout(shape), device=self.device),  # type: ignore[arg-type]
            )
            for k, (dtype, shape) in enumerate(kinds)
        ]
        target = prim if "." in prim else f"prims.{prim}"
        self.nodes.append(Node(target, args, kwargs, tuple(values)))
        self.leaves |= {value.name: value.type for value in values}  # type: ignore[misc]
        return [value.name for value in values]

    def lay_out_last(self, stride: tuple[int, ...]) -> None:
        """Let the result of the last call lie otherwise in memory."""
        *before, last = self.nodes
        (value,) = last.results
        type = self.types[value.name] = msgspec.structs.replace(self.types[value.name], stride=stride)
        self.nodes = [*before, msgspec.structs.replace(last, results=(Value(value.name, type),))]

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
