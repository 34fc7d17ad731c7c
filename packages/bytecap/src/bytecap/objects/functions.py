"""Functions and their cells, bound methods, C functions, functools.partial, super(); classes and modules."""

from __future__ import annotations

import functools
import sys
from dataclasses import field
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, ClassVar

import torch
from torch.backends import ContextProp

from bytecap.bytecode.rebuild import HEAP_TYPE, call_with, new_function
from bytecap.context_types import Emitter, Tracer
from bytecap.errors import CannotRebuild, UnsupportedMutation, UnsupportedValue
from bytecap.guards.guard_set import is_exempt
from bytecap.objects.base import (
    Constant,
    NotConcrete,
    PythonRaise,
    RealValue,
    Value,
    checked_iterator,
    checked_length,
    checked_truth,
    fold,
    handler_of,
    run,
    state,
)
from bytecap.objects.class_lookup import is_data_descriptor, no_attribute, static_lookup
from bytecap.objects.containers.mappings import DICT_TYPES, DictValue
from bytecap.objects.containers.sequences import TupleValue
from stagewire.capture import Reading, Source

_TEXT_FIELDS = ("__name__", "__qualname__", "__doc__", "__module__", "__annotations__", "__type_params__")
_FIELDS = frozenset(
    {*_TEXT_FIELDS, "__code__", "__defaults__", "__kwdefaults__", "__globals__", "__closure__"}
    - ({"__type_params__"} if sys.version_info < (3, 12) else set())
)


