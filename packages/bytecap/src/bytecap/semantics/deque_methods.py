"""Methods of collections.deque."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from bytecap.objects.base import Value
from bytecap.objects.constant import Constant
from bytecap.objects.containers.deques import DequeIterator, DequeValue
from bytecap.objects.containers.sequences import one_by_one
from bytecap.semantics.operations import equal

if TYPE_CHECKING:
    from bytecap.evaluator.tracer import Tracer

NONE = Constant(None)


def _add(tracer: Tracer, self: DequeValue, items: Iterable[Value], left: bool) -> Value:
    for item in items:
        self.mutate(tracer)
        if self.is_unseen and not left:
            self.add([item])
            continue
        self.items.insert(0 if left else len(self.items), item)
        if self.maxlen is not None and len(self.items) > self.maxlen:
            del self.items[-1 if left else 0]
    return NONE


def _pop(tracer: Tracer, self: DequeValue, position: int) -> Value:
    if not self.items:
        raise tracer.raises(IndexError, "pop from an empty deque")
    found = self.item(tracer, position)
    self.mutate(tracer)
    del self.items[position]
    return found


def _insert(tracer: Tracer, self: DequeValue, index: Value, item: Value) -> Value:
    if self.maxlen is not None and len(self.items) >= self.maxlen:
        raise tracer.raises(IndexError, "deque already at its maximum size")
    self.mutate(tracer)
    self.items.insert(index.as_int(tracer), item)
    return NONE


def _rotate(tracer: Tracer, self: DequeValue, steps: Value = Constant(1)) -> Value:  # noqa: B008
    self.mutate(tracer)
    if self.items:
        count = steps.as_int(tracer) % len(self.items)
        self.items[:] = self.items[len(self.items) - count :] + self.items[: len(self.items) - count]
    return NONE


def _remove(tracer: Tracer, self: DequeValue, item: Value) -> Value:
    for position, other in enumerate(self.values(tracer)):
        if equal(tracer, other, item):
            self.mutate(tracer)
            del self.items[position]
            return NONE
    raise tracer.raises(ValueError, "deque.remove(x): x not in deque")


def _copy(tracer: Tracer, self: DequeValue) -> Value:
    return self.like(self.values(tracer))


DEQUE_METHODS: dict[str, Callable[..., Value]] = {
    "append": lambda tracer, self, item: _add(tracer, self, [item], False),
    "appendleft": lambda tracer, self, item: _add(tracer, self, [item], True),
    "extend": lambda tracer, self, items: _add(tracer, self, one_by_one(tracer, items), False),
    "extendleft": lambda tracer, self, items: _add(tracer, self, one_by_one(tracer, items), True),
    "pop": lambda tracer, self: _pop(tracer, self, -1),
    "popleft": lambda tracer, self: _pop(tracer, self, 0),
    "insert": _insert, "rotate": _rotate, "remove": _remove, "copy": _copy, "__copy__": _copy,
    "__reversed__": lambda tracer, self: DequeIterator(self, backwards=True),
}  # fmt: skip
