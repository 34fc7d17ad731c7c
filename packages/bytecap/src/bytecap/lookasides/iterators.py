"""Classes whose calls make iterators: those of builtins and of itertools."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from bytecap.objects.base import Value, collect
from bytecap.objects.constant import Constant
from bytecap.objects.containers.sequences import TupleValue
from bytecap.objects.iterators import library
from bytecap.objects.iterators.builtin import (
    EnumerateIterator,
    FilterIterator,
    FunctionIterator,
    MapIterator,
    ZipIterator,
)
from bytecap.objects.signals import fold

if TYPE_CHECKING:
    from bytecap.evaluator.tracer import Tracer

NONE = Constant(None)


def _enumerate(tracer: Tracer, iterable: Value, start: Value | None = None) -> Value:
    return EnumerateIterator(iterable.iterate(tracer), 0 if start is None else start.as_int(tracer))


def _zip(tracer: Tracer, *iterables: Value, strict: Value | None = None) -> Value:
    iterators = [value.iterate(tracer) for value in iterables]
    return ZipIterator(iterators, strict is not None and strict.truth(tracer))


def _map(tracer: Tracer, function: Value, *iterables: Value) -> Value:
    if not iterables:
        raise tracer.raises(TypeError, "map() must have at least two arguments.")
    return MapIterator(function, [value.iterate(tracer) for value in iterables])


def _over(kind: type[FunctionIterator]) -> Callable[..., Value]:
    """An iterator of a function and one iterable."""
    return lambda tracer, function, iterable: kind(function, [iterable.iterate(tracer)])


def _chain(tracer: Tracer, *iterables: Value) -> Value:
    return library.ChainIterator(TupleValue(list(iterables)).iterate(tracer))


def _chain_from(tracer: Tracer, iterables: Value) -> Value:
    return library.ChainIterator(iterables.iterate(tracer))


def _islice(tracer: Tracer, iterable: Value, *bounds: Value) -> Value:
    limits = [None if bound.is_none() else bound.as_int(tracer) for bound in bounds]
    if any(limit is not None and limit < 0 for limit in limits):
        return _refused_slice(tracer, limits)
    start, stop, step = (0, *limits, 1) if len(limits) == 1 else (*limits, 1)[:3]
    return library.SliceIterator(iterable.iterate(tracer), start or 0, stop, 1 if step is None else step)


def _refused_slice(tracer: Tracer, limits: list[Any]) -> Value:
    return fold(tracer, itertools.islice, ((), *limits))


def _count(tracer: Tracer, start: Value = Constant(0), step: Value = Constant(1)) -> Value:  # noqa: B008
    return library.CountIterator(start, step)


def _repeat(tracer: Tracer, object: Value, times: Value | None = None) -> Value:
    return library.RepeatIterator(object, None if times is None else max(times.as_int(tracer), 0))


def _cycle(tracer: Tracer, iterable: Value) -> Value:
    return library.CycleIterator(iterable.iterate(tracer))


def _product(tracer: Tracer, *iterables: Value, repeat: Value | None = None) -> Value:
    options = {} if repeat is None else {"repeat": repeat.as_int(tracer)}
    return library.PoolIterator(itertools.product, [collect(tracer, each) for each in iterables], None, options)


def _pool(class_: Any) -> Callable[..., Value]:
    """permutations and combinations."""

    def make(tracer: Tracer, iterable: Value, r: Value | None = None) -> Value:
        number = None if r is None or r.is_none() else r.as_int(tracer)
        return library.PoolIterator(class_, [collect(tracer, iterable)], number, {})

    return make


def _compress(tracer: Tracer, data: Value, selectors: Value) -> Value:
    return library.CompressIterator([data.iterate(tracer), selectors.iterate(tracer)])


def _accumulate(tracer: Tracer, iterable: Value, func: Value = NONE, *, initial: Value = NONE) -> Value:
    return library.AccumulateIterator(func, iterable.iterate(tracer), None if initial.is_none() else initial)


def _pairwise(tracer: Tracer, iterable: Value) -> Value:
    return library.PairwiseIterator(iterable.iterate(tracer))


def _zip_longest(tracer: Tracer, *iterables: Value, fillvalue: Value = NONE) -> Value:
    return library.ZipLongestIterator([each.iterate(tracer) for each in iterables], fillvalue)


def _groupby(tracer: Tracer, iterable: Value, key: Value = NONE) -> Value:
    return library.GroupByIterator(key, iterable.iterate(tracer))


def _tee(tracer: Tracer, iterable: Value, n: Value = Constant(2)) -> Value:  # noqa: B008
    iterator = iterable.iterate(tracer)
    known = isinstance(iterator, library.TeeIterator)
    shared = iterator.shared if known else library.TeeSource(iterator)  # type: ignore[attr-defined]
    index = iterator.index if known else 0  # type: ignore[attr-defined]
    return TupleValue([library.TeeIterator(shared, index) for _ in range(n.as_int(tracer))])


ITERATORS: dict[Any, Callable[..., Value]] = {
    enumerate: _enumerate, zip: _zip, map: _map, filter: _over(FilterIterator),
    itertools.chain: _chain, itertools.chain.from_iterable: _chain_from, itertools.islice: _islice,
    itertools.count: _count, itertools.repeat: _repeat, itertools.cycle: _cycle, itertools.product: _product,
    itertools.permutations: _pool(itertools.permutations), itertools.combinations: _pool(itertools.combinations),
    itertools.combinations_with_replacement: _pool(itertools.combinations_with_replacement),
    itertools.compress: _compress, itertools.accumulate: _accumulate, itertools.pairwise: _pairwise,
    itertools.zip_longest: _zip_longest, itertools.groupby: _groupby, itertools.tee: _tee,
    itertools.starmap: _over(library.StarMapIterator), itertools.takewhile: _over(library.TakeWhileIterator),
    itertools.dropwhile: _over(library.DropWhileIterator),
    itertools.filterfalse: _over(library.FilterFalseIterator),
}  # fmt: skip
