"""Exceptions that existed before the capture: what they hold is read from them, under guards."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bytecap.errors import UnsupportedMutation
from bytecap.objects.base import Value
from bytecap.objects.constant import Constant
from bytecap.objects.containers.mappings import DictValue
from bytecap.objects.instances.exceptions import ExceptionValue, TracebackValue
from stagewire.capture import Source

if TYPE_CHECKING:
    from bytecap.evaluator.tracer import Tracer

_LINKS = frozenset({"__cause__", "__context__", "__suppress_context__"})


class OutsideException(ExceptionValue):
    """An exception from outside; its fields are looked at when they are asked for."""

    __slots__ = ()

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
        if name == "__traceback__":
            return self._traceback(tracer)
        return super().get_attribute(tracer, name)

    def _traceback(self, tracer: Tracer) -> Value:
        if isinstance(self.traceback, TracebackValue):
            return self.traceback
        real, source = self.real.__traceback__, tracer.places.attribute(self.source, "__traceback__")
        if real is None:
            return tracer.objects.wrap(None, source)
        if source is not None:
            tracer.guards.type_is(source, type(real), tracer.line())
        return TracebackValue(real.tb_lineno, source)

    def c_member(self, tracer: Tracer, name: str) -> Value:
        return self._field(tracer, name)

    def initialise(self, tracer: Tracer, args: list[Value], kwargs: dict[str, Value]) -> None:
        raise UnsupportedMutation(f"__init__ of an outside {self.describe()}")

    def follow(self, current: Value) -> None:
        if current is not self:
            raise UnsupportedMutation("raising an outside exception while another one is handled")

    def twin(self, tracer: Tracer) -> BaseException | None:
        self.given = (self.arguments.values(tracer) + self._file_names(tracer), {})
        return super().twin(tracer)

    def _file_names(self, tracer: Tracer) -> list[Value]:
        """Arguments that an OSError was made with, and that `args` leaves out."""
        if not isinstance(self.real, OSError) or self.real.filename is None:
            return []
        return [self._field(tracer, "filename"), Constant(None), self._field(tracer, "filename2")]

    def message(self) -> str:
        return str(self.real)

    def set_attribute(self, tracer: Tracer, name: str, value: Value) -> None:
        if name == "args" or (name.startswith("__") and name != "__class__"):
            raise UnsupportedMutation(f"cannot set {name} of an outside exception")
        super().set_attribute(tracer, name, value)
