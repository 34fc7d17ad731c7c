"""`SubgraphCalls`: a program of parts as a callable; `PartCall`: one compiled part, with the variants that it has;
`ControlCall`: control flow over such parts.

capture_for(part, inputs)               the part's capture with the types that these inputs have, in its symbols
fits(capture, assumptions)(inputs)      whether a program made of it is right for other inputs
"""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace

import bytecap
from absint.control_flow import run_control_flow
from absint.streams import left_by_errors, mentions_streams
from stagefold.errors import RunsPlain, is_refusal
from stagefold.size_specialisation import with_sizes
from stagefold.subgraphs.cut import Subgraph, changes_modes, cut, enter
from stagewire.capture import Capture, Relation, Symbol
from stagewire.errors import PartlyDone
from stagewire.expr import Dim, Expr, evaluate, symbol
from stagewire.graph import Graph, Ref, Value, last_mentions, leaves
from stagewire.symbols import size_reader
from stagewire.types import ScalarType, TensorType

Callee = Callable[..., tuple[Any, ...]]
_MOST_VARIANTS = 4
_log = logging.getLogger("stagefold")


class PartCall:
    """`call(*inputs)`: the program of a part that is right for their sizes, made by `make` when it first runs.

    make: a callable of a capture's inputs, with `assumes` for what it takes for granted of sizes. What it cannot make
    with symbols it makes for the sizes of a call; what it cannot make at all is run by eager torch, where a fault of
    the program shows again. A fault of `make` itself is told, or raised if `strict`.
    """

    def __init__(self, part: Subgraph, make: Callable[[Capture], Callee], strict: bool) -> None:
        self.part, self.make, self.strict = part, make, strict
        self.plain = bytecap.executor(part.capture)
        self.variants: list[tuple[Callable[..., bool], Callee]] = []
        self.failures = 0
        self.told = False
        self._unknown = tuple([part.inputs.index(name) for name in part.unknown])
        self._lock = threading.RLock()

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        for is_right, call in self.variants:
            if is_right(*inputs):
                return call(*inputs)
        if self._is_closed or any(inputs[place] < LEAST for place in self._unknown):
            return self.plain(*inputs)
        with self._lock:
            made = self._new_variant(inputs)
        return made(*inputs)

    @property
    def _is_closed(self) -> bool:
        return len(self.variants) + self.failures >= _MOST_VARIANTS

    def _new_variant(self, inputs: Sequence[Any]) -> Callee:
        capture = capture_for(self.part, inputs)
        sizes = {known.name: known.hint for known in capture.symbols if known.hint is not None}
        fixed = tuple([Relation(symbol(name), "==", number) for name, number in sizes.items()])
        attempts = [(capture, ())] if not sizes else [(capture, ()), (with_sizes(capture, sizes), fixed)]
        for attempt, conditions in attempts:
            try:
                call = self.make(attempt)
            except Exception as error:
                self._tell(capture, error)
                continue
            is_right = fits(replace(attempt, symbols=capture.symbols), (*conditions, *getattr(call, "assumes", ())))
            if is_right(*inputs):
                self.variants.append((is_right, call))
                return call
        self.failures += 1
        if self._is_closed and not self.told:
            warnings.warn(f"{capture.code.name} runs plain in a part that no stage compiles", RunsPlain, stacklevel=4)
        return self.plain

    def _tell(self, capture: Capture, error: Exception) -> None:
        """Why a part is not compiled: in the log what a stage refuses, with a warning what is a fault of a stage."""
        if is_refusal(error):
            _log.info("%s: a part is not compiled: %s", capture.code.name, error)
        elif self.strict:
            raise PartlyDone(error) from error  # not to be hidden by a plain run
        elif not self.told:
            self.told = True
            what = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
            warnings.warn(f"{capture.code.name} runs plain in a part, after a fault: {what}", RunsPlain, stacklevel=5)


class ControlCall:
    """`call(*inputs)`: the results of a node of control flow. Its functions are callables of what they take, what the
    node has captured for them, and the symbols among the inputs that they mention."""

    def __init__(self, part: Subgraph, make: Callable[[Capture], Callee], strict: bool) -> None:
        (node,) = part.capture.graph.nodes
        self.function = part.capture.functions[-1]
        self._operands = [operand for operand in node.args[:-1] if isinstance(operand, Ref)]
        self._captured = [leaf for leaf in leaves(node.args[-1]) if isinstance(leaf, Ref)]
        self._names = part.inputs
        self._outputs = [[value.name for value in node.results].index(name) for name in part.outputs]
        self._bodies = {}
        for graph, body in zip(self.function.graphs.values(), part.bodies, strict=True):
            self._bodies[id(graph)] = callable_of(body, make, strict), body.inputs[len(graph.inputs) :]

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        values = dict(zip(self._names, inputs, strict=True))
        captured = [values[each.name] for each in self._captured]

        def body_of(graph: Graph) -> Callee:
            call, sizes = self._bodies[id(graph)]
            behind = (*captured, *[values[name] for name in sizes])
            return lambda *given: call(*given, *behind)

        made = run_control_flow(self.function, body_of, [values[each.name] for each in self._operands], captured)
        return tuple([made[number] for number in self._outputs])


def callable_of(part: Subgraph, make: Callable[[Capture], Callee], strict: bool) -> Callee:
    """What runs a part: make, strict as for `PartCall`."""
    if part.bodies:
        return ControlCall(part, make, strict)
    return PartCall(part, make, strict) if part.compiled else bytecap.executor(part.capture)


