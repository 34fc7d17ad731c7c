"""Exception instances: arguments, cause, context, notes, and what their C classes read from the arguments.

What those hold that existed before the capture is read from them, under guards.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any

from bytecap.bytecode.rebuild import new_exception, raised_in_caller, static_base
from bytecap.context_types import Emitter, Tracer
from bytecap.errors import StageError, UnsupportedCall, UnsupportedMutation
from bytecap.objects.base import NONE, Constant, Declared, NotConcrete, Value, collect, state
from bytecap.objects.containers.mappings import DictValue
from bytecap.objects.containers.sequences import ListValue, TupleValue
from bytecap.objects.instances.objects import ObjectValue, writers_of
from stagewire.capture import Source


class UnknownText(Value):
    """The message of an error that torch raised on abstract tensors: eager torch may put it in other words."""

    __slots__ = ("_message",)
    cls = str
    words = "message of an error raised by torch"

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self._message: str = getattr(error, "message", None) or str(error)

    def __repr__(self) -> str:
        return self._message


class TracebackValue(Value):
    """The traceback of an exception of the evaluated program: it is there, and begins in the captured frame.

    line: where that frame was; no other frame of it is known.
    """

    line: int
    cls = TracebackType


class RaiseEffect(metaclass=Declared):
    """An outside exception was raised at a line of the captured frame: its traceback grew."""

    error: Value
    line: int


_FIELDS = {
    "args": "arguments", "__traceback__": "traceback", "__cause__": "cause", "__context__": "context",
    "__suppress_context__": "suppress",
}  # fmt: skip


class ExceptionValue(ObjectValue):
    """An exception instance.

    arguments: `args`. given: positional and keyword arguments of the C `__init__`. traceback: as it was raised last.
    """

    arguments: Any
    given: tuple[list[Value], dict[str, Value]] = state()
    cause: Value = state(default=NONE)
    context: Value = state(default=NONE)
    suppress: Value = state(default=Constant(False))
    traceback: Value = state(default=NONE)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.given = (self.arguments, {})
        self.arguments = TupleValue(self.arguments)

    # -- C's part of construction

    def initialise(self, tracer: Tracer, args: list[Value], kwargs: dict[str, Value]) -> None:
        """`__init__` of the builtin class."""
        base = static_base(self.cls)
        if kwargs and not issubclass(base, (AttributeError, NameError, ImportError)):
            raise tracer.raises(TypeError, f"{self.cls.__name__}() takes no keyword arguments")
        self.arguments = TupleValue(list(args))
        self.given = (list(args), dict(kwargs))
        if issubclass(base, OSError):
            self._as_os_error()

    def _as_os_error(self) -> None:
        """OSError keeps two arguments, and chooses a class by the first."""
        try:
            given = [arg.concrete() for arg in self.given[0]]
        except NotConcrete:
            return
        made = OSError(*given)
        if self.cls is OSError:
            self.cls = type(made)
        self.arguments = TupleValue([Constant(arg) for arg in made.args])

    # -- attributes

    def get_attribute(self, tracer: Tracer, name: str) -> Value:
        return getattr(self, _FIELDS[name]) if name in _FIELDS else super().get_attribute(tracer, name)

    def c_member(self, tracer: Tracer, name: str) -> Value:
        """A field that the C class fills from its arguments: value, code, errno, name..."""
        positional, named = self.given
        if name in named:
            return named[name]
        if issubclass(self.cls, StopIteration) and name == "value":
            return positional[0] if positional else NONE
        if issubclass(self.cls, BaseExceptionGroup) and name in ("message", "exceptions"):
            found = positional[0 if name == "message" else 1]
            return found if name == "message" else TupleValue(found.values(tracer))  # type: ignore[attr-defined]
        return tracer.objects.fresh(getattr(self.twin(tracer), name))

    def set_attribute(self, tracer: Tracer, name: str, value: Value) -> None:
        if name not in _FIELDS:
            return super().set_attribute(tracer, name, value)
        setattr(self, _FIELDS[name], TupleValue(collect(tracer, value)) if name == "args" else value)
        if name == "__cause__":
            self.suppress = Constant(True)

    def add_note(self, tracer: Tracer, note: Value) -> Value:
        """BaseException.add_note."""
        if not issubclass(note.python_type(), str):
            raise tracer.raises(TypeError, f"note must be a str, not '{note.python_type().__name__}'")
        notes = self.attributes.lookup(tracer, Constant("__notes__"))
        if notes is None:
            notes = ListValue([])
            self.attributes.set_item(tracer, Constant("__notes__"), notes)
        notes.call_method(tracer, "append", [note], {})
        return NONE

    def note_raise(self, tracer: Tracer) -> None:
        """Raised now: by the program, or on its behalf by what it calls."""
        traceback = self.traceback = tracer.frames.traceback()
        if self.real is not None:
            tracer.effects.append(RaiseEffect(self, traceback.line))

    def follow(self, current: Value) -> None:
        """Raised while `current` is handled, which becomes the context (cycles are cut, as CPython does)."""
        if current is self:
            return
        link = current
        while isinstance(link, ExceptionValue) and link.real is None:
            if link.context is self:
                link.context = NONE
            link = link.context
        self.context = current

    # -- texts

    def twin(self, tracer: Tracer) -> BaseException:
        """A real exception with the same fields and text; UnsupportedCall where an argument cannot be shown."""
        base = static_base(self.cls)
        try:
            made = type(self.cls.__name__, (base,), {})(
                *[tracer.evaluate.printable(tracer, arg) for arg in self.given[0]]
            )
            made.args = tuple(tracer.evaluate.printable(tracer, arg) for arg in self.arguments.values(tracer))
        except (NotConcrete, StageError, TypeError, ValueError):
            raise UnsupportedCall(f"the text of a {self.describe()}") from None
        return made

    def message(self) -> str:
        """The text of the exception, as far as it is known."""
        try:
            return str(self.cls(*[argument.concrete() for argument in self.arguments.items]))
        except (NotConcrete, Exception):
            return ", ".join(repr(argument) for argument in self.arguments.items)

    # -- back to bytecode

    def reconstruct(self, emitter: Emitter) -> None:
        emitter.call_with(new_exception, self.cls, self.arguments, tuple(self.given[0]), self.given[1])
        emitter.keep(self)
        for key, value in self.attributes.pairs(emitter.tracer):
            self._store(emitter, str(key.concrete()), value, writers_of(self, key)[0])
        for name in ("__cause__", "__context__", "__suppress_context__"):
            value = getattr(self, _FIELDS[name])
            if not isinstance(value, Constant) or value.value:
                self._store(emitter, name, value)
        if self.traceback.source is not None:
            self._store(emitter, "__traceback__", self.traceback)
        elif isinstance(self.traceback, TracebackValue):
            emitter.call_with(raised_in_caller, self, self.traceback.line)
            emitter.pop()
            emitter.is_seen = True
        emitter.load(self)


_LINKS = frozenset({"__cause__", "__context__", "__suppress_context__"})


class OutsideException(ExceptionValue):
    """An exception from outside; its fields are looked at when they are asked for."""

    def __init__(self, tracer: Tracer, real: BaseException, source: Source | None, attributes: DictValue) -> None:
        super().__init__(type(real), [], real=real)
        self.source = source
        self.attributes = attributes
        attributes.owner = self
        self.arguments = self._field(tracer, "args")  # type: ignore[assignment]

    def _field(self, tracer: Tracer, name: str) -> Value:
        return tracer.objects.wrap(getattr(self.real, name), tracer.places.attribute(self.source, name))

    def get_attribute(self, tracer: Tracer, name: str) -> Value:
        if name in _LINKS:
            return self._field(tracer, name)
        if name != "__traceback__":
            return super().get_attribute(tracer, name)
        if isinstance(self.traceback, TracebackValue):
            return self.traceback
        real, source = self.real.__traceback__, tracer.places.attribute(self.source, "__traceback__")
        if real is None:
            return tracer.objects.wrap(None, source)
        if source is not None:
            tracer.guards.type_is(source, type(real))
        return TracebackValue(real.tb_lineno, source)

    def c_member(self, tracer: Tracer, name: str) -> Value:
        return self._field(tracer, name)

    def initialise(self, tracer: Tracer, args: list[Value], kwargs: dict[str, Value]) -> None:
        raise UnsupportedMutation(f"__init__ of an outside {self.describe()}")

    def follow(self, current: Value) -> None:
        if current is not self:
            raise UnsupportedMutation("raising an outside exception while another one is handled")

    def twin(self, tracer: Tracer) -> BaseException:
        given = self.arguments.values(tracer)
        if isinstance(self.real, OSError) and self.real.filename is not None:  # which `args` leaves out
            given = [*given, self._field(tracer, "filename"), Constant(None), self._field(tracer, "filename2")]
        self.given = given, {}
        return super().twin(tracer)

    def message(self) -> str:
        return str(self.real)

    def set_attribute(self, tracer: Tracer, name: str, value: Value) -> None:
        if name == "args" or (name.startswith("__") and name != "__class__"):
            raise UnsupportedMutation(f"cannot set {name} of an outside exception")
        super().set_attribute(tracer, name, value)
