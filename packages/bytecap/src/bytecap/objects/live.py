"""Values in the hands of C code: CPython's own iterators, sorts and heaps run on them.

A `Live` is an object whose special methods are the operations of the evaluated program, so C functions that compare,
call and iterate need no second implementation. What holds for every such call:

L1  C code is given `Live`s, None, and ints that the capture has fixed where C reads a number; never an open number.
L2  A list that C code changes in place is a mirror: afterwards its items are written back, also when the call raised.
L3  What C code itself raises is raised in the evaluated program. An exception that an operation of the evaluator let
    out goes through unchanged: it is the program's (`PythonRaise`), a refusal, or a fault.
L4  A C iterator is rebuilt from what its `__reduce__` says. What has none cannot be rebuilt.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from functools import cache, partial
from types import BuiltinFunctionType
from typing import Any, ClassVar

from bytecap.bytecode.rebuild import restored
from bytecap.context_types import Emitter, Tracer
from bytecap.errors import CannotRebuild, UnsupportedCall
from bytecap.objects.base import EXHAUSTED, End, IteratorValue, PythonRaise, Value, state
from bytecap.objects.class_lookup import has_method
from bytecap.objects.containers.sequences import Lazy, Sequence


def _comparison(symbol: str) -> Callable[[Any, object], Live]:
    def compared(self: Live, other: object) -> Live:
        right = self.tracer.objects.fresh(other)
        return Live(self.tracer, self.tracer.evaluate.compare(self.tracer, symbol, self.value, right))

    return compared


class Live:
    """A value as C code sees it."""

    __slots__ = ("tracer", "value")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, tracer: Tracer, value: Value) -> None:
        self.tracer = tracer
        self.value = value

    def __iter__(self) -> Live:
        return Live(self.tracer, self.value.iterate(self.tracer))

    def __next__(self) -> Live:
        self.tracer.frames.count_iteration()
        item = self.value.next(self.tracer)
        if isinstance(item, End):
            raise StopIteration
        return Live(self.tracer, item)

    def __call__(self, *args: Any, **kwargs: Any) -> Live:
        values = [self.tracer.objects.fresh(arg) for arg in args]
        named = {name: self.tracer.objects.fresh(arg) for name, arg in kwargs.items()}
        try:
            return Live(self.tracer, self.value.call(self.tracer, values, named))
        except PythonRaise as error:
            if issubclass(error.value.python_type(), StopIteration):
                raise RaisedStop(error) from None
            raise

    def __getattr__(self, name: str) -> Live:
        if not has_method(self.value, name):
            raise AttributeError(name)
        return Live(self.tracer, self.value.get_attribute(self.tracer, name))

    def __repr__(self) -> str:
        return self.tracer.evaluate.repr_of(self.tracer, self.value)

    def __bool__(self) -> bool:
        return self.value.truth(self.tracer)

    def __index__(self) -> int:
        return self.value.as_int(self.tracer)

    def __eq__(self, other: object) -> bool:
        return self.tracer.evaluate.equal(self.tracer, self.value, self.tracer.objects.fresh(other))

    __lt__, __gt__, __le__, __ge__ = map(_comparison, ("<", ">", "<=", ">="))

    def __setitem__(self, key: Any, item: Any) -> None:
        self.value.set_item(self.tracer, self.tracer.objects.fresh(key), self.tracer.objects.fresh(item))

    def __add__(self, other: object) -> Live:
        right = self.tracer.objects.fresh(other)
        return Live(self.tracer, self.tracer.evaluate.binary(self.tracer, "+", self.value, right))


class LiveItem(Live):
    """An item of a mirror: looked at, and so guarded, when C code does."""

    __slots__ = ("index", "sequence")

    def __init__(self, tracer: Tracer, sequence: Sequence, index: int) -> None:
        self.tracer = tracer
        self.sequence = sequence
        self.index = index

    @property
    def value(self) -> Value:  # type: ignore[override]
        """The item."""
        return self.sequence.item(self.tracer, self.index)


class LiveSequence(Live):
    """A value that C code reads by index, or key."""

    __slots__ = ()
    __iter__ = None  # type: ignore[assignment]

    def __len__(self) -> int:
        return self.value.length(self.tracer)

    def __getitem__(self, index: Any) -> Live:
        try:
            return Live(self.tracer, self.value.get_item(self.tracer, self.tracer.objects.fresh(index)))
        except PythonRaise as error:
            kind = error.value.python_type()
            if issubclass(kind, (IndexError, StopIteration)):
                raise RaisedStop(error) from None
            raise


class LiveObject(LiveSequence):
    """A value whose attributes and items C code reads."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Live:
        return LiveObject(self.tracer, self.value.get_attribute(self.tracer, name))


class RaisedStop(StopIteration):
    """StopIteration of the evaluated program: the end, to C code that iterates."""

    def __init__(self, raised: PythonRaise) -> None:
        super().__init__()
        self.raised = raised


def to_host(tracer: Tracer, value: Value) -> Any:
    """What C code is given for a value; it complains of the class that the value has."""
    return None if value.is_none() else _named(Live, value.python_type().__name__)(tracer, value)


@cache
def _named(cls: type[Live], name: str) -> type[Live]:
    return type(name, (cls,), {"__slots__": ()})


