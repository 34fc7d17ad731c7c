"""Numbers that data decides, as values of the graph: `loss.item()`, how many elements a mask selects.

number ::= node torch.Tensor.size(tensor, dim) -> int     a size: a symbol, with which Python computes on
         | node torch.Tensor.item(tensor) -> int | float   an int is a symbol too
         | node operator.truediv(number, number) -> float

A float has a name alone: it can be computed with, passed to torch, stored and returned. What needs the number itself, a
branch or a loop, is refused. Only for backends that say `takes_data_sizes = True`, and only where the whole frame is to
be one graph; else graphs end at such a line.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from absint import DataDependentError
from absint.symbolic import is_symbolic
from absint.wire import to_arg
from bytecap.errors import DataDependent
from bytecap.objects.base import Value
from bytecap.objects.constant import Constant
from bytecap.objects.numbers.symbolic import SymbolicInt, as_value
from stagewire.graph import Arg, Node, Ref
from stagewire.graph import Value as GraphValue
from stagewire.types import ScalarType

if TYPE_CHECKING:
    from bytecap.evaluator.tracer import Tracer
    from bytecap.objects.arrays.tensors import TensorValue
    from bytecap.replacement.emit import Emitter


# What C++ is given: the types of results do not depend on it, and Python that asks for it is refused.
_SOME_NUMBER = 0.7310585786300049


class HostFloat(float):
    """The float as torch's C++ sees it: of some value, which must not be asked for."""

    name: str

    def _refuse(self, *_: Any) -> NoReturn:
        raise DataDependentError(f"the number {self.name} depends on data")

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __bool__ = __int__ = __hash__ = _refuse  # type: ignore[assignment]
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _refuse  # type: ignore[assignment]
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __pow__ = __rpow__ = __neg__ = __abs__ = _refuse  # type: ignore[assignment]
    __format__ = __repr__ = __str__ = __round__ = __trunc__ = __float__ = _refuse  # type: ignore[assignment]


