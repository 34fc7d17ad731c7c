"""Containers, strings, unpacking, pattern matching."""

from __future__ import annotations

import itertools
import sys
from typing import Any

from bytecap.context_types import Frame, Instruction, Tracer
from bytecap.evaluator.opcodes.control import on_container, on_many, on_stack
from bytecap.lookasides.builtin import BUILTIN
from bytecap.objects.base import NONE, Constant, collect
from bytecap.objects.class_lookup import has_method
from bytecap.objects.containers.mappings import DictValue
from bytecap.objects.containers.sequences import ListValue, Sequence, SliceValue, TupleValue
from bytecap.objects.functions import ClassValue
from bytecap.objects.numbers.open_constants import open_format, open_join
from bytecap.semantics.methods import pairs_of
from bytecap.semantics.string_conversion import format_of, open_text, repr_of, str_of


def _build_map(tracer: Tracer, flat: list[Any]) -> DictValue:
    made = DictValue()
    for key, value in zip(flat[::2], flat[1::2], strict=True):
        made.set_item(tracer, key, value)
    return made


def format_value(tracer: Tracer, value: Any, conversion: int, spec: str) -> Any:
    """One replacement field of an f-string; conversion: 1 !s, 2 !r, 3 !a, 0 none."""
    left_open = None
    if spec and conversion == 0:
        left_open = open_format(value, spec)
    elif not spec and conversion < 3:
        left_open = open_text(tracer, value, repr if conversion == 2 else str)
    if left_open is not None:
        return left_open
    if conversion == 0:
        return Constant(format_of(tracer, value, spec))
    text = str_of(tracer, value) if conversion == 1 else repr_of(tracer, value)
    if conversion == 3:
        text = text.encode("ascii", "backslashreplace").decode()
    return Constant(format(text, spec))


def _format_value(frame: Frame, instruction: Instruction) -> None:
    spec = frame.pop().concrete() if instruction.arg & 4 else ""
    frame.push(format_value(frame.tracer, frame.pop(), instruction.arg & 3, spec))


def _list_extend(tracer: Tracer, target: ListValue, items: Any) -> None:
    if not items.is_iterable():
        raise tracer.raises(TypeError, f"Value after * must be an iterable, not {items.python_type().__name__}")
    added = collect(tracer, items)
    target.mutate(tracer)
    target.items.extend(added)


def _dict_update(tracer: Tracer, target: DictValue, other: Any) -> None:
    if not isinstance(other, DictValue) and not has_method(other, "keys"):
        raise tracer.raises(TypeError, f"'{other.python_type().__name__}' object is not a mapping")
    for key, value in pairs_of(tracer, other):
        target.set_item(tracer, key, value)


def function_text(function: Any) -> str:
    """How CPython names the called function in its complaints about * and ** arguments."""
    real = getattr(function, "real", None)
    code = getattr(function, "code", None)
    if code is not None:
        module = function.globals.real.get("__name__") if function.globals.real else None
        name = code.co_qualname
    else:
        module, name = getattr(real, "__module__", None), getattr(real, "__qualname__", None)
        if name is None:
            return f"{function.python_type().__name__} object"
    return f"{name}()" if module in (None, "builtins") else f"{module}.{name}()"


# The callable that takes the arguments being collected, below the first of them.
_CALLEE = 2 if sys.version_info < (3, 13) else 3


def _dict_merge(frame: Frame, instruction: Instruction) -> None:
    other = frame.pop()
    target = frame.stack[-instruction.arg]
    if not isinstance(other, DictValue) and not has_method(other, "keys"):
        name, kind = function_text(frame.stack[-instruction.arg - _CALLEE]), other.python_type().__name__
        raise frame.tracer.raises(TypeError, f"{name} argument after ** must be a mapping, not {kind}")
    for key, value in pairs_of(frame.tracer, other):
        if target.contains(frame.tracer, key):
            name = function_text(frame.stack[-instruction.arg - _CALLEE])
            complaint = f"{name} got multiple values for keyword argument {key.concrete()!r}"
            raise frame.tracer.raises(TypeError, complaint)
        target.set_item(frame.tracer, key, value)


def _unpack_sequence(frame: Frame, instruction: Instruction) -> None:
    items = _some_items(frame, frame.pop(), instruction.arg + 1)
    expected, got = instruction.arg, len(items)
    if got > expected:
        raise frame.tracer.raises(ValueError, f"too many values to unpack (expected {expected})")
    if got < expected:
        raise frame.tracer.raises(ValueError, f"not enough values to unpack (expected {expected}, got {got})")
    frame.stack.extend(reversed(items))


def _some_items(frame: Frame, value: Any, limit: int | None) -> list[Any]:
    """Up to `limit` items: CPython reads one more than it needs, and no more."""
    if not value.is_iterable():
        kind = value.python_type().__name__
        raise frame.tracer.raises(TypeError, f"cannot unpack non-iterable {kind} object")
    if isinstance(value, Sequence):
        return value.values(frame.tracer)
    return list(itertools.islice(value.each(frame.tracer), limit))