class FunctionValue(Value):
    """A Python function; `real` is None when the evaluated program made it."""

    code: CodeType
    globals: DictValue
    name: str
    defaults: tuple[Any, ...] = ()
    kwdefaults: dict[str, Any] = field(default_factory=dict)
    closure: tuple[CellValue, ...] = ()
    real: FunctionType | None = None
    attributes: DictValue = field(default_factory=DictValue)
    # `__name__`, `__doc__`... as read or written, and which of them were written.
    fields: dict[str, Value] = state(default_factory=dict)
    written: set[str] = state(default_factory=set)
    cls = FunctionType
    words = "function {0.code.co_qualname}"
    methods: ClassVar = {
        "__get__": lambda tracer, self, receiver, cls=None: self if receiver.is_none() else MethodValue(self, receiver),
        "__call__": lambda tracer, self, *args, **kwargs: self.call(tracer, list(args), kwargs),
    }

    def concrete(self) -> FunctionType:
        if self.real is None:
            raise NotConcrete(self)
        return self.real

    def annotate(self, tracer: Tracer, pairs: Value) -> None:
        """Give a new function its annotations: a tuple of names and values in turn."""
        flat = pairs.values(tracer)  # type: ignore[attr-defined]
        names = [str(name.concrete()) for name in flat[::2]]
        self.fields["__annotations__"] = tracer.objects.new_dict(dict(zip(names, flat[1::2], strict=True)))
        self.written.add("__annotations__")

    def call(self, tracer: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return tracer.evaluate.call_function(tracer, self, args, kwargs)

    def get_attribute(self, tracer: Tracer, name: str) -> Value:
        if name == "__dict__":
            return self.attributes
        if name in self.fields:
            return self.fields[name]
        if name in _FIELDS:
            self.fields[name] = self._field(tracer, name)
            return self.fields[name]
        found = self.attributes.lookup(tracer, Constant(name))
        is_of_library = self.real is not None and self.attributes.source is None
        if found is None and is_of_library and tracer.guards.is_asked() and not hasattr(self.real, name):
            tracer.guards.lacks(tracer.places.of(self.real), name)
        return found if found is not None else super().get_attribute(tracer, name)

    def _field(self, tracer: Tracer, name: str) -> Value:
        match name:
            case "__globals__":
                return self.globals
            case "__defaults__" if self.defaults:
                return TupleValue(list(self.defaults), real=self.real and self.real.__defaults__)
            case "__kwdefaults__" if self.kwdefaults:
                return tracer.objects.new_dict({key: tracer.objects.fresh(v) for key, v in self.kwdefaults.items()})
            case "__closure__" if self.closure:
                return TupleValue(list(self.closure))
            case "__defaults__" | "__kwdefaults__" | "__closure__":
                return Constant(None)
            case "__module__" if self.real is None:
                return self.globals.lookup(tracer, Constant("__name__")) or Constant(None)
        if self.real is None:
            cells = tuple([CellType() for _ in self.code.co_freevars])
            return tracer.objects.fresh(getattr(FunctionType(self.code, {}, self.name, None, cells), name))
        is_own = not is_exempt(self.real.__module__) and name != "__annotations__"
        source = tracer.places.attribute(self.source, name) if is_own else None
        return tracer.objects.wrap(getattr(self.real, name), source)

    def set_attribute(self, tracer: Tracer, name: str, value: Value) -> None:
        code = value.value if name == "__code__" and self.real is None and isinstance(value, Constant) else None
        if isinstance(code, CodeType) and len(code.co_freevars) == len(self.code.co_freevars):  # else Python raises
            for field in ("__qualname__", "__doc__"):  # these came from the code that the function was made of
                self.get_attribute(tracer, field)
                self.written.add(field)
            self.code, self.fields[name] = code, value
            return
        if name in _FIELDS or name in ("__dict__", "__class__"):
            if self.real is not None or name not in _TEXT_FIELDS:
                raise UnsupportedMutation(f"cannot set {name} of {self.describe()}")
            self.fields[name] = value
            self.written.add(name)
            return
        self.attributes.set_item(tracer, Constant(name), value)

    def delete_attribute(self, tracer: Tracer, name: str) -> None:
        if self.attributes.lookup(tracer, Constant(name)) is None:
            raise no_attribute(tracer, self, name)
        self.attributes.delete_item(tracer, Constant(name))

    def reconstruct(self, emitter: Emitter) -> None:
        if len(self.closure) != len(self.code.co_freevars):
            raise CannotRebuild(f"{self.describe()}, which has no cells yet")
        emitter.call_with(
            new_function, self.code, self.globals, self.name, self.defaults, self.kwdefaults, self.closure
        )
        written = {name: self.fields[name] for name in sorted(self.written)}
        stored = {str(key.concrete()): value for key, value in self.attributes.new.values()}
        emitter.set_attributes(self, written | stored)


class MethodValue(Value):
    """A bound method."""

    function: Value
    receiver: Value
    cls = MethodType

    def concrete(self) -> MethodType:
        return MethodType(self.function.concrete(), self.receiver.concrete())

    def call(self, tracer: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return self.function.call(tracer, [self.receiver, *args], kwargs)

    def get_attribute(self, tracer: Tracer, name: str) -> Value:
        if name == "__self__":
            return self.receiver
        if name == "__func__":
            return self.function
        if name == "__class__":
            return tracer.objects.wrap(MethodType, None)
        return self.function.get_attribute(tracer, name)

    def reconstruct(self, emitter: Emitter) -> None:
        emitter.call_with(MethodType, self.function, self.receiver)


class BuiltinFunction(RealValue):
    """A function written in C (or a torch function that is one node of the graph)."""

    def describe(self) -> str:
        return f"function {getattr(self.real, '__qualname__', self.real)!s}"

    def call(self, tracer: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return tracer.evaluate.call_builtin(tracer, self.real, args, kwargs)

    def get_attribute(self, tracer: Tracer, name: str) -> Value:
        return tracer.objects.wrap(run(tracer, getattr, (self.real, name)), None)


class BuiltinMethod(Value):
    """A method that the receiver's C type implements, bound to the receiver."""

    receiver: Value
    name: str
    cls = type([].append)
    parts: ClassVar = {
        "__self__": lambda tracer, self: self.receiver,
        **dict.fromkeys(("__name__", "__qualname__"), lambda tracer, self: Constant(self.name)),
    }

    def concrete(self) -> Any:
        return getattr(self.receiver.concrete(), self.name)

    def describe(self) -> str:
        return f"method {self.name!r} of a {self.receiver.describe()}"

    def call(self, tracer: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return self.receiver.call_method(tracer, self.name, args, kwargs)

    def reconstruct(self, emitter: Emitter) -> None:
        emitter.load(self.receiver)
        emitter.load_attribute(self.name)


class PartialValue(Value):
    """functools.partial."""

    function: Value
    args: list[Value]
    keywords: dict[str, Value]
    real: Any = None
    cls = functools.partial
    parts: ClassVar = {
        "func": lambda tracer, self: self.function,
        "args": lambda tracer, self: TupleValue(list(self.args)),
        "keywords": lambda tracer, self: tracer.objects.new_dict(self.keywords),
    }

    def concrete(self) -> Any:
        if self.real is None:
            raise NotConcrete(self)
        return self.real

    def call(self, tracer: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return self.function.call(tracer, [*self.args, *args], {**self.keywords, **kwargs})

    def reconstruct(self, emitter: Emitter) -> None:
        emitter.call_with(call_with, functools.partial, (self.function, *self.args), self.keywords)


class SuperValue(Value):
    """super(cls, receiver)."""

    cls: type
    receiver: Value

    def python_type(self) -> type:
        return super

    def get_attribute(self, tracer: Tracer, name: str) -> Value:
        return tracer.evaluate.super_attribute(tracer, self, name)


# -- Cells: the boxes of closure variables.


class CellValue(Value):
    """A closure cell; `real` is the outside cell it stands for, None for one made in the frame.

    place: where the cell itself is found, if the next call may have another one there.
    """

    content: Value | None = None
    real: CellType | None = None
    content_source: Source | None = None
    loaded: bool = state()
    mutated: bool = state(default=False)
    # The free variable of the captured frame itself that this cell is, if it is one.
    frame_name: str | None = state(default=None)
    place: Source | None = state(default=None)
    cls = CellType
    parts: ClassVar = {"cell_contents": lambda tracer, self: self.get(tracer, "?")}

    def __post_init__(self) -> None:
        self.loaded = self.real is None

    def get(self, tracer: Tracer, name: str, *, own: bool = False) -> Value:
        """The content; an empty cell raises NameError in the evaluated program (`own`: of the running function)."""
        if self.is_empty(tracer):
            if own:
                message = f"cannot access local variable '{name}' where it is not associated with a value"
                raise tracer.raises(UnboundLocalError, message)
            message = f"cannot access free variable '{name}' where it is not associated with a value in enclosing scope"
            raise tracer.raises(NameError, message)
        return self.content

    def is_empty(self, tracer: Tracer) -> bool:
        """Whether it holds nothing."""
        if not self.loaded:
            try:
                real = self.real.cell_contents
            except ValueError:
                raise UnsupportedValue("a variable of an outer function that has no value yet") from None
            self.loaded = True
            self.content = tracer.objects.wrap(real, self.content_source)
        return self.content is None

    def set(self, tracer: Tracer, value: Value | None) -> None:
        self.loaded = True
        self.content = value
        self.mutate(tracer)

    def set_attribute(self, tracer: Tracer, name: str, value: Value) -> None:
        if name != "cell_contents":
            return super().set_attribute(tracer, name, value)
        return self.set(tracer, value)

    def reconstruct(self, emitter: Emitter) -> None:
        if self.frame_name is not None:
            emitter.load_free_cell(self.frame_name)
            return
        if self.real is not None:
            emitter.load_outside_cell(self)
            return
        emitter.call_function(CellType)
        emitter.keep(self)
        emitter.unfinished.append(self._fill)
        emitter.load(self)

    def _fill(self, emitter: Emitter) -> None:
        """Store the content; a function may be in a cell of its own closure."""
        if self.content is not None:
            emitter.load(self.content)
            emitter.load(self)
            emitter.store_attribute("cell_contents")


# -- Classes and Python modules as values: attribute reads and instantiation.


class ClassValue(RealValue):
    """A class."""

    words = "class {0.real.__qualname__}"

    # Metaclasses of the program's may have special methods; those of libraries (Enum's) are pure, and are called.

    def _call_special(self, tracer: Tracer, name: str, *args: Value) -> Value | None:
        if is_exempt(type(self.real).__module__):
            return None
        method = tracer.evaluate.special_method(tracer, self, name)
        return None if method is None else method.call(tracer, list(args), {})

    def length(self, tracer: Tracer) -> int:
        made = self._call_special(tracer, "__len__")
        return super().length(tracer) if made is None else checked_length(tracer, made)

    def truth(self, tracer: Tracer) -> bool:
        made = self._call_special(tracer, "__bool__")
        if made is not None:
            return checked_truth(tracer, made)
        made = self._call_special(tracer, "__len__")
        return super().truth(tracer) if made is None else checked_length(tracer, made) > 0

    def iterate(self, tracer: Tracer) -> Value:
        made = self._call_special(tracer, "__iter__")
        return super().iterate(tracer) if made is None else checked_iterator(tracer, made)

    def contains(self, tracer: Tracer, item: Value) -> bool:
        made = self._call_special(tracer, "__contains__", item)
        return super().contains(tracer, item) if made is None else made.truth(tracer)

    def get_attribute(self, tracer: Tracer, name: str) -> Value:
        return tracer.evaluate.class_get_attribute(tracer, self, name)

    def set_attribute(self, tracer: Tracer, name: str, value: Value) -> None:
        tracer.evaluate.class_set_attribute(tracer, self, name, value)

    def delete_attribute(self, tracer: Tracer, name: str) -> None:
        tracer.evaluate.class_set_attribute(tracer, self, name, None)

    def call(self, tracer: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return tracer.evaluate.instantiate(tracer, self.real, args, kwargs)

    def call_method(self, tracer: Tracer, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if name == "fromkeys" and self.real in DICT_TYPES:
            return DictValue(cls=self.real).call_method(tracer, name, args, kwargs)
        if name == "__subclasses__":
            place = Reading(tracer.names.of(type.__subclasses__), tracer.places.of(self.real))
            tracer.guards.frozen(self.real.__subclasses__(), place)
        if name == "apply" and issubclass(self.real, torch.autograd.Function):
            return tracer.evaluate.apply_function(tracer, self, *args, **kwargs)
        handler = handler_of(getattr(self.real, name, None))
        if handler is not None:
            return handler(tracer, *args, **kwargs)
        return tracer.evaluate.fold_call(tracer, run(tracer, getattr, (self.real, name)), args, kwargs)

    def get_item(self, tracer: Tracer, key: Value) -> Value:
        if (made := self._call_special(tracer, "__getitem__", key)) is not None:
            return made
        raw, owner = static_lookup(self.real.__mro__, "__class_getitem__")
        if isinstance(getattr(raw, "__func__", None), FunctionType) and not is_exempt(owner.__module__):  # type: ignore[union-attr]
            return tracer.evaluate.bind(tracer, raw, owner, None, self.real, "__class_getitem__").call(
                tracer, [key], {}
            )  # type: ignore[arg-type]
        return fold(tracer, lambda: self.real[key.concrete()], ())  # type: ignore[index]


class ModuleValue(RealValue):
    """A Python module; its names are read lazily, each with its own guard."""

    names: DictValue
    cls = ModuleType
    words = "module {0.real.__name__}"

    def get_attribute(self, tracer: Tracer, name: str) -> Value:
        if name == "__dict__":
            return self.names
        raw, owner = static_lookup(type(self.real).__mro__, name)
        is_computed = owner is not None and is_data_descriptor(raw) and owner.__flags__ & HEAP_TYPE
        if is_computed and not isinstance(raw, ContextProp):  # of a class of modules with properties
            return tracer.evaluate.bind(tracer, raw, owner, self, type(self.real), name)  # type: ignore[arg-type]
        found = self.names.lookup(tracer, Constant(name))
        if found is not None:
            return found
        hook = self.names.lookup(tracer, Constant("__getattr__")) if self.names.source is not None else None
        if hook is not None and name not in vars(self.real):
            return hook.call(tracer, [Constant(name)], {})
        if isinstance(raw, ContextProp):
            return tracer.objects.wrap(raw.getter, None).call(tracer, [], {})
        fallback, owner = static_lookup(type(self.real).__mro__, "__getattr__")
        if isinstance(fallback, FunctionType) and owner is not None and not is_exempt(owner.__module__):
            method = tracer.evaluate.bind(tracer, fallback, owner, self, type(self.real), "__getattr__")
            return method.call(tracer, [Constant(name)], {})  # type: ignore[no-any-return]
        try:
            # A lazily loaded name (module __getattr__, or a submodule import) appears by being read.
            return tracer.objects.wrap(run(tracer, getattr, (self.real, name)), None)
        except PythonRaise:
            if self.names.source is None and tracer.guards.is_asked():  # of a library
                tracer.guards.has_key(tracer.places.of(vars(self.real)), name, False)
            raise

    def set_attribute(self, tracer: Tracer, name: str, value: Value) -> None:
        setting, _ = static_lookup(type(self.real).__mro__, name)
        if isinstance(setting, ContextProp) and not torch.backends.flags_frozen():
            tracer.objects.wrap(setting.setter, None).call(tracer, [value], {})
        elif hasattr(type(setting), "__set__"):
            raise UnsupportedMutation(f"cannot assign {self.real.__name__}.{name} in captured code")
        else:
            self.names.set_item(tracer, Constant(name), value)
