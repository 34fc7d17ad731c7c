"""What a prim is: one record of data to which separate tables attach a meaning (`primops.meanings`).

    record     ::= name family parameter* result* rule constraint* doc example
    parameter  ::= name kind
    kind       ::= tensor | operand | tensors | indices | dims | sizes | size | int | int? | number
                 | bool | dtype | word

In a graph a prim takes all its arguments by position, in the order of its parameters, and no keyword arguments.
Rules and constraints see types instead of tensors: a `TensorType` where the argument is a value, plain Python
numbers, tuples and dtype names elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from stagewire.types import TensorType

Kind = Literal[
    "tensor",  # a value
    "operand",  # a value, or a Python number (or size expression) that takes the dtype of the values beside it
    "tensors",  # a list of one or more values
    "indices",  # a list of integer values or None
    "dims",  # a list of dimension numbers, each in 0..rank-1, literal
    "sizes",  # a list of sizes or offsets: integers or size expressions
    "size",  # one integer or size expression
    "int",  # an integer literal
    "int?",  # an integer literal or None
    "number",  # a bool, int or float literal (NonFinite for inf and nan), or a size expression
    "bool",
    "dtype",
    "word",  # the name of a device
]

Rule = Callable[..., tuple[TensorType, ...]]
Check = Callable[..., "str | None"]


@dataclass(frozen=True, slots=True)
class Parameter:
    """One argument of a prim."""

    name: str
    kind: Kind


@dataclass(frozen=True, slots=True)
class Constraint:
    """One labelled condition on the arguments; `check` returns what is wrong, or None.

    `refused` is an example the constraint refuses: (prim name, arguments as types and literals).
    `dtypes`: for a constraint on the dtype of the operands, those that it allows.
    """

    label: str
    text: str
    check: Check
    refused: tuple[str, tuple[Any, ...]]
    dtypes: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class Record:
    """One prim.

    `call`: the operator, of the same arguments, that computes it where it does not become loops; None for what always
    does. `draws`: it takes numbers from the random stream, so its calls keep their order, and none is dropped or merged
    with another.
    """

    name: str
    family: str
    parameters: tuple[Parameter, ...]
    doc: str
    rule: Rule
    constraints: tuple[Constraint, ...]
    example: str
    results: tuple[str, ...] = ("out",)
    call: str | None = None
    draws: bool = False

    @property
    def creates(self) -> bool:
        """Whether it has no tensor operand, and names no device: that is then the one that the result type states."""
        told = ("tensor", "operand", "tensors", "indices")
        return not any(p.kind in told or p.name == "device" for p in self.parameters)


def parameters(text: str) -> tuple[Parameter, ...]:
    """Read "x: tensor, dims: dims" into parameters."""
    pairs = [part.split(":") for part in text.split(",")]
    return tuple(Parameter(name.strip(), kind.strip()) for name, kind in pairs)  # type: ignore[arg-type]
