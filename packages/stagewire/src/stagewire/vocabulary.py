"""What an op of a document is: one record of data, to which stages attach behaviour by tables keyed by its name.

    vocabulary ::= namespace version op*
    op         ::= name family parameter* result* rule constraint* effect? doc example
    parameter  ::= name kind
    kind       ::= tensor | operand | tensors | indices | dims | sizes | size | int | int? | number
                 | bool | dtype | word
    example    ::= name(argument, ...) -> type, ...      argument ::= name: type | [argument, ...] | literal

A node "prims.add" calls the op `add` of the vocabulary `prims`. It takes all arguments by position, in the order of the
parameters, and no keyword arguments. Rules and constraints see types instead of tensors: a `TensorType` where the
argument is a value, plain Python numbers, tuples and dtype names elsewhere.

A distribution contributes a `Vocabulary` by an entry point of the group `stagefold.vocabularies`, under its namespace.
Targets whose namespace no vocabulary has are operators of torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal

from stagewire.errors import UnknownOp, VocabularyClash
from stagewire.expr import Expr
from stagewire.graph import DTypeArg, Effect, List, Node, NonFinite, Ref
from stagewire.types import DTYPES, TensorType

__all__ = ["GROUP", "Constraint", "Kind", "Op", "Parameter", "Vocabulary", "find", "parameters", "vocabularies"]

GROUP = "stagefold.vocabularies"

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
    """One argument of an op."""

    name: str
    kind: Kind

    def takes(self, argument: Any) -> bool:
        """Whether an argument, as rules see it, is of this kind."""
        return bool(_IS_OF_KIND[self.kind](argument))


@dataclass(frozen=True, slots=True)
class Constraint:
    """One labelled condition on the arguments; `check` returns what is wrong, or None.

    refused: an example that it refuses: (name of an op, arguments as types and literals).
    dtypes: for a constraint on the dtype of the operands, those that it allows.
    """

    label: str
    text: str
    check: Check
    refused: tuple[str, tuple[Any, ...]]
    dtypes: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class Op:
    """One op.

    rule: from the arguments to the types of the results. The strides and the device of a result are stated by the node.
    effect: what its nodes state as theirs.
    is_view: the result's elements are the operand's, at other places: fused, the op costs nothing.
    keeps_layout: it may be computed by a kernel that reads its operands by their strides. Passes do not change these.
    """

    name: str
    family: str
    parameters: tuple[Parameter, ...]
    doc: str
    rule: Rule
    constraints: tuple[Constraint, ...]
    example: str
    results: tuple[str, ...] = ("out",)
    effect: Effect | None = None
    is_view: bool = False
    keeps_layout: bool = False

    @property
    def creates(self) -> bool:
        """Whether it has no tensor operand, and names no device: that is then the one that the result type states."""
        told = ("tensor", "operand", "tensors", "indices")
        return not any(p.kind in told or p.name == "device" for p in self.parameters)

    @property
    def signature(self) -> str:
        """Like "permute(x: tensor, dims: dims) -> out"."""
        taken = ", ".join(f"{p.name}: {p.kind}" for p in self.parameters)
        return f"{self.name}({taken}) -> {', '.join(self.results)}"

    def refusal(self, arguments: tuple[Any, ...]) -> tuple[str, str] | None:
        """The label of the first constraint that the arguments break, and what is wrong; None if they break none."""
        for constraint in self.constraints:
            fault = constraint.check(*arguments)
            if fault is not None:
                return constraint.label, f"{self.name}: {fault}"
        return None


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The ops of one namespace.

    version: grows whenever an op is added, taken away or given another meaning.
    families: a line of text on each, in the order of the ops.
    """

    namespace: str
    version: int
    ops: Mapping[str, Op]
    families: Mapping[str, str]

    @property
    def constraints(self) -> dict[str, Constraint]:
        """Every constraint of an op, by label."""
        return {c.label: c for op in self.ops.values() for c in op.constraints}

    def op(self, target: str, where: str | None = None) -> Op:
        """The op that a node at `where` calls by "namespace.name"; raises `UnknownOp` for a name that is none."""
        name = target.removeprefix(f"{self.namespace}.")
        op = self.ops.get(name)
        if op is None:
            near = get_close_matches(name, self.ops, 3)
            fix = f"Did you mean {' or '.join(near)}?" if near else None
            raise UnknownOp(f"{self.namespace} (version {self.version}) has no op {name!r}", where=where, fix=fix)
        return op


def parameters(text: str) -> tuple[Parameter, ...]:
    """Read "x: tensor, dims: dims"."""
    pairs = [part.split(":") for part in text.split(",")]
    return tuple(Parameter(name.strip(), kind.strip()) for name, kind in pairs)  # type: ignore[arg-type]


@cache
def vocabularies() -> Mapping[str, Vocabulary]:
    """Those of installed distributions, by namespace. Two of one namespace are an error naming both."""
    found: dict[str, EntryPoint] = {}
    for point in entry_points(group=GROUP):
        other = found.setdefault(point.name, point)
        if other.value != point.value:
            raise VocabularyClash(f"two vocabularies for the namespace {point.name!r}: {other.value} and {point.value}")
    return {namespace: point.load() for namespace, point in found.items()}


def find(target: str) -> Op | None:
    """The op that a node calls by `target`; None where its namespace is that of no vocabulary.

    Raises `UnknownOp` where the vocabulary has no such op.
    """
    vocabulary = vocabularies().get(target.partition(".")[0])
    return None if vocabulary is None else vocabulary.op(target)


def arguments_of(node: Node, types: Mapping[str, Any]) -> tuple[Any, ...]:
    """What rules and constraints see of a node's arguments; `types` are those of the values that it may use."""
    return tuple([_seen(arg, types) for arg in node.args])


def _seen(arg: Any, types: Mapping[str, Any]) -> Any:
    match arg:
        case Ref(name):
            return types[name]
        case List(items):
            return tuple(_seen(item, types) for item in items)
        case NonFinite(text):
            return float(text)
        case DTypeArg(name):
            return name
    return arg


def _is_tensor(x: Any) -> bool:
    return type(x) is TensorType


def _is_int(x: Any) -> bool:
    return type(x) is int


def _is_number(x: Any) -> bool:
    """A literal, or a size expression, which is an int."""
    return type(x) in (bool, int, float) or isinstance(x, Expr)


def _is_size(x: Any) -> bool:
    return type(x) is int or isinstance(x, Expr)


_IS_OF_KIND: dict[Kind, Callable[[Any], bool]] = {
    "tensor": _is_tensor,
    "operand": lambda x: _is_tensor(x) or _is_number(x),
    "tensors": lambda x: isinstance(x, tuple) and all(map(_is_tensor, x)),
    "indices": lambda x: isinstance(x, tuple) and all(i is None or _is_tensor(i) for i in x),
    "dims": lambda x: isinstance(x, tuple) and all(map(_is_int, x)),
    "sizes": lambda x: isinstance(x, tuple) and all(map(_is_size, x)),
    "size": _is_size,
    "int": _is_int,
    "int?": lambda x: x is None or _is_int(x),
    "number": _is_number,
    "bool": lambda x: type(x) is bool,
    "word": lambda x: type(x) is str,
    "dtype": lambda x: type(x) is str and x in DTYPES,
}
