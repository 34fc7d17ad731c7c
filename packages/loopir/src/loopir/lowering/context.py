"""What a lowering may do: define a buffer by a function of its index, by a recorded nest, or as a view of another."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from msgspec.structs import replace

from loopir.builder import Place, Recorder, Scalar, View, record
from loopir.errors import UnsupportedPrim
from loopir.schedule import Item, Names
from stagewire.expr import Dim, Expr, symbol
from stagewire.graph import Arg, Graph, List, Node, NonFinite, Ref, SourceLine, Tuple, Value, map_arg
from stagewire.loop import Buffer, Extern, Index
from stagewire.sizes import NO_HINTS, Hints
from stagewire.statements import reads_of
from stagewire.types import TensorType, contiguous

PointFunction = Callable[..., Scalar]


class Lowering:
    """The items and buffers of a schedule under construction; alive during one `lower_graph` only.

    A view costs nothing: whoever loads it loads its source at the place that the view says. Only an extern or an
    output needs it as a buffer (`materialise`). `wanted` are the names that any of them will need so.
    """

    def __init__(self, wanted: frozenset[str] = frozenset(), hints: Hints = NO_HINTS) -> None:
        self.wanted = wanted
        self.hints = hints
        self.names = Names()
        self.types: dict[str, TensorType] = {}
        self.buffers: dict[str, Buffer] = {}
        self.items: list[Item] = []
        self.views: dict[str, View] = {}
        self.lines: dict[str, SourceLine | None] = {}

    def declare(self, name: str, type: TensorType, role: str = "kernel") -> None:
        """A new buffer."""
        self.types[name] = type
        self.buffers[name] = Buffer(name, type, role)  # type: ignore[arg-type]

    def declare_results(self, node: Node, role: str = "kernel") -> tuple[str, ...]:
        """Buffers for the results of a node; their names, "" for what is no tensor."""
        for value in node.results:
            if isinstance(value.type, TensorType):
                self.declare(value.name, value.type, role)
        return tuple([value.name if isinstance(value.type, TensorType) else "" for value in node.results])

    def view(self, call: Call, source: str, place: Place) -> None:
        """Define the call's result: element at `indices` is that of `source` at `place(indices, sizes of axes)`."""
        name = call.result.name
        self.types[name] = call.type
        self.views[name] = View(source, place)
        self.lines[name] = call.node.line

    def materialise(self, name: str) -> None:
        """Make sure that `name` is a buffer: a view is copied (where it is a window, a pass makes the copy none).

        It is copied from the nearest view that is wanted as a buffer too, of which it may well be a window.
        """
        if name in self.buffers or name not in self.views:
            return
        type = self.types[name]
        self.declare(name, type)

        def body(ops: Recorder, *indices: Index) -> None:
            source, place = ops.look_through(name, indices)
            while source in self.views and source not in self.wanted:
                source, place = ops.look_through(source, place)
            self.materialise(source)
            ops.store(name, indices, ops.load_buffer(source, place))

        self._record((name,), type.shape, body, self.lines[name])

    def copied(self, source: str) -> str:
        """A row-major copy; one that only a nest reads is kept where that pays (`inline_pointwise`)."""
        type, name = self.types[source], self.names(f"{source}_rows")
        self.declare(name, contiguous(type.dtype, type.shape, type.device))
        self._record(
            (name,), type.shape, lambda ops, *i: ops.store(name, i, ops.load(source, *i)), self.lines.get(source)
        )
        return name

    def pointwise(self, call: Call, function: PointFunction) -> None:
        """Define the call's result: element at `indices` is `function(ops, *indices)`."""
        name = call.result.name
        self.declare(name, call.type)

        def body(ops: Recorder, *indices: Index) -> None:
            ops.store(name, indices, function(ops, *indices))

        self.nest(call, call.type.shape, body)

    def fill(self, call: Call, buffer: str, shape: tuple[Dim, ...], function: PointFunction,
             offset: tuple[Dim, ...]) -> None:  # fmt: skip
        """Write a window of `shape` at `offset` of a declared buffer."""

        def body(ops: Recorder, *indices: Index) -> None:
            place = tuple(Index(i.constant + o, i.terms) for i, o in zip(indices, offset, strict=True))
            ops.store(buffer, place, function(ops, *indices))

        self.nest(call, shape, body)

    def nest(self, call: Call, shape: tuple[Dim, ...], body: Callable[..., None]) -> None:
        """Record a nest over parallel axes of `shape`."""
        results = call.node.results
        origins = (results[0].name,) if len(results) == 1 else tuple([value.name for value in results])
        self._record(origins, shape, body, call.node.line)

    def _record(
        self, origins: tuple[str, ...], shape: tuple[Dim, ...], body: Callable[..., None], line: SourceLine | None
    ) -> None:
        names, views = self.names, self.views
        nest = record(origins[0], self.types, shape, body, names=names, origins=origins, line=line, views=views)
        self.items.append(nest)

    def aten(self, call: Call, target: str, **kwargs: Arg) -> None:
        """Append the call of an operator with the arguments of a prim, and these."""
        results = self.declare_results(call.node, "extern")
        self.extern(Extern(target, call.node.args, kwargs, results, call.node.line, call.node.effect))

    def extern(self, step: Extern) -> None:
        """Append a call of ATen."""
        for name in reads_of(step):
            self.materialise(name)
        self.items.append(step)


