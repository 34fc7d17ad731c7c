"""The protocol of abstract values, constants among them, and what an operation may answer in the place of a value.

A `Value` is what the evaluator knows about one Python object: its type, perhaps the real object, where it was read
from (`source`, None for what the frame made itself), and how each operation on it behaves. Methods take the
tracer as their first argument; they may record graph nodes, guards and side effects there.
"""

from __future__ import annotations

import dataclasses
import enum
import operator
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, ClassVar, dataclass_transform

import torch

from bytecap.context_types import CellValue, Emitter, Tracer
from bytecap.errors import CannotRebuild, StageError, UnsupportedCall, UnsupportedMutation
from bytecap.guards.guard_set import is_watched
from bytecap.objects.class_lookup import has_method, static_lookup, stranger
from stagewire.capture import Attribute, Source

state = partial(dataclasses.field, init=False)
"""A field of a value that is no parameter; one without a default is set in `__post_init__`."""


@dataclass_transform(field_specifiers=(dataclasses.field, state))
class Declared(type):
    """The class of classes of values and other records: annotated names are slots, and parameters, as in dataclasses.

    Parameters without a default come first, those of a base before a class's own; then the others, the class's own
    before those of its bases. `_name` is the parameter `name`. What a property computes is no field any more.
    """

    def __new__(mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> Declared:
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

    def place(field: tuple[str, tuple[Any, int]]) -> tuple[bool, int]:
        row, level = field[1]
        is_optional = row.default is not row.default_factory  # both are MISSING
        return is_optional, -level if is_optional else 0

    rows = [(name, Any, row) for name, (row, _) in sorted(fields.items(), key=place)]
    finish = {"__post_init__": cls.__post_init__} if hasattr(cls, "__post_init__") else {}
    # With slots, it sets what has a default and is no parameter, too.
    options: Any = {"namespace": finish, "slots": True, "repr": False, "eq": False}
    made: Any = dataclasses.make_dataclass(cls.__name__, rows, **options).__init__
    parameters = tuple([name.lstrip("_") for name in made.__code__.co_varnames])
    made.__code__ = made.__code__.replace(co_varnames=parameters)
    return made


class Value(metaclass=Declared):
    """One Python object, as far as the evaluator knows it.

    cls: its class, where that is no question of the object. methods: those that C implements, functions of the tracer,
    the value and arguments; None: they are called at once, on what is immutable. parts: attributes that are its own,
    functions of the tracer and the value. words: `describe()`, if it is another.
    """

    source: Source | None = None
    cls: ClassVar[Any]
    methods: ClassVar[Mapping[str, Callable[..., Any]] | None] = None
    parts: ClassVar[Mapping[str, Callable[[Tracer, Any], Value]]] = {}
    words: ClassVar[str] = ""

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
        return self.words.format(self) if self.words else f"{self.python_type().__name__} object"

    def is_none(self) -> bool:
        """Whether it is None, which the class tells."""
        return False

    # -- operations, as the interpreter performs them

    def _call_special(self, tracer: Tracer, name: str, *args: Value) -> Value | None:
        """What a dunder method in Python gives; None where the class has none."""
        return None

    def get_attribute(self, tracer: Tracer, name: str) -> Value:
        part = self.parts.get(name)
        return tracer.evaluate.generic_get_attribute(tracer, self, name) if part is None else part(tracer, self)

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
        if self.methods is None:
            return tracer.evaluate.fold_method(tracer, self, name, args, kwargs)
        method = self.methods.get(name)
        if method is None:
            raise UnsupportedCall(f"method {name!r} of a {self.describe()}")
        try:
            return method(tracer, self, *args, **kwargs)
        except TypeError as error:
            if error.__traceback__ is None or error.__traceback__.tb_next is not None:
                raise
        raise UnsupportedCall(f"method {name!r} of a {self.describe()} with {len(args)} arguments and {sorted(kwargs)}")

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
            real = self.concrete()
        except NotConcrete:
            real = stranger(self)
        return run(tracer, operator.index, (real,))

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
        return any(tracer.evaluate.equal(tracer, member, item) for member in self.each(tracer))

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

    def length(self, tracer: Tracer) -> int:
        return run(tracer, len, (self.real,))

    def iterate(self, tracer: Tracer) -> Value:
        return fold(tracer, list, (self.real,)).iterate(tracer)

    def contains(self, tracer: Tracer, item: Value) -> bool:
        return run(tracer, operator.contains, (self.real, item.concrete()))


def checked_length(tracer: Tracer, made: Value) -> int:
    """What `__len__` gave, checked as len() checks it."""
    size = made.as_int(tracer)
    if size < 0:
        raise tracer.raises(ValueError, "__len__() should return >= 0")
    return size


def checked_truth(tracer: Tracer, made: Value) -> bool:
    """What `__bool__` gave, checked as bool() checks it."""
    if not issubclass(made.python_type(), bool):
        raise tracer.raises(TypeError, f"__bool__ should return bool, returned {made.python_type().__name__}")
    return made.truth(tracer)


def checked_iterator(tracer: Tracer, made: Value) -> Value:
    """What `__iter__` gave, checked as iter() checks it."""
    if static_lookup(made.python_type().__mro__, "__next__")[1] is None:
        raise tracer.raises(TypeError, f"iter() returned non-iterator of type '{made.python_type().__name__}'")
    return made


class IteratorValue(Value):
    """Something with `__next__`."""

    def next(self, tracer: Tracer) -> Any:
        """The next Value, or an `End`."""
        raise NotImplementedError

    def iterate(self, tracer: Tracer) -> Value:
        return self

    methods: ClassVar = {
        "__next__": lambda tracer, self: result_or_stop(tracer, self.next(tracer)),
        "__iter__": lambda tracer, self: self,
    }


def result_or_stop(tracer: Tracer, result: Any) -> Value:
    """The value, or StopIteration raised in the evaluated program."""
    if isinstance(result, End):
        raise tracer.raises(StopIteration, *([] if result.value is None or result.value.is_none() else [result.value]))
    return result


def passed_on(part: str, *names: str) -> Iterator[Callable[..., Any]]:
    """Methods of these names that do what those of another value do, the one in this attribute."""
    return (lambda self, *args, name=name: getattr(getattr(self, part), name)(*args) for name in names)


def collect(tracer: Tracer, value: Value) -> list[Value]:
    """list(value)."""
    return list(value.each(tracer))


class NotConcrete(Exception):
    """The abstract value stands for no single Python object that exists now (it holds tensors, or is new)."""


class PythonRaise(Exception):
    """The evaluated program raises `value` (an `ExceptionValue`)."""

    def __init__(self, value: Value) -> None:
        super().__init__(repr(value))
        self.value = value


class Yielded(metaclass=Declared):
    """A generator frame stopped at `yield value`."""

    value: Value


class End(metaclass=Declared):
    """The answer of `next_value` on an exhausted iterator; `value` is the generator's return value."""

    value: Value | None = None


class Handled(metaclass=Declared):
    """What PUSH_EXC_INFO saves: `outer` was being handled (None: nothing) when the handler of `raised` began."""

    outer: Value | None
    raised: Value


class Saved(metaclass=Declared):
    """What LOAD_FAST_AND_CLEAR puts aside: the content of a variable and its cell, None where there was none."""

    content: Value | None
    cell: CellValue | None


class Returned(metaclass=Declared):
    """A frame that reached its return."""

    value: Value


class Marker(enum.Enum):
    """NULL: what CPython pushes beside callables. STOPPED: a frame that was to be evaluated up to here only."""

    NULL = "NULL"
    STOPPED = "STOPPED"


NULL, STOPPED = Marker
EXHAUSTED = End()


def run(tracer: Tracer, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Any = None) -> Any:
    """Call `function` on real objects; what it raises is raised in the evaluated program."""
    try:
        return function(*args, **(kwargs or {}))
    except (PythonRaise, NotConcrete, StageError):
        raise
    except Exception as error:
        raise tracer.raises_real(error) from None


def fold(tracer: Tracer, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Any = None) -> Value:
    """The result of a pure host call as a new value."""
    return tracer.objects.fresh(run(tracer, function, args, kwargs))


LITERALS = (int, float, bool, str, bytes, type(None), complex)
TORCH_CONSTANTS = (torch.dtype, torch.device, torch.layout, torch.memory_format)

_OF_MEMBERS = {"value": "_value_", "name": "_name_", "_value_": "_value_", "_name_": "_name_"}
"""What an enum member says of itself, and the attribute that it lies in."""


class Constant(Value):
    """A value whose every operation is known: numbers, strings, None, dtypes, devices, enum members, ranges."""

    value: Any
    words = "{0.value.__class__.__name__} {0.value!r}"

    @property
    def is_open(self) -> bool:
        """Whether the value may be another one in the next call (see `open_constants`)."""
        return False

    def python_type(self) -> type:
        return type(self.value)

    def concrete(self) -> Any:
        return self.value

    def is_none(self) -> bool:
        return self.python_type() is type(None)

    def host(self) -> Any:
        """What arithmetic and torch calls compute with."""
        return self.value

    def stand_in(self) -> Any:
        return self.value if isinstance(self.value, LITERALS) else None

    def get_attribute(self, tracer: Tracer, name: str) -> Value:
        if name == "__class__":
            return tracer.objects.wrap(type(self.value), None)
        if not isinstance(self.value, enum.Enum) or name not in _OF_MEMBERS:
            return tracer.evaluate.generic_get_attribute(tracer, self, name)
        # `value` or `name` of an enum member, which lies in an attribute.
        private = _OF_MEMBERS[name]
        is_standard = name == private or static_lookup(type(self.value).__mro__, name)[1] is enum.Enum
        source = self.source or _place_of_member(tracer, self.value)
        if source is None or not is_standard or private not in vars(self.value):
            return fold(tracer, getattr, (self.value, name))
        return tracer.objects.wrap(vars(self.value)[private], Attribute(source, private))

    def length(self, tracer: Tracer) -> int:
        return run(tracer, len, (self.value,))

    def truth(self, tracer: Tracer) -> bool:
        return bool(self.value)

    def call_method(self, tracer: Tracer, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if name == "join" and len(args) == 1 and isinstance(self.value, (str, bytes)):
            return self._join(tracer, args[0])
        if name in ("format", "format_map") and isinstance(self.value, str):
            return self._format(tracer, name, args, kwargs)
        return super().call_method(tracer, name, args, kwargs)

    def _join(self, tracer: Tracer, parts: Value) -> Value:
        if not parts.is_iterable():
            return fold(tracer, self.value.join, (None,))
        found = [part.plain() for part in collect(tracer, parts)]
        # What is no text is refused with the name of its class.
        shown = [part.value if isinstance(part, Constant) else stranger(part) for part in found]
        return fold(tracer, self.value.join, (shown,))

    def _format(self, tracer: Tracer, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        left_open = tracer.evaluate.open_template(tracer, self.value, args, kwargs) if name == "format" else None
        if left_open is not None:
            return left_open
        shown = [tracer.evaluate.printable(tracer, arg) for arg in args]
        named = {key: tracer.evaluate.printable(tracer, value) for key, value in kwargs.items()}
        return Constant(run(tracer, getattr(self.value, name), tuple(shown), named))

    def get_item(self, tracer: Tracer, key: Value) -> Value:
        if not hasattr(self.value, "__getitem__"):
            return super().get_item(tracer, key)
        return fold(tracer, operator.getitem, (self.value, key.concrete()))

    def iterate(self, tracer: Tracer) -> Value:
        return fold(tracer, iter, (self.value,))

    def contains(self, tracer: Tracer, item: Value) -> bool:
        try:
            real = item.concrete()
        except NotConcrete:
            return super().contains(tracer, item)
        return run(tracer, lambda box, x: x in box, (self.value, real))

    def reconstruct(self, emitter: Emitter) -> None:
        emitter.constant(self.value)

    def __repr__(self) -> str:
        return f"<Constant {self.value!r}>"


NONE = Constant(None)


def _place_of_member(tracer: Tracer, member: enum.Enum) -> Source | None:
    """Where a member of a user's enum class can be read; None for libraries' and for combined flags."""
    cls = type(member)
    if not is_watched(cls.__module__):
        return None
    name = next((name for name, found in cls._member_map_.items() if found is member), None)
    return None if name is None else Attribute(tracer.places.of(cls), name)


# -- What C code means, by table: methods by the class of value (`Value.methods`), functions and classes by the object.
#
# The rooms above fill the tables when they are imported (`semantics.methods`, `lookasides`).

HANDLERS: dict[Any, Callable[..., Any]] = {}
"""Of each callable with a meaning of its own: a function on `(tracer, *args, **kwargs)` of values."""


def inlined(function: Callable[..., Any]) -> Callable[..., Value]:
    """A table entry: the Python function is evaluated in the place of the callable."""
    return lambda tracer, *args, **kwargs: tracer.objects.wrap(function, None).call(tracer, list(args), kwargs)


def evaluated(function: Callable[..., Any]) -> Callable[..., Value]:
    """A table entry: a Python function that would be done at once, or a node, is evaluated like others."""
    return lambda tracer, *args, **kwargs: tracer.evaluate.inline(
        tracer, tracer.objects.wrap(function, None), list(args), kwargs
    )


def handler_of(real: Any) -> Callable[..., Any] | None:
    """The table entry of a callable, or None."""
    try:
        return HANDLERS.get(real)
    except TypeError:  # pybind11 before 3 has methods in an `instancemethod`
        plain = getattr(real, "__func__", None)
        return None if plain is None else handler_of(plain)
