"""str(), repr(), format() and f-strings of values: host objects that print as the values do."""

from __future__ import annotations

import enum
import operator
import re
import reprlib
from collections import defaultdict, deque
from collections.abc import Callable
from types import MappingProxyType, SimpleNamespace
from typing import Any, ClassVar

import torch

from bytecap.context_types import Tracer
from bytecap.errors import DataDependent, UnsupportedCall
from bytecap.objects.arrays.tensors import TensorValue
from bytecap.objects.base import Constant, NotConcrete, Value, run
from bytecap.objects.containers.host_containers import SetValue
from bytecap.objects.containers.mappings import DictValue, DictView, MappingProxyValue
from bytecap.objects.containers.sequences import ListValue, TupleValue
from bytecap.objects.functions import ClassValue, MethodValue
from bytecap.objects.instances.exceptions import ExceptionValue
from bytecap.objects.instances.objects import ObjectValue, call_special
from bytecap.objects.live import Live
from bytecap.objects.numbers.open_constants import as_open, derive
from bytecap.objects.numbers.symbolic import NestedInt


def open_text(tracer: Tracer, value: Value, function: Callable[[Any], str] = str) -> Constant | None:
    """`function(value)`, str() or repr(), where numbers in it stay open; None: it takes the values."""
    copied = _open_copy(tracer, value)
    return None if copied is None else derive(function, copied)


def open_percent(tracer: Tracer, template: str, value: Value) -> Constant | None:
    """`template % value` likewise."""
    return None if "c" in template else _open_call(tracer, operator.mod, Constant(template), value)


def open_template(tracer: Tracer, template: str, args: list[Value], named: dict[str, Value]) -> Constant | None:
    """`template.format(*args, **named)` likewise."""
    fields = [] if named else _FIELD.findall(template)
    # What else stands in a field (a width that is an argument, an attribute) may raise for other numbers.
    is_plain = not named and len(fields) == template.count("{") == template.count("}")
    return _open_call(tracer, str.format, Constant(template), *args) if is_plain else None


_FIELD = re.compile(r"\{\d*(?:![rsa])?(?::[^{}c]*)?\}")


def _open_call(tracer: Tracer, function: Callable[..., str], *args: Value) -> Constant | None:
    copied = [_open_copy(tracer, arg) for arg in args]
    if any(part is None for part in copied):
        return None
    try:
        return derive(function, *copied)  # type: ignore[arg-type]
    except (TypeError, ValueError, IndexError):
        return None  # as the evaluated program finds out


def _tuple_of(*items: Any) -> tuple[Any, ...]:
    return items


def _list_of(*items: Any) -> list[Any]:
    return list(items)


def _size_of(*items: Any) -> torch.Size:
    return torch.Size(items)


_COPIES: dict[type, Callable[..., Any]] = {tuple: _tuple_of, list: _list_of, torch.Size: _size_of}
_PLAIN = frozenset({int, float, bool, str, type(None)})
_MOST_LEVELS = 4


def _open_copy(tracer: Tracer, value: Value, levels: int = _MOST_LEVELS) -> Constant | None:
    """A number or text, or a container of such (None: another), as one constant that is open where a part of it is."""
    if not isinstance(value, (TupleValue, ListValue)):
        part = as_open(value)
        return part if part is not None and part.python_type() in _PLAIN else None
    if value.cls not in _COPIES or not levels:
        return None
    items = [_open_copy(tracer, item, levels - 1) for item in value.values(tracer)]
    if any(item is None for item in items):
        return None
    function = _COPIES[value.cls]
    made = derive(function, *items)  # type: ignore[arg-type]
    if made is None and not any(item.is_open for item in items):  # type: ignore[union-attr]
        return Constant(function(*[item.value for item in items]))  # type: ignore[union-attr]
    return made


class Shown(Live):
    """A host object that is formatted as an evaluated object is, by evaluating its methods."""

    def __str__(self) -> str:
        return str_of(self.tracer, self.value)

    def __format__(self, spec: str) -> str:
        return format_of(self.tracer, self.value, spec)

    def __int__(self) -> int:
        return self._number(int)

    def __float__(self) -> float:
        return self._number(float)

    def _number(self, kind: type) -> Any:
        return self.tracer.objects.wrap(kind, None).call(self.tracer, [self.value], {}).concrete()

    def __getattr__(self, name: str) -> Any:
        return printable(self.tracer, self.value.get_attribute(self.tracer, name))

    def __getitem__(self, key: Any) -> Any:
        return printable(self.tracer, self.value.get_item(self.tracer, Constant(key)))


def printable(tracer: Tracer, value: Value) -> Any:
    """A host object that formats as the value does."""
    match value:
        case NestedInt():
            raise UnsupportedCall("the text of a ragged size, which numbers the jagged tensors of the process")
        case Constant():
            if issubclass(value.python_type(), enum.Enum):
                for part in ("_name_", "_value_"):  # which its text is made of
                    if part in vars(value.value):
                        value.get_attribute(tracer, part).concrete()
            return value.value
        case TensorValue():
            raise DataDependent(
                "formatting a tensor needs its content", fix="Format it outside of the captured function."
            )
        case ObjectValue(base=Constant(value=int() | float() | complex() | str() | bytes() as literal)):
            return _shown_literal(tracer, value, literal)
        case ObjectValue() | SetValue() | ClassValue():
            return Shown(tracer, value)
        case TupleValue() if value.cls in (tuple, torch.Size):
            return value.cls(printable(tracer, item) for item in value.values(tracer))
        case TupleValue() if hasattr(value.cls, "_make"):
            return value.cls._make(printable(tracer, item) for item in value.values(tracer))
        case ListValue() if value.cls in (list, deque):
            if any(item is value for item in value.items):
                raise UnsupportedCall("formatting a list that contains itself")
            items = [printable(tracer, item) for item in value.values(tracer)]
            return deque(items, getattr(value, "maxlen", None)) if value.cls is deque else items
        case DictValue():
            return _printable_dict(tracer, value)
        case MappingProxyValue():
            return MappingProxyType(_printable_dict(tracer, value.dictionary))
        case DictView():
            return getattr(_printable_dict(tracer, value.dictionary), value.what)()
        case MethodValue():
            raise UnsupportedCall("formatting a bound method")
    try:
        return value.concrete()
    except NotConcrete:
        raise UnsupportedCall(f"formatting a {value.describe()}") from None


