"""The protocol of abstract values.

A `Value` is what the evaluator knows about one Python object: its type, perhaps the real object, where it was read
from (`source`, None for what the frame made itself), and how each operation on it behaves. Methods take the
tracer as their first argument; they may record graph nodes, guards and side effects there.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Iterator
from functools import partial
from typing import Any, ClassVar, dataclass_transform

from bytecap.context_types import Emitter, Tracer
from bytecap.errors import CannotRebuild, UnsupportedCall, UnsupportedMutation
from bytecap.objects.class_lookup import has_method, static_lookup
from bytecap.objects.dispatch import METHODS, call_table_method
from bytecap.objects.signals import EXHAUSTED, End, NotConcrete, PythonRaise, run
from stagewire.capture import Source

state = partial(dataclasses.field, init=False)
"""A field of a value that is no parameter; one without a default is set in `__post_init__`."""


@dataclass_transform(field_specifiers=(dataclasses.field, state))
class _Declared(type):
    """The class of classes of values: annotated names are slots, and parameters of `__init__`, as in dataclasses.

    Parameters without a default come first, those of a base before a class's own; then the others, the class's own
    before those of its bases. `_name` is the parameter `name`. What a property computes is no field any more.
    """

    def __new__(mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> _Declared:
        own = [key for key, kind in namespace.get("__annotations__", {}).items() if not kind.startswith("ClassVar")]
        level = len(bases[0].__mro__) if bases else 0
        fields: dict[str, tuple[Any, int]] = dict(bases[0].FIELDS) if bases else {}  # type: ignore[attr-defined]
        for key in own:
            default = namespace.pop(key, dataclasses.MISSING)
            row = default if isinstance(default, dataclasses.Field) else dataclasses.field(default=default)
            fields[key] = row, level
        for key, member in namespace.items():
            if isinstance(member, property) and member.fset is None:
                fields.pop(key, None)
        made = super().__new__(mcs, name, bases, {"__slots__": tuple(own), **namespace, "FIELDS": fields})
        if "__init__" not in namespace:
            made.__init__ = _initializer(made, fields)  # type: ignore[misc]
        return made


def _initializer(cls: type, fields: dict[str, tuple[Any, int]]) -> Any:
    """The `__init__` of a class with these fields, each with the level of the class that has it."""
    none, names, lines = dataclasses.MISSING, {"MISSING": dataclasses.MISSING}, []
    required, optional = ["self"], []
    for key, (row, level) in fields.items():
        argument, given = key.lstrip("_"), f"default_{key}"
        makes = row.default_factory is not none
        names[given] = row.default_factory if makes else row.default
        if not row.init:
            value = f"{given}()" if makes else given
        elif makes:
            optional.append((-level, f"{argument}=MISSING"))
            value = f"{given}() if {argument} is MISSING else {argument}"
        elif row.default is none:
            required.append(argument)
            value = argument
        else:
            optional.append((-level, f"{argument}={given}"))
            value = argument
        if row.init or makes or row.default is not none:
            lines.append(f"self.{key} = {value}")
    if hasattr(cls, "__post_init__"):
        lines.append("self.__post_init__()")
    parameters = [*required, *(text for _, text in sorted(optional, key=lambda each: each[0]))]
    exec(f"def __init__({', '.join(parameters)}):\n " + "\n ".join(lines or ["pass"]), names)
    return names["__init__"]


class Value(metaclass=_Declared):
    """One Python object, as far as the evaluator knows it. cls: its class, where that is no question of the object."""

    source: Source | None = None
    cls: ClassVar[Any]

    # -- what it is

    def python_type(self) -> type:
        """The class of the object."""
        return self.cls

    def concrete(self) -> Any:
        """The real object, if this value stands for one that exists now and is unchanged."""
        raise NotConcrete(self)

    def plain(self) -> Value:
        """The builtin part of an instance of a subclass of a builtin class; else the value."""
        return self

    def describe(self) -> str:
        """A few words for error messages."""
        return f"{self.python_type().__name__} object"

    def is_none(self) -> bool:
        """Whether it is None, which the class tells."""
        return False

    # -- operations, as the interpreter performs them

    def get_attribute(self, tracer: Tracer, name: str) -> Value:
        return tracer.evaluate.generic_get_attribute(tracer, self, name)

    def stand_in(self) -> Any:
        """A real object of the same class without attributes of its own, whose complaints are those of the value."""
        return None

    def set_attribute(self, tracer: Tracer, name: str, value: Value) -> None:
        self._refuse_change(tracer, setattr, name, None)
        raise UnsupportedMutation(f"cannot set attribute {name!r} of a {self.describe()}")

    def delete_attribute(self, tracer: Tracer, name: str) -> None:
        self._refuse_change(tracer, delattr, name)
        raise UnsupportedMutation(f"cannot delete attribute {name!r} of a {self.describe()}")

    def _refuse_change(self, tracer: Tracer, change: Any, *args: Any) -> None:
        stand_in = self.stand_in()
        if stand_in is not None and not hasattr(stand_in, "__dict__"):
            run(tracer, change, (stand_in, *args))

    def call(self, tracer: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if static_lookup(self.python_type().__mro__, "__call__")[1] is None:
            if callable(getattr(self, "real", None)):
                # Cython's functions: their class has tp_call, and no `__call__` that a lookup finds.
                raise UnsupportedCall(f"call of a {self.describe()}")
            raise tracer.raises(TypeError, f"'{self.python_type().__name__}' object is not callable")
        method = self.get_attribute(tracer, "__call__")
        return method.call(tracer, args, kwargs)

    def call_method(self, tracer: Tracer, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """Call the method `name` that the object's C type implements."""
        call = call_table_method if type(self) in METHODS else tracer.evaluate.fold_method
        return call(tracer, self, name, args, kwargs)

    def get_item(self, tracer: Tracer, key: Value) -> Value:
        self._check_has(tracer, "__getitem__", "is not subscriptable")
        return self.call_method(tracer, "__getitem__", [key], {})

    def set_item(self, tracer: Tracer, key: Value, value: Value) -> None:
        self._check_has(tracer, "__setitem__", "does not support item assignment")
        raise UnsupportedMutation(f"cannot assign items of a {self.describe()}")

    def delete_item(self, tracer: Tracer, key: Value) -> None:
        self._check_has(tracer, "__delitem__", "doesn't support item deletion")
        raise UnsupportedMutation(f"cannot delete items of a {self.describe()}")

    def _check_has(self, tracer: Tracer, name: str, complaint: str) -> None:
        if not hasattr(self.python_type(), name):
            raise tracer.raises(TypeError, f"'{self.python_type().__name__}' object {complaint}")

    def length(self, tracer: Tracer) -> int:
        raise tracer.raises(TypeError, f"object of type '{self.python_type().__name__}' has no len()")

    def truth(self, tracer: Tracer) -> bool:
        return True

    def as_int(self, tracer: Tracer) -> int:
        """operator.index(value)."""
        try:
            return run(tracer, operator.index, (self.concrete(),))
        except NotConcrete:
            kind = self.python_type().__name__
            raise tracer.raises(TypeError, f"'{kind}' object cannot be interpreted as an integer") from None

    def as_index(self, tracer: Tracer) -> Any:
        """An int or slice of ints for a sequence subscript."""
        return self.as_int(tracer)

    def is_iterable(self) -> bool:
        """Whether iter(value) is tried at all."""
        return has_method(self, "__iter__")

    def each(self, tracer: Tracer) -> Iterator[Value]:
        """A host generator over the items."""
        iterator = self.iterate(tracer)
        while not isinstance(item := iterator.next(tracer), End):
            tracer.frames.count_iteration()
            yield item

    def next(self, tracer: Tracer) -> Any:
        """The next Value, or an `End`."""
        if not has_method(self, "__next__"):
            raise tracer.raises(TypeError, f"'{self.python_type().__name__}' object is not an iterator")
        try:
            return self.get_attribute(tracer, "__next__").call(tracer, [], {})
        except PythonRaise as error:
            if issubclass(error.value.python_type(), StopIteration):
                return EXHAUSTED
            raise

    def iterate(self, tracer: Tracer) -> Value:
        raise tracer.raises(TypeError, f"'{self.python_type().__name__}' object is not iterable")

    def contains(self, tracer: Tracer, item: Value) -> bool:
        return contains_by_iteration(tracer, self, item)

    def mutate(self, tracer: Tracer) -> None:
        """Call before every change of what has `mutated` and, if it is from outside, `real`."""
        if self.real is not None and not self.mutated:  # type: ignore[attr-defined]
            self.mutated = True
            tracer.effects.append(self)

    # -- back to bytecode

    def reconstruct(self, emitter: Emitter) -> None:
        """Emit instructions that push the object; only for values without a source."""
        raise CannotRebuild(f"cannot build a {self.describe()} in replacement bytecode")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.source or ''}>"


