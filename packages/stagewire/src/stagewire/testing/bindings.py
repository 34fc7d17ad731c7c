"""Strategies for bindings that fit a forward and a backward."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import msgspec
from hypothesis import strategies as st

from stagewire.capture import Relation, Symbol
from stagewire.expr import symbol
from stagewire.grad import (
    Binding,
    BoundConstant,
    BoundInput,
    BoundOutput,
    Constant,
    Fresh,
    Literally,
    Mutation,
    SameAsInput,
    Saved,
    SavedInput,
    SavedResult,
    SavedSize,
    Tangent,
    ViewOf,
)
from stagewire.testing.basics import Names, args, symbol_tables, tensor_types
from stagewire.types import ITEM_SIZE, DType, ScalarType, TensorType, ValueType, contiguous


@dataclasses.dataclass(frozen=True)
class Interface:
    """What a forward takes: symbols, the caller's tensors, then constants."""

    symbols: tuple[Symbol, ...]
    inputs: tuple[TensorType, ...]
    constants: tuple[Constant, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the symbols."""
        return tuple(symbol.name for symbol in self.symbols)

    @property
    def types(self) -> tuple[TensorType, ...]:
        """The types of the forward's arguments."""
        return self.inputs + tuple(contiguous(constant.dtype, constant.shape) for constant in self.constants)


_CONSTANT_DTYPES: tuple[DType, ...] = ("float32", "int64", "bool", "bfloat16")


@st.composite
def constants(draw: st.DrawFn) -> Constant:
    """A small tensor of any bytes that its dtype allows."""
    dtype = draw(st.sampled_from(_CONSTANT_DTYPES))
    shape = tuple(draw(st.lists(st.integers(0, 3), max_size=2)))
    count = math.prod(shape)
    if dtype == "bool":
        return Constant(dtype, shape, bytes(draw(st.lists(st.integers(0, 1), min_size=count, max_size=count))))
    size = count * ITEM_SIZE[dtype]
    return Constant(dtype, shape, draw(st.binary(min_size=size, max_size=size)))


@st.composite
def interfaces(draw: st.DrawFn, dtypes: st.SearchStrategy[DType] | None = None) -> Interface:
    """Up to three inputs and a constant, with symbols sometimes."""
    symbols = draw(symbol_tables())
    known = tuple(symbol.name for symbol in symbols)
    tensors = tensor_types(known) if dtypes is None else tensor_types(known, dtypes)
    inputs = tuple(draw(st.lists(tensors, max_size=3)))
    return Interface(symbols, inputs, tuple(draw(st.lists(constants(), max_size=1))))


@st.composite
def bindings(
    draw: st.DrawFn, interface: Interface, results: Sequence[ValueType | None], trains: bool, sizes: bool = False
) -> Binding:
    """A binding over a forward that returns `results`; saved values (with `sizes`, ints too) and tangents only where
    it `trains`.

    `input_gradients` and `gradient_tangents` are empty: `with_gradients` adds them once the backward is known.
    """
    supply = Names(draw)
    tensors = [number for number, kind in enumerate(results) if isinstance(kind, TensorType)]
    mutations: list[Mutation] = []
    for number in range(len(interface.inputs) if tensors else 0):
        if draw(st.sampled_from([False, False, True])):
            mutations.append(Mutation(number, draw(st.sampled_from(tensors)), draw(st.booleans()), draw(_COUNTS)))
    mutated = {mutation.input for mutation in mutations}
    roles = [draw(st.sampled_from(("parameter", "buffer", "tensor"))) for _ in interface.inputs]
    inputs = tuple(
        BoundInput(supply.fresh(), kind, role, number in mutated, draw(_RARELY), not draw(_RARELY))  # type: ignore[arg-type]
        for number, (kind, role) in enumerate(zip(interface.inputs, roles, strict=True))
    )
    return Binding(
        inputs=inputs,
        outputs=tuple(draw(st.lists(_outputs(interface, tensors), max_size=3))),
        mutations=tuple(mutations),
        saved=(*_saved(draw, interface, tensors), *_saved_sizes(draw, interface, sizes)) if trains else (),
        tangents=_tangents(draw, results, tensors) if trains else (),
        symbols=interface.symbols,
        facts=tuple(draw(st.lists(_facts(interface.names), max_size=1))) if interface.names else (),
        assumptions=tuple(draw(st.lists(_facts(interface.names), max_size=1))) if interface.names else (),
        constants=tuple(BoundConstant(supply.fresh(), constant) for constant in interface.constants),
        gradient_inputs=tuple(range(len(inputs))) if trains else (),
        gradient_devices=("cpu",) if trains and draw(st.booleans()) else (),
    )


@st.composite
def _outputs(draw: st.DrawFn, interface: Interface, tensors: list[int]) -> BoundOutput:
    choices: list[st.SearchStrategy[BoundOutput]] = [st.builds(Literally, args([], interface.names))]
    if tensors:
        choices += [st.builds(Fresh, st.sampled_from(tensors), st.booleans())] * 3
        choices.append(_views(interface, "result", tensors))
    if interface.inputs:
        numbers = list(range(len(interface.inputs)))
        choices.append(st.builds(SameAsInput, st.sampled_from(numbers)))
        choices.append(_views(interface, "input", numbers))
    return draw(st.one_of(choices))


def _views(interface: Interface, of: str, bases: list[int]) -> st.SearchStrategy[BoundOutput]:
    step = st.tuples(
        st.sampled_from(["aten.view.default", "aten.transpose.int"]),
        st.lists(args([], interface.names), max_size=2).map(tuple),
    )
    return st.builds(
        ViewOf,
        st.just(of),
        st.sampled_from(bases),
        st.lists(step, max_size=2).map(tuple),
        tensor_types(interface.names),
    ).flatmap(_of_pieces)


def _of_pieces(view: ViewOf) -> st.SearchStrategy[ViewOf]:
    """A view whose last op perhaps gives several."""
    if not view.chain:
        return st.just(view)
    before = view.chain[:-1]
    piece = msgspec.structs.replace(view, chain=(*before, ("aten.unbind.int", (0,))), pieces=((len(before), 1),))
    return st.sampled_from((view, piece))


def _saved(draw: st.DrawFn, interface: Interface, tensors: list[int]) -> tuple[Saved, ...]:
    choices: list[st.SearchStrategy[Saved]] = []
    if interface.types:
        choices.append(st.builds(SavedInput, st.integers(0, len(interface.types) - 1)))
    if tensors:
        choices.append(st.builds(SavedResult, st.sampled_from(tensors)))
    return tuple(draw(st.lists(st.one_of(choices), max_size=2))) if choices else ()


def _saved_sizes(draw: st.DrawFn, interface: Interface, sizes: bool) -> tuple[Saved, ...]:
    if not sizes or not interface.names:
        return ()
    return tuple(SavedSize(name) for name in draw(st.lists(st.sampled_from(interface.names), max_size=1)))


def _facts(names: Sequence[str]) -> st.SearchStrategy[Relation]:
    left = st.sampled_from(names).map(lambda name: symbol(name) % 8)
    return st.builds(Relation, left, st.just("=="), st.integers(0, 7))


_COUNTS = st.integers(0, 3)
_RARELY = st.sampled_from([False, False, False, True])


def _tangents(draw: st.DrawFn, results: Sequence[ValueType | None], tensors: list[int]) -> tuple[Tangent, ...]:
    found: list[Tangent] = []
    for number in tensors:
        kind = results[number]
        if isinstance(kind, TensorType) and draw(st.booleans()):
            found.append(Tangent(number, msgspec.structs.replace(kind, requires_grad=False)))
    return tuple(found)


def backward_types(
    binding: Binding, interface: Interface, results: Sequence[ValueType | None]
) -> tuple[ValueType, ...]:
    """The types of the backward's arguments: saved values, then tangents."""
    found: list[ValueType] = []
    for saved in binding.saved:
        if isinstance(saved, SavedSize):
            found.append(ScalarType("int"))
            continue
        kind = interface.types[saved.input] if isinstance(saved, SavedInput) else results[saved.result]
        assert isinstance(kind, TensorType)
        found.append(kind)
    return (*found, *(tangent.type for tangent in binding.tangents))


def with_gradients(draw: st.DrawFn, binding: Binding, results: int) -> Binding:
    """The binding with an entry an input: one of the backward's results, or None."""
    numbers = st.sampled_from([None, *range(results)])
    tangents = list(range(len(binding.tangents)))
    sources: tuple[tuple[int, ...], ...] = ()
    if len(tangents) > 0 and draw(st.sampled_from((True, True, True, False))):
        sources = tuple(tuple(draw(st.lists(st.sampled_from(tangents), unique=True))) for _ in range(results))
    gradients = tuple(draw(numbers) for _ in binding.inputs)
    closed: tuple[tuple[int, ...], ...] = ()
    if len(tangents) > 0 and draw(st.sampled_from((True, True, True, False))):
        closed = tuple(tuple(draw(st.lists(st.sampled_from(tangents), unique=True))) for _ in tangents)
    return msgspec.structs.replace(binding, input_gradients=gradients, gradient_tangents=sources, closed_by=closed)
