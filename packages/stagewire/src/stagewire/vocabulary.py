"""What an op of a document is: one record of data, to which stages attach behaviour by tables keyed by its name.

    vocabulary ::= namespace version op*
    op         ::= name family parameter* result* rule constraint* effect? doc example
    parameter  ::= name kind
    kind       ::= tensor | operand | tensors | indices | dims | sizes | size | int | int? | number
                 | bool | dtype | word | any
    example    ::= name(argument, ...) -> type, ...      argument ::= name: type | [argument, ...] | literal

A node "prims.add" calls the op `add` of the vocabulary `prims`. It takes all arguments by position, in the order of the
parameters, and no keyword arguments, unless the op is a `python_call`. Rules and constraints see types instead of
tensors: a `TensorType` where the argument is a value, plain Python numbers, tuples and dtype names elsewhere.

A distribution contributes a `Vocabulary` by an entry point of the group `stagefold.vocabularies`, under its namespace;
a program may `register` one. Targets whose namespace no vocabulary has are operators of torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib.metadata import EntryPoint
from typing import Any, Literal

from stagewire.errors import NameClash, UnknownOp
from stagewire.expr import Expr
from stagewire.graph import Arg, DTypeArg, Effect, List, Node, NonFinite, Ref
from stagewire.literals import number
from stagewire.stage import discover
from stagewire.types import DTYPES, TensorType

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
    "any",  # anything that a call may take
]

Rule = Callable[..., tuple[TensorType, ...]]
Check = Callable[..., "str | None"]


@dataclass(frozen=True, slots=True)
class Parameter:
    """One argument of an op. optional: it has a default. keyword_only: it is given by name (`Op.python_call`)."""

    name: str
    kind: Kind
    optional: bool = False
    keyword_only: bool = False

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

    rule: from the arguments to the types of the results, of which the node states strides and device; None where the
    rules have another form (`absint` has those of ATen).
    effect: what its nodes state as theirs.
    python_call: arguments may be given by name, and those with a default left out.
    is_view: the result's elements are the operand's, at other places: fused, the op costs nothing.
    keeps_layout: it may be computed by a kernel that reads its operands by their strides. Passes do not change these.
    """

    name: str
    family: str
    parameters: tuple[Parameter, ...]
    doc: str
    rule: Rule | None
    constraints: tuple[Constraint, ...]
    example: str
    results: tuple[str, ...] = ("out",)
    effect: Effect | None = None
    is_view: bool = False
    keeps_layout: bool = False
    python_call: bool = False

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

    def bind(self, node: Node) -> list[tuple[Parameter, Arg]] | str:
        """The node's arguments by parameter; or what is wrong with their number or names."""
        if not self.python_call and (node.kwargs or len(node.args) != len(self.parameters)):
            return f"{len(node.args)} arguments and {len(node.kwargs)} keyword arguments"
        positional = [p for p in self.parameters if not p.keyword_only]
        if len(node.args) > len(positional):
            return f"{len(node.args)} arguments, of which it takes {len(positional)}"
        bound = dict(zip(positional, node.args, strict=False))
        by_name = {p.name: p for p in self.parameters if p not in bound}
        for name, arg in node.kwargs.items():
            if name not in by_name:
                return f"the keyword argument {name!r}, which it does not take, or has by position"
            bound[by_name[name]] = arg
        missing = [p.name for p in self.parameters if p not in bound and not p.optional]
        return f"nothing for {', '.join(missing)}" if missing else list(bound.items())

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
    convention: how its ops are called, where that is not the form of nodes.
    overloads: names are "name.overload", as of ATen; else an operator of torch may have the namespace as well.
    exampled: of such a vocabulary, the ops that have an example.
    """

    namespace: str
    version: int
    ops: Mapping[str, Op]
    families: Mapping[str, str]
    convention: str = ""
    overloads: bool = False
    exampled: tuple[str, ...] = ()

    @property
    def constraints(self) -> dict[str, Constraint]:
        """Every constraint of an op, by label."""
        return {c.label: c for op in self.ops.values() for c in op.constraints}

    def op(self, target: str, where: str | None = None) -> Op:
        """The op that a node at `where` calls by "namespace.name"; raises `UnknownOp` for a name that is none."""
        name = target.removeprefix(f"{self.namespace}.")
        op = self.ops.get(name)
        if op is None:
            message = f"{self.namespace} (version {self.version}) has no op {name!r}"
            raise UnknownOp(message, where=where, fix=_meant(self.near(name)))
        return op

    def near(self, name: str) -> list[str]:
        """Up to three ops that are probably meant, with the namespace: overloads of an operator of that name first."""
        overloads = sorted(
            (op for op in self.ops if op.startswith(f"{name}.")), key=lambda op: not op.endswith(".default")
        )
        return [f"{self.namespace}.{op}" for op in (overloads or get_close_matches(name, self.ops, 3))[:3]]


def _meant(near: list[str]) -> str | None:
    return f"Did you mean {' or '.join(near)}?" if near else None


def constraint(
    text: str, refused: tuple[str, tuple[Any, ...]], dtypes: frozenset[str] | None = None
) -> Callable[[Check], Constraint]:
    """Makes the decorated check a constraint, whose label is the name of the function."""
    return lambda check: Constraint(check.__name__, text, check, refused, dtypes)


def of_dtypes(label: str, allowed: frozenset[str], text: str, refused: tuple[str, tuple[Any, ...]]) -> Constraint:
    """The constraint that all tensor operands are of some of these dtypes."""

    def check(*operands: Any) -> str | None:
        wrong = sorted({x.dtype for x in operands if type(x) is TensorType} - allowed)
        return f"{' and '.join(wrong)} operands" if wrong else None

    return Constraint(label, text, check, refused, allowed)


def parameters(text: str) -> tuple[Parameter, ...]:
    """Read "x: tensor, dims: dims"."""
    pairs = [part.split(":") for part in text.split(",")]
    return tuple(Parameter(name.strip(), kind.strip()) for name, kind in pairs)  # type: ignore[arg-type]


@cache
def namespaces() -> Mapping[str, EntryPoint]:
    """Those that installed distributions have a vocabulary for. Two for one are an error naming both."""
    return discover(GROUP)


_REGISTERED: dict[str, Vocabulary | None] = {}
"""By namespace, what was registered or asked for in this process."""


def register(added: Vocabulary) -> Vocabulary:
    """Have a vocabulary in this process, whether it is installed or not; another one of its namespace is an error."""
    known = _REGISTERED.get(added.namespace)
    if known is not None and known is not added:
        raise NameClash(f"another vocabulary for the namespace {added.namespace!r} is there already")
    _REGISTERED[added.namespace] = added
    return added


def registered() -> tuple[str, ...]:
    """The namespaces that this process has a vocabulary for already, installed or not."""
    return tuple(name for name, known in _REGISTERED.items() if known is not None)


def vocabulary(namespace: str) -> Vocabulary | None:
    """That of a namespace, loaded when it is first asked for; None where there is none."""
    if namespace not in _REGISTERED:
        point = namespaces().get(namespace)
        _REGISTERED[namespace] = None if point is None else point.load()
    return _REGISTERED[namespace]


def find(target: str) -> Op | None:
    """The op that a node calls by `target`; None where its namespace is that of no vocabulary.

    Raises `UnknownOp` where the vocabulary has no such op.
    """
    known = vocabulary(target.partition(".")[0])
    return None if known is None or (target.count(".") > 1 and not known.overloads) else known.op(target)


def find_operator(name: object) -> None:
    """Raise `UnknownOp` for what is no name of an operator of torch ("namespace.name.overload"), and for one that the
    vocabulary of its namespace does not have."""
    if isinstance(name, str) and name.count(".") > 1:
        find(name)
        return
    known = [one for one in map(vocabulary, namespaces()) if one is not None and one.overloads]
    near = [op for one in known for op in one.near(str(name).removeprefix(f"{one.namespace}."))]
    raise UnknownOp(f"{name!r} is no name of an operator, such as 'aten.exp.default'", fix=_meant(near))


def is_prim(target: str) -> bool:
    """Whether a node calls an op of a vocabulary; else an operator of torch, which has an overload in its name.

    >>> is_prim("prims.add"), is_prim("aten.mm.default"), is_prim("mine.halve")
    (True, False, True)
    """
    return target.count(".") == 1


def keeps_layout(target: str) -> bool:
    """Whether a kernel that reads its operands by their strides computes it, or may.

    >>> keeps_layout("aten.mm.default"), keeps_layout("prims.max_pool2d"), keeps_layout("prims.add")
    (True, True, False)
    """
    op = find(target) if is_prim(target) else None
    return not is_prim(target) or (op is not None and op.keeps_layout)


def seen(arg: Arg, types: Mapping[str, Any]) -> Any:
    """What rules and constraints see of an argument; `types` are those of the values that there are."""
    match arg:
        case Ref(name):
            return types[name]
        case List(items):
            return tuple(seen(item, types) for item in items)
        case NonFinite():
            return number(arg)
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
    "any": lambda x: True,
}