class DataFloat(Constant):
    """A Python float that the graph computes."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        Value.__init__(self)
        self.name = name

    @property
    def value(self) -> NoReturn:  # type: ignore[override]
        """Refused: only the running graph knows it."""
        raise DataDependent(f"the number {self.name} depends on the content of a tensor")

    def python_type(self) -> type:
        return float

    def concrete(self) -> NoReturn:
        return self.value

    def describe(self) -> str:
        return f"number {self.name}"

    def truth(self, tracer: Tracer) -> bool:
        return self.value

    def host(self) -> HostFloat:
        """What a torch call is given."""
        made = HostFloat(_SOME_NUMBER)
        made.name = self.name
        return made

    def reconstruct(self, emitter: Emitter) -> None:
        emitter.graph_number(self.name)

    def __repr__(self) -> str:
        return f"<DataFloat %{self.name}>"


def is_of_data(value: Value) -> bool:
    """Whether the value is a number that data decides."""
    return value.size.node.is_unknown if isinstance(value, SymbolicInt) else isinstance(value, DataFloat)


def read_number(tracer: Tracer, tensor: TensorValue, method: Callable[..., Any]) -> Value:
    """`tensor.item()`, or its `__int__` or `__float__`, as a node."""
    dtype = tensor.abstract.dtype
    is_float = method is torch.Tensor.__float__ or (method is torch.Tensor.item and dtype.is_floating_point)
    if tensor.abstract.numel() != 1:
        raise tracer.raises(
            RuntimeError, f"a Tensor with {tensor.abstract.numel()} elements cannot be converted to Scalar"
        )
    if dtype.is_complex or (dtype is torch.bool and method is torch.Tensor.item):
        raise DataDependent(f"{method.__name__}() of a {tensor.describe()} depends on its content")
    target = f"torch.Tensor.{method.__name__}"
    if is_float:
        return DataFloat(_add(tracer, target, (Ref(tensor.name),), "float"))
    return _int(tracer, target, (Ref(tensor.name),))


def read_size(tracer: Tracer, tensor: str, dim: int, symbol: str) -> None:
    """Have the graph read the size of a result of its own."""
    _add(tracer, "torch.Tensor.size", (Ref(tensor), dim), "int", symbol)


def compute(tracer: Tracer, function: Callable[..., Any], sides: tuple[Constant, Constant]) -> Value | None:
    """An operator on numbers of which data decides one; None where nothing needs the number."""
    if not any(is_of_data(side) for side in sides):
        return None
    kinds = [side.python_type() for side in sides]
    if not set(kinds) <= {int, float, bool}:
        return None
    name = function.__name__
    if float not in kinds and name != "truediv":
        return None  # symbols
    if name not in _ARITHMETIC:
        raise DataDependent(f"operator {name} on a number that depends on the content of a tensor")
    args = tuple([_wire(tracer, side) for side in sides])
    return DataFloat(_add(tracer, f"operator.{name}", args, "float"))


def apply(tracer: Tracer, function: Callable[..., Any], args: list[Value]) -> Value | None:
    """A function of numbers of which data decides one; None where it is none."""
    if not any(isinstance(arg, DataFloat) for arg in args):
        return None
    if function is float:
        return args[0]
    target = _FUNCTIONS.get(function)
    if target is None or not all(isinstance(arg, Constant) for arg in args):
        raise DataDependent(f"{getattr(function, '__name__', function)}() of a number that depends on data")
    wired = tuple([_wire(tracer, arg) for arg in args])  # type: ignore[arg-type]
    if target not in _INTEGERS:
        return DataFloat(_add(tracer, target, wired, "float"))
    return _int(tracer, target, wired)


_MATH = "sqrt exp log log2 log10 sin cos tanh pow floor ceil trunc"
_FUNCTIONS: dict[Any, str] = {
    **{getattr(math, name): f"math.{name}" for name in _MATH.split()},
    **{operator.neg: "operator.neg", operator.pos: "operator.pos", abs: "operator.abs", int: "math.trunc"},
}
_INTEGERS = frozenset({"math.floor", "math.ceil", "math.trunc"})


def extreme(tracer: Tracer, items: list[Value], *, least: bool) -> Value | None:
    """min() or max() of ints, or of floats, of which data decides one; None where it is none."""
    kinds = {item.python_type() for item in items}
    if not any(is_of_data(item) for item in items) or kinds not in ({int}, {float}):
        return None
    if kinds == {float}:
        target, best = "torch.sym_min" if least else "torch.sym_max", items[0]
        for item in items[1:]:
            best = DataFloat(_add(tracer, target, (_wire(tracer, best), _wire(tracer, item)), "float"))  # type: ignore[arg-type]
        return best
    found: Any = items[0].host()  # type: ignore[arg-type]
    for item in items[1:]:
        other: Any = item.host()  # type: ignore[arg-type]
        size, number = (found, other) if is_symbolic(found) else (other, found)
        if is_symbolic(size):
            found = size.__sym_min__(number) if least else size.__sym_max__(number)
        else:
            found = min(found, other) if least else max(found, other)
    return as_value(found)


_ARITHMETIC = frozenset(("add", "sub", "mul", "truediv", "floordiv", "mod"))


def _wire(tracer: Tracer, side: Constant) -> Arg:
    if isinstance(side, DataFloat):
        return Ref(side.name)
    return to_arg(side.host(), tracer.inputs.wire_argument)


def _int(tracer: Tracer, target: str, args: tuple[Arg, ...]) -> Value:
    """An int that a node gives: a symbol of which nothing is known."""
    size = tracer.sizes.create_unknown(tracer.graph.name("number"), None, None)
    _add(tracer, target, args, "int", str(size))
    return as_value(size)


def _add(tracer: Tracer, target: str, args: tuple[Arg, ...], kind: Any, name: str | None = None) -> str:
    name = name or tracer.graph.name("number")
    tracer.graph.append(Node(target, args, {}, (GraphValue(name, ScalarType(kind)),), tracer.line()))
    tracer.graph.numbers.add(name)
    return name
