"""Callables: Python functions, bound methods, C functions, functools.partial, super()."""

from __future__ import annotations

import functools
from types import CodeType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any

from bytecap.guarding import is_exempt
from bytecap.signals import NotConcrete
from bytecap.values.base import Value
from bytecap.values.cells import CellValue
from bytecap.values.constant import Constant
from bytecap.values.mappings import DictValue
from stagewire.capture import Source

if TYPE_CHECKING:
    from bytecap.emit import Emitter
    from bytecap.tracer import Tracer


class FunctionValue(Value):
    """A Python function; `real` is None when the evaluated program made it."""

    __slots__ = (
        "attributes", "closure", "code", "defaults", "globals", "kwdefaults", "name", "real",
    )  # fmt: skip

    def __init__(
        self,
        code: CodeType,
        globals: DictValue,
        *,
        name: str,
        defaults: tuple[Any, ...] = (),
        kwdefaults: dict[str, Any] | None = None,
        closure: tuple[CellValue, ...] = (),
        real: FunctionType | None = None,
        attributes: DictValue | None = None,
        source: Source | None = None,
    ) -> None:
        super().__init__(source)
        self.code = code
        self.globals = globals
        self.name = name
        self.defaults = defaults
        self.kwdefaults = kwdefaults or {}
        self.closure = closure
        self.real = real
        self.attributes = attributes or DictValue()

    def python_type(self) -> type:
        return FunctionType

    def concrete(self) -> FunctionType:
        if self.real is None:
            raise NotConcrete(self)
        return self.real

    def describe(self) -> str:
        return f"function {self.code.co_qualname}"

    def call(self, tracer: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        from bytecap.calls import call_function

        return call_function(tracer, self, args, kwargs)

    def get_attribute(self, tracer: Tracer, name: str) -> Value:
        from bytecap.fold import fold

        match name:
            case "__dict__":
                return self.attributes
            case "__name__" | "__qualname__" | "__doc__" | "__module__" | "__code__":
                found = self.attributes.lookup(tracer, Constant(name))
                if found is not None:
                    return found
                if self.real is not None:
                    is_own = not is_exempt(self.real.__module__)
                    return tracer.wrap(
                        getattr(self.real, name), tracer.attribute_source(self.source, name) if is_own else None
                    )
                return Constant({"__code__": self.code, "__name__": self.name}.get(name, self.name))
            case "__get__":
                return BuiltinMethod(self, "__get__")
            case "__defaults__" | "__kwdefaults__" | "__annotations__" | "__globals__" | "__closure__":
                if self.real is not None:
                    return fold(tracer, getattr, (self.real, name))
        found = self.attributes.lookup(tracer, Constant(name))
        return found if found is not None else super().get_attribute(tracer, name)

    def set_attribute(self, tracer: Tracer, name: str, value: Value) -> None:
        self.attributes.set_item(tracer, Constant(name), value)

    def call_method(self, tracer: Tracer, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if name == "__get__":
            is_none = isinstance(args[0], Constant) and args[0].value is None
            return self if is_none else MethodValue(self, args[0])
        if name == "__call__":
            return self.call(tracer, args, kwargs)
        return super().call_method(tracer, name, args, kwargs)

    def reconstruct(self, emitter: Emitter) -> None:
        if self.real is not None:
            emitter.constant(self.real)
            return
        emitter.constant(self.code)
        emitter.load(self.globals)
        emitter.constant(self.name)
        for default in self.defaults:
            emitter.load(default)
        emitter.build_tuple(len(self.defaults))
        for key, value in self.kwdefaults.items():
            emitter.constant(key)
            emitter.load(value)
        emitter.build_map(len(self.kwdefaults))
        for cell in self.closure:
            emitter.load(cell)
        emitter.build_tuple(len(self.closure))
        emitter.call_helper("new_function", arguments=6)
        emitter.keep(self)
        for key, value in self.attributes.new.values():
            emitter.load(value)
            emitter.load(self)
            emitter.store_attribute(str(key.concrete()))
        emitter.load(self)


class MethodValue(Value):
    """A bound method."""

    __slots__ = ("function", "receiver")

    def __init__(self, function: Value, receiver: Value, source: Source | None = None) -> None:
        super().__init__(source)
        self.function = function
        self.receiver = receiver

    def python_type(self) -> type:
        return MethodType

    def concrete(self) -> MethodType:
        return MethodType(self.function.concrete(), self.receiver.concrete())

    def call(self, tracer: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return self.function.call(tracer, [self.receiver, *args], kwargs)

    def get_attribute(self, tracer: Tracer, name: str) -> Value:
        if name == "__self__":
            return self.receiver
        if name == "__func__":
            return self.function
        return self.function.get_attribute(tracer, name)

    def reconstruct(self, emitter: Emitter) -> None:
        emitter.load(self.function)
        emitter.load(self.receiver)
        emitter.call_helper("new_method", arguments=2)


class BuiltinFunction(Value):
    """A function written in C (or a torch function that is one node of the graph)."""

    __slots__ = ("real",)

    def __init__(self, real: Any, source: Source | None = None) -> None:
        super().__init__(source)
        self.real = real

    def python_type(self) -> type:
        return type(self.real)

    def concrete(self) -> Any:
        return self.real

    def describe(self) -> str:
        return f"function {getattr(self.real, '__qualname__', self.real)!s}"

    def call(self, tracer: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        from bytecap.calls import call_builtin

        return call_builtin(tracer, self.real, args, kwargs)

    def get_attribute(self, tracer: Tracer, name: str) -> Value:
        from bytecap.fold import run

        return tracer.wrap(run(tracer, getattr, (self.real, name)), None)

    def reconstruct(self, emitter: Emitter) -> None:
        emitter.constant(self.real)


class BuiltinMethod(Value):
    """A method that the receiver's C type implements, bound to the receiver."""

    __slots__ = ("name", "receiver")

    def __init__(self, receiver: Value, name: str) -> None:
        super().__init__()
        self.receiver = receiver
        self.name = name

    def python_type(self) -> type:
        return type([].append)

    def concrete(self) -> Any:
        return getattr(self.receiver.concrete(), self.name)

    def describe(self) -> str:
        return f"method {self.name!r} of a {self.receiver.describe()}"

    def call(self, tracer: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return self.receiver.call_method(tracer, self.name, args, kwargs)

    def get_attribute(self, tracer: Tracer, name: str) -> Value:
        if name == "__self__":
            return self.receiver
        if name in ("__name__", "__qualname__"):
            return Constant(self.name)
        return super().get_attribute(tracer, name)

    def reconstruct(self, emitter: Emitter) -> None:
        emitter.load(self.receiver)
        emitter.load_attribute(self.name)


class PartialValue(Value):
    """functools.partial."""

    __slots__ = ("args", "function", "keywords", "real")

    def __init__(
        self,
        function: Value,
        args: list[Value],
        keywords: dict[str, Value],
        *,
        real: Any = None,
        source: Source | None = None,
    ) -> None:
        super().__init__(source)
        self.function = function
        self.args = args
        self.keywords = keywords
        self.real = real

    def python_type(self) -> type:
        return functools.partial

    def concrete(self) -> Any:
        if self.real is None:
            raise NotConcrete(self)
        return self.real

    def call(self, tracer: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return self.function.call(tracer, [*self.args, *args], {**self.keywords, **kwargs})

    def get_attribute(self, tracer: Tracer, name: str) -> Value:
        from bytecap.values.sequences import TupleValue

        match name:
            case "func":
                return self.function
            case "args":
                return TupleValue(list(self.args))
            case "keywords":
                return tracer.new_dict(self.keywords)
        return super().get_attribute(tracer, name)

    def reconstruct(self, emitter: Emitter) -> None:
        if self.real is not None:
            emitter.constant(self.real)
            return
        emitter.load(self.function)
        for arg in self.args:
            emitter.load(arg)
        emitter.build_tuple(len(self.args))
        for key, value in self.keywords.items():
            emitter.constant(key)
            emitter.load(value)
        emitter.build_map(len(self.keywords))
        emitter.call_helper("new_partial", arguments=3)


class SuperValue(Value):
    """super(cls, receiver)."""

    __slots__ = ("cls", "receiver")

    def __init__(self, cls: type, receiver: Value) -> None:
        super().__init__()
        self.cls = cls
        self.receiver = receiver

    def python_type(self) -> type:
        return super

    def get_attribute(self, tracer: Tracer, name: str) -> Value:
        from bytecap.attributes import super_attribute

        return super_attribute(tracer, self, name)
