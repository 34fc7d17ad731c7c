"""The iterators of `itertools`, each with the state of CPython's own object."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from bytecap.errors import CannotRebuild
from bytecap.objects.base import IteratorValue, Value, collect
from bytecap.objects.constant import Constant
from bytecap.objects.containers.sequences import TupleValue
from bytecap.objects.iterators.builtin import FilterIterator, FunctionIterator, OverIterators
from bytecap.objects.signals import EXHAUSTED, End

if TYPE_CHECKING:
    from bytecap.evaluator.tracer import Tracer
    from bytecap.replacement.emit import Emitter


class FilterFalseIterator(FilterIterator):
    """filterfalse()."""

    __slots__ = ()
    class_ = itertools.filterfalse
    wanted = False


class StarMapIterator(FunctionIterator):
    """starmap()."""

    __slots__ = ()
    class_ = itertools.starmap

    def next(self, tracer: Tracer) -> Any:
        row = self.row(tracer)
        return EXHAUSTED if row is None else self.function.call(tracer, collect(tracer, row[0]), {})


class TakeWhileIterator(FunctionIterator):
    """takewhile()."""

    __slots__ = ("ended",)
    class_ = itertools.takewhile

    def __init__(self, function: Value, iterators: list[Value]) -> None:
        super().__init__(function, iterators)
        self.ended = False

    def next(self, tracer: Tracer) -> Any:
        row = None if self.ended else self.row(tracer)
        if row is None:
            return EXHAUSTED
        if self.holds(tracer, row[0]):
            return row[0]
        self.ended = True
        return EXHAUSTED

    def reconstruct(self, emitter: Emitter) -> None:
        if self.ended:
            self.iterators = [TupleValue([])]
        super().reconstruct(emitter)


class DropWhileIterator(FunctionIterator):
    """dropwhile()."""

    __slots__ = ("started",)
    class_ = itertools.dropwhile

    def __init__(self, function: Value, iterators: list[Value]) -> None:
        super().__init__(function, iterators)
        self.started = False

    def next(self, tracer: Tracer) -> Any:
        while (row := self.row(tracer)) is not None:
            if self.started or not self.holds(tracer, row[0]):
                self.started = True
                return row[0]
            tracer.frames.count_iteration()
        return EXHAUSTED

    def reconstruct(self, emitter: Emitter) -> None:
        super().reconstruct(emitter)
        if self.started:
            emitter.call_helper("restore_state", 1, arguments=1)


class CompressIterator(OverIterators):
    """compress()."""

    __slots__ = ()
    class_ = itertools.compress

    def next(self, tracer: Tracer) -> Any:

        while (row := self.row(tracer)) is not None:
            if row[1].truth(tracer):
                return row[0]
            tracer.frames.count_iteration()
        return EXHAUSTED

    def reconstruct(self, emitter: Emitter) -> None:
        emitter.call_function(itertools.compress, arguments=self.load_all(emitter))


class ChainIterator(OverIterators):
    """chain() and chain.from_iterable(): `iterators` is the one over the iterables."""

    __slots__ = ("current",)
    class_ = itertools.chain

    def __init__(self, outer: Value) -> None:
        super().__init__([outer])
        self.current: Value | None = None

    def next(self, tracer: Tracer) -> Any:

        while True:
            if self.current is None:
                row = self.row(tracer)
                if row is None:
                    return EXHAUSTED
                self.current = row[0].iterate(tracer)
            item = self.current.next(tracer)
            if not isinstance(item, End):
                return item
            self.current = None
            tracer.frames.count_iteration()

    def reconstruct(self, emitter: Emitter) -> None:
        self.load_all(emitter)
        if self.current is None:
            emitter.call_function(itertools.chain.from_iterable, arguments=1)
        else:
            emitter.load(self.current)
            emitter.call_helper("new_chain", arguments=2)


class SliceIterator(OverIterators):
    """islice(): `following` is the index of the next item to give, `read` how many were read."""

    __slots__ = ("ended", "following", "read", "step", "stop")
    class_ = itertools.islice

    def __init__(self, iterator: Value, start: int, stop: int | None, step: int) -> None:
        super().__init__([iterator])
        self.following, self.stop, self.step = start, stop, step
        self.read = 0
        self.ended = False

    def next(self, tracer: Tracer) -> Any:
        while self.read < self.following and not self.ended:
            self._read_one(tracer)
            tracer.frames.count_iteration()
        if self.ended or (self.stop is not None and self.read >= self.stop):
            self.ended = True
            return EXHAUSTED
        item = self._read_one(tracer)
        self.following += self.step
        if self.stop is not None:
            self.following = min(self.following, self.stop)
        return item

    def _read_one(self, tracer: Tracer) -> Any:
        row = self.row(tracer)
        if row is None:
            self.ended = True
            return EXHAUSTED
        self.read += 1
        return row[0]

    def reconstruct(self, emitter: Emitter) -> None:
        stop = 0 if self.ended else None if self.stop is None else max(self.stop - self.read, 0)
        start = max(self.following - self.read, 0)
        self.load_all(emitter)
        emitter.call_function(itertools.islice, start, stop, self.step, arguments=1)


class CountIterator(IteratorValue):
    """count()."""

    __slots__ = ("step", "value")

    def __init__(self, value: Value, step: Value) -> None:
        super().__init__()
        self.value, self.step = value, step

    def python_type(self) -> type:
        return itertools.count

    def next(self, tracer: Tracer) -> Any:

        given = self.value
        self.value = tracer.evaluate.binary(tracer, "+", given, self.step)
        return given

    def reconstruct(self, emitter: Emitter) -> None:
        emitter.load(self.value)
        emitter.load(self.step)
        emitter.call_function(itertools.count, arguments=2)


class RepeatIterator(IteratorValue):
    """repeat(); `left` is None without an end."""

    __slots__ = ("item", "left")

    def __init__(self, item: Value, left: int | None) -> None:
        super().__init__()
        self.item, self.left = item, left

    def python_type(self) -> type:
        return itertools.repeat

    def next(self, tracer: Tracer) -> Any:
        if self.left is not None:
            if self.left <= 0:
                return EXHAUSTED
            self.left -= 1
        return self.item

    def reconstruct(self, emitter: Emitter) -> None:
        emitter.load(self.item)
        emitter.call_function(itertools.repeat, *([] if self.left is None else [self.left]), arguments=1)


class CycleIterator(OverIterators):
    """cycle(): items are saved while they are read for the first time; `index` is the place in a later round."""

    __slots__ = ("index", "saved")
    class_ = itertools.cycle

    def __init__(self, iterator: Value) -> None:
        super().__init__([iterator])
        self.saved: list[Value] = []
        self.index: int | None = None

    def next(self, tracer: Tracer) -> Any:
        if self.index is None:
            row = self.row(tracer)
            if row is not None:
                self.saved.append(row[0])
                return row[0]
            self.index = 0
        if not self.saved:
            return EXHAUSTED
        item = self.saved[self.index]
        self.index = (self.index + 1) % len(self.saved)
        return item

    def reconstruct(self, emitter: Emitter) -> None:
        for item in self.saved:
            emitter.load(item)
        emitter.build_list(len(self.saved))
        self.load_all(emitter)
        emitter.call_helper("new_cycle", self.index, arguments=2)


class AccumulateIterator(FunctionIterator):
    """accumulate(); `initial` is given first, `total` is None until something was given."""

    __slots__ = ("initial", "total")
    class_ = itertools.accumulate

    def __init__(self, function: Value, iterator: Value, initial: Value | None) -> None:
        super().__init__(function, [iterator])
        self.initial = initial
        self.total: Value | None = None

    def next(self, tracer: Tracer) -> Any:

        if self.initial is not None:
            self.total, self.initial = self.initial, None
            return self.total
        row = self.row(tracer)
        if row is None:
            return EXHAUSTED
        if self.total is None:
            self.total = row[0]
        elif self.function.is_none():
            self.total = tracer.evaluate.binary(tracer, "+", self.total, row[0])
        else:
            self.total = self.function.call(tracer, [self.total, row[0]], {})
        return self.total

    def reconstruct(self, emitter: Emitter) -> None:
        self.load_all(emitter)
        emitter.load(self.function)
        given = self.initial or self.total
        if given is None:
            emitter.call_function(itertools.accumulate, arguments=2)
            return
        emitter.load(given)
        emitter.call_helper("new_accumulate", 0 if self.initial is not None else 1, arguments=3)


class PairwiseIterator(OverIterators):
    """pairwise()."""

    __slots__ = ("old",)
    class_ = itertools.pairwise

    def __init__(self, iterator: Value) -> None:
        super().__init__([iterator])
        self.old: Value | None = None

    def next(self, tracer: Tracer) -> Any:
        if self.old is None:
            first = self.row(tracer)
            if first is None:
                return EXHAUSTED
            self.old = first[0]
        row = self.row(tracer)
        if row is None:
            return EXHAUSTED
        pair = TupleValue([self.old, row[0]])
        self.old = row[0]
        return pair

    def reconstruct(self, emitter: Emitter) -> None:
        self.load_all(emitter)
        if self.old is not None:
            emitter.load(TupleValue([self.old]))
            emitter.call_helper("put_back", arguments=2)
        emitter.call_function(itertools.pairwise, arguments=1)


class ZipLongestIterator(OverIterators):
    """zip_longest(); ended iterators are taken out of `active`."""

    __slots__ = ("active", "fill")
    class_ = itertools.zip_longest

    def __init__(self, iterators: list[Value], fill: Value) -> None:
        super().__init__(iterators)
        self.fill = fill
        self.active = [True] * len(iterators)

    def next(self, tracer: Tracer) -> Any:

        if not any(self.active):
            return EXHAUSTED
        row = []
        for position, iterator in enumerate(self.iterators):
            item: Any = iterator.next(tracer) if self.active[position] else EXHAUSTED
            if isinstance(item, End):
                self.active[position] = False
                if not any(self.active):
                    return EXHAUSTED
                item = self.fill
            row.append(item)
        return TupleValue(row)

    def reconstruct(self, emitter: Emitter) -> None:
        for iterator, active in zip(self.iterators, self.active, strict=True):
            emitter.load(iterator if active else TupleValue([]))
        emitter.build_tuple(len(self.iterators))
        emitter.load(self.fill)
        emitter.call_helper("new_zip_longest", arguments=2)


class PoolIterator(IteratorValue):
    """product, permutations, combinations...: every pool is read at the start; `rows` are tuples of indices."""

    __slots__ = ("class_", "number", "options", "pools", "rows", "taken")

    def __init__(self, class_: Any, pools: list[list[Value]], number: int | None, options: dict[str, int]) -> None:
        super().__init__()
        self.class_, self.pools, self.number, self.options = class_, pools, number, options
        indices = [range(len(pool)) for pool in pools]
        self.rows: Iterator[tuple[int, ...]] = class_(*indices, *([] if number is None else [number]), **options)
        self.taken = 0

    def python_type(self) -> type:
        return self.class_

    def next(self, tracer: Tracer) -> Any:
        row = next(self.rows, None)
        if row is None:
            return EXHAUSTED
        self.taken += 1
        pools = (
            self.pools * self.options.get("repeat", 1) if self.class_ is itertools.product else self.pools * len(row)
        )
        return TupleValue([pool[index] for pool, index in zip(pools, row, strict=False)])

    def reconstruct(self, emitter: Emitter) -> None:
        for pool in self.pools:
            emitter.load(TupleValue(list(pool)))
        if self.number is not None:
            emitter.constant(self.number)
        emitter.build_tuple(len(self.pools) + (self.number is not None))
        emitter.call_helper("new_pool", self.class_, tuple(self.options.items()), self.taken, arguments=1)


class TeeSource:
    """What the iterators of one tee() share: the iterator, and the items that were read from it."""

    __slots__ = ("iterator", "read")

    def __init__(self, iterator: Value) -> None:
        self.iterator = iterator
        self.read: list[Any] = []

    def item(self, tracer: Tracer, index: int) -> Any:
        """The item at `index`, which is at most the number of those that were read; or an `End`."""

        if index == len(self.read):
            item = self.iterator.next(tracer)
            if isinstance(item, End):
                return EXHAUSTED
            self.read.append(item)
        return self.read[index]


class TeeIterator(IteratorValue):
    """One of the iterators that tee() gives."""

    __slots__ = ("index", "shared")

    def __init__(self, shared: TeeSource, index: int = 0) -> None:
        super().__init__()
        self.shared, self.index = shared, index

    def python_type(self) -> type:
        return type(itertools.tee(())[0])

    def next(self, tracer: Tracer) -> Any:
        item = self.shared.item(tracer, self.index)
        self.index += not isinstance(item, End)
        return item

    def call_method(self, tracer: Tracer, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if name == "__copy__":
            return TeeIterator(self.shared, self.index)
        return super().call_method(tracer, name, args, kwargs)

    def reconstruct(self, emitter: Emitter) -> None:
        raise CannotRebuild("an iterator of itertools.tee, which shares its items with others")


class GroupByIterator(FunctionIterator):
    """groupby(): `key` and `value` are the last that were read, `target` the key of the group that was given."""

    __slots__ = ("ended", "group", "key", "target", "value")
    class_ = itertools.groupby

    def __init__(self, function: Value, iterator: Value) -> None:
        super().__init__(function, [iterator])
        self.key: Value | None = None
        self.target: Value | None = None
        self.value: Value | None = None
        self.group: GroupIterator | None = None
        self.ended = False

    def step(self, tracer: Tracer) -> bool:
        """Read one item and its key; False at the end."""

        row = self.row(tracer)
        if row is None:
            self.ended = True
            return False
        self.value = row[0]
        self.key = row[0] if self.function.is_none() else self.function.call(tracer, row, {})
        return True

    def next(self, tracer: Tracer) -> Any:

        self.group = None
        while self.key is None or (self.target is not None and tracer.evaluate.equal(tracer, self.target, self.key)):
            if not self.step(tracer):
                return EXHAUSTED
        self.target = self.key
        assert self.key is not None
        self.group = GroupIterator(self, self.key)
        return TupleValue([self.key, self.group])

    def reconstruct(self, emitter: Emitter) -> None:

        in_group = (
            self.key is not None
            and self.target is not None
            and emitter.tracer.evaluate.equal(emitter.tracer, self.key, self.target)
        )
        if in_group and not self.ended:
            raise CannotRebuild("itertools.groupby in the middle of a group")
        self.load_all(emitter)
        if self.value is not None and not in_group:
            emitter.load(TupleValue([self.value]))
            emitter.call_helper("put_back", arguments=2)
        emitter.load(self.function)
        emitter.call_function(itertools.groupby, arguments=2)


class GroupIterator(IteratorValue):
    """One group of groupby()."""

    __slots__ = ("parent", "target")

    def __init__(self, parent: GroupByIterator, target: Value) -> None:
        super().__init__()
        self.parent, self.target = parent, target

    def python_type(self) -> type:
        return itertools._grouper  # type: ignore[attr-defined]

    def next(self, tracer: Tracer) -> Any:

        parent = self.parent
        if parent.group is not self or (parent.value is None and not parent.step(tracer)):
            return EXHAUSTED
        if not tracer.evaluate.equal(tracer, self.target, parent.key or Constant(None)):
            return EXHAUSTED
        item, parent.value = parent.value, None
        return item

    def reconstruct(self, emitter: Emitter) -> None:
        if self.parent.group is self:
            raise CannotRebuild("a group of itertools.groupby")
        emitter.load(TupleValue([]))
        emitter.call_function(iter, arguments=1)
