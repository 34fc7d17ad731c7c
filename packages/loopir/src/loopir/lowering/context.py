"""What a lowering may do: define a buffer by a function of its index, or by a recorded nest."""

from __future__ import annotations

from collections.abc import Callable

from stagewire.expr import Dim
from stagewire.loop import Buffer, Extern, Index
from stagewire.types import TensorType

from loopir.builder import Recorder, Scalar, record
from loopir.lowering.call import Call
from loopir.nest import Item, Names

PointFunction = Callable[..., Scalar]


class Lowering:
    """The items and buffers of a schedule under construction; alive during one `lower_graph` only."""

    def __init__(self) -> None:
        self.names = Names()
        self.types: dict[str, TensorType] = {}
        self.buffers: dict[str, Buffer] = {}
        self.items: list[Item] = []

    def declare(self, name: str, type: TensorType, role: str = "kernel") -> None:
        """A new buffer."""
        self.types[name] = type
        self.buffers[name] = Buffer(name, type, role)  # type: ignore[arg-type]

    def pointwise(self, call: Call, function: PointFunction) -> None:
        """Define the call's result: element at `indices` is `function(ops, *indices)`."""
        name = call.result.name
        self.declare(name, call.type)
        self.fill(call, name, call.type.shape, function)

    def fill(
        self,
        call: Call,
        buffer: str,
        shape: tuple[Dim, ...],
        function: PointFunction,
        offset: tuple[Dim, ...] | None = None,
    ) -> None:
        """Write a window of `shape` at `offset` of a declared buffer."""

        def body(ops: Recorder, *indices: Index) -> None:
            place = indices if offset is None else tuple(
                Index(i.constant + o, i.terms) for i, o in zip(indices, offset, strict=True)
            )  # fmt: skip
            ops.store(buffer, place, function(ops, *indices))

        self.nest(call, shape, body)

    def nest(self, call: Call, shape: tuple[Dim, ...], body: Callable[..., None]) -> None:
        """Record a nest over parallel axes of `shape`."""
        origins = tuple(value.name for value in call.node.results)
        self.items.append(
            record(origins[0], self.types, shape, body, names=self.names, origins=origins, line=call.node.line)
        )

    def extern(self, step: Extern) -> None:
        """Append a call of ATen."""
        self.items.append(step)
