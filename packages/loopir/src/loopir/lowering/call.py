"""A prim call with its arguments bound by name, as the lowerings see it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from loopir.errors import UnsupportedPrim
from stagewire.expr import Dim, Expr
from stagewire.graph import Arg, List, Node, NonFinite, Ref, Tuple, Value
from stagewire.types import TensorType

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
