"""NumPy arrays: those that the captured code made, and those from outside."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from bytecap.context_types import Emitter, Tracer
from bytecap.errors import CannotRebuild, UnsupportedCall, UnsupportedMutation, UnsupportedValue
from bytecap.graph.builder import tensor_type
from bytecap.objects.base import Constant, RealValue, Value, passed_on, run, state
from bytecap.objects.containers.sequences import TupleValue
from bytecap.objects.functions import BuiltinMethod
from bytecap.torch_capabilities import numpy_on_tensors
from stagewire.capture import Reading, Source

try:
    import numpy as NUMPY
except ImportError:
    NUMPY: Any = None  # type: ignore[no-redef]

# The largest array whose numbers are compared in each call.
_MOST_GUARDED = 1024
_PLAIN_KINDS = frozenset("biufc")
_WRITERS = frozenset({"fill", "sort", "partition", "put", "__setitem__"})
"""Methods that write into the array."""
_LENDERS = frozenset(
    {"resize", "setflags", "setfield", "byteswap", "tofile", "dump", "view", "__setstate__", "data", "ctypes"}
) | {"__array_interface__", "__dlpack__", "__buffer__"}
"""What gives away its memory, or makes another array of it."""


def is_number(real: Any) -> bool:
    """Whether it is a number of NumPy's that a Python number is equal to."""
    if NUMPY is None or not isinstance(real, NUMPY.generic):
        return False
    return real.dtype.kind in _PLAIN_KINDS and type(real.item()) in (bool, int, float, complex)


def is_array(real: Any) -> bool:
    """Whether it is an array of plain numbers, of no subclass."""
    return NUMPY is not None and type(real) is NUMPY.ndarray and real.dtype.kind in _PLAIN_KINDS


def is_function(real: Any) -> bool:
    """Whether it is one of NumPy's functions of classes of its own."""
    return NUMPY is not None and type(real) in (NUMPY.ufunc, type(NUMPY.sum))


@contextlib.contextmanager
def refusing_warnings(what: str) -> Iterator[None]:
    """Compute with NumPy now; where it warns of the numbers, each run is to warn."""
    warned: list[str] = []
    note = dict.fromkeys(("divide", "over", "invalid"), "call")
    with NUMPY.errstate(call=lambda kind, flag: warned.append(kind), **note):
        yield
    if warned:
        raise UnsupportedCall(f"{what} warns of these numbers: {warned[0]}")


