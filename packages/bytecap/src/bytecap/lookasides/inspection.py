"""Functions of `inspect` on values: what kind of callable something is, functions made in captured code included."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from bytecap.objects.base import Value
from bytecap.objects.constant import Constant
from bytecap.objects.functions import FunctionValue, MethodValue, PartialValue
from bytecap.semantics.constant_folding import fold_call

if TYPE_CHECKING:
    from bytecap.evaluator.tracer import Tracer


def _is_kind(check: Callable[[Any], bool]) -> Callable[..., Value]:
    """Functions, methods and classes: known by the type of the object."""

    def answer(tracer: Tracer, value: Value) -> Value:
        kind = value.python_type()
        return Constant(issubclass(kind, _KINDS[check]))

    return answer


_KINDS: dict[Any, Any] = {
    inspect.isclass: type,
    inspect.isfunction: type(lambda: None),
    inspect.ismethod: type(inspect.Signature.from_callable),
    inspect.ismodule: type(inspect),
    inspect.isbuiltin: type(len),
}


def _has_flag(check: Callable[[Any], bool], flag: int) -> Callable[..., Value]:
    """Generator and coroutine functions: known by their code, under methods and partial applications."""

    def answer(tracer: Tracer, value: Value) -> Value:

        function = value
        while isinstance(function, (MethodValue, PartialValue)):
            function = function.function
        if isinstance(function, FunctionValue):
            return Constant(bool(function.code.co_flags & flag))
        return fold_call(tracer, check, [value], {})

    return answer


INSPECTION: dict[Any, Callable[..., Value]] = {check: _is_kind(check) for check in _KINDS} | {
    inspect.isgeneratorfunction: _has_flag(inspect.isgeneratorfunction, inspect.CO_GENERATOR),
    inspect.iscoroutinefunction: _has_flag(inspect.iscoroutinefunction, inspect.CO_COROUTINE),
    inspect.isasyncgenfunction: _has_flag(inspect.isasyncgenfunction, inspect.CO_ASYNC_GENERATOR),
}
