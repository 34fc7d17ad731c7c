"""collections.deque: its items lie in a host deque, which keeps the bound and knows of changes while it is iterated."""

from __future__ import annotations

import operator
from collections import deque
from typing import Any, ClassVar

from bytecap.context_types import Emitter, Tracer
from bytecap.objects.base import Constant, NotConcrete, Value, run, state
from bytecap.objects.containers.sequences import ListValue, Sequence, SliceValue
from bytecap.objects.iterators import ContainerIterator


class DequeValue(ListValue):
    """A deque; `maxlen` None means no bound. `changes`: how often it was changed."""

    maxlen: int | None = None
    changes: int = state(default=0)
    builtin = deque
    parts: ClassVar = {"maxlen": lambda tracer, self: Constant(self.maxlen)}

    def __post_init__(self) -> None:
        super().__post_init__()
        self.items = deque(self._items, self.maxlen)
        self.added = deque(maxlen=self.maxlen)

    def concrete(self) -> Any:
        if self.real is not None and self.mutated:
            raise NotConcrete(self)
        return deque(self.concrete_items(), self.maxlen)

    def like(self, items: list[Any], cls: type | None = None) -> Sequence:
        return DequeValue(items, maxlen=self.maxlen)

    def mutate(self, tracer: Tracer) -> None:
        self.changes += 1
        super().mutate(tracer)

    def replace(self, items: list[Any]) -> None:
        self.items.clear()
        self.items.extend(items)

    def get_item(self, tracer: Tracer, key: Value) -> Value:
        if isinstance(key, SliceValue):
            run(tracer, operator.getitem, (deque(), slice(None)))
        return super().get_item(tracer, key)

    def iterate(self, tracer: Tracer) -> Value:
        return ContainerIterator(tracer, self)

    def host(self, tracer: Tracer) -> Any:
        """The items."""
        return self.items

    def given(self, tracer: Tracer, item: Any) -> Value:
        """The value of an item."""
        return tracer.objects.fresh(item)

    def blank(self) -> Any:
        """An empty deque."""
        return deque()

    def stamp(self) -> int:
        """The number of changes."""
        return self.changes

    def reconstruct(self, emitter: Emitter) -> None:
        emitter.call_with(deque, self.values(emitter.tracer), self.maxlen)
