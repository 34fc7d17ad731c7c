"""Iterators over evaluated objects: views, sets and deques; generators."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import GeneratorType
from typing import Any, ClassVar

from bytecap.bytecode.decode import argument_names
from bytecap.bytecode.rebuild import advance, new_generator
from bytecap.context_types import Emitter, Frame, Program, Tracer
from bytecap.errors import CannotRebuild
from bytecap.objects.base import (
    EXHAUSTED,
    Constant,
    End,
    IteratorValue,
    PythonRaise,
    Value,
    Yielded,
    result_or_stop,
    state,
)
from bytecap.objects.class_lookup import has_method
from bytecap.objects.live import of_program


class ContainerIterator(IteratorValue):
    """iter() or reversed() (maker) of a view of a dict, a set or a deque (owner): CPython's own, over a host container.

    give: the value of an item of `host`. stamp: what differs when the owner has changed. taken: how many items were.
    """

    owner: Any
    host: Any
    give: Callable[[Any], Value]
    stamp: Callable[[], Any]
    maker: Callable[[Any], Any] = iter
    before: Any = state()
    taken: int = state(default=0)

    def __post_init__(self) -> None:
        self.before = self.stamp()

    def python_type(self) -> type:
        return type(self.host)

    def next(self, tracer: Tracer) -> Any:
        try:
            item = next(self.host, EXHAUSTED)
        except Exception as error:
            raise of_program(tracer, error) from None
        self.taken = sys.maxsize if item is EXHAUSTED else self.taken + 1
        return EXHAUSTED if item is EXHAUSTED else self.give(item)

    def reconstruct(self, emitter: Emitter) -> None:
        if self.taken < sys.maxsize and (self.owner.mutated or self.stamp() != self.before):
            raise CannotRebuild(f"an iterator over a {self.owner.describe()} that has changed")
        emitter.call_with(self.maker, self.owner)
        emitter.call_function(advance, self.taken, arguments=1)


# -- Generators of the evaluated program: frames that stop at each yield.


class GeneratorValue(IteratorValue):
    """A generator: a frame that stops at each yield. `handled`: exceptions that it is handling while it is stopped."""

    frame: Frame
    started: bool = state(default=False)
    finished: bool = state(default=False)
    running: bool = state(default=False)
    handled: list[Value] = state(default_factory=list)
    cls = GeneratorType
    parts: ClassVar = {
        "__name__": lambda tracer, self: self.frame.function.get_attribute(tracer, "__name__"),
        "__qualname__": lambda tracer, self: self.frame.function.get_attribute(tracer, "__qualname__"),
        "gi_running": lambda tracer, self: Constant(self.running),
        "gi_code": lambda tracer, self: Constant(self.frame.function.code),
    }

    def next(self, tracer: Tracer) -> Any:
        return self.send(tracer, Constant(None))

    def send(self, tracer: Tracer, value: Value) -> Any:
        """Resume; the yielded Value, or End(return value)."""
        self._check_idle(tracer)
        if self.finished:
            return EXHAUSTED
        if not self.started and not value.is_none():
            raise tracer.raises(TypeError, "can't send non-None value to a just-started generator")
        return self._run(tracer, lambda: self.frame.resume(value, first=not self.started))

    def throw(self, tracer: Tracer, error: PythonRaise) -> Any:
        """Resume by raising inside; the yielded Value, or End(return value)."""
        self._check_idle(tracer)
        if self.finished or not self.started:
            self.finished = True
            raise error
        return self._run(tracer, lambda: self._throw_inside(tracer, error))

    def cleans_up(self) -> bool:
        """Whether it is stopped where closing it would do anything: in a `with`, a `finally`, a wide `except`."""
        if self.finished or not self.started:
            return False
        program, at = self.frame.program, self.frame.pc - 1
        while (handler := program.handler_at(at)) is not None:
            at = _end_of_refusal(program, handler.target)
            if at < 0:
                return True
        return False

    def _check_idle(self, tracer: Tracer) -> None:
        if self.running:
            raise tracer.raises(ValueError, "generator already executing")

    def _run(self, tracer: Tracer, resume: Any) -> Any:
        if not self.started:
            tracer.frames.generators.append(self)
        depth = len(tracer.frames.handled)
        tracer.frames.handled += self.handled
        self.running = True
        try:
            with tracer.frames.entering(self.frame):
                result = resume()
        except PythonRaise as error:
            self.finished = True
            if issubclass(error.value.python_type(), StopIteration):
                raise PythonRaise(stop_iteration_error(tracer, error.value)) from None
            raise
        finally:
            self.running = False
            self.handled = tracer.frames.handled[depth:]
            del tracer.frames.handled[depth:]
        self.started = True
        if isinstance(result, Yielded):
            return result.value
        self.finished = True
        return End(result)

    # -- yield from

    def delegate(self) -> Value | None:
        """The iterator that a `yield from` is waiting for."""
        frame = self.frame
        before = frame.program.instructions[frame.pc - 2] if frame.pc > 1 else None
        return frame.stack[-1] if before is not None and before.opname == "SEND" else None

    def _throw_inside(self, tracer: Tracer, error: PythonRaise) -> Any:
        inner = self.delegate()
        if inner is None:
            return self.frame.throw(error)
        try:
            result = self._throw_into(tracer, inner, error)
        except PythonRaise as raised:
            if not issubclass(raised.value.python_type(), StopIteration) or raised.value is error.value:
                return self.frame.throw(raised)
            result = End(raised.value.get_attribute(tracer, "value"))
        if not isinstance(result, End):
            return Yielded(result)
        frame = self.frame
        send = frame.program.instructions[frame.pc - 2]
        if frame.program.instructions[send.target].opname != "END_SEND":
            frame.pop()
        frame.push(result.value or Constant(None))
        frame.pc = send.target
        return frame.run()

    def _throw_into(self, tracer: Tracer, inner: Value, error: PythonRaise) -> Any:
        """Hand an exception on to the iterator of `yield from`."""
        if issubclass(error.value.python_type(), GeneratorExit):
            if isinstance(inner, GeneratorValue):
                inner.close(tracer)
            elif has_method(inner, "close"):
                inner.get_attribute(tracer, "close").call(tracer, [], {})
            raise error
        if isinstance(inner, GeneratorValue):
            return inner.throw(tracer, error)
        if not has_method(inner, "throw"):
            raise error
        return inner.get_attribute(tracer, "throw").call(tracer, [error.value], {})

    # -- methods

    methods: ClassVar = IteratorValue.methods | {
        "send": lambda tracer, self, value: result_or_stop(tracer, self.send(tracer, value)),
        "throw": lambda tracer, self, *args: result_or_stop(tracer, self.throw(tracer, tracer.as_raise(args))),
        "close": lambda tracer, self: self.close(tracer),
    }

    def close(self, tracer: Tracer) -> Value:
        """generator.close()."""
        self._check_idle(tracer)
        if self.started and not self.finished:
            try:
                result = self.throw(tracer, tracer.raises(GeneratorExit))
            except PythonRaise as error:
                if not issubclass(error.value.python_type(), (GeneratorExit, StopIteration)):
                    raise
            else:
                if not isinstance(result, End):
                    raise tracer.raises(RuntimeError, "generator ignored GeneratorExit")
                self.finished = True
                return result.value or Constant(None) if sys.version_info >= (3, 13) else Constant(None)
        self.finished = True
        return Constant(None)

    def get_attribute(self, tracer: Tracer, name: str) -> Value:
        return Constant(None) if name == "gi_frame" and self.finished else super().get_attribute(tracer, name)

    def reconstruct(self, emitter: Emitter) -> None:
        if self.started or self.finished:
            raise CannotRebuild("cannot return a suspended generator from replacement bytecode")
        frame = self.frame
        names = argument_names(frame.function.code)
        emitter.call_with(new_generator, frame.function, {name: frame.load_local(name) for name in names})


def stop_iteration_error(tracer: Tracer, stop: Value) -> Value:
    """What a StopIteration that leaves a generator becomes (PEP 479)."""
    error = tracer.raises(RuntimeError, "generator raised StopIteration").value
    error.set_attribute(tracer, "__cause__", stop)
    error.set_attribute(tracer, "__context__", stop)
    return error


# What raises a GeneratorExit again (the latter, of `yield from` since 3.12, takes StopIteration alone).
_RAISES_AGAIN = ("RERAISE", "CLEANUP_THROW")
# What an `except` clause that does not fit executes, and what names and removes its variable.
_HARMLESS = frozenset(
    {"PUSH_EXC_INFO", "POP_EXCEPT", "COPY", "LOAD_GLOBAL", "LOAD_NAME", "LOAD_FAST", "LOAD_DEREF", "LOAD_ATTR",
     "LOAD_CONST", "BUILD_TUPLE", "CHECK_EXC_MATCH", "STORE_FAST", "DELETE_FAST", "NOP", "CALL_INTRINSIC_1", "CACHE"}
)  # fmt: skip
_CATCHES_EXIT = ("GeneratorExit", "BaseException")


def _end_of_refusal(program: Program, at: int) -> int:
    """Where a handler raises a GeneratorExit again without having done anything; -1 if it does something."""
    while True:
        instruction = program.instructions[at]
        if instruction.opname in _RAISES_AGAIN:
            return at
        if instruction.opname.startswith("POP_JUMP") and instruction.opname.endswith("IF_FALSE"):
            if instruction.target <= at:
                return -1
            at = instruction.target
            continue
        is_wide = instruction.argval in _CATCHES_EXIT and instruction.opname == "LOAD_GLOBAL"
        if instruction.opname not in _HARMLESS or is_wide:
            return -1
        at += 1
