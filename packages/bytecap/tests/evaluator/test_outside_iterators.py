"""Started iterators from outside: one capture for each place in a loop, and they are asked as often as in eager."""

from __future__ import annotations

import itertools
from collections import OrderedDict

import pytest
import torch

from bytecap import Broke, Captured, LimitReached, executor, optimize
from bytecap.hook import has_upcoming, iterated, upcoming


class Rows(list):
    pass


class Record:
    def __init__(self):
        self.first, self.second, self.third = 1, 2, 3


def without_some_keys():
    made = dict.fromkeys(range(9), 2.0)
    del made[0], made[4]
    return iter(made.items())


MAKERS = {
    "list": lambda: iter([1, 2, 3]),
    "list of tensors": lambda: iter([torch.ones(2), torch.zeros(2), torch.ones(2)]),
    "list subclass": lambda: iter(Rows([1, 2, 3])),
    "tuple": lambda: iter((1, "two", None)),
    "range": lambda: iter(range(20, 4, -5)),
    "keys": lambda: iter({"a": 1, "b": 2}),
    "values": lambda: iter(vars(Record()).values()),
    "items": without_some_keys,
    "values of an ordered dict": lambda: iter(dict.values(OrderedDict(a=1, b=2))),
    "enumerate": lambda: enumerate(["x", "y", "z"], 5),
    "zip": lambda: zip([1, 2, 3], (4, 5), range(9), strict=False),
    "zip of nothing": lambda: zip(strict=False),
    "nested": lambda: enumerate(zip({"a": 1, "b": 2}.items(), enumerate([7, 8]), strict=False)),
    "empty": lambda: iter([]),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_what_comes_is_told_without_asking(make):
    every = list(make())
    for asked in range(len(every) + 2):
        iterator = make()
        for _ in range(asked):
            next(iterator, None)
        left = every[asked:]
        assert [has_upcoming(iterator, at) for at in range(5)] == [at < len(left) for at in range(5)]
        told = [upcoming(iterator, at) for at in range(len(left))]
        assert repr(told) == repr(left)
        assert repr(list(iterator)) == repr(left)


def grown_dict():
    known = {1: 1, 2: 2}
    iterator = iter(known)
    next(iterator)
    known[3] = 3
    return iterator


def counting_past_machine_words():
    return enumerate([1], 2**63 - 1)


ONE = iter([1, 2, 3, 4])
UNKNOWN = {
    "map": lambda: map(abs, [1]),
    "strict zip": lambda: zip([1], [2], strict=True),
    "zip of one iterator twice": lambda: zip(ONE, ONE, strict=False),
    "zip of one iterator at two levels": lambda: zip(enumerate(ONE), ONE, strict=False),
    "generator": lambda: (item for item in [1]),
    "grown dict": grown_dict,
    "large index": counting_past_machine_words,
    "no iterator": lambda: 3,
}


@pytest.mark.parametrize("make", UNKNOWN.values(), ids=UNKNOWN)
def test_nothing_is_told_of_others(make):
    for function in (has_upcoming, upcoming):
        with pytest.raises(LookupError):
            function(make(), 0)


def test_what_items_come_from():
    items, inner = [1], iter([2])
    assert iterated(iter(items))[0] is items
    assert iterated(enumerate(inner))[0] is inner
    assert iterated(iter(range(3))) == ()


class Eager:
    takes_symbols = True

    def __call__(self, capture, inputs):
        return executor(capture)


def captured(function, **options):
    """The compiled function, and its events."""
    events = []
    return optimize(function, Eager(), on_event=events.append, **options), events


def captures(events):
    return sum(isinstance(event, Captured) for event in events)


def first_of(iterator, x):
    return x + 1, next(iterator, "none")


def rest_of(iterator, x):
    return x + 1, list(iterator), next(iterator, "none")


def two_of(iterator, x):
    for item in iterator:
        return x + 1, item, next(iterator, "none")


@pytest.mark.parametrize("program", [first_of, two_of, rest_of])
@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_it_is_asked_as_often_as_in_eager(make, program):
    compiled, _ = captured(program, fullgraph=True)
    ours, plain, x = make(), make(), torch.ones(2)
    for _ in range(4):
        assert repr(compiled(ours, x)) == repr(program(plain, x))
        assert repr([upcoming(ours, at) for at in range(5) if has_upcoming(ours, at)]) == repr(
            [upcoming(plain, at) for at in range(5) if has_upcoming(plain, at)]
        )
    assert repr(list(ours)) == repr(list(plain))


def test_one_capture_holds_at_each_place():
    items = [torch.full((2,), float(at)) for at in range(8)]

    def program(iterator):
        return next(iterator) * 2

    compiled, events = captured(program, fullgraph=True)
    iterator = iter(items)
    for item in items:
        assert torch.equal(compiled(iterator), item * 2)
    assert captures(events) == 1


def branching(x, iterable):
    for scale in iterable:
        x = x * 0.5 + scale
        if x.sum() > 0:
            x = x * 0.25 + 1
    return x


LOOPS = {
    "list": lambda: [1.0] * 6,
    "range": lambda: range(2, 8),
    "dict": lambda: dict.fromkeys([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]),
}


@pytest.mark.parametrize("make", LOOPS.values(), ids=LOOPS)
def test_a_loop_that_breaks_is_one_graph_a_pass(make):
    """FOR_ITER is no break: the rest of a pass and the start of the next are one graph."""
    compiled, events = captured(branching)
    x = torch.ones(3)
    for _ in range(3):
        assert torch.equal(compiled(x, make()), branching(x, make()))
    places = {str(event.error.where) for event in events if isinstance(event, Broke)}
    assert len(places) == 1
    made = captures(events)
    assert torch.equal(compiled(x, make()), branching(x, make()))
    assert captures(events) == made <= 6


def test_numbers_of_a_range_are_symbols():
    def program(x):
        for count in range(2, 12):
            x = x.repeat(2)[:count] + count
            if x.sum() < 0:
                return x
        return x

    compiled, events = captured(program)
    for _ in range(2):
        assert torch.equal(compiled(torch.ones(2)), program(torch.ones(2)))
    assert captures(events) <= 6


def test_layers_of_a_model():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleList(torch.nn.Linear(3, 3) for _ in range(6))

        def forward(self, x):
            for at, layer in enumerate(self.layers):
                if x.sum() > 1000 + at:
                    continue
                x = layer(x).relu() + 1
            return x

    model, x = Model(), torch.ones(2, 3)
    compiled, events = captured(model)
    assert torch.equal(compiled(x), model(x))
    made = captures(events)
    assert torch.equal(compiled(x), model(x))
    assert captures(events) == made
    assert len({str(event.error.where) for event in events if isinstance(event, Broke)}) == 1
    model.layers[4].weight.data.zero_()
    assert torch.equal(compiled(x), model(x))
    model.layers[2] = torch.nn.Identity()
    assert torch.equal(compiled(x), model(x))


class Step(torch.nn.Module):
    pass


def steps(count):
    """Modules of as many classes."""
    kinds = [type(f"Step{at}", (Step,), {"forward": lambda self, x, at=at: x * 0.5 + at}) for at in range(count)]
    return [kind() for kind in kinds]


def over_items(x, layers):
    for layer in layers:
        x = layer(x)
        if x.sum() > 1000:
            return x
    return (x * 2 + 1).cos()


def over_pairs(x, layers):
    for (at, layer), other in zip(enumerate(layers), layers[::-1], strict=False):
        x = layer(x) + at
        if x.sum() > 1000:
            return x
        x = other(x)
    return (x * 2 + 1).cos()


@pytest.mark.parametrize("program", [over_items, over_pairs])
def test_items_of_more_classes_than_there_are_captures(program):
    """The last captures leave open of which class an item is: the limit is not reached."""
    compiled, events = captured(program)
    layers = steps(14)
    for _ in range(3):
        assert torch.equal(compiled(torch.ones(2), layers), program(torch.ones(2), layers))
    assert not any(isinstance(event, LimitReached) for event in events)


def test_loops_in_loops_do_not_use_up_the_limit():
    """What differs is told from captures that had as many items left, not from the end of the inner loop."""
    layers = [torch.nn.Linear(2, 2) for _ in range(9)]
    for at, layer in enumerate(layers):
        layer.number = at

    def program(x):
        for layer in layers:
            for scale in range(3):
                x = torch.tanh(layer(x) + layer.number) * scale
                if x.sum() > 1000:
                    break
        return (x + 1).cos()

    compiled, events = captured(program)
    for _ in range(3):
        assert torch.equal(compiled(torch.ones(2)), program(torch.ones(2)))
    assert not any(isinstance(event, LimitReached) for event in events)


def write_before(items, iterator, x):
    items.append(7)
    return list(iterator), x + 1


def write_behind(items, iterator, x):
    found = list(iterator)
    items.append(7)
    return found, next(iterator, "none"), x + 1


def write_between(items, iterator, x):
    found = [next(iterator)]
    items[1:] = [8, 9]
    return found, list(iterator), x + 1


def overwrite(items, iterator, x):
    items.clear()
    return next(iterator, "none"), x + 1


@pytest.mark.parametrize("program", [write_before, write_behind, write_between, overwrite])
@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["of another list first", "of the same list first"])
def test_the_program_writes_into_what_it_iterates_over(program, order):
    compiled, _ = captured(program)

    def run(function, which):
        items = [[1, 2, 3], [4, 5, 6]]
        iterator = iter(items[0])
        result = function(items[which], iterator, torch.ones(2))
        return repr(result), items, list(iterator)

    for which in (*order, *order):
        assert run(compiled, which) == run(program, which)


