"""The primops stage: `Grad` in, `Prim` out."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from msgspec.structs import replace

from absint import targets
from primops.builder import Builder, Value, decode_argument
from primops.channels_last import channels_last, suits
from primops.decompositions import ALL, TABLE, VIEWS, Function
from primops.errors import Decline, DecompositionFault
from primops.exactness import is_deterministic, is_exact, reads_mode
from primops.passes import DEFAULT_PASSES, Pass
from primops.prims import OPSET
from primops.prims.layouts import SUPPORTED, same_layout
from stagewire import vocabulary
from stagewire.errors import UnknownOp
from stagewire.flex_attention import functions_of, with_forms
from stagewire.grad import Grad
from stagewire.graph import Graph, Node, definitions, node_references
from stagewire.graph import Value as NamedValue
from stagewire.graph_passes import rename, rename_node
from stagewire.parser import parse_graph
from stagewire.passes import run_passes
from stagewire.prim import Prim
from stagewire.printer import print_graph
from stagewire.stage import expect
from stagewire.types import NoneType, TensorType, ValueType
from stagewire.verify import verify_graph
from stagewire.vocabulary import is_prim

logger = logging.getLogger("primops")


@dataclass(frozen=True)
class Options:
    """Choices of the stage.

    keep: ATen ops left whole, by name ("aten.gelu.default").
    decompositions: more of them, or others, by overload name; one that fails is an error.
    passes: run on the lowered graph, in order.
    strict: one of ours that fails is an error, too, as those of other distributions are; otherwise its call stays with
        ATen and a warning is logged.
    numerics: "eager" decomposes only what then gives eager's bits on a CPU (`exactness`).
    channels_last: inference through depthwise convolutions on a CPU runs in that layout (module `channels_last`).
    random_threads: threads that ATen's random kernels have at most on the GPU that programs are for; their numbers are
        then computed by formula (`stagewire.philox`). 0 leaves masks of dropout on GPUs to ATen.
    deterministic: calls whose compiled code would add up in an order that changes from run to run stay with ATen, which
        obeys `torch.use_deterministic_algorithms` (or says that it cannot).
    lacks: prims and dtypes, by name, for which the target has no code: calls that need one stay with ATen.
    """

    keep: tuple[str, ...] = ()
    decompositions: tuple[tuple[str, Function], ...] = ()
    passes: tuple[Pass, ...] = DEFAULT_PASSES
    strict: bool = False
    numerics: Literal["default", "eager"] = "default"
    channels_last: bool = True
    random_threads: int = 0
    deterministic: bool = False
    lacks: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        for target in (*self.keep, *dict(self.decompositions)):
            if target not in ALL:
                vocabulary.find_operator(target)  # raises for a name that is none
                if targets.find(target) is None:
                    raise UnknownOp(f"torch has no operator {target!r}", fix=_UNREGISTERED)


_UNREGISTERED = "Name an operator as torch does (aten.exp.default), once the library that registers it is imported."


@dataclass(frozen=True)
class Primops:
    """Decomposes the joint graph of a `Grad`; the binding is unchanged."""

    Options: ClassVar[type[Options]] = Options

    name: str = "primops"
    version: str = f"2+opset{OPSET}"
    consumes: str = "grad"
    produces: str = "prim"

    def run(self, document: Grad, options: Options | None = None) -> Prim:
        """The same program in prims and externs, not cut yet."""
        expect(document, "grad", self.name)
        options = options or Options()
        graph, trains = document.joint, bool(document.binding.tangents)
        if not trains and options.numerics != "eager" and options.channels_last and suits(graph):
            graph = channels_last(graph)
        functions = {**ALL, **dict(options.decompositions)}
        for target in options.keep:
            functions.pop(target, None)
        of_others = functions.keys() - TABLE.keys() | dict(options.decompositions).keys()
        strict = frozenset(functions if options.strict else of_others)
        joint = lower_graph(graph, functions, options, strict=strict, trains=trains)
        return Prim(binding=document.binding, joint=joint, opset=OPSET)


def lower_graph(
    graph: Graph, table: Mapping[str, Function] = TABLE, options: Options | None = None, *,
    strict: frozenset[str] | None = None, trains: bool = False,
) -> Graph:  # fmt: skip
    """One graph of ATen calls as a graph of prims and externs.

    strict: the ops whose decompositions may not fail; None: all. trains: whether it has a backward.
    """
    options = options or Options()
    lowering = _Lowering(graph, table, frozenset(table) if strict is None else strict, options)
    lowering.builder.most_threads, lowering.builder.trains = options.random_threads, trains
    return run_passes("primops", options.passes, lowering.run(), verify_graph)


# Lazy conjugation and negation are bits on a tensor, which some kernels refuse; a graph means the numbers.
_PHYSICAL = {"aten._conj.default": "aten._conj_physical.default", "aten._neg_view.default": "aten.neg.default"}


class _Lowering:
    """The state of one graph's decomposition: the builder and, for each ATen value, the value that stands for it."""

    def __init__(self, graph: Graph, table: Mapping[str, Function], strict: frozenset[str], options: Options) -> None:
        self.graph, self.table, self.strict, self.options = graph, table, strict, options
        self.builder = Builder(set(definitions(graph)))
        self.builder.elsewhere = {value.name for value in graph.inputs}
        self.values: dict[str, Value] = {v.name: Value(v.type, v.name) for v in graph.inputs}  # type: ignore[arg-type]
        self.renamed: dict[str, str] = {}

    def run(self) -> Graph:
        for node in self.graph.nodes:
            # An op of ATen that has no effect of its own but states one is there for its errors, which are ATen's. An
            # operator of others states one unless it is known better, as by a decomposition.
            is_checked = node.effect == "acts" and node.target.startswith("aten.")
            function = None if is_checked else self.table.get(node.target)
            if function is None or not self.decompose(node, function):
                self.extern(node)
            if not node.target.startswith("aten.") and not is_prim(node.target):
                self.builder.elsewhere.update(value.name for value in node.results)
        outputs = tuple(rename(arg, self.renamed) for arg in self.graph.outputs)
        return Graph(self.graph.inputs, tuple(self.builder.nodes), outputs)

    def decompose(self, node: Node, function: Function) -> bool:
        """Emit the decomposition of `node`; False (and nothing emitted) if it declines."""
        builder = self.builder
        if self.options.deterministic and reads_mode(node.target):
            return False
        builder.begin(node)
        mark = len(builder.nodes)
        try:
            args = tuple([decode_argument(arg, self.values) for arg in node.args])
            kwargs = {key: decode_argument(arg, self.values) for key, arg in node.kwargs.items()}
            made = decompose_call(builder, function, node.target, args, kwargs)
        except Decline:
            del builder.nodes[mark:]
            return False
        except DecompositionFault as fault:
            if node.target in self.strict:
                raise DecompositionFault(fault.message, where=node.line) from fault
            logger.warning("%s stays with ATen: %s", node.target, fault.message)
            del builder.nodes[mark:]
            return False
        emitted, options = builder.nodes[mark:], self.options
        if (
            (options.numerics == "eager" and not is_exact(node.target, emitted))
            or (options.deterministic and not is_deterministic(emitted))
            or (options.lacks and not options.lacks.isdisjoint(self.needs(node, emitted)))
        ):
            del builder.nodes[mark:]
            return False
        self.settle(node, made, mark)
        return True

    def needs(self, node: Node, emitted: Sequence[Node]) -> Iterator[str]:
        """The prims of a decomposition, and the dtypes that it computes with, by name."""
        types = [self.values[name].type for name in node_references(node)]
        types += [value.type for one in (node, *emitted) for value in one.results]  # type: ignore[misc]
        yield from (one.dtype for one in types if isinstance(one, TensorType))
        yield from (one.target.removeprefix("prims.") for one in emitted if is_prim(one.target))

    def settle(self, node: Node, made: tuple[Value | None, ...], mark: int) -> None:
        """Give the values made their names and exact types; operands returned as they are stand for the results."""
        own = {value.name for emitted in self.builder.nodes[mark:] for value in emitted.results}
        stated: dict[str, NamedValue] = {}
        for value, result in zip(made, node.results, strict=True):
            if value is None:
                continue
            name = value.payload
            if name in own and name not in stated:
                stated[name] = NamedValue(result.name, _without_storage(result.type))
                self.values[result.name] = Value(result.type, result.name)  # type: ignore[arg-type]
            else:
                name = stated[name].name if name in stated else name
                self.renamed[result.name] = name
                self.values[result.name] = Value(result.type, name)  # type: ignore[arg-type]
        if stated:
            self.state(stated, mark)

    def state(self, stated: dict[str, NamedValue], mark: int) -> None:
        """Rename and retype results of the nodes from `mark` on."""
        nodes = self.builder.nodes
        names: dict[str, str] = {}
        for position in range(mark, len(nodes)):
            node = rename_node(nodes[position], names)
            results = node.results
            if results[0].name in stated or (len(results) > 1 and any(r.name in stated for r in results)):
                names.update((r.name, stated[r.name].name) for r in results if r.name in stated)
                results = tuple([stated.get(r.name, r) for r in results])
                node = replace(node, results=results)
            nodes[position] = node

    def extern(self, node: Node) -> None:
        """Keep the ATen call, its operands renamed."""
        results = tuple([NamedValue(v.name, _without_storage(v.type)) for v in node.results])
        args = tuple([rename(arg, self.renamed) for arg in node.args])
        kwargs = {key: rename(arg, self.renamed) for key, arg in node.kwargs.items()}
        if functions_of(node):
            args = with_forms(args, self.function)
        physical = _PHYSICAL.get(node.target)
        if physical is not None:
            node = replace(node, target=physical, effect=None if node.effect == "aliases" else node.effect)
        self.builder.nodes.append(replace(node, args=args, kwargs=kwargs, results=results))
        for value in node.results:
            self.values[value.name] = Value(value.type, value.name)  # type: ignore[arg-type]

    def function(self, text: str) -> str:
        """A function that is an argument, in prims."""
        lowering = _Lowering(parse_graph(text), self.table, self.strict, self.options)
        return print_graph(run_passes("primops", DEFAULT_PASSES, lowering.run(), verify_graph))