def _shown_literal(tracer: Tracer, value: Value, literal: Any) -> Any:
    """A number or text of a subclass: the number is C's to format, its texts are the subclass's."""
    methods: ClassVar = {
        "__str__": lambda self: str_of(tracer, value),
        "__repr__": lambda self: repr_of(tracer, value),
        "__format__": lambda self, spec: format_of(tracer, value, spec),
    }
    return type(value.python_type().__name__, (type(literal),), methods)(literal)


class _Key:
    """A key of a host dict that is equal to no other and prints as a value does."""

    def __init__(self, shown: Any) -> None:
        self.shown = shown

    @reprlib.recursive_repr()
    def __repr__(self) -> str:
        return repr(self.shown)


def _printable_dict(tracer: Tracer, value: DictValue) -> Any:
    pairs = [
        (key.value if isinstance(key, Constant) else _Key(printable(tracer, key)), printable(tracer, item))
        for key, item in value.pairs(tracer)
    ]
    factory = None if value.factory is None else value.factory.concrete()
    return value.cls(factory, pairs) if value.cls is defaultdict else value.cls(pairs)


def _set_text(tracer: Tracer, value: SetValue, cls: type) -> str:
    inner = ", ".join(repr(printable(tracer, member)) for member in value.in_order())
    if cls is set:
        return f"{{{inner}}}" if inner else "set()"
    return f"{cls.__name__}({{{inner}}})" if inner else f"{cls.__name__}()"


def _text(tracer: Tracer, value: Value, name: str, *args: Value) -> str | None:
    """What a method in Python of this name gives; None where the class has none."""
    made = call_special(tracer, value, name, *args)
    if made is None:
        return None
    if not isinstance(made, Constant) or not isinstance(made.value, str):
        kind = made.python_type().__name__
        raise tracer.raises(TypeError, f"{name} returned non-string (type {kind})")
    return made.value


def str_of(tracer: Tracer, value: Value) -> str:
    """str(value)."""
    if (text := _text(tracer, value, "__str__")) is not None:
        return text
    if isinstance(value, ExceptionValue):
        return str(value.twin(tracer))
    if isinstance(value, (ObjectValue, SetValue, ClassValue)):
        plain = value.plain()
        is_text = isinstance(plain, Constant) and isinstance(plain.value, str)
        return plain.value if is_text else repr_of(tracer, value)  # type: ignore[attr-defined]
    return run(tracer, str, (printable(tracer, value),))


def repr_of(tracer: Tracer, value: Value) -> str:
    """repr(value)."""
    if (text := _text(tracer, value, "__repr__")) is not None:
        return text
    if isinstance(value, ExceptionValue):
        return repr(value.twin(tracer))
    if isinstance(value, SetValue):
        return _set_text(tracer, value, value.cls)
    if isinstance(value, ClassValue):
        for name in ("__module__", "__qualname__"):
            value.get_attribute(tracer, name)
        return run(tracer, repr, (value.real,))
    if not isinstance(value, ObjectValue):
        return run(tracer, repr, (printable(tracer, value),))
    if isinstance(value.base, SetValue):
        return _set_text(tracer, value.base, value.cls)
    if value.base is not None:
        text = repr_of(tracer, value.base)
        is_named = isinstance(value.base, DictValue) and value.base.cls is not dict
        return value.cls.__name__ + text.removeprefix(value.base.cls.__name__) if is_named else text  # type: ignore[attr-defined]
    if isinstance(value.cls, type) and issubclass(value.cls, SimpleNamespace):
        pairs = [f"{key.concrete()}={repr_of(tracer, item)}" for key, item in value.attributes.pairs(tracer)]
        name = "namespace" if value.cls is SimpleNamespace else value.cls.__name__
        return f"{name}({', '.join(pairs)})"
    if value.real is None or value.source is None:
        raise UnsupportedCall(f"repr() of a {value.describe()}, which has its address in it")
    # The text has the address of the object in it.
    tracer.guards.identity(value.source, value.real)
    return run(tracer, object.__repr__, (value.real,))


def format_of(tracer: Tracer, value: Value, spec: str) -> str:
    """format(value, spec)."""
    if (text := _text(tracer, value, "__format__", Constant(spec))) is not None:
        return text
    if isinstance(value, (ObjectValue, SetValue, ClassValue)):
        if spec and isinstance(value.plain(), Constant):
            return format_of(tracer, value.plain(), spec)
        if spec:
            complaint = f"unsupported format string passed to {value.python_type().__name__}.__format__"
            raise tracer.raises(TypeError, complaint)
        return str_of(tracer, value)
    return run(tracer, format, (printable(tracer, value), spec))
