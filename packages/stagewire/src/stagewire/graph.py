"""Graphs: straight-line SSA programs, shared by Capture, Grad and Prim.

    graph  ::= inputs:value* node* outputs:arg*
    node   ::= value* = target(arg*, key=arg*)          # user's line
    value  ::= name : type
    arg    ::= None | bool | int | float | str | ref | expr | (arg*) | [arg*] | {str: arg} | slice | ...

A node that returns several tensors (or a list of them) has several results, in order; there are no getitem nodes.
"""

from __future__ import annotations

import keyword
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal, TypeVar

import msgspec

from stagewire.expr import Expr
from stagewire.types import ValueType

Name = TypeVar("Name", str, int)


class Ref(msgspec.Struct, frozen=True, tag="ref", tag_field="kind"):
    """A use of the value `name`, defined earlier in the same graph."""

    name: str


class Tuple(msgspec.Struct, frozen=True, tag="tuple", tag_field="kind"):
    items: tuple[Arg, ...]


class List(msgspec.Struct, frozen=True, tag="list", tag_field="kind"):
    items: tuple[Arg, ...]


class Dict(msgspec.Struct, frozen=True, tag="dict", tag_field="kind"):
    items: tuple[tuple[str, Arg], ...]


class Slice(msgspec.Struct, frozen=True, tag="slice", tag_field="kind"):
    start: Arg = None
    stop: Arg = None
    step: Arg = None


class Ellipsis(msgspec.Struct, frozen=True, tag="ellipsis", tag_field="kind"):
    """The literal `...` in an index."""


class DTypeArg(msgspec.Struct, frozen=True, tag="dtype", tag_field="kind"):
    """torch.float32 and its like, by name without "torch."."""

    name: str


class DeviceArg(msgspec.Struct, frozen=True, tag="device", tag_field="kind"):
    """A torch.device by its text, "cpu" or "cuda:0"."""

    name: str


class LayoutArg(msgspec.Struct, frozen=True, tag="layout", tag_field="kind"):
    """torch.strided and its like, by name without "torch."."""

    name: str


class MemoryFormatArg(msgspec.Struct, frozen=True, tag="memory_format", tag_field="kind"):
    """torch.channels_last and its like, by name without "torch."."""

    name: str


class NonFinite(msgspec.Struct, frozen=True, tag="non_finite", tag_field="kind"):
    """A float that JSON has no literal for."""

    text: Literal["inf", "-inf", "nan"]


class Complex(msgspec.Struct, frozen=True, tag="complex", tag_field="kind"):
    """A complex literal; the parts are Args so that they may be non-finite."""

    real: float | NonFinite
    imag: float | NonFinite


class Callee(msgspec.Struct, frozen=True, tag="callee", tag_field="kind"):
    """A function passed as an argument, by qualified name."""

    target: str


class HandleRef(msgspec.Struct, frozen=True, tag="handle", tag_field="kind"):
    """An object that cannot be data (a process group, a generator), held by the process under `name`."""

    name: str


Arg = (
    None
    | bool
    | int
    | float
    | str
    | Ref
    | Expr
    | Tuple
    | List
    | Dict
    | Slice
    | Ellipsis
    | DTypeArg
    | DeviceArg
    | LayoutArg
    | MemoryFormatArg
    | NonFinite
    | Complex
    | Callee
    | HandleRef
)


class SourceLine(msgspec.Struct, frozen=True):
    """Where the user wrote it."""

    file: str
    line: int
    function: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" + (f" in {self.function}" if self.function else "")


class Value(msgspec.Struct, frozen=True):
    """A named SSA value and its type."""

    name: str
    type: ValueType


Phase = Literal["forward", "backward"]

Effect = Literal["draws", "acts", "sends", "waits", "aliases"]
"""What a call does besides computing. "draws": it takes numbers from a random stream. "acts": it may raise on purpose,
writes into an operand, is an operator of the program's own, of which nothing else is known, or is made for the error
that its data may be alone. "sends": a collective, which every process begins in the order of the program, and which
reads its operands until its results are waited for. "waits": for a result of a collective, whose memory it gives.
"aliases": its results may lie in the memory of its operands."""

ORDERED: frozenset[Effect | None] = frozenset(("draws", "acts", "sends"))
"""Effects of calls that run in program order, each as often as it stands there, whether their results are used or not.
"""

LASTING = ORDERED | {"waits"}
"""Effects of calls that run as often as they stand there, whether their results are used or not."""


class Node(msgspec.Struct, frozen=True):
    """One call: `results = target(*args, **kwargs)`; targets are qualified names ("torch.nn.functional.linear",
    "aten.add.Tensor", "prims.add").

    effect: what it does besides (stated in Grad and Prim; a Capture leaves it open). checkpoint: the number of the
    checkpoint of the program (`Capture.checkpoints`) that the call stands in, for the partition.
    """

    target: str
    args: tuple[Arg, ...]
    kwargs: dict[str, Arg]
    results: tuple[Value, ...]
    line: SourceLine | None = None
    phase: Phase = "forward"
    effect: Effect | None = None
    checkpoint: int | None = None


