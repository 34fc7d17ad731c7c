"""collections.deque: a list that may have a bound, and that must not change while it is iterated."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from bytecap.errors import CannotRebuild
from bytecap.objects.base import IteratorValue, Value
from bytecap.objects.constant import Constant
from bytecap.objects.containers.sequences import ListValue, Sequence, SliceValue
from bytecap.objects.signals import EXHAUSTED, NotConcrete

if TYPE_CHECKING:
    from bytecap.evaluator.tracer import Tracer
    from bytecap.replacement.emit import Emitter


class DequeValue(ListValue):
    """A deque; `maxlen` None means no bound. `state` changes with every mutation."""

    __slots__ = ("maxlen", "state")
    builtin = deque

    def __init__(self, items: list[Any], *, maxlen: int | None = None, **options: Any) -> None:
        super().__init__(items if maxlen is None else items[len(items) - min(maxlen, len(items)) :], **options)
        self.maxlen = maxlen
        self.state = 0

    def concrete(self) -> Any:
        if self.real is not None and self.mutated:
            raise NotConcrete(self)
        return deque(self.concrete_items(), self.maxlen)

    def like(self, items: list[Any], cls: type | None = None) -> Sequence:
        return DequeValue(items, maxlen=self.maxlen)

    def mutate(self, tracer: Tracer) -> None:
        self.state += 1
        super().mutate(tracer)

    def replace(self, items: list[Any]) -> None:
        """Put these items in the place of all, the last ones if there are too many."""
        self.items[:] = self._last(items)

    def add(self, items: list[Value]) -> None:
        super().add(items)
        if not self.is_unseen:
            self.replace(self.items)

    def _last(self, items: list[Any]) -> list[Any]:
        return items if self.maxlen is None else items[max(len(items) - self.maxlen, 0) :]

    def get_item(self, tracer: Tracer, key: Value) -> Value:
        self._check_index(tracer, key)
        return super().get_item(tracer, key)

    def set_item(self, tracer: Tracer, key: Value, value: Value) -> None:
        self._check_index(tracer, key)
        super().set_item(tracer, key, value)

    def delete_item(self, tracer: Tracer, key: Value) -> None:
        self._check_index(tracer, key)
        super().delete_item(tracer, key)

    def _check_index(self, tracer: Tracer, key: Value) -> None:
        """deque has no slices, and words of its own for an index that is out of range."""
        if isinstance(key, SliceValue):
            raise tracer.raises(TypeError, "sequence index must be integer, not 'slice'")
        if self.is_unseen and self.maxlen is None:
            return
        if isinstance(key, Constant) and isinstance(key.value, int) and not -len(self.items) <= key.value < len(
            self.items
        ):  # fmt: skip
            raise tracer.raises(IndexError, "deque index out of range")

    def get_attribute(self, tracer: Tracer, name: str) -> Value:
        return Constant(self.maxlen) if name == "maxlen" else super().get_attribute(tracer, name)

    def iterate(self, tracer: Tracer) -> Value:
        return DequeIterator(self)

    def reconstruct(self, emitter: Emitter) -> None:
        for item in self.values(emitter.tracer):
            emitter.load(item)
        emitter.build_list(len(self.items))
        emitter.call_function(deque, self.maxlen, arguments=1)


class DequeIterator(IteratorValue):
    """iter() or reversed() of a deque: any mutation in between raises, as in CPython."""

    __slots__ = ("backwards", "index", "owner", "state")

    def __init__(self, owner: DequeValue, *, backwards: bool = False) -> None:
        super().__init__()
        self.owner = owner
        self.backwards = backwards
        self.state = owner.state
        self.index = 0

    def python_type(self) -> type:
        return type(reversed(deque()) if self.backwards else iter(deque()))

    def next(self, tracer: Tracer) -> Any:
        size = len(self.owner.items)
        if self.is_upset:
            self.index = -1
            raise tracer.raises(RuntimeError, "deque mutated during iteration")
        if not 0 <= self.index < size:
            self.index = -1
            return EXHAUSTED
        self.index += 1
        return self.owner.item(tracer, size - self.index if self.backwards else self.index - 1)

    @property
    def is_upset(self) -> bool:
        """Whether the deque changed; one that goes backwards and has ended does not look."""
        return self.state != self.owner.state and not (self.backwards and self.index < 0)

    def reconstruct(self, emitter: Emitter) -> None:
        if self.owner.mutated:
            raise CannotRebuild("an iterator over an outside deque that the code changes")
        if self.is_upset:
            raise CannotRebuild("an iterator over a deque that was changed after it")
        emitter.load(self.owner)
        emitter.call_function(reversed if self.backwards else iter, arguments=1)
        emitter.call_helper("advance", self.index if self.index >= 0 else len(self.owner.items), arguments=1)
