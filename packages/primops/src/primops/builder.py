"""What decompositions are written against: a `Builder` with one method for each prim.

    p.add(x, 2.0)                      # a prim
    p.extern("aten.mm.default", ...)   # a named call of ATen
    p.out                              # the type of the (first) result of the ATen call being decomposed

The same decomposition emits a graph (`GraphBuilder`, on types alone) or computes (`primops.compute`, on tensors).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from primops.effects import effect_of
from primops.errors import Decline
from primops.prims import OPS
from stagewire.expr import Dim, Expr
from stagewire.graph import (
    Arg,
    Complex,
    DeviceArg,
    DTypeArg,
    LayoutArg,
    List,
    MemoryFormatArg,
    Node,
    NonFinite,
    Phase,
    Ref,
    SourceLine,
    Tuple,
)
from stagewire.graph import Value as NamedValue
from stagewire.literals import literal
from stagewire.types import DTYPES, NoneType, TensorType, ValueType
from stagewire.vocabulary import Kind, Op


class Value:
    """A tensor in a decomposition: its type, and its name in the graph (or the torch tensor when computing)."""

    __slots__ = ("payload", "type")

    def __init__(self, type: TensorType, payload: Any) -> None:
        self.type = type
        self.payload = payload

    @property
    def shape(self) -> tuple[Dim, ...]:
        return self.type.shape

    @property
    def dtype(self) -> str:
        return self.type.dtype

    @property
    def device(self) -> str:
        return self.type.device

    @property
    def rank(self) -> int:
        return len(self.type.shape)

    def __repr__(self) -> str:
        return f"Value({self.payload}: {self.type.dtype}{list(self.type.shape)})"


def type_of(argument: Any) -> Any:
    """What rules and constraints see of an argument: types in place of values."""
    if type(argument) is Value:
        return argument.type
    if type(argument) is tuple or type(argument) is list:
        return tuple(map(type_of, argument))
    return argument


class Builder:
    """One ATen call being decomposed. `results`: the types of its results.

    `most_threads`: of ATen's random kernels on the GPU that the graph is for; 0 where ATen has to draw.
    `trains`: whether the graph is of a training step.
    """

    results: tuple[ValueType, ...] = ()
    most_threads: int = 0
    trains: bool = False

    def begins_anywhere(self, x: Value) -> bool:
        """Whether `x` is a tensor of somebody else, which may begin elsewhere than its type says. Windows on it are
        taken to begin where it was when the program was captured: ATen would be given a copy of these."""
        return True

    def is_filled(self, x: Value) -> bool:
        """Whether `x` was just made of one number."""
        return False

    @property
    def out(self) -> TensorType:
        """The type of the first result."""
        return self.results[0]  # type: ignore[return-value]

    def apply(self, op: Op, arguments: tuple[Any, ...]) -> Any:
        """The value of a prim (a tuple where it has several results). Raises `Decline` for a dtype it does not take."""
        allowed = _ALLOWED.get(op.name)
        if allowed is not None:
            for x in arguments:
                if type(x) is Value and x.type.dtype not in allowed:
                    raise Decline(f"{op.name} of {x.type.dtype}")
        if op.name in _NESTED:
            types = op.rule(*map(type_of, arguments))
        else:
            types = op.rule(*[a.type if type(a) is Value else a for a in arguments])
        if op.creates:
            (made,) = types
            types = (TensorType(made.dtype, made.shape, made.stride, 0, self.out.device),)
        values = self.emit(op, arguments, types)
        return values[0] if len(values) == 1 else values

    def emit(self, op: Op, arguments: tuple[Any, ...], types: tuple[TensorType, ...]) -> tuple[Value, ...]:
        raise NotImplementedError

    def extern(
        self, target: str, args: Sequence[Any], types: tuple[ValueType, ...], kwargs: dict[str, Any] | None = None
    ) -> tuple[Value | None, ...]:
        """Call ATen by name; `types` are the exact types of its results."""
        raise NotImplementedError


def _prim_method(op: Op) -> Callable[..., Any]:
    def method(self: Builder, *arguments: Any) -> Any:
        return self.apply(op, arguments)

    method.__name__ = op.name
    method.__doc__ = f"{op.doc}\n\n{op.example}"
    return method


for _op in OPS.values():
    setattr(Builder, _op.name, _prim_method(_op))


class GraphBuilder(Builder):
    """Emits nodes. `names` are the names taken already, shared by the graph.

    `elsewhere`: the values that the graph is given, and what calls of others than ATen return.
    """

    def __init__(self, names: set[str]) -> None:
        self.names = names
        self.nodes: list[Node] = []
        self.prefix = "v"
        self.line: SourceLine | None = None
        self.phase: Phase = "forward"
        self.checkpoint: int | None = None
        self.counter = 0
        self.elsewhere: set[str] = set()
        self._filled: set[str] = set()

    def begins_anywhere(self, x: Value) -> bool:
        return x.payload in self.elsewhere

    def is_filled(self, x: Value) -> bool:
        return x.payload in self._filled

    def begin(self, node: Node) -> None:
        """Start the decomposition of `node`: its results name and type what is emitted."""
        self.results = tuple(value.type for value in node.results)
        self.prefix = node.results[0].name if node.results else "v"
        self.line = node.line
        self.phase, self.checkpoint = node.phase, node.checkpoint
        self.counter = 0

    def fresh_name(self) -> str:
        while True:
            self.counter += 1
            name = f"{self.prefix}_{self.counter}"
            if name not in self.names:
                self.names.add(name)
                return name

    def emit(self, op: Op, arguments: tuple[Any, ...], types: tuple[TensorType, ...]) -> tuple[Value, ...]:
        encoders = _ENCODERS[op.name]
        args = tuple([encode(a) for encode, a in zip(encoders, arguments, strict=True)])
        made = self.append(_TARGETS[op.name], args, {}, types)
        if op.name == "full":
            self._filled.add(made[0].payload)  # type: ignore[union-attr]
        return made  # type: ignore[return-value]

    def extern(
        self, target: str, args: Sequence[Any], types: tuple[ValueType, ...], kwargs: dict[str, Any] | None = None
    ) -> tuple[Value | None, ...]:
        encoded = {key: encode_argument(value) for key, value in (kwargs or {}).items()}
        return self.append(target, tuple(map(encode_argument, args)), encoded, types)

    def append(
        self, target: str, args: tuple[Arg, ...], kwargs: dict[str, Arg], types: tuple[ValueType, ...]
    ) -> tuple[Value | None, ...]:
        results = tuple([NamedValue(self.fresh_name(), type) for type in types])
        effect = effect_of(target)
        self.nodes.append(Node(target, args, kwargs, results, self.line, self.phase, effect, self.checkpoint))
        if len(results) == 1 and type(types[0]) is TensorType:
            return (Value(types[0], results[0].name),)
        return tuple([Value(r.type, r.name) if type(r.type) is TensorType else None for r in results])


def encode_argument(argument: Any) -> Arg:
    """A decomposition's argument as graph data."""
    if type(argument) is Value:
        return Ref(argument.payload)
    match argument:
        case tuple() | list():
            return List(tuple([encode_argument(item) for item in argument]))
        case float():
            return literal(argument)
        case complex():
            return Complex(encode_argument(argument.real), encode_argument(argument.imag))  # type: ignore[arg-type]
        case DType(name):
            return DTypeArg(name)
        case Device(name):
            return DeviceArg(name)
    return argument