def call_native(tracer: Tracer, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a C function on what stands for values; the result is as C gives it."""
    try:
        return function(*args, **kwargs)
    except Exception as error:
        raise of_program(tracer, error) from None


def of_program(tracer: Tracer, error: Exception) -> Exception:
    """What goes on where C code let out `error`, in the frame that called it."""
    if isinstance(error, RaisedStop):
        return error.raised
    is_of_c = error.__traceback__ is not None and error.__traceback__.tb_next is None
    return tracer.raises_real(error) if is_of_c else error


def native(function: Callable[..., Any], *indices: int | str) -> Callable[..., Value]:
    """A table entry that runs the C function itself; indices: which arguments are numbers that it reads."""

    def handler(tracer: Tracer, *args: Value, **kwargs: Value) -> Value:
        given = [_argument(tracer, value, at in indices) for at, value in enumerate(args)]
        named = {name: _argument(tracer, value, name in indices) for name, value in kwargs.items()}
        return tracer.objects.fresh(call_native(tracer, function, *given, **named))

    return handler


def _argument(tracer: Tracer, value: Value, is_index: bool) -> Any:
    is_number = is_index and hasattr(value.python_type(), "__index__")
    return value.as_int(tracer) if is_number else to_host(tracer, value)


def native_on_list(function: Callable[..., Any], *indices: int | str) -> Callable[..., Value]:
    """The same for a function of a sequence, which it reads by index, or of a list or deque, which it may change."""

    def handler(tracer: Tracer, sequence: Value, *args: Value, **kwargs: Value) -> Value:
        known = sequence.plain()
        if not isinstance(known, Sequence):
            cls = sequence.python_type()
            is_sequence = hasattr(cls, "__getitem__") and not issubclass(cls, dict)
            host = (_named(LiveSequence, cls.__name__) if is_sequence else to_host)(tracer, sequence)
            return native(partial(function, host), *indices)(tracer, *args, **kwargs)
        before, mirror = list(known.items), mirror_of(tracer, known)
        lives = list(mirror)
        try:
            return native(partial(function, mirror), *indices)(tracer, *args, **kwargs)
        finally:
            changes = (was for was, now in zip(before, known.items, strict=False) if was is not now)
            if len(known.items) != len(before) or not all(isinstance(was, Lazy) for was in changes):
                raise UnsupportedCall("a list that changes while C code works on it")
            if list(map(id, mirror)) != list(map(id, lives)):
                after = [tracer.objects.fresh(item) for item in mirror]
                known.mutate(tracer)  # type: ignore[attr-defined]
                known.replace(after)  # type: ignore[attr-defined]

    return handler


def mirror_of(tracer: Tracer, sequence: Sequence) -> Any:
    """A host sequence of the builtin class, with an item for each."""
    return sequence.builtin(LiveItem(tracer, sequence, index) for index in range(len(sequence.items)))


_DATA = (int, float, complex, str, bytes, bytearray, range, type(None), type, BuiltinFunctionType)


class NativeIterator(IteratorValue):
    """An iterator of CPython's own, over `Live`s or plain data. `last`: what it gave last."""

    host: Any
    source_iterator: Any = None
    last: Any = state(default=None)

    def python_type(self) -> type:
        return type(self.host)

    def next(self, tracer: Tracer) -> Any:
        try:
            self.last = next(self.host, EXHAUSTED)
        except Exception as error:
            raise of_program(tracer, error) from None
        return EXHAUSTED if self.last is EXHAUSTED else tracer.objects.fresh(self.last)

    methods: ClassVar = IteratorValue.methods | {
        "__copy__": lambda tracer, self: tracer.objects.fresh(self.host.__copy__())
    }

    def reconstruct(self, emitter: Emitter) -> None:
        function, arguments, *state = self._reduced()
        parts = _parts(emitter.tracer, arguments)
        if not state or state[0] is None:
            emitter.call_with(function, *parts)
        else:
            emitter.call_with(restored, parts, _parts(emitter.tracer, state[0]), function)

    def _reduced(self) -> tuple[Any, ...]:
        if isinstance(self.host, itertools.pairwise):
            first = () if self.last is None or self.last is EXHAUSTED else self.last[1:]
            return itertools.pairwise, (itertools.chain(first, self.source_iterator),)
        try:
            with warnings.catch_warnings():
                # CPython 3.12 deprecates the method for iterators of itertools; 3.14 takes it away.
                warnings.simplefilter("ignore", DeprecationWarning)
                reduced: tuple[Any, ...] = self.host.__reduce__()
        except TypeError as error:
            raise CannotRebuild(f"{type(self.host).__name__}: {error}") from None
        is_open = self.last is not None and self.last is not EXHAUSTED
        if isinstance(self.host, itertools.groupby) and is_open and len(reduced) == 2:
            raise CannotRebuild("itertools.groupby in the middle of a group")
        return reduced


def _parts(tracer: Tracer, host: Any) -> Any:
    """What stands in the state of an iterator, as `Emitter.push` takes it."""
    if type(host) in (tuple, list):
        return type(host)([_parts(tracer, item) for item in host])
    if isinstance(host, Live):
        return host.value
    return host if isinstance(host, _DATA) else tracer.objects.iterator(host)