def _without_storage(type: ValueType) -> ValueType:
    """The type of a value of the graph: no offset into a storage, no gradient of its own."""
    if type.__class__ is TensorType and (type.storage_offset != 0 or type.requires_grad):
        return TensorType(type.dtype, type.shape, type.stride, 0, type.device)
    return type


def decompose_call(
    p: Builder, function: Function, target: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[Value | None, ...]:
    """The results of an ATen call over `p`, whose `results` are their types.

    Raises `Decline` where the call must stay with ATen, `DecompositionFault` for a fault of the decomposition.
    """
    operands = _values(args)
    _refuse_dtypes(p, operands)
    if p.results and all(type(t) is TensorType and 0 in t.shape for t in p.results):
        if any(value.dtype in ("int32", "int64") and 0 not in value.shape for value in operands):
            raise Decline("no elements, and indices that ATen may refuse all the same")
        return tuple(p.full(t.shape, False if t.dtype == "bool" else 0, t.dtype) for t in p.results)  # type: ignore[union-attr]
    try:
        made = function(p, *args, **kwargs)
    except (Decline, DecompositionFault):
        raise
    except Exception as error:
        raise DecompositionFault(f"{target}: {type(error).__name__}: {error}") from error
    values = made if type(made) is tuple else (made,)
    if len(values) != len(p.results):
        raise DecompositionFault(f"{target}: {len(values)} results instead of {len(p.results)}")
    return tuple(
        [_finish(p, value, type, target, value in operands) for value, type in zip(values, p.results, strict=True)]
    )


def _finish(p: Builder, value: Value | None, type: ValueType, target: str, is_operand: bool) -> Value | None:
    """Check a result against its stated type; a fresh result that is an operand itself becomes a copy of it."""
    if isinstance(type, NoneType) or value is None:
        if value is None and isinstance(type, NoneType):
            return None
        raise DecompositionFault(f"{target}: a result is {value} where the call's type is {type}")
    if not isinstance(type, TensorType) or value.type.dtype != type.dtype or value.type.shape != type.shape:
        raise DecompositionFault(f"{target}: the result {value} has another type than the call's {type}")
    if not is_operand or (target in VIEWS and same_layout(type.shape, value.type.stride, type.stride)):
        return value
    return p.clone(value)


def _values(args: Any) -> list[Value]:
    found: list[Value] = []
    for a in args:
        if type(a) is Value:
            found.append(a)
        elif type(a) is tuple:
            found.extend(v for v in a if type(v) is Value)
    return found


def _refuse_dtypes(p: Builder, operands: list[Value]) -> None:
    for t in p.results:
        if type(t) is TensorType and t.dtype not in SUPPORTED:
            raise Decline(f"{t.dtype} has no prims")
    for value in operands:
        if type(value.type) is not TensorType or value.type.dtype not in SUPPORTED:
            raise Decline(f"{value.type} has no prims")