def both(first, second, x):
    return next(first, "none"), next(second, "none"), next(first, "none"), x + 1


def pairs(draw):
    source = iter(range(9))
    return {
        "apart": (enumerate(range(9)), source),
        "one": (source, source),
        "enumerate over it": (enumerate(source), source),
        "it under enumerate": (source, enumerate(source)),
        "zip over it": (zip([7, 8, 9], source, strict=False), source),
    }[draw]


DRAWS = ("apart", "one", "enumerate over it", "it under enumerate", "zip over it")


@pytest.mark.parametrize("draws", [*itertools.permutations(DRAWS, 2)], ids="then ".join)
def test_iterators_that_take_from_one_another(draws):
    compiled, _ = captured(both)

    def run(function, draw):
        first, second = pairs(draw)
        return repr(function(first, second, torch.ones(2))), list(second), list(first)

    for draw in (*draws, *draws):
        assert run(compiled, draw) == run(both, draw)


OVER = {
    "itself": lambda iterator: iterator,
    "enumerate": enumerate,
    "zip": lambda iterator: zip("abcdef", iterator, strict=False),
    "map": lambda iterator: map(str, iterator),
    "islice": lambda iterator: itertools.islice(iterator, 1, 4),
    "chain": lambda iterator: itertools.chain([0], iterator),
    "pairwise": itertools.pairwise,
    "tee": lambda iterator: itertools.tee(iterator)[1],
}


