"""What replacement bytecode calls to build Python objects and to replay side effects."""

from __future__ import annotations

import functools
import operator
import sys
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from types import CellType
from typing import Any

from bytecap._evalframe import dict_item
from bytecap.bytecode.rebuild_iterators import ITERATOR_HELPERS

EMPTY_CELL = CellType()
IS_EMPTY = functools.partial(operator.eq, EMPTY_CELL)
"""Whether a cell is empty: all empty cells are equal."""


def stored_items(real: dict[Any, Any]) -> list[tuple[Any, Any]]:
    """What a dict holds, in its order, past the methods of a subclass."""
    if isinstance(real, OrderedDict):
        return [(key, dict.__getitem__(real, key)) for key in OrderedDict.__iter__(real)]
    return list(dict.items(real))


def rebuild_tuple(cls: type, items: list[Any]) -> Any:
    """A tuple of class `cls` with these items."""
    if cls is tuple:
        return tuple(items)
    if hasattr(cls, "_make"):
        return cls._make(items)  # type: ignore[attr-defined]
    return cls(items)


# Py_TPFLAGS_HEAPTYPE
_HEAP_TYPE = 1 << 9


def new_object(cls: type) -> Any:
    """An instance of `cls` without its `__init__`."""
    base: Any = next(kind for kind in cls.__mro__ if not kind.__flags__ & _HEAP_TYPE)
    return base.__new__(cls)


def new_container(base: Any, cls: type) -> Any:
    """An instance of a subclass of a builtin container, holding the items of `base`."""
    for kind in (OrderedDict, defaultdict, dict):
        if issubclass(cls, kind):
            made = kind.__new__(cls)
            if kind is defaultdict:
                made.default_factory = base.default_factory
            for key, value in base.items():
                kind.__setitem__(made, key, value)
            return made
    if issubclass(cls, list):
        made = list.__new__(cls)
        list.extend(made, base)
        return made
    if issubclass(cls, set):
        made = set.__new__(cls)
        set.update(made, base)
        return made
    for immutable in (frozenset, tuple, str, bytes, int, float, complex):
        if issubclass(cls, immutable):
            return immutable.__new__(cls, base)
    raise TypeError(f"{cls.__qualname__} extends no builtin container")


def new_tuple(items: tuple[Any, ...], cls: type) -> Any:
    """A namedtuple, struct sequence or torch.Size of these items."""
    return rebuild_tuple(cls, list(items))


def new_dict(items: dict[Any, Any], cls: type) -> Any:
    """A dict of another builtin class."""
    return cls(items)


def new_defaultdict(items: dict[Any, Any], factory: Any) -> defaultdict[Any, Any]:
    """A defaultdict."""
    return defaultdict(factory, items)


class _Filler:
    """Takes the place in a set that a member with this hash would take."""

    __slots__ = ("hash",)

    def __init__(self, hash_: int) -> None:
        self.hash = hash_

    def __hash__(self) -> int:
        return self.hash


def new_set(items: tuple[Any, ...], cls: type, holes: tuple[int, ...] = ()) -> Any:
    """A set or frozenset; holes: hashes of members that were there while it grew, and went."""
    if not holes:
        return cls(items)
    fillers = [_Filler(hole) for hole in holes]
    made: set[Any] = set(fillers)
    made.update(items)
    made.difference_update(fillers)
    return made


def new_deque(items: list[Any]) -> deque[Any]:
    """A deque."""
    return deque(items)


def new_cell() -> types.CellType:
    """An empty cell."""
    return types.CellType()


def new_function(
    code: types.CodeType,
    names: dict[str, Any],
    name: str,
    defaults: tuple[Any, ...],
    kwdefaults: dict[str, Any],
    closure: tuple[types.CellType, ...],
) -> types.FunctionType:
    """A function that the captured code defined."""
    made = types.FunctionType(code, names, name, defaults or None, closure or None)
    made.__kwdefaults__ = kwdefaults or None
    made.__qualname__ = code.co_qualname
    return made


def new_method(function: Callable[..., Any], receiver: Any) -> types.MethodType:
    """A bound method."""
    return types.MethodType(function, receiver)


