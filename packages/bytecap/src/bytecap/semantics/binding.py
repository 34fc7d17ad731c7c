"""Arguments of a call bound to the parameters of a Python function, with CPython's own complaints."""

from __future__ import annotations

import inspect
from types import FunctionType
from typing import TYPE_CHECKING, Any

from bytecap.objects.base import Value
from bytecap.objects.containers.sequences import TupleValue
from bytecap.objects.functions import FunctionValue

if TYPE_CHECKING:
    from bytecap.evaluator.tracer import Tracer


class _BadArguments(Exception):
    """The arguments do not fit the parameters."""


def bind_arguments(
    tracer: Tracer, function: FunctionValue, args: list[Value], kwargs: dict[str, Value]
) -> dict[str, Any]:
    """Local variables at the start of a call; raises the TypeErrors that CPython raises."""
    try:
        return _bind(tracer, function, args, kwargs)
    except _BadArguments:
        raise tracer.raises(TypeError, _complaint(function, len(args), tuple(kwargs))) from None


def _bind(tracer: Tracer, function: FunctionValue, args: list[Value], kwargs: dict[str, Value]) -> dict[str, Any]:
    code = function.code
    count, names = code.co_argcount, code.co_varnames
    bound: dict[str, Any] = dict(zip(names[:count], args, strict=False))
    has_varargs = bool(code.co_flags & inspect.CO_VARARGS)
    if len(args) > count and not has_varargs:
        raise _BadArguments
    slot = count + code.co_kwonlyargcount
    if has_varargs:
        bound[names[slot]] = TupleValue(list(args[count:]))
        slot += 1
    extra = _bind_keywords(function, bound, kwargs)
    if code.co_flags & inspect.CO_VARKEYWORDS:
        bound[names[slot]] = tracer.objects.new_dict(extra)
    elif extra:
        raise _BadArguments
    _fill_defaults(function, bound)
    return bound


def _bind_keywords(function: FunctionValue, bound: dict[str, Any], kwargs: dict[str, Value]) -> dict[str, Value]:
    code = function.code
    total = code.co_argcount + code.co_kwonlyargcount
    accepted = code.co_varnames[code.co_posonlyargcount : total]
    extra: dict[str, Value] = {}
    for name, value in kwargs.items():
        if name not in accepted:
            extra[name] = value
        elif name in bound:
            raise _BadArguments
        else:
            bound[name] = value
    return extra


def _fill_defaults(function: FunctionValue, bound: dict[str, Any]) -> None:
    code = function.code
    count = code.co_argcount
    first = count - len(function.defaults)
    for index, name in enumerate(code.co_varnames[:count]):
        if name not in bound:
            if index < first:
                raise _BadArguments
            bound[name] = function.defaults[index - first]
    for name in code.co_varnames[count : count + code.co_kwonlyargcount]:
        if name not in bound:
            if name not in function.kwdefaults:
                raise _BadArguments
            bound[name] = function.kwdefaults[name]


def _nothing() -> None:
    """The body of the twin below."""


def _complaint(function: FunctionValue, count: int, names: tuple[str, ...]) -> str:
    """What CPython says: a twin of the function without a body is called with as many arguments."""
    code = function.code
    slots = code.co_argcount + code.co_kwonlyargcount + sum(bool(code.co_flags & flag) for flag in (4, 8))
    body = _nothing.__code__.replace(
        co_argcount=code.co_argcount,
        co_posonlyargcount=code.co_posonlyargcount,
        co_kwonlyargcount=code.co_kwonlyargcount,
        co_varnames=code.co_varnames[:slots],
        co_nlocals=slots,
        co_flags=_nothing.__code__.co_flags | code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS),
        co_name=code.co_name,
        co_qualname=code.co_qualname,
    )
    twin = FunctionType(body, {}, function.name, (None,) * len(function.defaults))
    twin.__qualname__ = code.co_qualname if function.real is None else function.real.__qualname__
    twin.__kwdefaults__ = dict.fromkeys(function.kwdefaults)
    try:
        twin(*[None] * count, **dict.fromkeys(names))
    except TypeError as error:
        return str(error)
    return f"{twin.__qualname__}() got wrong arguments"
