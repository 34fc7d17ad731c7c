"""`copy.deepcopy`, value by value: what CPython's copy module does, without its `__reduce_ex__`.

Classes that say themselves how they are copied, by `__deepcopy__` in Python, are asked; those that do it by pickling
methods of their own are refused.
"""

from __future__ import annotations

import copy
import copyreg
import enum
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from bytecap.errors import UnsupportedCall
from bytecap.objects.arrays.tensors import TensorValue
from bytecap.objects.base import Value
from bytecap.objects.class_lookup import static_lookup
from bytecap.objects.constant import Constant
from bytecap.objects.containers.mappings import DictValue
from bytecap.objects.containers.sequences import ListValue, TupleValue
from bytecap.objects.containers.sets import SetValue
from bytecap.objects.instances.objects import ObjectValue
from bytecap.objects.signals import NotConcrete

if TYPE_CHECKING:
    from bytecap.evaluator.tracer import Tracer

ATOMIC = (
    *(cls for cls, rule in copy._deepcopy_dispatch.items() if rule is copy._deepcopy_atomic),  # type: ignore[attr-defined]
    type, enum.Enum, torch.dtype, torch.device, torch.layout, torch.memory_format,
)  # fmt: skip
_OWN_RULES = ("__reduce__", "__reduce_ex__", "__getstate__", "__setstate__", "__getnewargs__", "__getnewargs_ex__",
              "__new__", "__setitem__", "append", "extend")  # fmt: skip


class Memo(DictValue):
    """The memo dict of one deep copy: what was copied, by the identity of its value."""

    __slots__ = ("copies",)

    def __init__(self) -> None:
        super().__init__()
        self.copies: dict[int, tuple[Value, Value]] = {}  # the original too, so that its identity stays its own


def deep_copy(tracer: Tracer, value: Value, memo: Value | None = None) -> Value:
    """A copy that shares nothing that can change with the original; inner identities are kept."""
    copies = memo if isinstance(memo, Memo) else Memo()
    known = copies.copies.get(id(value))
    if known is not None:
        return known[1]
    for cls, rule in _RULES:
        if isinstance(value, cls):
            made = rule(tracer, value, copies)
            _remember(copies, value, made)
            return made
    if _is_atomic(value):
        return value
    raise UnsupportedCall(f"copy.deepcopy of a {value.describe()}")


def _is_atomic(value: Value) -> bool:
    try:
        return isinstance(value.concrete(), ATOMIC)
    except NotConcrete:
        return isinstance(value, Constant) or issubclass(value.python_type(), (types.FunctionType, type))


def _remember(memo: Memo, value: Value, made: Value) -> None:
    memo.copies[id(value)] = (value, made)


def _list(tracer: Tracer, value: ListValue, memo: Memo) -> Value:
    if value.cls is not list:
        raise UnsupportedCall(f"copy.deepcopy of a {value.describe()}")
    made = ListValue([])
    _remember(memo, value, made)
    made.items.extend(deep_copy(tracer, item, memo) for item in value.values(tracer))
    return made


def _tuple(tracer: Tracer, value: TupleValue, memo: Memo) -> Value:
    items = value.values(tracer)
    copied = [deep_copy(tracer, item, memo) for item in items]
    if value.cls is tuple and all(new is old for new, old in zip(copied, items, strict=True)):
        return value
    return TupleValue(copied, cls=value.cls)


def _dict(tracer: Tracer, value: DictValue, memo: Memo) -> Value:
    made = DictValue(cls=value.cls, factory=value.factory)
    _remember(memo, value, made)
    for key, item in value.pairs(tracer):
        made.set_item(tracer, deep_copy(tracer, key, memo), deep_copy(tracer, item, memo))
    return made


def _set(tracer: Tracer, value: SetValue, memo: Memo) -> Value:
    members = [deep_copy(tracer, member, memo) for member in value.members.values()]
    return SetValue({tracer.objects.hash_key(member): member for member in members}, cls=value.cls)


def _object(tracer: Tracer, value: ObjectValue, memo: Memo) -> Value:
    if issubclass(value.cls, enum.Enum):
        return value
    own = value._special(tracer, "__deepcopy__")
    if own is not None:
        return own.call(tracer, [memo], {})
    _refuse_own_rules(value)
    made = tracer.objects.new_object(value.cls)
    _remember(memo, value, made)
    made.base = None if value.base is None else deep_copy(tracer, value.base, memo)
    for key, item in value.attributes.pairs(tracer):
        made.attributes.set_item(tracer, key, deep_copy(tracer, item, memo))
    return made


def _refuse_own_rules(value: ObjectValue) -> None:
    cls = value.cls
    own = [name for name in _OWN_RULES if isinstance(static_lookup(cls.__mro__, name)[0], types.FunctionType)]
    slots = any("__slots__" in vars(base) for base in cls.__mro__ if isinstance(base, type))
    if own or slots or cls in copyreg.dispatch_table or not isinstance(value.base, _CONTAINERS):
        raise UnsupportedCall(f"copy.deepcopy of a {cls.__qualname__}, which has rules of its own ({', '.join(own)})")


def _tensor(tracer: Tracer, value: TensorValue, memo: Memo) -> Value:
    """Another tensor on a copy of the memory."""
    if value.abstract.requires_grad or not value.abstract.is_contiguous() or value.attributes:
        raise UnsupportedCall(f"copy.deepcopy of a {value.describe()} that requires grad or is not contiguous")
    return value.call_method(tracer, "clone", [], {})


_CONTAINERS = (type(None), ListValue, DictValue, SetValue)
_RULES: tuple[tuple[type, Callable[..., Value]], ...] = (
    (TensorValue, _tensor),
    (ListValue, _list),
    (TupleValue, _tuple),
    (DictValue, _dict),
    (SetValue, _set),
    (ObjectValue, _object),
)
DEEP_COPIES: dict[Any, Callable[..., Value]] = {copy.deepcopy: deep_copy}
