"""Triton kernels of the program: a launch is one node, the call of an operator that is made for it.

    kernel[grid](x, out, n, BLOCK=64)  ->  stagefold_triton.kernel_HASH.default(x, out, n, 64, grid)
    schema   ::= (Tensor x, Tensor(a!) out, SymInt n, SymInt BLOCK, SymInt[] grids) -> ()
    layout   ::= how many arguments are positional, and what each parameter is given: a tensor or number (an argument
                 of the operator) | a tuple or descriptor of such | an object
    grids    ::= three numbers for each way in which autotune may choose

What is written is read from the kernel (`triton_writes`). The operator launches the program's own kernel object, with
its autotuner, heuristics and hooks; it is registered in this process when the launch is captured, under a name that is
the digest of what it does, so that programs in the cache find it again.
"""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import threading
from collections.abc import Callable, Iterator, Mapping
from itertools import combinations, count
from typing import Any, NamedTuple

import torch

from absint import AbstractTensor
from absint.overlap import shares_elements
from bytecap.context_types import Tracer
from bytecap.errors import UnsupportedCall
from bytecap.nodes.torch_calls import call_torch
from bytecap.nodes.triton_writes import python_function, written_parameters
from bytecap.objects.arrays.tensors import TensorValue
from bytecap.objects.base import Constant, NotConcrete, Value
from bytecap.objects.containers.sequences import ListValue, TupleValue
from bytecap.objects.numbers.symbolic import is_symbolic

NAMESPACE = "stagefold_triton"

# What is evaluated in place of `run` of Triton's classes


