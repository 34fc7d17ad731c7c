"""What decompositions are written against: a `Builder` with one method for each prim, which emits it.

p.add(x, 2.0)                      # a prim
p.call("mine.halve", x)            # one of another vocabulary
p.convert(x, "float32")            # or none, where nothing is to be done
p.extern("aten.mm.default", ...)   # a named call of ATen
p.out                              # the type of the (first) result of the ATen call being decomposed
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from absint.schema import effect_of
from primops.errors import Decline, DecompositionFault
from primops.passes.fold_constants import in_dtype
from primops.prims import OPS
from primops.prims.layouts import FLOATS, HALVES
from stagewire import graph
from stagewire.expr import Dim, Expr
from stagewire.graph import Arg, List, Node, Ref
from stagewire.literals import literal as literal_arg
from stagewire.literals import number
from stagewire.types import DTYPES, TensorType, ValueType, numel
from stagewire.vocabulary import Kind, Op, find


class Value:
    """A tensor in a decomposition: its type, and its name in the graph."""

    __slots__ = ("payload", "type")

    def __init__(self, type: TensorType, payload: str) -> None:
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


def literal(x: Any, dtype: str) -> Any:
    """The Python number `x` as a literal for tensors of `dtype`; a size expression is an int."""
    kind = type(x)
    if kind is Expr and dtype != "bool":
        return x
    if kind is not int and kind is not float and kind is not bool:
        raise Decline(f"{x!r} is no literal")
    if dtype in FLOATS:
        return float(x)
    if dtype == "bool":
        return bool(x)
    if kind is float:
        raise Decline(f"the float {x} for {dtype}")
    return int(x)


def opmath(dtype: str) -> str:
    """The dtype in which eager computes elementwise on `dtype`."""
    return "float32" if dtype in HALVES else dtype


class Builder:
    """Emits the nodes of a graph, while one ATen call after the other is decomposed.

    names: those taken already, shared by the graph.
    results: the types of the results of the call.
    elsewhere: the values that the graph is given, and what calls of others than ATen return.
    most_threads: of ATen's random kernels on the GPU that the graph is for; 0 where ATen has to draw.
    trains: whether the graph is of a training step.
    """

    def __init__(self, names: set[str]) -> None:
        self.names = names
        self.nodes: list[Node] = []
        self.results: tuple[ValueType, ...] = ()
        self.elsewhere: set[str] = set()
        self.most_threads = 0
        self.trains = False
        self._filled: set[str] = set()

    def begin(self, node: Node) -> None:
        """Start the decomposition of `node`: its results name and type what is emitted."""
        self.results = tuple(value.type for value in node.results)
        self._node = node
        self._prefix = node.results[0].name if node.results else "v"
        self._counter = 0

    @property
    def out(self) -> TensorType:
        """The type of the first result."""
        return self.results[0]  # type: ignore[return-value]

    def begins_anywhere(self, x: Value) -> bool:
        """Whether `x` is a tensor of somebody else, which may begin elsewhere than its type says. Windows on it are
        taken to begin where it was when the program was captured: ATen would be given a copy of these."""
        return x.payload in self.elsewhere

    def is_filled(self, x: Value) -> bool:
        """Whether `x` was just made of one number."""
        return x.payload in self._filled

    # ---- nodes

    def apply(self, op: Op, arguments: tuple[Any, ...]) -> Any:
        """The value of a prim (a tuple where it has several results). Raises `Decline` for a dtype it does not take."""
        if op.name in _LISTING:
            arguments = tuple([tuple(a) if type(a) is list else a for a in arguments])
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
        args = tuple([encode(a) for encode, a in zip(_ENCODERS[op.name], arguments, strict=True)])
        values = self._append(_TARGETS[op.name], args, {}, types)
        if op.name == "full":
            self._filled.add(values[0].payload)  # type: ignore[union-attr]
        return values[0] if len(values) == 1 else values

    def call(self, target: str, *arguments: Any) -> Any:
        """The value of a prim of any vocabulary, by "namespace.name". Raises `Decline` for what it does not take."""
        op = find(target)
        if op is None or op.rule is None:
            raise DecompositionFault(f"{target} is no prim")
        types = tuple(map(type_of, arguments))
        refused = op.refusal(types)
        if refused is not None:
            raise Decline(refused[1])
        args = tuple([_KIND_ENCODERS[p.kind](a) for p, a in zip(op.parameters, arguments, strict=True)])
        values = self._append(target, args, {}, op.rule(*types))
        return values[0] if len(values) == 1 else values

    def extern(
        self, target: str, args: Sequence[Any], types: tuple[ValueType, ...], kwargs: dict[str, Arg] | None = None
    ) -> tuple[Value | None, ...]:
        """Call ATen by name; `types` are the exact types of its results."""
        return self._append(target, tuple(map(encode_argument, args)), kwargs or {}, types)

    def _append(
        self, target: str, args: tuple[Arg, ...], kwargs: dict[str, Arg], types: tuple[ValueType, ...]
    ) -> tuple[Value | None, ...]:
        results = tuple([graph.Value(self._fresh_name(), t) for t in types])
        like, effect = self._node, effect_of(target)
        self.nodes.append(Node(target, args, kwargs, results, like.line, like.phase, effect, like.checkpoint))
        return tuple([Value(r.type, r.name) if type(r.type) is TensorType else None for r in results])

    def _fresh_name(self) -> str:
        while True:
            self._counter += 1
            name = f"{self._prefix}_{self._counter}"
            if name not in self.names:
                self.names.add(name)
                return name

    # ---- operands made ready: no node where nothing is to be done

    def convert(self, x: Value, dtype: str) -> Value:
        """x in `dtype`."""
        return x if x.type.dtype == dtype else self.convert_element_type(x, dtype)

    def to_device(self, x: Value, device: str) -> Value:
        """x on `device`, by a copy through ATen where it is elsewhere."""
        if x.type.device == device:
            return x
        moved = TensorType(x.type.dtype, x.shape, x.type.stride, 0, device)
        (copy,) = self.extern("aten._to_copy.default", (x,), (moved,), {"device": graph.DeviceArg(device)})
        return copy  # type: ignore[return-value]

    def reshape(self, x: Value, shape: Sequence[Dim]) -> Value:
        """x under another shape."""
        shape = tuple(shape)
        return x if x.type.shape == shape else self.apply(OPS["reshape"], (x, shape))

    def permute(self, x: Value, dims: Sequence[int]) -> Value:
        """x with its dimensions reordered."""
        dims = tuple(dims)
        return x if dims == tuple(range(x.rank)) else self.apply(OPS["permute"], (x, dims))

    def broadcast(self, x: Value, shape: Sequence[Dim]) -> Value:
        """x repeated to `shape`, its dimensions aligned to the right."""
        shape = tuple(shape)
        if x.type.shape == shape:
            return x
        return self.broadcast_in_dim(x, shape, tuple(range(len(shape) - x.rank, len(shape))))

    def along(self, x: Value, shape: Sequence[Dim], dim: int) -> Value:
        """A vector repeated to `shape`, lying along `dim`."""
        return self.broadcast_in_dim(x, tuple(shape), (dim,))

    def spread(self, x: Value, shape: Sequence[Dim], dims: Sequence[int]) -> Value:
        """A value reduced over `dims` repeated back to `shape`."""
        if not dims:
            return self.broadcast(x, shape)
        return self.broadcast_in_dim(x, tuple(shape), tuple(i for i in range(len(shape)) if i not in dims))

    def kept(self, x: Value, shape: Sequence[Dim], dims: Sequence[int]) -> Value:
        """A reduced value with size 1 in place of the dimensions that were reduced from `shape`."""
        return self.reshape(x, tuple(1 if i in dims else n for i, n in enumerate(shape)))

    def reduced(self, prim: str, x: Value, dims: tuple[int, ...], keepdim: bool = False) -> Value:
        """A reduction prim over `dims`; dimensions kept as size 1 on request."""
        out = getattr(self, prim)(x, dims) if dims else x
        return self.kept(out, x.shape, dims) if keepdim else out

    def per_count(self, x: Value, shape: Sequence[Dim], dims: Sequence[int]) -> Value:
        """x divided by the number of elements over `dims` of `shape`; a symbolic number is known while running."""
        count = numel(tuple(shape[d] for d in dims))
        if isinstance(count, int):
            return self.div(x, float(count))
        total = self.convert(self.full((), count, "int64"), x.dtype)
        return self.div(x, self.broadcast(total, x.shape))

    def operand(self, x: Any, dtype: str, shape: tuple[Dim, ...], compute: str | None = None) -> Any:
        """x in `dtype` (then in `compute`, where eager computes), moved and broadcast; numbers stay literals."""
        if type(x) is not Value:
            # What computes in another dtype takes the number itself, what does not (a comparison) takes it as stored.
            stored = in_dtype(x, dtype) if compute is None and dtype in HALVES and type(x) is float else x
            return literal(x if stored is None else stored, compute or dtype)
        x = self.convert(self.to_device(x, self.out.device), dtype)
        if compute is not None:
            x = self.convert(x, compute)
        return self.broadcast(x, shape)

    def filled(self, x: Any, dtype: str, shape: tuple[Dim, ...]) -> Value:
        """x as a tensor of `dtype` and `shape`, numbers too."""
        value = self.operand(x, dtype, shape)
        return value if type(value) is Value else self.full(shape, value, dtype)

    def pointwise(self, compute: Callable[..., Value] | str, *operands: Any) -> Value:
        """`compute(p, *operands)`, or a prim of them, in the result's dtype (float32 for halves), operands converted
        and broadcast."""
        out = self.out
        inner = opmath(out.dtype)
        ready = [self.operand(x, out.dtype, out.shape, inner) for x in operands]
        if not any(type(x) is Value for x in ready):
            ready[0] = self.full(out.shape, ready[0], inner)
        made = getattr(self, compute)(*ready) if isinstance(compute, str) else compute(self, *ready)
        return self.convert(made, out.dtype)


def _prim_method(op: Op) -> Callable[..., Any]:
    count = len(op.parameters)

    def method(self: Builder, *arguments: Any) -> Any:
        if len(arguments) != count:
            raise TypeError(f"{len(arguments)} arguments for {op.signature}")
        return self.apply(op, arguments)

    method.__name__ = op.name
    method.__doc__ = f"{op.doc}\n\n{op.example}"
    return method


for _op in OPS.values():
    if not hasattr(Builder, _op.name):
        setattr(Builder, _op.name, _prim_method(_op))


def encode_argument(argument: Any) -> Arg:
    """A decomposition's argument as graph data."""
    if type(argument) is Value:
        return Ref(argument.payload)
    match argument:
        case tuple() | list():
            return List(tuple([encode_argument(item) for item in argument]))
        case float():
            return literal_arg(argument)
        case complex():
            return graph.Complex(literal_arg(argument.real), literal_arg(argument.imag))
    return argument


