"""Class statements in captured code: the class is made when the frame is captured, and its later runs share it.

Each run of the program makes another class, so that of the capture is nobody else's: it does not leave the code
(`Emitter.constant`), and nothing is stored in it. CPython itself runs the body, where that makes nothing but methods,
known decorators and constants: no run can tell whether it was run again.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable
from types import FunctionType
from typing import Any

from bytecap.bytecode.decode import decode
from bytecap.context_types import Tracer
from bytecap.errors import UnsupportedCall
from bytecap.objects.base import Value
from bytecap.objects.class_lookup import static_lookup
from bytecap.objects.classes import ClassValue
from bytecap.objects.constant import Constant
from bytecap.objects.containers.mappings import DictValue
from bytecap.objects.functions import FunctionValue
from bytecap.objects.signals import run

_NAMES = frozenset({"__name__", "staticmethod", "classmethod", "property"})
_STATEMENTS = frozenset(
    {"RESUME", "NOP", "CACHE", "MAKE_CELL", "LOAD_CLOSURE", "BUILD_TUPLE", "LOAD_CONST", "MAKE_FUNCTION",
     "SET_FUNCTION_ATTRIBUTE", "PUSH_NULL", "PRECALL", "CALL", "COPY", "STORE_NAME", "RETURN_VALUE", "RETURN_CONST",
     "SETUP_ANNOTATIONS", "LOAD_FAST", "LOAD_NAME"}
)  # fmt: skip


def _build_class(tracer: Tracer, body: Value, name: Value, *bases: Value, **options: Value) -> Value:
    names = tracer.frames[-1].globals.real
    is_plain = isinstance(body, FunctionValue) and names is not None and not options and _is_plain(body, names)
    if not is_plain or not all(isinstance(base, ClassValue) and _takes_subclasses(base.real) for base in bases):
        raise UnsupportedCall(f"the statement of class {name.concrete()}")
    function = FunctionType(body.code, names)  # type: ignore[attr-defined,arg-type]
    given = (function, name.concrete(), *[base.concrete() for base in bases])
    return _made(tracer, run(tracer, builtins.__build_class__, given))


def make_class(tracer: Tracer, name: Value, bases: Value, attributes: Value) -> Value:
    """`type(name, bases, attributes)`, with plain bases and no attributes but constants."""
    values = [] if not isinstance(attributes, DictValue) else attributes.pairs(tracer)
    is_plain = isinstance(attributes, DictValue) and all(isinstance(each, Constant) for pair in values for each in pair)
    given = bases.concrete()
    if not is_plain or not all(map(_takes_subclasses, given)):
        raise UnsupportedCall("creating a class with type(name, bases, dict)")
    module = tracer.frames[-1].globals.lookup(tracer, Constant("__name__"))
    names = {key.concrete(): value.concrete() for key, value in values}
    return _made(tracer, run(tracer, type, (name.concrete(), given, {**names, "__module__": module.concrete()})))


def _made(tracer: Tracer, made: type) -> Value:
    tracer.made_classes.append(made)
    return tracer.objects.wrap(made, None)


def _is_plain(body: FunctionValue, names: dict[str, Any]) -> bool:
    """Whether the body reads nothing that may differ in the next run, and does nothing but to make its attributes."""
    hidden = (names.keys() | set(map(str, body.globals.written))) - {"__name__"}
    rows = decode(body.code).instructions
    loaded = {row.argval for row in rows if row.opname == "LOAD_NAME"}
    is_known = loaded <= _NAMES and hidden.isdisjoint(loaded)
    return is_known and not body.code.co_freevars and all(row.opname in _STATEMENTS for row in rows)


def _takes_subclasses(base: Any) -> bool:
    """Whether making a subclass runs no code of the program's."""
    return type(base) is type and static_lookup(base.__mro__, "__init_subclass__")[1] is object


CLASS_STATEMENTS: dict[Any, Callable[..., Value]] = {builtins.__build_class__: _build_class}