class SubgraphCalls:
    """`call(*inputs)`: the parts one after the other; values go when the last part that takes them has run, and at the
    end where streams of a GPU are mentioned: another one may still read their memory.

    make, strict: as for `PartCall`.
    """

    def __init__(self, capture: Capture, make: Callable[[Capture], Callee], *, strict: bool = False) -> None:
        parts = cut(capture)
        names = [value.name for value in capture.graph.inputs]
        names += [name for part in parts for name in (*part.inputs, *part.outputs)]
        places = {name: place for place, name in enumerate(dict.fromkeys(names))}
        self.calls = [callable_of(part, make, strict) for part in parts]
        self._count, self._width = len(places), len(capture.inputs)
        self._read_sizes = size_reader(capture.graph.inputs)
        self._sizes = tuple([(known.name, places[known.name]) for known in capture.symbols if known.name in places])
        self._state = capture.state if changes_modes(capture.graph.nodes) else None
        self._steps = [
            (call, part.capture.state, [places[name] for name in part.inputs], [places[name] for name in part.outputs])
            for call, part in zip(self.calls, parts, strict=True)
        ]
        self._dead = last_mentions([(*sources, *targets) for _, _, sources, targets in self._steps])
        if mentions_streams(capture.graph.nodes):
            self._dead = [()] * len(self._dead)

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        values: list[Any] = [*inputs, *([None] * (self._count - self._width))]
        if self._sizes:
            sizes = self._read_sizes(inputs)  # type: ignore[misc]
            for name, place in self._sizes:
                values[place] = sizes[name]
        del inputs
        try:
            for (call, state, sources, targets), dead in zip(self._steps, self._dead, strict=True):
                if self._state is not None:
                    enter(state)
                made = call(*[values[place] for place in sources])
                for place, value in zip(targets, made, strict=False):  # (the last part's go to the caller)
                    values[place] = value
                for place in dead:
                    values[place] = None
        finally:
            if self._state is not None:
                enter(self._state)
        return made


def calls_of(capture: Capture, make: Callable[[Capture], Callee], *, strict: bool = False) -> Callee:
    """The program as `SubgraphCalls`; an error leaves the streams of a GPU as they were."""
    run = SubgraphCalls(capture, make, strict=strict).__call__
    return left_by_errors()(run) if mentions_streams(capture.graph.nodes) else run


LEAST = 2
"""The least value of a symbol: 0 and 1 decide how tensors broadcast and which strides they have."""


def capture_for(part: Subgraph, inputs: Sequence[Any]) -> Capture:
    """The capture of `part` as a program for inputs like these: layouts are what they are, sizes stay symbols."""
    graph = part.capture.graph
    numbers = {
        value.name: given for value, given in zip(graph.inputs, inputs, strict=True) if value.type == ScalarType("int")
    }
    values = tuple([_typed(value, given, numbers) for value, given in zip(graph.inputs, inputs, strict=True)])
    items = tuple([replace(item, value=value) for item, value in zip(part.capture.inputs, values, strict=True)])
    own = tuple([replace(symbol, hint=numbers[symbol.name]) for symbol in part.symbols])
    symbols = (*own, *(Symbol(name, None, numbers[name], LEAST) for name in part.unknown))
    return replace(part.capture, graph=replace(graph, inputs=values), inputs=items, symbols=symbols)


def _typed(value: Value, given: Any, numbers: dict[str, int]) -> Value:
    if not isinstance(value.type, TensorType):
        return value
    type_ = replace(
        value.type,
        shape=_as_declared(value.type.shape, given.shape, numbers),
        stride=_as_declared(value.type.stride, given.stride(), numbers),
        storage_offset=given.storage_offset(),
        requires_grad=given.requires_grad,
    )
    return replace(value, type=type_)


def _as_declared(declared: tuple[Dim, ...], actual: Sequence[int], numbers: dict[str, int]) -> tuple[Dim, ...]:
    """The declared expressions where they are worth what is there, else the numbers themselves."""
    return tuple(
        [size if evaluate(size, numbers) == number else number for size, number in zip(declared, actual, strict=True)]
    )


def fits(capture: Capture, assumptions: Sequence[Relation]) -> Callable[..., bool]:
    """A function of the inputs: have they the sizes and layouts of the capture, and does what was assumed hold?"""
    names = [f"_{number}" for number in range(len(capture.inputs))]
    conditions = [f"{symbol.name} >= {symbol.lower or 0}" for symbol in capture.symbols if symbol.source is None]
    declared = {symbol.name for symbol in capture.symbols}
    lines = []
    for name, item in zip(names, capture.inputs, strict=True):
        if isinstance(item.value.type, TensorType):
            conditions += _tensor_conditions(name, item.value.type, is_fixed=item.role == "parameter")
        elif item.value.name in declared:
            lines.append(f"    {item.value.name} = {name}")
    conditions += [f"{_text(each.left)} {each.operator} {_text(each.right)}" for each in assumptions]
    source = [f"def fits({', '.join(names)}):", *lines, f"    return {' and '.join(conditions) or 'True'}"]
    made: dict[str, Any] = {"Min": min, "Max": max}
    exec(compile("\n".join(source), f"<sizes of {capture.code.name}>", "exec"), made)
    return made["fits"]  # type: ignore[no-any-return]


def _tensor_conditions(name: str, type_: TensorType, *, is_fixed: bool) -> list[str]:
    if is_fixed:  # guarded
        return []
    gradient = f"{name}.requires_grad" if type_.requires_grad else f"not {name}.requires_grad"
    return [f"{name}.shape == {_tuple(type_.shape)}", f"{name}.stride() == {_tuple(type_.stride)}", gradient]


def _tuple(sizes: tuple[Dim, ...]) -> str:
    return f"({''.join(f'{_text(size)}, ' for size in sizes)})"


def _text(size: Dim) -> str:
    return f"({size.text})" if isinstance(size, Expr) else str(size)