def launch(self: Any, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> None:
    """`kernel[grid](*args, **kwargs)`. The grid is asked for each way in which the autotuner may choose."""
    given = {**dict(zip(self.arg_names, args)), **kwargs}  # noqa: B905  # as Triton does
    shapes = [grid(meta) for meta in arguments_of(self, given)] if callable(grid) else [grid]
    grids = [size for shape in shapes for size in (*shape, 1, 1)[:3]]
    call_kernel(self, len(args), given, grids, warmup)


def unchanged(value: Any) -> Any:
    """Stands for what only wraps or unwraps, as torch.library.wrap_triton: launches are nodes without it."""
    return value


def item_of_wrapped(self: Any, grid: Any) -> Any:
    """An item of what torch.library.wrap_triton has wrapped outside."""
    return self.kernel[grid]


def nothing(*args: Any) -> None:
    """Stands for what need not be done: the checks of a TensorDescriptor, which ask for addresses (the launch makes
    another one, and checks that)."""


def arguments_of(kernel: Any, given: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """What a grid function is given, for each configuration of the autotuner."""
    if hasattr(kernel, "configs"):
        for config in kernel.configs:
            yield from arguments_of(kernel.fn, {**given, **config.all_kwargs()})
    elif hasattr(kernel, "values"):
        found = dict(given)
        for name, heuristic in kernel.values.items():
            found[name] = heuristic(dict(found))
        yield from arguments_of(kernel.fn, found)
    else:
        names, defaults = kernel.arg_names, kernel.fn.__defaults__ or ()
        found = {**dict(zip(names[len(names) - len(defaults) :], defaults, strict=True)), **given}
        yield {name: found[name] for name in names if name in found}


def call_kernel(kernel: Any, positional: int, given: dict[str, Any], grids: list[int], warmup: bool) -> None:
    """Make the node. (Never called: captured code has `_call_kernel` in its place.)"""
    raise NotImplementedError


# The node


class _Leaf(NamedTuple):
    """An argument of the operator. kind: its type in the schema, or "number" for a float in a tensor."""

    number: int
    kind: str


class _Group(NamedTuple):
    """A tuple, or the fields of a descriptor of class `cls`."""

    cls: Any
    items: tuple[Any, ...]


class _Layout(NamedTuple):
    """positional: how many of the parameters are given by position."""

    kernel: Any
    positional: int
    parameters: tuple[tuple[str, Any], ...]


class _Arguments:
    """The arguments of the operator as they are found; a tensor that is given twice is one."""

    def __init__(self, tracer: Tracer) -> None:
        self.tracer = tracer
        self.found: list[tuple[str, Value, str]] = []  # name, value, kind
        self.tensors: list[tuple[AbstractTensor, _Leaf]] = []

    def place(self, name: str, value: Value) -> Any:
        """How a value reaches the kernel: a leaf, a group, or the object itself."""
        if isinstance(value, TensorValue):
            memory, meta = value.abstract.storage_record, value.abstract.meta
            alike = ((other, leaf) for other, leaf in self.tensors if other.storage_record is memory)
            known = next((leaf for other, leaf in alike if other is value.abstract or other.meta == meta), None)
            if known is None:
                known = self._leaf(name, value, "Tensor")
                self.tensors.append((value.abstract, known))
            return known
        kind = next((text for cls, text in _NUMBERS if issubclass(value.python_type(), cls)), None)
        if is_symbolic(value, float):  # in the graph it is a tensor
            dtype = Constant(torch.float64)
            number = call_torch(self.tracer, torch.scalar_tensor, [value], {"dtype": dtype})
            return self._leaf(name, number, "number")
        if kind is not None:
            return self._leaf(name, value, kind)
        if isinstance(value, (TupleValue, ListValue)):
            items = [self.place(f"{name}_{index}", item) for index, item in enumerate(value.values(self.tracer))]
            return _Group(value.python_type(), tuple(items))
        if value.python_type().__name__ == "TensorDescriptor":
            parts = [
                self.place(f"{name}_{field.name}", value.get_attribute(self.tracer, field.name))
                for field in dataclasses.fields(value.python_type())  # which differ with the release of Triton
            ]
            return _Group(value.python_type(), tuple(parts))
        return _same_object(self.tracer, value, name)

    def _leaf(self, name: str, value: Value, kind: str) -> _Leaf:
        self.found.append((name, value, kind))
        return _Leaf(len(self.found) - 1, kind)


_NUMBERS = ((bool, "bool"), (int, "SymInt"), (float, "float"), (str, "str"))


def _same_object(tracer: Tracer, value: Value, name: str) -> Any:
    """The object that a value stands for, which is guarded to be this one."""
    try:
        real = value.concrete()
    except NotConcrete:
        raise UnsupportedCall(f"a Triton kernel is given a {value.describe()} as {name}") from None
    if not isinstance(value, Constant):
        tracer.guards.identity(value.source, real)
    return real


def _call_kernel(tracer: Tracer, kernel: Value, positional: Value, given: Value, grids: Value, warmup: Value) -> Value:
    real = _same_object(tracer, kernel, "its kernel")
    if warmup.truth(tracer):
        raise UnsupportedCall("warmup of a Triton kernel in captured code")
    arguments = _Arguments(tracer)
    parameters = tuple((key.concrete(), arguments.place(key.concrete(), value)) for key, value in given.pairs(tracer))
    layout = _Layout(real, positional.concrete(), parameters)
    constants = {name: place for name, place in parameters if not isinstance(place, (_Leaf, _Group))}
    written = written_parameters(python_function(real), constants)
    writes = {leaf.number for name, place in parameters if name in written for leaf in _leaves(place)}
    _refuse_overlaps(arguments, writes)
    operator = _operator(layout, arguments, writes)
    call_torch(tracer, operator, [*[value for _, value, _ in arguments.found], grids], {})
    return Constant(None)


def _refuse_overlaps(arguments: _Arguments, writes: set[int]) -> None:
    """Two arguments with elements in common, one of which is written: the operator's functional form has copies."""
    rows = enumerate(arguments.found)
    tensors = [(n, value.abstract) for n, (_, value, _) in rows if isinstance(value, TensorValue)]
    for (first, one), (second, other) in combinations(tensors, 2):
        shared = one.storage_record is other.storage_record and (first in writes or second in writes)
        if shared and shares_elements(one.meta, other.meta):
            names = f"{arguments.found[first][0]} and {arguments.found[second][0]}"
            raise UnsupportedCall(f"a Triton kernel whose arguments {names} share elements")


def _leaves(place: Any) -> Iterator[_Leaf]:
    if isinstance(place, _Leaf):
        yield place
    elif isinstance(place, _Group):
        for item in place.items:
            yield from _leaves(item)


def _text_of(real: Any) -> str:
    """What tells an object from others of its kind: of a function its module and source."""
    function = python_function(real)
    if function is None:
        return str(real)
    try:
        return f"{function.__module__}\n{inspect.getsource(function)}"
    except OSError:
        return f"{function.__module__}.{function.__qualname__}"


# The operator


_REGISTERED: dict[tuple[Any, ...], Any] = {}
_REGISTRATION = threading.RLock()
"""torch's table of operators belongs to the process: an operator is registered once, by one thread."""


def _operator(layout: _Layout, arguments: _Arguments, writes: set[int]) -> Any:
    """The operator for a launch of this layout."""
    signature = _signature(arguments, writes)
    key = (id(layout.kernel), layout.positional, _described(layout.parameters, id), signature)
    with _REGISTRATION:
        if key not in _REGISTERED:
            _REGISTERED[key] = _register(layout, signature)
        return _REGISTERED[key]


def _signature(arguments: _Arguments, writes: set[int]) -> str:
    names = (f"{'abcdefghijklmnopqrstuvwxyz'[n % 26] * (1 + n // 26)}" for n in count())
    found = []
    for number, (name, _, kind) in enumerate(arguments.found):
        written = f"({next(names)}!)" if number in writes and kind == "Tensor" else ""
        found.append(f"{'Tensor' if kind == 'number' else kind}{written} {name}")
    return f"({', '.join([*found, 'SymInt[] grids'])}) -> ()"


def _described(place: Any, name: Callable[[Any], Any]) -> Any:
    """A layout as text and numbers; `name` of the objects in it."""
    if isinstance(place, _Leaf):
        return tuple(place)
    if isinstance(place, _Group):
        return name(place.cls), tuple(_described(item, name) for item in place.items)
    if isinstance(place, tuple):
        return tuple(_described(item, name) for item in place)
    return place if place is None or isinstance(place, str) else name(place)


def _register(layout: _Layout, signature: str) -> Any:
    facts = (_text_of(layout.kernel), layout.positional, _described(layout.parameters, _text_of), signature)
    stem = f"{python_function(layout.kernel).__name__}_{hashlib.sha256(repr(facts).encode()).hexdigest()[:12]}"
    packets = getattr(torch.ops, NAMESPACE)
    name = next(name for n in count() if not hasattr(packets, name := f"{stem}_{n}" if n else stem))
    qualified = f"{NAMESPACE}::{name}"
    torch.library.define(qualified, signature)
    torch.library.impl(qualified, "CompositeExplicitAutograd")(_runner(layout))
    torch.library.impl(qualified, "Autograd")(torch.library.fallthrough_kernel)  # as autograd sees launches: not at all
    torch.library.register_fake(qualified)(lambda *args: None)
    return getattr(packets, name).default


def _runner(layout: _Layout) -> Callable[..., None]:
    """What the operator does: the launch, as the program wrote it."""
    kernel, positional, parameters = layout
    choices = _choices(kernel)

    def run(*args: Any) -> None:
        *values, grids = args
        shapes = [tuple(grids[at : at + 3]) for at in range(0, len(grids), 3)]

        def grid(meta: Mapping[str, Any]) -> tuple[int, ...]:
            chosen = (n for n, choice in enumerate(choices) if all(meta.get(key) == choice[key] for key in choice))
            return shapes[next(chosen)]

        given = {name: _built(place, values) for name, place in parameters}
        ahead = [given.pop(name) for name, _ in parameters[:positional]]
        kernel[grid if len(shapes) > 1 else shapes[0]](*ahead, **given)

    return run


def _choices(kernel: Any) -> list[dict[str, Any]]:
    """The parameters that each configuration of the autotuners sets, in the order of `arguments_of`."""
    if not hasattr(kernel, "fn"):
        return [{}]
    below = _choices(kernel.fn)
    own = [config.kwargs for config in kernel.configs] if hasattr(kernel, "configs") else [{}]
    return [{**first, **second} for first in own for second in below]


def _built(place: Any, values: list[Any]) -> Any:
    """What a parameter is given."""
    if isinstance(place, _Leaf):
        return values[place.number].item() if place.kind == "number" else values[place.number]
    if isinstance(place, _Group):
        items = [_built(item, values) for item in place.items]
        is_plain = issubclass(place.cls, (list, tuple)) and not hasattr(place.cls, "_fields")
        return place.cls(items) if is_plain else place.cls(*items)
    return place


LAUNCHES: dict[tuple[str, str], Callable[..., Any]] = {
    ("triton.runtime.jit", "JITFunction.run"): launch,
    ("triton.runtime.interpreter", "InterpretedFunction.run"): launch,
    ("triton.runtime.autotuner", "Autotuner.run"): launch,
    ("triton.runtime.autotuner", "Heuristics.run"): launch,
    ("triton.tools.tensor_descriptor", "TensorDescriptor.__post_init__"): nothing,
    ("torch.library", "wrap_triton"): unchanged,
    ("torch._higher_order_ops.triton_kernel_wrap", "TraceableTritonKernelWrapper.__getitem__"): item_of_wrapped,
}
"""(module, qualified name) -> the function that is evaluated in its place."""

KERNELS: dict[Any, Callable[..., Value]] = {call_kernel: _call_kernel}