class RealValue(Value):
    """A real object that stays as it is."""

    real: Any

    def python_type(self) -> type:
        return type(self.real)

    def concrete(self) -> Any:
        return self.real

    def reconstruct(self, emitter: Emitter) -> None:
        emitter.constant(self.real)


class IteratorValue(Value):
    """Something with `__next__`."""

    def next(self, tracer: Tracer) -> Any:
        """The next Value, or an `End`."""
        raise NotImplementedError

    def iterate(self, tracer: Tracer) -> Value:
        return self

    def call_method(self, tracer: Tracer, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if name == "__next__":
            return next_or_raise(tracer, self)
        if name == "__iter__":
            return self
        raise UnsupportedCall(f"method {name!r} of a {self.describe()}")


def next_or_raise(tracer: Tracer, iterator: Value) -> Value:
    """next(iterator)."""
    return result_or_stop(tracer, iterator.next(tracer))


def result_or_stop(tracer: Tracer, result: Any) -> Value:
    """The value, or StopIteration raised in the evaluated program."""
    if isinstance(result, End):
        raise tracer.raises(StopIteration, *([] if result.value is None or result.value.is_none() else [result.value]))
    return result


def collect(tracer: Tracer, value: Value) -> list[Value]:
    """list(value)."""
    return list(value.each(tracer))


def contains_by_iteration(tracer: Tracer, container: Value, item: Value) -> bool:
    """`item in container` by comparing each item."""
    return any(tracer.evaluate.equal(tracer, member, item) for member in container.each(tracer))
