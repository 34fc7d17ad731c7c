"""Iteration over any value, by the host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bytecap.objects.signals import End

if TYPE_CHECKING:
    from bytecap.evaluator.tracer import Tracer
    from bytecap.objects.base import Value


def next_or_raise(tracer: Tracer, iterator: Value) -> Value:
    """next(iterator)."""
    return result_or_stop(tracer, iterator.next(tracer))


def result_or_stop(tracer: Tracer, result: Any) -> Value:
    """The value, or StopIteration raised in the evaluated program."""
    if isinstance(result, End):
        raise tracer.raises(StopIteration, *([] if result.value is None else [result.value]))
    return result


def collect(tracer: Tracer, value: Value) -> list[Value]:
    """list(value)."""
    return list(value.each(tracer))


def contains_by_iteration(tracer: Tracer, container: Value, item: Value) -> bool:
    """`item in container` by comparing each item."""
    return any(tracer.evaluate.equal(tracer, member, item) for member in container.each(tracer))