def new_partial(function: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """functools.partial."""
    return functools.partial(function, *args, **keywords)


def new_exception(cls: type, args: tuple[Any, ...], given: tuple[Any, ...], named: dict[str, Any]) -> BaseException:
    """An exception instance, past an `__init__` in Python; given, named: arguments of the builtin class."""
    base: Any = next(kind for kind in cls.__mro__ if not kind.__flags__ & _HEAP_TYPE)
    made = base.__new__(cls, *given)
    base.__init__(made, *given, **named)
    made.args = args
    return made


def set_attribute(target: Any, name: str, value: Any) -> None:
    """Store an instance attribute; the class's own `__setattr__` was evaluated already."""
    object.__setattr__(target, name, value)


def delete_attribute(target: Any, name: str) -> None:
    """Delete an instance attribute."""
    object.__delattr__(target, name)


def set_in_dict(target: Any, name: str, value: Any) -> None:
    """Store in an instance's own dictionary, past a data descriptor of its class."""
    object.__getattribute__(target, "__dict__")[name] = value


def delete_in_dict(target: Any, name: str) -> None:
    """Delete from an instance's own dictionary, past a data descriptor of its class."""
    del object.__getattribute__(target, "__dict__")[name]


def set_item(target: dict[Any, Any], key: Any, value: Any) -> None:
    """Store a dict item, past a subclass's own method."""
    _plain(target).__setitem__(target, key, value)


def delete_item(target: dict[Any, Any], key: Any) -> None:
    """Delete a dict item, past a subclass's own method."""
    _plain(target).__delitem__(target, key)


def _plain(target: dict[Any, Any]) -> type[dict[Any, Any]]:
    """The builtin class under a dict: an OrderedDict has an order of its own, which dict's methods leave as it was."""
    return OrderedDict if isinstance(target, OrderedDict) else dict


def replace_items(items: tuple[Any, ...], target: Any) -> None:
    """Give a list, deque or set these items."""
    target.clear()
    (target.update if isinstance(target, set) else target.extend)(items)


def add_items(items: tuple[Any, ...], target: Any) -> None:
    """Put items at the end of a list or deque, or into a set, past a subclass's own methods."""
    kind = next(kind for kind in (list, deque, set) if isinstance(target, kind))
    (kind.update if kind is set else kind.extend)(target, items)


def replace_pairs(pairs: dict[Any, Any], target: dict[Any, Any]) -> None:
    """Give a dict these pairs in this order, past a subclass's own methods."""
    kind = _plain(target)
    kind.clear(target)
    for key, value in pairs.items():
        kind.__setitem__(target, key, value)


def call_with(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """A call for its effect."""
    function(*args, **kwargs)


def dict_key(target: dict[Any, Any], index: int) -> Any:
    """The index-th key."""
    return dict_item(target, index)[0]


def dict_value(target: dict[Any, Any], index: int) -> Any:
    """The value under the index-th key."""
    return dict_item(target, index)[1]


def stored_item(target: Any, key: Any) -> Any:
    """An item, past the `__getitem__` of a subclass of a builtin container."""
    for kind in (dict, list, tuple):
        if isinstance(target, kind):
            return kind.__getitem__(target, key)
    return target[key]


def free_variable(function: Any, name: str) -> Any:
    """The content of a closure cell of a function or method."""
    function = getattr(function, "__func__", function)
    return function.__closure__[function.__code__.co_freevars.index(name)].cell_contents


def raised_in_caller(error: BaseException, line: int) -> None:
    """Put a line of the calling frame in front of an exception's traceback."""
    error.__traceback__ = types.TracebackType(error.__traceback__, sys._getframe(1), -1, line)


def without_first_entry(error: BaseException) -> BaseException:
    """The exception, its traceback without the frame that caught it first, if there are others.

    CPython adds no entry when a handler raises it again with RERAISE.
    """
    if error.__traceback__ is not None and error.__traceback__.tb_next is not None:
        error.__traceback__ = error.__traceback__.tb_next
    return error


HELPERS: dict[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (
        new_object, new_container, new_tuple, new_dict, new_defaultdict, new_set, new_deque,
        new_cell, new_function, new_method, new_partial, new_exception, set_attribute, delete_attribute,
        set_in_dict, delete_in_dict,
        set_item, delete_item, replace_items, add_items, replace_pairs, call_with, dict_key, dict_value,
        free_variable, stored_item, raised_in_caller, without_first_entry,
    )
} | ITERATOR_HELPERS  # fmt: skip