def _encode_tensor(argument: Value) -> Arg:
    return Ref(argument.payload)


def _encode_operand(argument: Any) -> Arg:
    return Ref(argument.payload) if type(argument) is Value else encode_argument(argument)


def _encode_values(argument: Sequence[Value | None]) -> Arg:
    return List(tuple([None if x is None else Ref(x.payload) for x in argument]))


def _encode_sizes(argument: Sequence[Dim]) -> Arg:
    return List(tuple(argument))


def _as_is(argument: Any) -> Arg:
    return argument


_DTYPE_ARGS = {name: DTypeArg(name) for name in DTYPES}
_KIND_ENCODERS: dict[Kind, Callable[[Any], Arg]] = {
    "tensor": _encode_tensor,
    "operand": _encode_operand,
    "tensors": _encode_values,
    "indices": _encode_values,
    "dims": _encode_sizes,
    "sizes": _encode_sizes,
    "size": _as_is,
    "int": _as_is,
    "int?": _as_is,
    "number": encode_argument,
    "bool": _as_is,
    "word": _as_is,
    "dtype": _DTYPE_ARGS.__getitem__,
}
_ENCODERS = {name: tuple(_KIND_ENCODERS[p.kind] for p in op.parameters) for name, op in OPS.items()}
_TARGETS = {name: f"prims.{name}" for name in OPS}
_ALLOWED = {name: c.dtypes for name, op in OPS.items() for c in op.constraints if c.dtypes is not None}
_NESTED = frozenset(n for n, op in OPS.items() if any(p.kind in ("tensors", "indices") for p in op.parameters))


class DType(str):
    """The name of a dtype among the arguments of an ATen call, as a decomposition sees it."""

    __match_args__ = ("name",)
    __slots__ = ()

    @property
    def name(self) -> str:
        return str(self)


class Device(str):
    """The name of a device among the arguments of an ATen call."""

    __match_args__ = ("name",)
    __slots__ = ()

    @property
    def name(self) -> str:
        return str(self)


_PLAIN = frozenset((int, float, bool, type(None), str))


def decode_argument(arg: Arg, values: dict[str, Any]) -> Any:
    """Graph data as a decomposition's argument: values by name, Python numbers, tuples, dtype and device names."""
    kind = type(arg)
    if kind is Ref:
        return values[arg.name]
    if kind in _PLAIN:
        return arg
    match arg:
        case List(items) | Tuple(items):
            return tuple([decode_argument(item, values) for item in items])
        case DTypeArg(name):
            return DType(name)
        case DeviceArg(name):
            return Device(name)
        case NonFinite(text):
            return float(text)
        case Complex(real, imag):
            return complex(decode_argument(real, values), decode_argument(imag, values))
    return arg


__all__ = [
    "DTYPES", "Builder", "DType", "Device", "Expr", "GraphBuilder", "LayoutArg", "MemoryFormatArg", "NoneType", "Value",
    "decode_argument", "encode_argument", "type_of",
]  # fmt: skip
