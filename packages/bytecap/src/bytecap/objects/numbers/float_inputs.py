"""Floats from outside that differ from call to call, as inputs of the graph.

input  ::= a float64 tensor without dimensions, of role "number", made of the float for each call
node   ::= torch.Tensor.item(input) -> float        what calls of torch are given; Python computes on a `SizeFloat`
guard  ::= Equals(source, value)                    where something needs the number itself
         | Equals(Reading(C function, source), answer)     where it is asked a question: `rate > 0.5`, `int(rate)`
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from absint.symbolic import GivenNumbers, SizeFloat, Steps, Term
from absint.wire import to_arg
from bytecap.errors import FixedSizesNeeded
from bytecap.graph.builder import source_hint
from bytecap.graph.size_symbols import SIZE, STRIDE
from bytecap.objects.numbers.dynamic_sources import refuse_changing
from stagewire.capture import Attribute, Capture, Item, Local, Reading, Source
from stagewire.errors import StageError
from stagewire.graph import Node, Ref
from stagewire.graph import Value as GraphValue
from stagewire.polynomial import Polynomial, constant
from stagewire.types import ScalarType, TensorType

if TYPE_CHECKING:
    from bytecap.evaluator.tracer import Tracer
    from bytecap.graph.size_policy import SizePolicy

_CPU = torch.device("cpu")
_OF_TENSORS: dict[str, Callable[..., Any]] = {SIZE: torch.Tensor.size, STRIDE: torch.Tensor.stride}


class GivenFloats(GivenNumbers):
    """Those of one capture: where each is, and what was asked of it."""

    def __init__(self) -> None:
        super().__init__()
        self.tracer: Tracer | None = None
        self._values: dict[str, float] = {}
        self.sources: dict[str, Source] = {}
        self._names: dict[Source, str] = {}
        self._fixed: set[str] = set()

    def close(self) -> None:
        """No more questions: the way back to the tracer is cut."""
        self.tracer = None

    def find(self, real: float, source: Source, policy: SizePolicy) -> SizeFloat | None:
        """The float at `source` as one that differs from call to call; None where it is taken to stay."""
        tracer = self._open
        if not is_open(source, policy):
            return None
        name = self._names.get(source)
        if name is None:
            name = self._names[source] = tracer.graph.name(source_hint(source))
            self._values[name], self.sources[name] = real, source
            tracer.guards.type_is(source, float, tracer.line())
        return SizeFloat(tracer.sizes.env, Term("input", (name,)))

    @property
    def _open(self) -> Tracer:
        assert self.tracer is not None
        return self.tracer

    def hint(self, name: str) -> float:
        return self._values[name]

    def fix(self, name: str) -> float:
        tracer, source, value = self._open, self.sources[name], self._values[name]
        if name not in self._fixed:
            if source in tracer.changing:
                refuse_changing(source, value)
            self._fixed.add(name)
            tracer.guards.literal(source, value)
        return value

    def ask(self, leaf: Term, steps: Steps) -> Any:
        place = self._place(leaf)
        if place is None:
            return None
        found, reading = self._read(*place, steps)
        if reading is not None:
            self._open.guards.equals(reading, to_arg(found), self._open.line())
        return found

    def whole(self, leaf: Term, steps: Steps) -> Polynomial | None:
        place = self._place(leaf)
        if place is None:
            return None
        found, reading = self._read(*place, steps)
        if reading is None:
            return constant(found)
        if found < 2:  # as of sizes: these decide too much
            self._open.guards.equals(reading, to_arg(found), self._open.line())
            return constant(found)
        return self._open.inputs.size_at(found, reading).node.value

    def _place(self, leaf: Term) -> tuple[Any, Source | None] | None:
        """(value, where it is read or None where that is fixed) of a float or of a size; None where data decides it."""
        if leaf.operator == "input":
            (name,) = leaf.operands
            return self._values[name], None if name in self._fixed else self.sources[name]
        sizes = self._open.sizes
        source = sizes.sources.get(str(leaf.operands[0]))
        if isinstance(source, Reading) and source.function in _OF_TENSORS:
            self._open.names.objects.setdefault(source.function, _OF_TENSORS[source.function])
        return None if source is None else (sizes.env.hint(leaf.operands[0]), source)

    def _read(self, value: Any, reading: Source | None, steps: Steps) -> tuple[Any, Source | None]:
        """(what is computed, where it is read)."""
        for function, *arguments in steps:
            host = _function(function)
            value = host(value, *arguments)
            if reading is not None:
                reading = Reading(self._open.names.of(host), reading, tuple(map(to_arg, arguments)))
        return value, reading

    def add_input(self, name: str) -> str:
        """The name of the float in the graph: of the node that reads it off the input."""
        tracer = self._open
        tracer.graph.add_given(name, TensorType("float64", (), ()), self.sources[name])
        number = tracer.graph.name("number")
        value = GraphValue(number, ScalarType("float"))
        tracer.graph.append(Node("torch.Tensor.item", (Ref(name),), {}, (value,), tracer.line()))
        return number

    def examples(self) -> dict[str, torch.Tensor]:
        """The inputs of this call."""
        return {name: as_tensor(value) for name, value in self._values.items()}


def is_open(source: Source, policy: SizePolicy) -> bool:
    """Whether the policy leaves the float at `source` open: it has changed, or all arguments are."""
    if not policy.enabled or source in policy.fixed:
        return False
    return source in policy.numbers or (policy.everywhere and _is_argument(source))


def _is_argument(source: Source) -> bool:
    """Whether it is an argument, or in the lists and dicts of one (what objects hold are mostly settings)."""
    while isinstance(source, Item):
        source = source.base
        if isinstance(source, Attribute):
            return False
    return isinstance(source, Local)


def _function(name: str) -> Callable[..., Any]:
    owner, _, rest = name.partition(".")
    return getattr({"float": float, "int": int, "math": math}[owner], rest)  # type: ignore[no-any-return]


def as_tensor(value: Any) -> torch.Tensor:
    """A float as the graph is given it."""
    return torch.scalar_tensor(value, dtype=torch.float64, device=_CPU)


def with_tensors(capture: Capture, compiled: Callable[..., Any]) -> Callable[..., Any]:
    """The callable, given floats where the graph takes them as tensors."""
    places = tuple(number for number, item in enumerate(capture.inputs) if item.role == "number")
    if not places:
        return compiled

    def call(*inputs: Any) -> Any:
        given = list(inputs)
        for place in places:
            given[place] = as_tensor(given[place])
        return compiled(*given)

    return call


def needs_constants(capture: Capture, error: StageError) -> FixedSizesNeeded | None:
    """What to raise where a backend needs floats of the capture as constants."""
    sources = tuple(item.source for item in capture.inputs if item.value.name in error.fixed_inputs)
    if not sources:
        return None
    needed = FixedSizesNeeded(error.message, where=error.where)
    needed.sources = sources
    return needed