def with_symbols(graph: Graph, names: Collection[str]) -> Graph:
    """The graph with references to these inputs replaced by their symbols."""

    def leaf(arg: Arg) -> Arg:
        return symbol(arg.name) if isinstance(arg, Ref) and arg.name in names else arg

    def call(node: Node) -> Node:
        args = tuple([map_arg(arg, leaf) for arg in node.args])
        kwargs = {key: map_arg(arg, leaf) for key, arg in node.kwargs.items()}
        is_same = args == node.args and kwargs == node.kwargs
        return node if is_same else replace(node, args=args, kwargs=kwargs)

    outputs = tuple([map_arg(output, leaf) for output in graph.outputs])
    return replace(graph, nodes=tuple([call(node) for node in graph.nodes]), outputs=outputs)


Number = bool | int | float | NonFinite | Expr


class Call(NamedTuple):
    """`node` with its arguments by name, and the types of the values in scope."""

    name: str
    node: Node
    arguments: dict[str, Arg]
    types: Mapping[str, TensorType]

    @property
    def result(self) -> Value:
        """The single result."""
        return self.node.results[0]

    @property
    def type(self) -> TensorType:
        """The type of the single result."""
        found = self.node.results[0].type
        if not isinstance(found, TensorType):
            raise self.refuse("its result is no tensor")
        return found

    def tensor(self, name: str) -> tuple[str, TensorType]:
        """Buffer and type of a tensor argument."""
        return self.as_tensor(self.arguments.get(name))

    def as_tensor(self, arg: Arg) -> tuple[str, TensorType]:
        """Buffer and type of an argument that must be a tensor."""
        if not isinstance(arg, Ref) or arg.name not in self.types:
            raise self.refuse(f"{arg!r} is no tensor")
        return arg.name, self.types[arg.name]

    def operand(self, name: str) -> Ref | Number:
        """A tensor or a number."""
        arg = self.arguments.get(name)
        if isinstance(arg, Ref | bool | int | float | NonFinite | Expr):
            return arg
        raise self.refuse(f"argument {name} is {arg!r}, neither a tensor nor a number")

    def dims(self, name: str) -> tuple[Dim, ...]:
        """A list of sizes or positions."""
        arg = self.arguments.get(name)
        items = arg.items if arg.__class__ is List or arg.__class__ is Tuple else (arg,)  # type: ignore[union-attr]
        if not all(item.__class__ is int or isinstance(item, Expr) for item in items):
            raise self.refuse(f"argument {name} is {arg!r}, not a list of integers")
        return items  # type: ignore[return-value]

    def axes(self, name: str, rank: int) -> tuple[int, ...]:
        """A list of dimensions, made non-negative; None means none."""
        if self.arguments.get(name) is None:
            return ()
        return tuple(int(d) % max(rank, 1) for d in self.dims(name))  # type: ignore[arg-type]

    def axis(self, name: str, rank: int) -> int:
        """One dimension, made non-negative."""
        (found,) = self.axes(name, rank)
        return found

    def items(self, name: str) -> tuple[Arg, ...]:
        """The items of a list argument."""
        arg = self.arguments.get(name)
        if not isinstance(arg, List | Tuple):
            raise self.refuse(f"argument {name} is {arg!r}, not a list")
        return arg.items

    def refuse(self, reason: str) -> UnsupportedPrim:
        """The error that says why this call cannot be lowered."""
        return UnsupportedPrim(f"prims.{self.name} of {self.node.results[0].name}: {reason}", where=self.node.line)


def bind(name: str, parameters: tuple[str, ...], node: Node, types: Mapping[str, TensorType]) -> Call:
    """Match arguments, which are all positional, with the parameter names of the prim."""
    return Call(name, node, dict(zip(parameters, node.args, strict=False)), types)
