"""What replacement bytecode calls to build iterators that had started."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any


def advance(iterator: Iterator[Any], count: int) -> Iterator[Any]:
    """The iterator, `count` items further."""
    next(itertools.islice(iterator, count, count), None)
    return iterator


def resume_sequence(sequence: Any, index: int) -> Iterator[Any]:
    """iter() of a list or tuple that gives the item at `index` next; it stays bound to the list."""
    if index < 0:
        return iter(())
    return placed(iter(sequence), sequence, index)


def resume_reversed(sequence: Any, index: int) -> Iterator[Any]:
    """reversed() of a list or tuple that gives the item at `index` next; -1: it has ended."""
    if index < 0:
        return reversed(sequence[:0])
    return placed(reversed(sequence), sequence, index)


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


def restore_state(iterator: Any, state: Any) -> Iterator[Any]:
    """The iterator in the state that `__reduce__` would give."""
    with warnings.catch_warnings():
        # CPython 3.12 deprecates the method; 3.14 takes it away.
        warnings.simplefilter("ignore", DeprecationWarning)
        iterator.__setstate__(state)
    return iterator


def new_zip(iterators: tuple[Iterator[Any], ...], strict: bool) -> Iterator[Any]:
    """zip()."""
    return zip(*iterators, strict=strict)


def new_zip_longest(iterators: tuple[Iterable[Any], ...], fill: Any) -> Iterator[Any]:
    """zip_longest()."""
    return itertools.zip_longest(*iterators, fillvalue=fill)


def new_chain(outer: Iterator[Any], current: Iterable[Any]) -> Iterator[Any]:
    """chain() in the middle of `current`; `outer` gives the iterables after it."""
    return itertools.chain.from_iterable(itertools.chain((current,), outer))


def put_back(iterator: Iterator[Any], items: tuple[Any, ...]) -> Iterator[Any]:
    """An iterator that gives `items` first."""
    return itertools.chain(items, iterator)


def new_cycle(saved: list[Any], iterator: Iterator[Any], index: int | None) -> Iterator[Any]:
    """cycle() in its first round (index None), or before the item at `index` of a later one."""
    if index is None:
        return restore_state(itertools.cycle(iterator), (saved, 0))
    return restore_state(itertools.cycle(iter(saved[index:])), (saved, 1))


def new_accumulate(iterator: Iterator[Any], function: Any, total: Any, given: int) -> Iterator[Any]:
    """accumulate() that goes on from `total`, which was given already or not."""
    return advance(itertools.accumulate(iterator, function, initial=total), given)


def new_pool(pools: tuple[Any, ...], class_: Any, options: tuple[tuple[str, int], ...], taken: int) -> Iterator[Any]:
    """product(), permutations() and their like, `taken` items further."""
    return advance(class_(*pools, **dict(options)), taken)


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
    function.__name__: function
    for function in (
        advance, resume_sequence, resume_reversed, placed, restore_state, new_zip, new_zip_longest, new_chain, put_back,
        new_cycle,
        new_accumulate, new_pool, new_generator,
    )
}  # fmt: skip
