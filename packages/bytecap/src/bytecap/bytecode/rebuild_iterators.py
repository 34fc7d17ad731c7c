"""What replacement bytecode calls to build iterators that had started."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator
from typing import Any


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


ITERATOR_HELPERS: dict[str, Callable[..., Any]] = {
    function.__name__: function for function in (advance, resumed, placed, restored, new_generator)
}