@pytest.mark.parametrize("make", OVER.values(), ids=OVER)
def test_what_is_made_of_it_leaves_the_frame(make):
    def program(iterator, x):
        made = make(iterator)
        return next(made), made, next(made), x + 1

    compiled, _ = captured(program, fullgraph=True)

    def run(function):
        iterator = iter(range(9))
        next(iterator)
        first, made, second, _ = function(iterator, torch.ones(2))
        return first, second, next(iterator, "none"), list(made), list(iterator)

    for _ in range(2):
        assert run(compiled) == run(program)


def test_an_iterator_that_raises_raises():
    def program(known, iterator, x):
        y = x * 2 + 1
        return next(iterator), y

    compiled, _ = captured(program)
    for _ in range(3):
        iterator = grown_dict()
        with pytest.raises(RuntimeError, match="changed size"):
            compiled({}, iterator, torch.ones(2))


def test_an_error_behind_an_item_leaves_the_iterator_as_eager_does():
    def program(iterator, x):
        first = next(iterator)
        return torch.index_select(x, 0, first)

    compiled, _ = captured(program)
    indices = [torch.tensor([1]), torch.tensor([9]), torch.tensor([0])]
    ours, plain, x = iter(indices), iter(indices), torch.arange(3.0)
    for function, iterator in ((compiled, ours), (program, plain)):
        assert function(iterator, x).item() == 1
        with pytest.raises(IndexError):
            function(iterator, x)
        assert function(iterator, x).item() == 0
        assert not list(iterator)
