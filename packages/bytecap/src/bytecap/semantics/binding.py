"""Arguments of a call bound to the parameters of a Python function, by CPython."""

from __future__ import annotations

import inspect
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

from bytecap.objects.base import Value
from bytecap.objects.containers.sequences import TupleValue
from bytecap.objects.functions import FunctionValue

if TYPE_CHECKING:
    from bytecap.evaluator.tracer import Tracer


def bind_arguments(
    tracer: Tracer, function: FunctionValue, args: list[Value], kwargs: dict[str, Value]
) -> dict[str, Any]:
    """Local variables at the start of a call; raises the TypeErrors that CPython raises."""
    code = function.code
    twin = FunctionType(_twin(code), {}, function.name, function.defaults or None)
    twin.__kwdefaults__ = function.kwdefaults
    twin.__qualname__ = code.co_qualname if function.real is None else function.real.__qualname__
    try:
        bound: dict[str, Any] = twin(*args, **kwargs)
    except TypeError as error:
        raise tracer.raises(TypeError, str(error)) from None
    slot = code.co_argcount + code.co_kwonlyargcount
    if code.co_flags & inspect.CO_VARARGS:
        name = code.co_varnames[slot]
        bound[name] = TupleValue(list(bound[name]))
        slot += 1
    if code.co_flags & inspect.CO_VARKEYWORDS:
        name = code.co_varnames[slot]
        bound[name] = tracer.objects.new_dict(bound[name])
    return bound


def _bound() -> dict[str, Any]:
    """The body of the twins below."""
    return locals()


def _twin(code: CodeType) -> CodeType:
    """A function with the same parameters that returns what they are bound to."""
    variadic = code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS)
    slots = code.co_argcount + code.co_kwonlyargcount + variadic.bit_count()
    return _bound.__code__.replace(
        co_argcount=code.co_argcount,
        co_posonlyargcount=code.co_posonlyargcount,
        co_kwonlyargcount=code.co_kwonlyargcount,
        co_varnames=code.co_varnames[:slots],
        co_nlocals=slots,
        co_flags=_bound.__code__.co_flags | variadic,
        co_name=code.co_name,
        co_qualname=code.co_qualname,
    )