class Graph(msgspec.Struct, frozen=True):
    """Inputs, nodes in order of execution, outputs (references or literals). `str` of it is its printed form."""

    inputs: tuple[Value, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[Arg, ...]


def leaves(arg: Arg) -> Iterator[Arg]:
    """What `arg` is made of, in order: everything in it that is no tuple, list, dict or slice."""
    match arg:
        case Tuple(items) | List(items):
            for item in items:
                yield from leaves(item)
        case Dict(items):
            for _, item in items:
                yield from leaves(item)
        case Slice(start, stop, step):
            for item in (start, stop, step):
                yield from leaves(item)
        case _:
            yield arg


_CONTAINERS = frozenset((Tuple, List, Dict, Slice))


def references(arg: Arg) -> tuple[str, ...]:
    """The names of the values that `arg` uses, in order, with repetitions.

    Every pass asks this about every argument: most are references or literals, and take no generator.
    """
    kind = arg.__class__
    if kind is Ref:
        return (arg.name,)  # type: ignore[union-attr]
    return tuple([leaf.name for leaf in leaves(arg) if isinstance(leaf, Ref)]) if kind in _CONTAINERS else ()


def free_names(nodes: Iterable[Node], outputs: Iterable[Arg], own: Iterable[str] = ()) -> list[str]:
    """What nodes and outputs use that neither a node nor `own` defines, in order of first use."""
    used: dict[str, None] = {}
    defined = set(own)
    for node in nodes:
        used.update(dict.fromkeys(node_references(node)))
        defined.update(value.name for value in node.results)
    used.update(dict.fromkeys(output.name for output in outputs if isinstance(output, Ref)))
    return [name for name in used if name not in defined]


def node_references(node: Node) -> tuple[str, ...]:
    """The names of the values that a node uses, in order, with repetitions.

    Every pass asks this of every node: arguments that are plain references take no generator.
    """
    names: list[str] = []
    for arg in (*node.args, *node.kwargs.values()) if node.kwargs else node.args:
        kind = arg.__class__
        if kind is Ref:
            names.append(arg.name)  # type: ignore[union-attr]
        elif kind is List or kind is Tuple:
            for item in arg.items:  # type: ignore[union-attr]
                if item.__class__ is Ref:
                    names.append(item.name)
                elif item.__class__ in _CONTAINERS:
                    names.extend(references(item))
        elif kind in _CONTAINERS:
            names.extend(references(arg))
    return tuple(names)


def last_uses(graph: Graph) -> list[tuple[str, ...]]:
    """For each node the values, its own results among them, that no later node and no output uses."""
    outputs = (name for arg in graph.outputs for name in references(arg))
    names = [(*node_references(node), *(value.name for value in node.results)) for node in graph.nodes]
    return last_mentions(names, outputs)


def last_mentions(steps: Sequence[Iterable[Name]], behind: Iterable[Name] = ()) -> list[tuple[Name, ...]]:
    """For each step the names that neither a later one mentions nor `behind`."""
    needed = set(behind)
    found: list[tuple[Name, ...]] = []
    for names in reversed(steps):
        found.append(tuple([name for name in dict.fromkeys(names) if name not in needed]))
        needed.update(found[-1])
    return found[::-1]


def map_arg(arg: Arg, visit: Callable[[Arg], Arg]) -> Arg:
    """Rebuild `arg` with every leaf (anything that is not a container) replaced by `visit(leaf)`."""
    match arg:
        case Tuple(items):
            return Tuple(tuple(map_arg(item, visit) for item in items))
        case List(items):
            return List(tuple(map_arg(item, visit) for item in items))
        case Dict(items):
            return Dict(tuple((key, map_arg(item, visit)) for key, item in items))
        case Slice(start, stop, step):
            return Slice(map_arg(start, visit), map_arg(stop, visit), map_arg(step, visit))
        case _:
            return visit(arg)


def definitions(graph: Graph) -> dict[str, Value]:
    """Every value of the graph by name."""
    values = {value.name: value for value in graph.inputs}
    for node in graph.nodes:
        for value in node.results:
            values[value.name] = value
    return values


FILE_OPERATORS = frozenset(("aten.from_file", "aten.save", "debugprims.load_tensor"))
"""Operators of torch that are given the name of a file; all of their overloads."""


def opens_files(target: str) -> bool:
    """Whether a target is one of `FILE_OPERATORS`, under any of its names.

    >>> opens_files("aten.from_file.default"), opens_files("torch.from_file"), opens_files("aten.add.Tensor")
    (True, True, False)
    """
    if target == "torch.from_file":
        return True
    operator = target.removeprefix("torch.ops.")
    return any(operator == name or operator.startswith(f"{name}.") for name in FILE_OPERATORS)


def is_keyword_name(name: str) -> bool:
    """Whether Python can pass an argument by this name: `f(name=...)`, or `f(**{name: ...})` for `RESERVED`."""
    return name.isidentifier() and (name in RESERVED or not keyword.iskeyword(name))


RESERVED = frozenset({"from"})
"""Reserved words of Python that are names of arguments in torch: `x.random_(**{"from": 3})`."""
