"""Iterators: laziness, exceptions of callbacks, what is left of a started one when it leaves the frame."""

from __future__ import annotations

import bisect
import collections
import copy
import functools
import heapq
import itertools
import operator

import pytest
import torch

from bytecap import executor, optimize
from bytecap.objects.live import call_native
from bytecap.testing import Programs

PROGRAMS = Programs()


def vector():
    return torch.arange(3.0)


@PROGRAMS.add(vector)
def iterators_of_itertools(x):
    return (
        list(itertools.accumulate([1, 2, 3], operator.mul, initial=10)),
        list(itertools.accumulate([x, x * 2])),
        list(itertools.chain.from_iterable([[1], (x,), "ab"])),
        list(itertools.combinations_with_replacement([1, 2], 2)),
        list(itertools.product("ab", repeat=2)),
        list(itertools.permutations([1, x], 2)),
        list(itertools.zip_longest([1, 2, 3], [4, x], fillvalue=0)),
        list(itertools.filterfalse(lambda v: v % 2, range(6))),
        list(itertools.compress("abcdef", [1, 0, 1, 0, 1, 1])),
        list(itertools.starmap(pow, [(2, 3)])),
        list(itertools.islice(itertools.count(5, 3), 1, 7, 2)),
        list(itertools.pairwise([1, 2, x])),
        [(key, list(group)) for key, group in itertools.groupby([1, 1, 2, 3], key=lambda v: v // 2)],
        [key for key, group in itertools.groupby("aabbbc")],
    )


@PROGRAMS.add(vector)
def one_source_of_two_iterators(x):
    first, second = itertools.tee(iter([1, 2, x]))
    return next(first), list(second), list(first)


@PROGRAMS.add(vector)
def no_item_is_read_too_early(x):
    log = []

    def noted():
        for value in range(4):
            log.append(value)
            yield value

    cycle = itertools.cycle(noted())
    longest = itertools.zip_longest(itertools.count(), [x, x])
    taken = [next(cycle), next(longest), next(longest), next(longest)]
    try:
        log += (lambda a, b: [a, b])(*noted()) if x is None else [None for a, b in [noted()]]
    except ValueError as error:
        log.append(str(error))
    return taken, log


@PROGRAMS.add(vector)
def a_callback_that_raises_leaves_the_iterator_usable(x):
    def picky(value):
        if value == 1:
            raise ValueError(value)
        return value

    found = []
    for iterator in (map(picky, range(4)), filter(picky, [3, 1, 2]), itertools.starmap(picky, [(0,), (1,), (2,)])):
        while True:
            try:
                found.append(next(iterator))
            except ValueError:
                found.append("refused")
            except StopIteration:
                break
    return found, x + 1


@PROGRAMS.add(vector)
def lengths_that_differ(x):
    messages = []
    for rows in (([1, 2], [3]), ([1], [3, 4]), ([1], [3], [5, 6])):
        try:
            list(zip(*rows, strict=True))
        except ValueError as error:
            messages.append(str(error))
    return messages, x + 1


@PROGRAMS.add(vector)
def started_iterators_leave_the_frame(x):
    items = [1, 2, 3]
    pairs = {"a": 1, "b": 2}
    started = (
        iter(items), reversed([1, 2, x]), zip([1, 2], [3, x], strict=True), enumerate([1, 2, x], 5), map(abs, [-1, -2]),
        filter(None, [1, 0, 2]), iter(range(5)), iter("abc"), iter(pairs), iter(pairs.items()), reversed(pairs),
        itertools.chain([1, 2], [x]), itertools.islice([1, 2, 3, 4, 5], 1, 5, 2), itertools.cycle([1, 2, 3]),
        itertools.repeat(x, 3), itertools.product([1, 2], [3, 4]), itertools.accumulate([1, 2, 3]),
        itertools.takewhile(lambda v: v < 3, [1, 2, 3, 1]), itertools.dropwhile(lambda v: v < 2, [1, 2, 1]),
        itertools.pairwise([1, 2, 3, 4]), itertools.zip_longest([1, 2], [3]), itertools.starmap(pow, [(1, 2), (2, 3)]),
        iter(collections.deque([1, 2])), iter([5, 6].pop, 5), itertools.groupby([1, 2, 2]),
    )  # fmt: skip
    for iterator in started:
        if not isinstance(iterator, itertools.groupby):
            next(iterator)
    items.append(4)
    return [(type(iterator).__name__, iterator) for iterator in started], items, pairs


@PROGRAMS.add(vector, list, list, list)
def iterators_over_what_has_grown_find_their_place(x, queue, stack, again):
    queue.extend([1, 2, 3])
    stack += [x, 2, 3]
    ahead, back = iter(queue), reversed(stack)
    late = iter(again)
    again.extend([1, 2, 3])
    started = [next(ahead), next(back), next(late), next(late)]
    again.clear()
    again += [7, 8, 9]
    return ahead, back, late, started, queue, x + 1


@PROGRAMS.add(vector)
def classes_of_iterators(x):
    made = (iter([]), iter(()), iter({}), iter({}.items()), iter(set()), iter(""), iter(range(1)), reversed(()),
            reversed({}), iter(int, 1), enumerate([]), zip([], strict=True), map(int, []))  # fmt: skip
    return [type(iterator).__name__ for iterator in made], x + 1


@PROGRAMS.add(vector)
def changes_during_iteration(x):
    messages = []
    pairs, members, queue = {1: 2}, {1}, collections.deque([1, 2])
    for container, change in ((pairs, pairs.popitem), (members, members.clear), (queue, queue.clear)):
        try:
            for _ in container:
                change()
        except RuntimeError as error:
            messages.append(str(error))
    return messages, x + 1


@PROGRAMS.add(vector)
def what_cannot_be_iterated(x):
    messages = []
    for attempt in (lambda: iter(5), lambda: next([1]), lambda: [*5], lambda: zip(5, strict=True), lambda: len(3)):
        try:
            attempt()
        except TypeError as error:
            messages.append(str(error))
    return messages, x + 1


@PROGRAMS.add(vector)
def sums_are_those_of_python(x):
    return sum([0.1] * 10), sum((x, x), start=x), sum(iter([(1,), (2,)]), start=()), sum(iter([True, 2.5]))


@PROGRAMS.add(vector)
def copies_of_one_iterator_leave_the_frame(x):
    first, second = itertools.tee(map(abs, [-1, -2, x, -4]))
    third = copy.copy(first)
    return next(first), next(first), first, second, third, x + 1


@PROGRAMS.add(vector)
def a_callback_that_stops_ends_what_it_feeds(x):
    def until_two(value):
        if value == 2:
            raise StopIteration
        return value

    chained = list(itertools.chain(map(until_two, [1, 2, 3]), [x]))
    try:
        functools.reduce(lambda total, value: until_two(value), [0, 1, 2, 3])
    except StopIteration:
        chained.append("stopped")
    return chained, list(zip(map(until_two, range(5)), "abcde", strict=False))


@PROGRAMS.add(vector)
def what_c_code_refuses(x):
    messages = []
    for attempt in (
        lambda: itertools.islice([1], "a"), lambda: itertools.islice([1], -1), lambda: sorted([2, 1], reverse=None),
        lambda: itertools.permutations([1], "a"), lambda: heapq.heappop([]), lambda: heapq.heappush((), 1),
        lambda: bisect.bisect([1], 1, -1), lambda: max([]), lambda: sorted([1, "a"]), lambda: map(), lambda: max(1),
        lambda: functools.reduce(max, []), lambda: sorted([1], kee=abs),
    ):  # fmt: skip
        try:
            attempt()
        except Exception as error:
            messages.append((type(error).__name__, str(error)))
    return messages, x + 1


class Weight:
    """Compares itself, and counts how often."""

    compared = 0

    def __init__(self, value):
        self.value = value

    def __lt__(self, other):
        Weight.compared += 1
        return self.value < other.value


@PROGRAMS.add(vector, list)
def sorts_and_heaps_call_back(x, heap):
    weights = [Weight(value) for value in (3, 1, 2, 5, 4)]
    ordered = [weight.value for weight in sorted(weights)]
    for weight in weights:
        heapq.heappush(heap, (weight.value, x))
    bisect.insort(ordered, 2.5, key=float)
    least = heapq.heappop(heap)[0]
    queue = [Weight(1), Weight(2)]
    try:
        heapq.heappush(queue, Weight("a"))
    except TypeError as error:
        return (
            ordered,
            least,
            heap,
            len(queue),
            str(error),
            min(weights).value,
            max(weights, key=lambda w: -w.value).value,
        )


class Countdown:
    """An iterator that is its own."""

    def __init__(self, start):
        self.left = start

    def __iter__(self):
        return self

    def __next__(self):
        if not self.left:
            raise StopIteration
        self.left -= 1
        return self.left


@PROGRAMS.add(vector)
def an_object_is_its_own_iterator(x):
    counts = Countdown(3)
    started = iter(counts)
    return started is counts, next(started), list(counts), x + 1


@PROGRAMS.add(vector)
def ended_iterators_of_containers(x):
    names, queue = {"a": x, "b": 2}, collections.deque([1, x])
    ended = [iter(names), iter(names.values()), reversed(names), iter(queue), reversed(queue), iter({1})]
    taken = [len(list(each)) for each in ended]
    return taken, [list(each) for each in ended], [type(each) for each in ended], x + 1


@PROGRAMS.add(vector)
def ended_iterators_leave_the_frame(x):
    names, queue = {"a": 1, "b": 2}, collections.deque([1, 2])
    ended = [iter(names), iter(names.items()), reversed(queue), iter({1})]
    return [len(list(each)) for each in ended], ended, names, queue, x + 1


def test_a_sort_asks_no_more_than_cpython_does():
    def program(x, values):
        weights = [Weight(value) for value in values]
        Weight.compared = 0
        return [weight.value for weight in sorted(weights)], Weight.compared, x + 1

    arguments = vector(), [3, 1, 2, 5, 4]
    plain, captured = program(*arguments), optimize(program, lambda capture, _: executor(capture))(*arguments)
    assert captured[:2] == plain[:2]


def test_a_fault_of_the_evaluator_is_no_exception_of_the_program():
    def faulty(number):
        raise ValueError(number)

    with pytest.raises(ValueError, match="3"):
        call_native(None, lambda: faulty(3))


@pytest.mark.parametrize("program", PROGRAMS, ids=str)
def test_same_as_plain(program):
    program.check()