class ArrayValue(RealValue):
    """An array that the code made: `real` has its content, which every run has again.

    lent: its memory is a tensor's, too.
    """

    lent: bool = state(default=False)
    words = "array of {0.real.shape}"

    def lend(self) -> None:
        """A tensor has the same memory: the array is not written any more, and cannot leave the captured code."""
        self.lent = True

    def get_attribute(self, tracer: Tracer, name: str) -> Value:
        if name in _LENDERS or name.startswith("__array"):
            raise UnsupportedMutation(f"{name!r} of an array")
        found = getattr(type(self.real), name, None)
        if callable(found):
            return BuiltinMethod(self, name)
        return super().get_attribute(tracer, name) if found is None else tracer.objects.fresh(getattr(self.real, name))

    def call_method(self, tracer: Tracer, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if name in _LENDERS or "out" in kwargs:
            raise UnsupportedMutation(f"{name}() of an array")
        if name in _WRITERS:
            return self.write(tracer, getattr(type(self.real), name), *args, **kwargs)
        return tracer.evaluate.fold_call(tracer, getattr(self.real, name), args, kwargs)

    def get_item(self, tracer: Tracer, key: Value) -> Value:
        return tracer.objects.fresh(run(tracer, self.real.__getitem__, (key.concrete(),)))

    def write(self, tracer: Tracer, function: Callable[..., Any], *args: Value, **kwargs: Value) -> Value:
        """Do a write into the array at once: only arrays that the code made have its memory."""
        if any(array.lent and NUMPY.may_share_memory(self.real, array.real) for array in tracer.objects.arrays):
            raise UnsupportedMutation("a write into an array whose memory a tensor or an outside array has too")
        concrete = [arg.concrete() for arg in args]
        with refusing_warnings("a write into an array"):
            run(tracer, function, (self.real, *concrete), {key: value.concrete() for key, value in kwargs.items()})
        return Constant(None)

    def set_item(self, tracer: Tracer, key: Value, value: Value) -> None:
        self.write(tracer, operator.setitem, key, value)

    def truth(self, tracer: Tracer) -> bool:
        return run(tracer, bool, (self.real,))

    def reconstruct(self, emitter: Emitter) -> None:
        others = (array for array in emitter.tracer.objects.arrays if array is not self)
        if self.lent or any(NUMPY.may_share_memory(self.real, other.real) for other in others):
            raise CannotRebuild("an array whose memory another array or tensor has too")
        emitter.call_with(NUMPY.ndarray.copy, self.real, "K")


@dataclass(frozen=True)
class OutsideMemory:
    """Arrays from outside whose content the capture has looked at, and those that its graph writes."""

    read: list[Any] = field(default_factory=list)
    written: list[Any] = field(default_factory=list)


class OutsideArray(RealValue):
    """An array from outside: its memory can be a tensor of the graph; the content of a small one can be guarded.

    A number is written by the graph, through that tensor. What the graph has written is not looked at any more, and the
    other way round: nothing would see that the content of this moment is not that of the capture's start.
    """

    _pin: Callable[[OutsideArray], None]
    _known: OutsideMemory
    _content: ArrayValue | None = state(default=None)
    _tensor: Value | None = state(default=None)
    words = "NumPy array from outside the frame"

    def concrete(self) -> Any:
        return self.content.real

    @property
    def content(self) -> ArrayValue:
        """Its numbers, which are guarded from then on."""
        if self._content is None:
            if self.real.size > _MOST_GUARDED:
                raise UnsupportedValue("the content of a large NumPy array from outside the frame")
            if any(NUMPY.may_share_memory(self.real, written) for written in self._known.written):
                raise UnsupportedMutation("the content of a NumPy array that the graph has written")
            self._known.read.append(self.real)
            self._content = ArrayValue(self.real.copy("K"))
            self._content.lend()  # what shares its memory shares the outside array's
            self._pin(self)
        return self._content

    def guard_content(self, tracer: Tracer) -> None:
        """The array has the type and the numbers that it has now."""
        tracer.objects.arrays.append(self.content)
        self._type(tracer)
        names, source = tracer.names, self.source
        text = Reading(names.of(bytes.hex), Reading(names.of(NUMPY.ndarray.tobytes), source))
        tracer.guards.literal(text, self.real.tobytes().hex())

    def tensor(self, tracer: Tracer) -> Value:
        """The tensor over its memory."""
        if self._tensor is None:
            real, place = self._over_memory(tracer)
            self._tensor = tracer.inputs.tensor(real, place)
        return self._tensor

    def _over_memory(self, tracer: Tracer) -> tuple[torch.Tensor, Source]:
        if not self.real.flags.writeable:
            raise UnsupportedValue("a NumPy array that cannot be written, as a tensor")
        try:
            real = torch.from_numpy(self.real)
        except (TypeError, ValueError) as error:
            raise UnsupportedValue(f"a NumPy array as a tensor: {error}") from None
        return real, Reading(tracer.names.of(torch.from_numpy), self.source)

    def _type(self, tracer: Tracer) -> torch.Tensor:
        """A tensor of its type, which is guarded."""
        real, place = self._over_memory(tracer)
        tracer.guards.tensor(place, tensor_type(real), real)
        return real

    def get_attribute(self, tracer: Tracer, name: str) -> Value:
        if name in ("shape", "ndim", "size", "dtype", "nbytes", "itemsize", "strides"):
            self._type(tracer)
            return tracer.objects.fresh(getattr(self.real, name))
        return self.content.get_attribute(tracer, name)

    def length(self, tracer: Tracer) -> int:
        self._type(tracer)
        return super().length(tracer)

    call_method, get_item, truth, iterate, contains = passed_on(
        "content", "call_method", "get_item", "truth", "iterate", "contains"
    )

    def set_item(self, tracer: Tracer, key: Value, value: Value) -> None:
        self.write(tracer, operator.setitem, key, value)

    def write(self, tracer: Tracer, function: Callable[..., Any], *args: Value) -> None:
        """Have the graph do a write into the array's memory."""
        if any(NUMPY.may_share_memory(self.real, read) for read in self._known.read):
            raise UnsupportedMutation("a write into a NumPy array from outside, whose content was looked at before")
        array = TracedArray(self.tensor(tracer), self.real.copy("K"))
        self._known.written.append(self.real)
        tracer.evaluate.call_on_arrays(tracer, function, [array, *args], {}, function.__name__)


class TracedArray(Value):
    """An array, or a number of NumPy's, that the graph computes.

    memory: a tensor of the graph. example: an array (or number) of the same type and layout with other numbers; the
    example of a view is a view of the example.
    """

    memory: Any
    example: Any

    def python_type(self) -> type:
        return type(self.example)

    def tensor(self, tracer: Tracer) -> Value:
        """The tensor over its memory."""
        return self.memory

    def get_attribute(self, tracer: Tracer, name: str) -> Value:
        if name in ("dtype", "ndim", "itemsize"):
            return tracer.objects.fresh(getattr(self.example, name))
        if name == "shape":
            return TupleValue(self.memory.get_attribute(tracer, name).values(tracer))
        if not hasattr(self.example, name):
            return super().get_attribute(tracer, name)
        if callable(getattr(self.example, name)):
            return BuiltinMethod(self, name)
        return tracer.evaluate.call_on_arrays(tracer, operator.attrgetter(name), [self], {}, name)

    def call_method(self, tracer: Tracer, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if name in ("item", "tolist") and not args and not kwargs:
            return self.memory.call_method(tracer, name, [], {})
        if not hasattr(numpy_on_tensors().ndarray, name):
            raise UnsupportedCall(f"{name}() of a {self.describe()}")

        def method(array: Any, *given: Any, **named: Any) -> Any:
            return getattr(array, name)(*given, **named)

        return tracer.evaluate.call_on_arrays(tracer, method, [self, *args], kwargs, name)

    def get_item(self, tracer: Tracer, key: Value) -> Value:
        return tracer.evaluate.call_on_arrays(tracer, operator.getitem, [self, key], {}, "getitem")

    def set_item(self, tracer: Tracer, key: Value, value: Value) -> None:
        tracer.evaluate.call_on_arrays(tracer, operator.setitem, [self, key, value], {}, "setitem")

    length, truth = passed_on("memory", "length", "truth")

    def iterate(self, tracer: Tracer) -> Value:
        count = self.length(tracer)
        if count > _MOST_GUARDED:
            raise UnsupportedCall(f"a loop over {count} rows of an array that the graph computes")
        return TupleValue([self.get_item(tracer, Constant(at)) for at in range(count)]).iterate(tracer)

    def contains(self, tracer: Tracer, item: Value) -> bool:
        raise UnsupportedCall(f"whether something is in a {self.describe()} that the graph computes")

    def reconstruct(self, emitter: Emitter) -> None:
        is_array = isinstance(self.example, NUMPY.ndarray)
        if is_array and (not self.example.flags.writeable or any(step < 0 for step in self.example.strides)):
            raise CannotRebuild("a NumPy array that is read-only or backwards")
        emitter.call_with(torch.Tensor.numpy, self.memory)
        if not is_array:
            emitter.call_function(NUMPY.ndarray.__getitem__, (), arguments=1)
        emitter.keep(self)
        emitter.load(self)


def python_number(value: Any) -> Any:
    """The Python number that torch takes a number of NumPy's for; other objects as they are."""
    return value.item() if is_number(value) else value
