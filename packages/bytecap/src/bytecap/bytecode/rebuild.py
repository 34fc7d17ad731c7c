"""What replacement bytecode calls to build Python objects and to replay side effects."""

from __future__ import annotations

import _random
import contextlib
import functools
import itertools
import operator
import sys
import types
import warnings
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from types import CellType
from typing import Any

EMPTY_CELL = CellType()
IS_EMPTY = functools.partial(operator.eq, EMPTY_CELL)
"""Whether a cell is empty: all empty cells are equal."""


def stored_items(real: dict[Any, Any]) -> list[tuple[Any, Any]]:
    """What a dict holds, in its order, past the methods of a subclass."""
    if isinstance(real, OrderedDict):
        return [(key, dict.__getitem__(real, key)) for key in OrderedDict.__iter__(real)]
    return list(dict.items(real))


def new_tuple(items: Any, cls: type) -> Any:
    """A tuple, namedtuple, struct sequence or torch.Size of these items."""
    if cls is tuple:
        return tuple(items)
    if hasattr(cls, "_make"):
        return cls._make(items)  # type: ignore[attr-defined]
    return cls(list(items))


# Py_TPFLAGS_HEAPTYPE
HEAP_TYPE = 1 << 9


def static_base(cls: type) -> Any:
    """The nearest class that is written in C."""
    return next(base for base in cls.__mro__ if not base.__flags__ & HEAP_TYPE)


def new_object(cls: type) -> Any:
    """An instance of `cls` without its `__init__`."""
    return static_base(cls).__new__(cls)


_CONTAINERS = (
    OrderedDict, defaultdict, dict, list, deque, set, frozenset, tuple, str, bytes, int, float, complex, _random.Random
)  # fmt: skip


def _builtin_of(cls: type) -> Any:
    """The builtin class that a class is or extends; the class itself where it is none of them."""
    return next((kind for kind in _CONTAINERS if issubclass(cls, kind)), cls)


def random_stream(state: tuple[int, ...] | None) -> _random.Random:
    """A stream of random numbers in this state, or (None) seeded by the machine."""
    made = _random.Random()
    if state is not None:
        made.setstate(state)
    return made


def new_container(base: Any, cls: type) -> Any:
    """An instance of a subclass of a builtin container, holding the items of `base`."""
    kind = _builtin_of(cls)
    if not issubclass(kind, (dict, list, set, _random.Random)):
        return kind.__new__(cls, base)
    made = kind.__new__(cls)
    if kind is _random.Random:
        kind.setstate(made, base.getstate())
        return made
    if kind is defaultdict:
        made.default_factory = base.default_factory
    if issubclass(kind, dict):
        for key, value in base.items():
            kind.__setitem__(made, key, value)
    else:
        (kind.extend if kind is list else kind.update)(made, base)
    return made


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


def new_exception(cls: type, args: tuple[Any, ...], given: tuple[Any, ...], named: dict[str, Any]) -> BaseException:
    """An exception instance, past an `__init__` in Python; given, named: arguments of the builtin class."""
    base = static_base(cls)
    made: BaseException = base.__new__(cls, *given)
    base.__init__(made, *given, **named)
    made.args = args
    return made


def set_in_dict(target: Any, name: str, value: Any) -> None:
    """Store in an instance's own dictionary, past a data descriptor of its class."""
    object.__getattribute__(target, "__dict__")[name] = value


def delete_in_dict(target: Any, name: str) -> None:
    """Delete from an instance's own dictionary, past a data descriptor of its class."""
    del object.__getattribute__(target, "__dict__")[name]


def empty_slot(target: Any, name: str) -> None:
    """Delete what a slot holds: nothing, where the code itself has filled it."""
    with contextlib.suppress(AttributeError):
        object.__delattr__(target, name)


def set_item(target: dict[Any, Any], key: Any, value: Any) -> None:
    """Store a dict item, past a subclass's own method."""
    _builtin_of(type(target)).__setitem__(target, key, value)


def delete_item(target: dict[Any, Any], key: Any) -> None:
    """Delete a dict item, past a subclass's own method."""
    _builtin_of(type(target)).__delitem__(target, key)


def replace_items(target: Any, items: tuple[Any, ...]) -> None:
    """Give a list, deque or set these items."""
    target.clear()
    (target.update if isinstance(target, set) else target.extend)(items)


