"""types.MappingProxyType over a dict of the evaluated program: a view that cannot be written through."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from bytecap.objects.base import Value
from bytecap.objects.mappings import DictValue

if TYPE_CHECKING:
    from bytecap.evaluator.tracer import Tracer
    from bytecap.replacement.emit import Emitter


class MappingProxyValue(Value):
    """A read-only view of a dict."""

    __slots__ = ("dictionary",)

    def __init__(self, dictionary: DictValue) -> None:
        super().__init__()
        self.dictionary = dictionary

    def python_type(self) -> type:
        return MappingProxyType

    def concrete(self) -> Any:
        return MappingProxyType(self.dictionary.concrete())

    def get_item(self, tracer: Tracer, key: Value) -> Value:
        return self.dictionary.get_item(tracer, key)

    def length(self, tracer: Tracer) -> int:
        return self.dictionary.length(tracer)

    def truth(self, tracer: Tracer) -> bool:
        return self.dictionary.truth(tracer)

    def iterate(self, tracer: Tracer) -> Value:
        return self.dictionary.iterate(tracer)

    def contains(self, tracer: Tracer, item: Value) -> bool:
        return self.dictionary.contains(tracer, item)

    def call_method(self, tracer: Tracer, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return self.dictionary.call_method(tracer, name, args, kwargs)

    def reconstruct(self, emitter: Emitter) -> None:
        emitter.load(self.dictionary)
        emitter.call_function(MappingProxyType, arguments=1)
