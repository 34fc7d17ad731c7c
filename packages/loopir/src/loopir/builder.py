"""Define-by-run: write a kernel as an ordinary function of its loop indices, run it once, keep the data.

>>> from stagewire.types import contiguous
>>> types = {"x": contiguous("float32", (4, 8)), "y": contiguous("float32", (4, 8))}
>>> def softmax(ops, i):
...     with ops.over(8) as (j,):
...         top = ops.reduce("max", ops.load("x", i, j))
...     with ops.over(8) as (j,):
...         norm = ops.reduce("sum", ops.exp(ops.sub(ops.load("x", i, j), top)))
...     with ops.over(8) as (j,):
...         ops.store("y", (i, j), ops.div(ops.exp(ops.sub(ops.load("x", i, j), top)), norm))
>>> nest = record("softmax", types, (4,), softmax)
>>> [len(section.statements) for section in nest.sections]
[2, 4, 5]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, NamedTuple

from loopir.emitter import Emitter, Typed
from loopir.errors import MalformedNest
from loopir.schedule import Names
from stagewire import index as ix
from stagewire.expr import Dim, Expr
from stagewire.graph import NonFinite, Ref, SourceLine
from stagewire.loop import Axis, Index, Kernel, Operand, ReduceKind, ScanKind
from stagewire.loop_ops import arity
from stagewire.statements import place_on
from stagewire.types import DType, TensorType

Literal = bool | int | float | NonFinite
Scalar = Typed | Literal
Coordinate = Index | Typed | int
Place = Callable[[tuple[Index, ...], ix.Sizes], tuple[Index, ...]]
NO_VIEWS: Mapping[str, View] = MappingProxyType({})


class View(NamedTuple):
    """A name that stands for elements of `source`: where `place(coordinates, sizes of the axes)` says."""

    source: str
    place: Place


class Recorder:
    """The recording handler: every call appends a statement. Each op of `stagewire.loop_ops` is a method of its name.

    `types` gives the dtype and rank of every buffer that is touched.
    """

    def __init__(self, emitter: Emitter, types: Mapping[str, TensorType], views: Mapping[str, View] = NO_VIEWS) -> None:
        self.emitter = emitter
        self.types = types
        self.views = views

    def __getattr__(self, op: str) -> Callable[..., Typed]:
        if op.startswith("__"):
            raise AttributeError(op)
        arity(op)
        return lambda *operands: self.compute(op, *operands)

    def compute(self, op: str, *operands: Scalar) -> Typed:
        """op(operands); literals take the dtype of the other operands."""
        if len(operands) != arity(op):
            raise MalformedNest(f"{op} takes {arity(op)} operands, got {len(operands)}")
        return self.emitter.compute(op, *operands)

    def convert(self, a: Typed, dtype: DType) -> Typed:
        """Cast to `dtype`."""
        return self.emitter.compute("convert", a, dtype=dtype)

    def bitcast(self, a: Typed, dtype: DType) -> Typed:
        """The same bits as `dtype`."""
        return a if a.dtype == dtype else self.emitter.compute("bitcast", a, dtype=dtype)

    def load(self, buffer: str, *coordinates: Coordinate, mask: Typed | bool | None = None,
             other: Literal = 0) -> Typed:  # fmt: skip
        """The element of `buffer` at `coordinates` (one a dimension), or `other` where the mask is false."""
        where = mask.operand if isinstance(mask, Typed) else mask
        place = self._point(buffer, coordinates)
        while buffer in self.views:
            buffer, place = self.look_through(buffer, place)
        return self.load_buffer(buffer, place, where, other)

    def look_through(self, view: str, place: tuple[Index, ...]) -> tuple[str, tuple[Index, ...]]:
        """What a view stands for: its source, and the place there."""
        source, where = self.views[view]
        return source, where(place, self.emitter.sizes)

    def load_buffer(
        self, buffer: str, place: tuple[Index, ...], mask: Operand | None = None, other: Literal = 0
    ) -> Typed:
        """The element of a buffer that is read as it is, be it a view or not."""
        type = self.types[buffer]
        if 0 in type.shape:  # nothing there: the mask is false, or no point runs
            return Typed(other, type.dtype)
        return self.emitter.read(buffer, place, type.dtype, mask, other)

    def store(self, buffer: str, coordinates: tuple[Coordinate, ...], value: Scalar, mode: str = "set",
              mask: Typed | None = None) -> None:  # fmt: skip
        """Set the element of `buffer` at `coordinates`, or add to it (mode "atomic_add")."""
        operand = value.operand if isinstance(value, Typed) else value
        where = mask.operand if mask is not None and isinstance(mask.operand, Ref) else None
        self.emitter.write(buffer, self._point(buffer, coordinates), operand, mode, where)

    def index(self, position: Index, dtype: DType = "int64") -> Typed:
        """The integer value of an index expression."""
        return self.emitter.index_value(position, dtype)

    def number(self, value: Literal | Expr, dtype: DType) -> Typed:
        """A literal in a dtype, or the value of a size."""
        return self.emitter.size(value, dtype) if isinstance(value, Expr) else Typed(value, dtype)

    def reduce(self, reduction: ReduceKind, operand: Typed, dtype: DType | None = None) -> Any:
        """Combine over the open loop: one value, or (mean, squared deviations, count) for "welford"."""
        results = self.emitter.reduce(reduction, operand.operand, dtype or operand.dtype)
        return results if len(results) > 1 else results[0]

    def scan(self, scan: ScanKind, operand: Typed) -> Typed:
        """Combine over this point of the open loop and those before it, in row-major order."""
        return self.emitter.scan(scan, operand.operand, operand.dtype)

    @contextmanager
    def over(self, *sizes: Dim) -> Iterator[tuple[Index, ...]]:
        """An inner loop nest of `sizes`; yields its indices."""
        axes = tuple(Axis(self.emitter.names("a"), size) for size in sizes)
        self.emitter.open(axes)
        yield place_on(axes)
        self.emitter.open(())

    def _point(self, buffer: str, coordinates: tuple[Coordinate, ...]) -> tuple[Index, ...]:
        rank = len(self.types[buffer].shape)
        if len(coordinates) != rank:
            raise MalformedNest(f"{buffer} has {rank} dimensions, {len(coordinates)} coordinates were given")
        for c in coordinates:
            if c.__class__ is not Index:
                return tuple(map(self.emitter.place, coordinates))
        return coordinates  # type: ignore[return-value]


def record(
    name: str, types: Mapping[str, TensorType], shape: tuple[Dim, ...], body: Callable[..., None], *,
    names: Names | None = None, origins: tuple[str, ...] = (), line: SourceLine | None = None,
    views: Mapping[str, View] = NO_VIEWS,
) -> Kernel:  # fmt: skip
    """Run `body(ops, *indices)` once over parallel axes of `shape` and freeze what it did; axes of size 1 are 0."""
    names = names or Names()
    axes: list[Axis] = []
    indices: list[Index] = []
    sizes: dict[str, Dim] = {}
    for size in shape:
        if size == 1:
            indices.append(ix.ZERO)
        else:
            axis = names("a")
            sizes[axis] = size
            axes.append(Axis(axis, size))
            indices.append(ix.axis(axis))
    emitter = Emitter(names, sizes)
    body(Recorder(emitter, types, views), *indices)
    return Kernel(name, tuple(axes), emitter.finish(), origins, line)