def _encode_dtype(argument: str) -> Arg:
    if argument not in DTYPES:
        raise TypeError(f"{argument!r} is no dtype, which is a name such as 'float32'")
    return _DTYPE_ARGS[argument]


_DTYPE_ARGS = {name: graph.DTypeArg(name) for name in DTYPES}
_KIND_ENCODERS: dict[Kind, Callable[[Any], Arg]] = {
    "dtype": _encode_dtype,
    **dict.fromkeys(("tensor", "operand", "number", "tensors", "indices"), encode_argument),
    **dict.fromkeys(("dims", "sizes"), lambda sizes: List(tuple(sizes))),
    **dict.fromkeys(("size", "int", "int?", "bool", "word"), lambda argument: argument),
}
_ENCODERS = {name: tuple(_KIND_ENCODERS[p.kind] for p in op.parameters) for name, op in OPS.items()}
_TARGETS = {name: f"prims.{name}" for name in OPS}
_ALLOWED = {name: c.dtypes for name, op in OPS.items() for c in op.constraints if c.dtypes is not None}
_LISTING = frozenset(n for n, op in OPS.items() if any(p.kind in ("dims", "sizes") for p in op.parameters))
_NESTED = frozenset(n for n, op in OPS.items() if any(p.kind in ("tensors", "indices") for p in op.parameters))
_PLAIN = frozenset((int, float, bool, type(None), str))


def decode_argument(arg: Arg, values: dict[str, Any]) -> Any:
    """Graph data as a decomposition's argument: values by name, Python numbers, tuples; others as they are."""
    kind = type(arg)
    if kind is Ref:
        return values[arg.name]
    if kind in _PLAIN:
        return arg
    match arg:
        case List(items) | graph.Tuple(items):
            return tuple([decode_argument(item, values) for item in items])
        case graph.NonFinite():
            return number(arg)
        case graph.Complex(real, imag):
            return complex(number(real), number(imag))
    return arg