def add_items(target: Any, items: tuple[Any, ...]) -> None:
    """Put items at the end of a list or deque, or into a set, past a subclass's own methods."""
    kind = _builtin_of(type(target))
    (kind.update if kind is set else kind.extend)(target, items)


def replace_pairs(target: dict[Any, Any], pairs: dict[Any, Any]) -> None:
    """Give a dict these pairs in this order, past a subclass's own methods."""
    kind = _builtin_of(type(target))
    kind.clear(target)
    for key, value in pairs.items():
        kind.__setitem__(target, key, value)


def call_with(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A call with a tuple and a dict of arguments."""
    return function(*args, **kwargs)


def called_on_line(function: Callable[..., Any], names: dict[str, Any], file: str, line: int, caller: str) -> Any:
    """A function that calls `function` from a frame of its own, which is at this line of `caller`, a function of the
    module whose globals are `names`: warnings and messages of logging say so."""
    code = (lambda *args, **kwargs: function(*args, **kwargs)).__code__
    code = code.replace(co_filename=file, co_firstlineno=line, co_name=caller, co_qualname=caller)
    made = types.FunctionType(code, names, None, None, (CellType(function),))
    made.__qualname__ = function.__qualname__
    return made


def called_from_above(function: Callable[..., Any], level: int, is_part: bool) -> Callable[..., Any]:
    """`function` with the stacklevel of what called the frame that replacement code runs in (level 1), and so on.

    is_part: it is of a part of a function, which other parts of that call.
    """

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        frame, depth = sys._getframe(2), 3  # behind this function and `call_with`
        own = _function_of(frame.f_code)
        while is_part and frame.f_back is not None and _function_of(frame.f_back.f_code) == own:
            frame, depth = frame.f_back, depth + 1
        return function(*args, **kwargs, stacklevel=depth + level)

    return call


def _function_of(code: types.CodeType) -> tuple[str, str, int]:
    return code.co_filename, code.co_qualname, code.co_firstlineno


def stored_item(target: Any, key: Any) -> Any:
    """An item, past the `__getitem__` of a subclass of a builtin container."""
    kind = _builtin_of(type(target))
    return dict.__getitem__(target, key) if issubclass(kind, dict) else kind.__getitem__(target, key)


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


# -- iterators that had started


def advance(iterator: Iterator[Any], count: int) -> Iterator[Any]:
    """The iterator, `count` items further."""
    next(itertools.islice(iterator, count, count), None)
    return iterator


def resumed(sequence: Any, maker: Callable[[Any], Iterator[Any]], index: int) -> Iterator[Any]:
    """iter() or reversed() of a list or tuple that gives the item at `index` next; -1: it has ended."""
    return maker(sequence[:0]) if index < 0 else placed(maker(sequence), sequence, index)


def placed(iterator: Any, sequence: Any, index: int) -> Iterator[Any]:
    """The iterator at `index`, which may lie behind the end of a list that has shrunk, and may grow again."""
    length = len(sequence)
    beyond = [None] * (index + 1 - length) if isinstance(sequence, list) else []
    if not beyond:
        iterator.__setstate__(index)
        return iterator  # type: ignore[no-any-return]
    list.extend(sequence, beyond)  # __setstate__ goes no further than the end
    try:
        iterator.__setstate__(index)
    finally:
        list.__delitem__(sequence, slice(length, None))
    return iterator  # type: ignore[no-any-return]


def restored(arguments: tuple[Any, ...], state: Any, function: Callable[..., Any]) -> Any:
    """What `__reduce__` of an iterator describes."""
    iterator = function(*arguments)
    with warnings.catch_warnings():
        # CPython 3.12 deprecates the method; 3.14 takes it away.
        warnings.simplefilter("ignore", DeprecationWarning)
        iterator.__setstate__(state)
    return iterator


def new_generator(function: Any, bound: dict[str, Any]) -> Iterator[Any]:
    """A generator that has not started; bound: its parameters by name."""
    code = function.__code__
    count, named = code.co_argcount, code.co_argcount + code.co_kwonlyargcount
    names = code.co_varnames
    rest = [bound[name] for name in names[named : len(bound)]]
    more = rest.pop(0) if code.co_flags & 4 else ()
    extra = rest.pop() if code.co_flags & 8 else {}
    args = [bound[name] for name in names[:count]]
    return function(*args, *more, **{name: bound[name] for name in names[count:named]}, **extra)
