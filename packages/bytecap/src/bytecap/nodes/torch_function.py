"""`__torch_function__` of user classes that are no tensors: a call of torch with such an object calls it instead."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from bytecap.errors import UnsupportedCall
from bytecap.objects.base import Value
from bytecap.objects.class_lookup import static_lookup
from bytecap.objects.classes import ClassValue
from bytecap.objects.constant import Constant
from bytecap.objects.objects import ObjectValue
from bytecap.objects.sequences import Sequence, TupleValue

if TYPE_CHECKING:
    from bytecap.evaluator.tracer import Tracer

_NAME = "__torch_function__"


def overridden_call(tracer: Tracer, function: Any, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
    """The result of the first `__torch_function__` among the arguments; None where there is none."""
    overriding = list(_overriding(tracer, (*args, *kwargs.values())))
    if not overriding:
        return None
    classes = dict.fromkeys(value.cls for value in overriding)
    first = next(iter(classes))
    if any(other is not first and issubclass(other, first) for other in classes):
        raise UnsupportedCall(f"{_NAME} of a class and of its subclass in one call")
    given = (
        tracer.objects.wrap(function, None),
        TupleValue([ClassValue(cls) for cls in classes]),
        TupleValue(list(args)),
    )
    method = overriding[0].get_attribute(tracer, _NAME)
    result = method.call(tracer, [*given, tracer.objects.new_dict(kwargs)], {})
    if isinstance(result, Constant) and result.python_type() is type(NotImplemented):
        raise UnsupportedCall(f"{_NAME} of {first.__qualname__} that returns NotImplemented")
    return result


def _overriding(tracer: Tracer, values: tuple[Value, ...]) -> Iterator[ObjectValue]:
    for value in values:
        if isinstance(value, ObjectValue):
            found = static_lookup(value.cls.__mro__, _NAME)[1]
            if found is not None and not issubclass(value.cls, torch.Tensor):
                yield value
        elif isinstance(value, Sequence):
            yield from _overriding(tracer, tuple(value.values(tracer)))
