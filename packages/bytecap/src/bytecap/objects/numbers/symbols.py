"""The symbols of one capture: sizes of inputs, ints and floats from outside that differ from call to call.

int    ::= an expression over size symbols; an input of role "symbol", or a size or stride of an input
float  ::= a float64 tensor without dimensions, an input of role "number", made of the float for each call
node   ::= torch.Tensor.item(input) -> float        what calls of torch are given; Python computes on a `SizeFloat`
made   ::= function(part*)                          in front of the graph: a number drawn at random, what comes of it
guard  ::= Equals(source, value)                    where something needs the number itself
         | Equals(Reading(C function, source), answer)     where it is asked a question: `rate > 0.5`, `int(rate)`
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from absint import DataDependentError, Meta
from absint.meta import from_tensor
from absint.symbolic import Questions, ShapeEnv, SizeFloat, Term, create_float, make_size
from absint.wire import to_arg
from bytecap.context_types import Tracer
from bytecap.errors import FixedMarkedSize, UnsupportedCall
from bytecap.graph.builder import Made, source_hint
from bytecap.graph.size_policy import SizeMark, SizePolicy, marks_of
from bytecap.guards.printing import print_source
from bytecap.objects.base import LITERALS, Constant, Value
from bytecap.objects.containers.sequences import Sequence
from bytecap.objects.numbers.open_constants import refuse_changing
from bytecap.objects.numbers.symbolic import SymbolicNumber, add_number, as_value, define_float, define_int, symbols_in
from stagewire.capture import Attribute, Item, Local, Reading, Source, Symbol
from stagewire.expr import Expr, symbols_of
from stagewire.graph import Arg, Ref, SourceLine, leaves
from stagewire.polynomial import Polynomial, constant, symbol
from stagewire.types import ScalarType, TensorType

SIZE = "torch.Tensor.size"
STRIDE = "torch.Tensor.stride"
_OF_TENSORS: dict[str, Callable[..., Any]] = {SIZE: torch.Tensor.size, STRIDE: torch.Tensor.stride}
_FREE = SizeMark("maybe")
_WHOLE = (math.floor, math.ceil, math.trunc)
# A guard does all steps again in each call.
_MOST_STEPS = 20
_CPU = torch.device("cpu")


class Symbols(Questions):
    """Makes symbols; equal sizes of inputs get one symbol (they are equal more often than by chance).

    env: what is known of them. sources: where the value of each is read. made: the locals of those that the
    replacement computes in front of the graph: like data, they are known in the running call alone.
    """

    tracer: Tracer
    some_number = 0.7310585786300049

    def __init__(self, policy: SizePolicy, line: Callable[[], SourceLine]) -> None:
        self.policy = policy
        self.env = ShapeEnv(line)
        self.env.whole = policy.whole
        self.env.questions = self
        self.sources: dict[str, Source] = {}
        self._ranges: dict[str, tuple[int, int | None]] = {}
        self._by_hint: dict[int, Any] = {}
        self._by_source: dict[Source, Any] = {}
        self._fixed: set[str] = set()  # names of floats
        self.made: dict[str, str] = {}  # locals of the replacement, by the names of the symbols that it computes

    def meta_of(self, real: torch.Tensor, source: Source, role: str) -> Meta | None:
        """The type of an input with its symbols; None where nothing of it is symbolic."""
        policy = self.policy
        marks = marks_of(real) if policy.enabled and role == "tensor" else None
        is_open = marks or policy.everywhere or any(known == source for known, _ in policy.dimensions)
        if marks is None or not is_open:
            return None
        shape = tuple([self._size(real, source, dim, marks.get(dim)) for dim in range(real.dim())])
        stride = self._strides(real, source, shape)
        meta = from_tensor(real)
        made = Meta(shape, stride, meta.dtype, meta.device, meta.storage_offset)
        return None if made.is_static else made

    def meta_like(self, real: torch.Tensor, inner: Iterable[Meta]) -> Meta:
        """The type of a tensor that is no input, where these are: a size that one of them has is the same one."""
        known: dict[Any, Any] = {}
        for meta in inner:
            known.update({s.node.hint: s for s in (*meta.shape, *meta.stride) if type(s) is not int})
        plain = from_tensor(real)
        shape, stride = (tuple([known.get(size, size) for size in sizes]) for sizes in (plain.shape, plain.stride))
        return Meta(shape, stride, plain.dtype, plain.device, plain.storage_offset)

    def open(self, source: Source, real: torch.Tensor, dim: int) -> None:
        """Have this size of an inner tensor of a jagged one be a symbol, and no other: ragged sizes are multiplied by
        ints. Lengths, and what says them by its size, lie along the first dimension."""
        dim = dim if real.dim() > dim and real.numel() > 0 else 0
        fixed = [Reading(SIZE, source, (other,)) for other in range(real.dim()) if other != dim]
        self.policy = self.policy.with_changes([(source, dim)], (), fixed)

    def _size(self, real: torch.Tensor, source: Source, dim: int, mark: SizeMark | None) -> Any:
        size = real.shape[dim]
        if mark is None and (self.policy.everywhere or (source, dim) in self.policy.dimensions):
            mark = _FREE
        reading = Reading(SIZE, source, (dim,))
        if mark is None or mark.kind == "static" or size < 2 or reading in self.policy.fixed:
            return size
        if mark.kind == "dynamic":
            lower = 2 if mark.lower is None else mark.lower
            if size < lower or (mark.upper is not None and size > mark.upper):
                text = f"{print_source(reading)} is {size}, and was marked as dynamic in {lower}..{mark.upper or ''}"
                raise FixedMarkedSize(text, fix="Give mark_dynamic a range that holds all sizes.")
            return self._create(size, reading, lower, mark.upper, marked=print_source(reading))
        known = self._by_hint.get(size)
        if known is None:
            known = self._by_hint[size] = self._create(size, reading, 2, None)
        return known

    def number(self, real: int | float, source: Source) -> SymbolicNumber | None:
        """The number at `source` as a symbol; None where it is taken to stay (of ints 0 and 1 decide too much)."""
        policy, is_float = self.policy, isinstance(real, float)
        least = 0 if source in policy.of_any_value else 2
        if not policy.enabled or source in policy.fixed or (not is_float and real < least):
            return None
        is_given = _is_argument(source) if is_float else getattr(source, "base", None) is None
        if source not in policy.numbers and not (policy.everywhere and is_given):
            return None
        if is_float:
            return SymbolicNumber(self._float(real, source))
        self.tracer.guards.type_is(source, int)
        return SymbolicNumber(self._int(real, source, least), source)

    def _int(self, hint: int, source: Source, least: int = 2) -> Any:
        """An int that is read at `source`, as an input of the graph."""
        size = self._create(hint, source, least, None)
        self.tracer.graph.add_symbol(str(size), ScalarType("int"), source, "symbol")
        return size

    def _float(self, hint: float, source: Source) -> SizeFloat:
        known = self._by_source.get(source)
        if known is None:
            name = self.tracer.graph.name(source_hint(source))
            self.sources[name] = source
            self.tracer.guards.type_is(source, float)
            known = self._by_source[source] = create_float(self.env, name, hint)
        return known

    def create_unbacked(self, name: str, lower: int | None, upper: int | None) -> Any:
        """A symbol for a number that data decides."""
        return make_size(self.env, self.env.create_unbacked(name, lower=lower, upper=upper))

    def _create(self, hint: int, source: Source, lower: int, upper: int | None, marked: str | None = None) -> Any:
        name = f"s{len(self._ranges)}"
        self.sources[name] = source
        self._ranges[name] = lower, upper
        return make_size(self.env, self.env.create(name, hint, lower=lower, upper=upper, marked=marked))

    def _strides(self, real: torch.Tensor, source: Source, shape: tuple[Any, ...]) -> tuple[Any, ...]:
        """Strides as products of sizes where they are: from the fastest dimension up."""
        steps, sizes = real.stride(), real.shape
        known: dict[int, Any] = {1: 1}
        made: list[Any] = list(steps)
        for dim in sorted(range(len(steps)), key=lambda d: (steps[d], sizes[d] == 1)):
            step = steps[dim]
            if step in known:
                made[dim] = known[step]
            elif (source, -1 - dim) in self.policy.dimensions and step > 1:
                reading = Reading(STRIDE, source, (dim,))
                made[dim] = step if reading in self.policy.fixed else self._create(step, reading, 2, None)
            known.setdefault(step * sizes[dim], made[dim] * shape[dim])
        return tuple(made)

    # -- what is asked of floats

    def define(self, step: SizeFloat) -> SizeFloat:
        if step.term.symbols <= self.sources.keys() | self.made.keys():
            return self.make(float, operator.pos, SymbolicNumber(step))
        return define_float(self.tracer, step.term)

    def fix(self, name: str) -> float:
        value = self._value(name)
        tracer, source = self.tracer, self.sources[name]
        if name not in self._fixed:
            if source in tracer.changing:
                refuse_changing(source, value)
            self._fixed.add(name)
            tracer.guards.literal(source, value)
        return value

    def _value(self, name: str) -> Any:
        if name not in self.env.hints:
            what = "is another one in each call" if name in self.made else "depends on the content of a tensor"
            raise DataDependentError(f"the number {name} {what}")
        return self.env.hints[name]

    def can_ask(self, term: Term) -> bool:
        return self._reading(term) is not None

    def ask(self, term: Term, function: Callable[..., Any], *arguments: float) -> Any:
        reading = self._reading(term)
        if reading is None:
            return None
        found = function(SizeFloat(self.env, term).hint, *arguments)
        self.tracer.guards.equals(self._read(function, reading, *arguments), to_arg(found))
        return found

    def whole(self, term: Term, function: Callable[..., Any]) -> Polynomial | None:
        if term.operator == "symbol" and (name := term.operands[0]) not in self.env.hints:
            if name in self.made:
                return self.make(int, function, SymbolicNumber(SizeFloat(self.env, term))).node.value  # type: ignore[no-any-return]
            if function in _WHOLE:
                return define_int(self.tracer, f"math.{function.__name__}", Ref(name)).node.value  # type: ignore[no-any-return]
        reading = self._reading(term)
        if reading is None:
            return None
        found, reading = function(SizeFloat(self.env, term).hint), self._read(function, reading)
        if found < 2:  # as of sizes: these decide too much
            self.tracer.guards.equals(reading, to_arg(found))
            return constant(found)
        size = self._by_source.get(reading)
        if size is None:
            size = self._by_source[reading] = self._int(found, reading)
        return size.node.value  # type: ignore[no-any-return]

    def _reading(self, term: Term) -> Source | None:
        """Where a guard reads a number that is computed of one given number and of constants, step by step; None of
        what is fixed, of others, and of what takes many steps."""
        steps: list[tuple[Callable[..., Any], list[float]]] = []
        while term.operator not in ("symbol", "size", "number") and len(steps) < _MOST_STEPS:
            plain = [part.plain for part in term.operands]
            if plain.count(None) != 1:
                return None
            at = plain.index(None)
            steps.append((_step(term.operator, swapped=at == 1), plain[:at] + plain[at + 1 :]))
            term = term.operands[at]
        match term.operator:
            case "symbol":
                reading = None if term.operands[0] in self._fixed else self.sources.get(term.operands[0])
            case "size":
                reading = self._reading_of_size(term.operands[0])
            case _:
                reading = None
        for host, others in reversed(steps):
            reading = None if reading is None else self._read(host, reading, *others)
        return reading

    def _reading_of_size(self, size: Polynomial) -> Source | None:
        """Where a guard reads `a * n + b` as a float."""
        if len(size.symbols) != 1:
            return None
        (name,) = size.symbols
        slope = next(count for key, count in size.terms.items() if key)
        reading = self.sources.get(name)
        if reading is None or size - size.offset != symbol(name) * slope:
            return None
        if isinstance(reading, Reading) and reading.function in _OF_TENSORS:
            self.tracer.names.objects.setdefault(reading.function, _OF_TENSORS[reading.function])
        if slope != 1:
            reading = self._read(int.__mul__, reading, slope)
        if size.offset:
            reading = self._read(int.__add__, reading, size.offset)
        return self._read(int.__float__, reading)

    def _read(self, host: Callable[..., Any], base: Source, *arguments: float) -> Reading:
        return Reading(self.tracer.names.of(host), base, tuple(map(to_arg, arguments)))

    def add_input(self, name: str) -> str:
        """The name of a float in the graph: of the node that reads it off the input."""
        place = self.made.get(name)
        if place is None:
            self.tracer.graph.add_symbol(name, TensorType("float64", (), ()), self.sources[name], "number")
        elif Local(place) in self.policy.fixed or not self.policy.enabled:
            return self._read_made(name, torch.float64, None)
        else:
            self.tracer.made[place] = replace(self.tracer.made[place], example=partial(as_tensor, self.some_number))
            self.tracer.graph.add_made(name, TensorType("float64", (), ()), place, "number")
        return add_number(self.tracer, "torch.Tensor.item", (Ref(name),), "float")

    # -- numbers that the replacement computes in front of the graph

    def make(
        self, kind: type, function: Callable[..., Any], *parts: Any, name: str = "number",
        bounds: tuple[int | None, int | None] = (None, None),
    ) -> Any:  # fmt: skip
        """The number, of this class, that `function` gives for these parts in each call; bounds: of an int."""
        tracer, name = self.tracer, self.tracer.graph.name(name)
        place = self.made[name] = f".made_{name}"
        tracer.made[place] = Made(partial(of_kind, kind, function), parts)
        return create_float(self.env, name) if kind is float else self.create_unbacked(name, *bounds)

    def part(self, arg: Value) -> Any:
        """What `make` is given for an argument: a constant, a number that is read or computed there, a list of such."""
        if type(arg) is SymbolicNumber and symbols_in(arg) <= self.sources.keys() | self.made.keys():
            return arg
        if isinstance(arg, Sequence) and arg.cls in (list, tuple):
            return [self.part(item) for item in arg.values(self.tracer)]
        if isinstance(arg, Constant) and issubclass(arg.python_type(), (*LITERALS, range)):
            return arg.concrete()
        raise UnsupportedCall(f"a number that each call computes, and a {arg.describe()}")

    def compute(self, function: Callable[..., Any], args: list[Value]) -> Value | None:
        """What a pure function gives in each call for numbers of which one is made; None where it is no number."""
        if not any(map(self._is_made, args)):
            return None
        parts = [self.part(arg) for arg in args]
        try:
            kind = type(function(*map(_sample, parts)))
        except (ArithmeticError, ValueError, TypeError):
            return None
        return as_value(self.make(kind, function, *parts)) if kind in (float, int) else None

    def _is_made(self, arg: Value) -> bool:
        if isinstance(arg, Sequence) and self.made:
            return any(map(self._is_made, arg.values(self.tracer)))
        return type(arg) is SymbolicNumber and not self.made.keys().isdisjoint(symbols_in(arg))

    def read_made(self, args: Iterable[Arg]) -> None:
        """Have the graph read the ints among these that are computed in front of it."""
        found = [leaf for leaf in itertools.chain(*map(leaves, args)) if isinstance(leaf, Expr)] if self.made else ()
        for leaf in found:
            for name in symbols_of(leaf) & (self.made.keys() - self.tracer.graph.numbers):
                self._read_made(name, torch.int64, name)

    def _read_made(self, name: str, dtype: torch.dtype, result: str | None) -> str:
        """The name of a number of data that the graph reads off a tensor, which is made of what is computed."""
        graph, make = self.tracer.graph, partial(torch.scalar_tensor, dtype=dtype, device=_CPU)
        place = f"{self.made[name]}_tensor"
        self.tracer.made[place] = Made(make, (Value(Local(self.made[name])),), partial(make, 1))
        given = graph.add_made(graph.name(name), TensorType(str(dtype)[6:], (), ()), place, "tensor")
        result = add_number(self.tracer, "torch.Tensor.item", (Ref(given),), str(dtype)[6:-2], result)
        graph.numbers.add(result)
        return result

    def close(self) -> None:
        """No more questions: the way back to the tracer is cut."""
        self.env.line = lambda: None
        del self.tracer

    def documents(self) -> tuple[Symbol, ...]:
        """The symbols as the capture lists them."""
        hints = self.env.hints
        return tuple(Symbol(name, self.sources[name], hints[name], *ranges) for name, ranges in self._ranges.items())


def _is_argument(source: Source) -> bool:
    """Whether it is an argument, or in the lists and dicts of one (what objects hold are mostly settings)."""
    while isinstance(source, Item):
        source = source.base
        if isinstance(source, Attribute):
            return False
    return isinstance(source, Local)


def _step(operator: str, *, swapped: bool) -> Callable[..., Any]:
    """The C function that computes it, which takes a float first."""
    return getattr(float, f"__{'r' * swapped}{operator}__", None) or getattr(math, operator)  # type: ignore[no-any-return]


def _sample(part: Any) -> Any:
    """Some number of the class that the part has in each call."""
    if type(part) is list:
        return list(map(_sample, part))
    return part if not isinstance(part, Value) else Symbols.some_number if part.python_type() is float else 2


def of_kind(kind: type, function: Callable[..., Any], *args: Any) -> Any:
    """What the function gives. Raises ValueError where no graph is right: it is of another class, or no int64."""
    number = function(*args)
    if type(number) is not kind or (kind is int and not -(1 << 63) <= number < 1 << 63):
        raise ValueError(f"{number!r} is no {kind.__name__} of 64 bits")
    return number


def as_tensor(value: Any) -> torch.Tensor:
    """A float as the graph is given it."""
    return torch.scalar_tensor(value, dtype=torch.float64, device=_CPU)
