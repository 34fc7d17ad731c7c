"""`copy.copy` and `copy.deepcopy`: CPython's own code, evaluated. What C says of an object there stands here."""

from __future__ import annotations

import collections
import copy
import copyreg
import enum
import types
from typing import Any

import torch

from bytecap.context_types import Tracer
from bytecap.errors import UnsupportedCall
from bytecap.objects.arrays.tensors import TensorValue
from bytecap.objects.base import NONE, Constant, IteratorValue, Value, fold
from bytecap.objects.containers.host_containers import DequeValue, SetValue
from bytecap.objects.containers.mappings import DictValue
from bytecap.objects.containers.sequences import ListValue, TupleValue
from bytecap.objects.identity import IdentityToken
from bytecap.objects.instances.objects import ObjectValue, call_special
from bytecap.objects.live import NativeIterator

_ATOMIC = (
    *(cls for cls, rule in copy._deepcopy_dispatch.items() if rule is copy._deepcopy_atomic),  # type: ignore[attr-defined]
    type, enum.Enum, torch.dtype, torch.device, torch.layout, torch.memory_format,
)  # fmt: skip

_IMMUTABLE = (
    *(cls for cls, rule in copy._copy_dispatch.items() if rule is copy._copy_immutable),  # type: ignore[attr-defined]
    *_ATOMIC,
)


def _deep_copy(tracer: Tracer, value: Value, memo: Value = NONE, *default: Value) -> Value:
    if isinstance(value, Constant) or issubclass(value.python_type(), _ATOMIC):
        return value
    if not isinstance(value, TensorValue):
        real = tracer.objects.wrap(copy.deepcopy, None)
        return tracer.evaluate.inline(tracer, real, [value, memo, *default], {})  # type: ignore[arg-type]
    if value.abstract.requires_grad or not value.abstract.is_contiguous() or value.attributes:
        raise UnsupportedCall(f"copy.deepcopy of a {value.describe()} that requires grad or is not contiguous")
    token = IdentityToken(tracer.objects.identified(value))
    known = memo.lookup(tracer, token) if isinstance(memo, DictValue) else None
    made = known or value.call_method(tracer, "clone", [], {})
    if isinstance(memo, DictValue):
        memo.set_item(tracer, token, made)
    return made


def _copy(tracer: Tracer, value: Value) -> Value:
    if isinstance(value, NativeIterator):
        return fold(tracer, copy.copy, (value.host,))
    if isinstance(value, IteratorValue):
        raise UnsupportedCall(f"copy.copy of a {value.describe()}")
    if isinstance(value, (ListValue, DictValue, SetValue, DequeValue)):
        return value.call_method(tracer, "copy", [], {})
    if isinstance(value, ObjectValue):
        real = tracer.objects.wrap(copy.copy, None)
        return tracer.evaluate.inline(tracer, real, [value], {})  # type: ignore[arg-type]
    if not isinstance(value, TensorValue) and not issubclass(value.python_type(), _IMMUTABLE):
        raise UnsupportedCall(f"copy.copy of a {value.describe()}")
    return value


def reduce_ex(tracer: Tracer, value: Value, protocol: Value) -> Value:
    """What C's `__reduce_ex__` says of an object: a callable, its arguments, attributes, items."""
    cls, base = value.python_type(), value.plain()
    if (own := call_special(tracer, value, "__reduce__")) is not None:
        return own
    known = tracer.objects.wrap(cls, None)
    if protocol.concrete() < 2:
        raise UnsupportedCall("pickling by protocol 0 or 1")
    has_pairs = isinstance(base, DictValue)
    pairs = value.get_attribute(tracer, "items").call(tracer, [], {}).iterate(tracer) if has_pairs else NONE
    state = _state(tracer, value)
    c_reduce: Any = cls.__reduce__
    if c_reduce is object.__reduce__:
        maker = tracer.objects.wrap(copyreg.__newobj__, None)  # type: ignore[attr-defined]
        listed = base.iterate(tracer) if isinstance(base, ListValue) else NONE
        return TupleValue([maker, TupleValue([known, *_new_arguments(tracer, value)]), state, listed, pairs])
    if isinstance(base, SetValue):
        return TupleValue([known, TupleValue([ListValue(base.in_order())]), state])
    if c_reduce in _OF_PAIRS:
        factory = [base.factory or NONE] if issubclass(cls, collections.defaultdict) else []  # type: ignore[attr-defined]
        return TupleValue([known, TupleValue(factory), state, NONE, pairs])
    if isinstance(base, DequeValue):
        bound = [] if base.maxlen is None else [TupleValue([]), Constant(base.maxlen)]
        return TupleValue([known, TupleValue(bound), state, base.iterate(tracer)])
    raise UnsupportedCall(f"a copy of a {value.describe()}, which has rules of its own")


_OF_PAIRS = (
    collections.OrderedDict.__reduce__, collections.defaultdict.__reduce__, types.SimpleNamespace.__reduce__,
)  # fmt: skip


def _new_arguments(tracer: Tracer, value: Value) -> list[Value]:
    base = value.plain()
    if not isinstance(value, ObjectValue):
        return []
    for name in ("__getnewargs_ex__", "__getnewargs__"):
        given = call_special(tracer, value, name)
        if given is not None:
            if not isinstance(given, TupleValue) or name == "__getnewargs_ex__":
                raise UnsupportedCall(f"a copy of a {value.describe()} by {name}()")
            return given.values(tracer)
    return [base] if isinstance(base, (Constant, TupleValue)) else []


def _state(tracer: Tracer, value: Value) -> Value:
    if not isinstance(value, ObjectValue):
        if getattr(value, "own", None):
            raise UnsupportedCall(f"a copy of a {value.describe()} with attributes")
        return NONE
    if (own := call_special(tracer, value, "__getstate__")) is not None:
        return own
    attributes = value.attributes if value.cls.__dictoffset__ else NONE
    if not copyreg._slotnames(value.cls):  # type: ignore[attr-defined]
        return attributes
    if value.real is not None:
        raise UnsupportedCall(f"a copy of a {value.describe()}, which has slots from outside")
    slots = {name: item for name, item in value.slots.items() if item is not None}
    return TupleValue([attributes, tracer.objects.new_dict(slots)]) if slots else attributes


COPIES: dict[Any, Any] = {copy.copy: _copy, copy.deepcopy: _deep_copy}