def _unpack_ex(frame: Frame, instruction: Instruction) -> None:
    before, after = instruction.arg & 0xFF, instruction.arg >> 8
    items = _some_items(frame, frame.pop(), None)
    if len(items) < before + after:
        raise frame.tracer.raises(
            ValueError, f"not enough values to unpack (expected at least {before + after}, got {len(items)})"
        )
    middle = items[before : len(items) - after]
    parts = [*items[:before], ListValue(middle), *items[len(items) - after :]]
    frame.stack.extend(reversed(parts))


# Py_TPFLAGS_SEQUENCE and Py_TPFLAGS_MAPPING
_SEQUENCE, _MAPPING = 1 << 5, 1 << 6


def _match_flag(flag: int) -> Any:
    def match(frame: Frame, instruction: Instruction) -> None:
        frame.push(Constant(bool(frame.stack[-1].python_type().__flags__ & flag)))

    return match


def _match_keys(frame: Frame, instruction: Instruction) -> None:
    keys, subject = frame.stack[-1], frame.stack[-2]
    found = []
    for key in keys.values(frame.tracer):
        absent = Constant(NotImplemented)
        value = subject.get_attribute(frame.tracer, "get").call(frame.tracer, [key, absent], {})
        if value is absent:
            frame.push(Constant(None))
            return
        found.append(value)
    frame.push(TupleValue(found))


def _match_class(frame: Frame, instruction: Instruction) -> None:
    names, cls, subject = frame.pop().concrete(), frame.pop(), frame.pop()
    tracer = frame.tracer
    assert isinstance(cls, ClassValue)
    if not BUILTIN[isinstance](tracer, subject, cls).concrete():
        frame.push(Constant(None))
        return
    count = instruction.arg
    self_matching = (bool, bytearray, bytes, dict, float, frozenset, int, list, set, str, tuple)
    found: list[Any] = []
    if count == 1 and cls.real in self_matching:
        found.append(subject)
    elif count:
        given = BUILTIN[getattr](tracer, cls, Constant("__match_args__"), TupleValue([]))
        positional = [name.concrete() for name in given.values(tracer)]
        if count > len(positional):
            allowed = f"{len(positional)} positional sub-pattern{'' if len(positional) == 1 else 's'}"
            raise tracer.raises(TypeError, f"{cls.real.__name__}() accepts {allowed} ({count} given)")
        found += [subject.get_attribute(tracer, name) for name in positional[:count]]
    for name in names:
        present = BUILTIN[hasattr](tracer, subject, Constant(name)).concrete()
        if not present:
            frame.push(Constant(None))
            return
        found.append(subject.get_attribute(tracer, name))
    frame.push(TupleValue(found))


BUILDING = {
    "BUILD_MAP": on_many(_build_map, each=2),
    "BUILD_CONST_KEY_MAP": on_many(
        lambda tracer, parts: tracer.objects.new_dict(dict(zip(parts[-1].concrete(), parts[:-1], strict=True))), more=1
    ),
    "BUILD_SLICE": on_many(lambda tracer, parts: SliceValue(*(*parts, NONE)[:3])),
    "BUILD_STRING": on_many(lambda tracer, parts: open_join(parts) or Constant("".join(x.concrete() for x in parts))),
    "BUILD_TUPLE": on_many(lambda tracer, items: TupleValue(items)),
    "BUILD_LIST": on_many(lambda tracer, items: ListValue(items)),
    "BUILD_SET": on_many(lambda tracer, items: tracer.objects.new_set(items)),
    "LIST_EXTEND": on_container(1, _list_extend),
    **{
        name: on_container(1, lambda tracer, target, item, method=method: target.methods[method](tracer, target, item))
        for name, method in (("LIST_APPEND", "append"), ("SET_ADD", "add"), ("SET_UPDATE", "update"))
    },
    "MAP_ADD": on_container(2, lambda tracer, target, key, value: target.set_item(tracer, key, value)),
    "DICT_UPDATE": on_container(1, _dict_update), "DICT_MERGE": _dict_merge, "FORMAT_VALUE": _format_value,
    "UNPACK_SEQUENCE": _unpack_sequence,
    "LIST_TO_TUPLE": on_stack(1, lambda tracer, made: TupleValue(made.values(tracer))),
    "UNPACK_EX": _unpack_ex, "MATCH_SEQUENCE": _match_flag(_SEQUENCE), "MATCH_MAPPING": _match_flag(_MAPPING),
    "MATCH_KEYS": _match_keys, "MATCH_CLASS": _match_class,
    "GET_LEN": lambda frame, instruction: frame.push(Constant(frame.stack[-1].length(frame.tracer))),
}  # fmt: skip
