"""Sets in CPython's order, views of dicts as sets, keys with `__eq__` and `__hash__` of their own, deques."""

from __future__ import annotations

import collections
import math
import operator

import pytest
import torch

from bytecap import executor, optimize
from bytecap.testing import Programs

PROGRAMS = Programs()


def vector():
    return torch.arange(3.0)


class Key:
    def __init__(self, value):
        self.value = value

    def __eq__(self, other):
        return isinstance(other, Key) and self.value == other.value

    def __hash__(self):
        return hash(self.value)


class Unhashable:
    def __eq__(self, other):
        return True


@PROGRAMS.add(vector)
def the_order_of_sets(x):
    grown = set()
    for value in (33, 1, 65, 0, 32):
        grown.add(value)
    grown.remove(1)
    grown.add(97)
    return (
        list({3, 1, 2}), list({"b", "a", "c"}), list({10, -1, 5, 100}), list({3, 1} | {2, 0}), list(set("hello")),
        list(grown), list(grown & {33, 0, 97}), list({(1, 2), (0, 1)}), {3, 1, 2}.pop(), list(frozenset([5, 3, 1])),
        x + 1,
    )  # fmt: skip


@PROGRAMS.add(vector, lambda: {1, 2})
def an_outside_set_changes_while_it_is_iterated(x, members):
    try:
        for _ in members:
            members.clear()
    except RuntimeError as error:
        return x + 1, str(error), members


def _shrunk():
    members = set(range(0, 4000, 32))
    members -= set(range(64, 4000, 32))
    return members | {1}


@PROGRAMS.add(vector, _shrunk)
def a_set_that_shrank_is_iterated(x, members):
    return x + 1, list(members)


@PROGRAMS.add(vector)
def operations_of_sets(x):
    some, other = {3, 1, 2}, {2, 5}
    same = some
    some |= {4}
    some &= {1, 2, 4}
    some ^= {2, 9}
    return (
        same is some, some, some | other, some - other, some <= other, some.isdisjoint(other), {1} < {1, 2},
        {1}, frozenset([1]) | {2}, {1} | frozenset([2]), {frozenset([1]): 2}[frozenset([1])], x + 1,
    )  # fmt: skip


class Count(int):
    pass


@PROGRAMS.add(vector)
def what_operators_of_sets_leave(x):
    names, counts, found = {"z"}, {1, 2, Count(3)}, []
    same = names
    names |= {"a": 1}.keys()
    for attempt in (
        lambda: {"a": 1}.values() & {1}, lambda: counts & [1], lambda: {"a": 1}.keys() & 3, lambda: counts.union(3),
        lambda: counts.remove(7), lambda: set().pop(), lambda: counts < [1], lambda: counts | {},
    ):  # fmt: skip
        try:
            found.append(attempt())
        except (TypeError, KeyError) as error:
            found.append((type(error).__name__, str(error)))
    return (
        names, same is names, found, ["b", "q"] & {"b": 1}.keys(), {"a": 1}.keys() - ("a",),
        frozenset([1]) - {2: 1}.keys(), {torch.Size([]), 3}, {()}, {1} in {frozenset([1])},
        [type(count).__name__ for count in sorted(counts)], counts.issubset(range(5)),
        counts.issuperset(count for count in (1, 2)), x + 1,
    )  # fmt: skip


@PROGRAMS.add(vector, lambda: {f"a{number}" for number in range(15)})
def a_set_from_outside_in_its_order(x, names):
    return list(names), len(names), "a5" in names, frozenset(names).copy() == names, x + 1


@PROGRAMS.add(vector, lambda: {1, 2}, lambda: frozenset(["a"]))
def sets_from_outside(x, members, names):
    members.add(3)
    members.discard(1)
    return sorted(members), names | {"b"}, x + 1


@PROGRAMS.add(vector, lambda: {torch.nn.Linear, torch.float16, 3}, lambda: {math.sin, len}, lambda: frozenset([int]))
def sets_of_what_is_hashed_by_identity(x, kinds, functions, classes):
    functions.add(math.cos)
    return (
        [str(kind) for kind in kinds], torch.float16 in kinds, torch.nn.Conv2d in kinds, len(functions),
        math.cos in functions, int in classes, x + 1,
    )  # fmt: skip


def test_a_set_of_classes_is_guarded_with_its_order():
    members = {torch.nn.Linear, torch.float16, 3}

    def program(x, kind):
        return x + 1 if kind in members else x - 1, [str(member) for member in members]

    compiled = optimize(program, lambda capture, _: executor(capture))
    for change in (lambda: None, lambda: members.add(int), lambda: members.discard(torch.nn.Linear), members.clear):
        change()
        for kind in (torch.nn.Linear, int, 3):
            assert str(compiled(vector(), kind)) == str(program(vector(), kind))


class Rated:
    def __init__(self, rate):
        self.rate = rate


def test_sets_of_any_members_from_outside_are_guarded_by_their_members():
    rated, module = Rated(2), torch.nn.Linear(3, 3)
    members = {rated, module, (1, Rated), b"bytes", "text", 7.0, frozenset({1, (2, 3)})}

    def program(x, one, other):
        found = sorted(str(type(member)) for member in members), one in members, other in members
        rates = [member.rate for member in members if isinstance(member, Rated)]
        return found, rates, x * len(members), (1, Rated) in members, frozenset({(2, 3), 1}) in members

    compiled = optimize(program, lambda capture, _: executor(capture), fullgraph=True, recompile_limit=100)
    changes = (
        lambda: None, lambda: setattr(rated, "rate", 5), lambda: members.add(Rated(9)), lambda: members.remove(rated),
        lambda: members.discard((1, Rated)), lambda: members.remove(module), members.clear,
    )  # fmt: skip
    for change in changes:
        change()
        for one, other in ((rated, module), (Rated(2), module), (torch.nn.Linear(3, 3), torch.ones(2)), (b"bytes", 7)):
            assert str(compiled(vector(), one, other)) == str(program(vector(), one, other))


def test_tensors_and_keys_of_the_program_in_sets_from_outside():
    tensor = torch.ones(3)
    tensors, keys = {tensor}, {Key("k")}

    def program(x, one):
        return [x * member for member in tensors], one in tensors, Key("k") in keys, Key(7) in keys, len(keys)

    compiled = optimize(program, lambda capture, _: executor(capture), fullgraph=True, recompile_limit=100)
    for change in (lambda: None, lambda: tensor.mul_(3), lambda: keys.add(Key(7)), lambda: tensors.add(torch.ones(3))):
        change()
        for one in (tensor, torch.ones(3), torch.zeros(2)):
            assert str(compiled(vector(), one)) == str(program(vector(), one))


def test_tensors_are_iterated_in_the_order_of_their_own_hashes():
    alive = []
    for number in range(20):
        tensors = {torch.full((1,), float(rate)) for rate in range(3)}
        alive += [tensors, bytearray(number * 7)]  # the next ones lie elsewhere

        def program(x, tensors=tensors):
            return [x * member for member in tensors]

        compiled = optimize(program, lambda capture, _: executor(capture), fullgraph=True)
        assert str(compiled(vector())) == str(program(vector()))


@pytest.mark.parametrize("count", [1, 4, 5, 6, 9, 40])
def test_a_frozen_copy_of_a_set_has_an_order_of_its_own(count):
    modules = [torch.nn.Linear(1, 1) for _ in range(count)]
    frozen = frozenset(set(modules))

    def program(x):
        return x * len(frozen), [member is modules[0] for member in frozen]

    compiled = optimize(program, lambda capture, _: executor(capture), fullgraph=True)
    assert str(compiled(vector())) == str(program(vector()))


@PROGRAMS.add(vector)
def views_as_sets(x):
    left, right = {"a": 1, "b": 2}, {"b": 2, "c": 3}
    return (
        left.keys() & right.keys(), left.keys() | right, left.keys() - {"a"}, {"a", "q"} - left.keys(),
        left.items() & right.items(), ("a", 1) in left.items(), ("a", 2) in left.items(), left.keys() == {"a", "b"},
        left.keys() <= {"a", "b", "q"}, left.keys().isdisjoint({"q"}), x + 1,
    )  # fmt: skip


@PROGRAMS.add(vector)
def keys_with_equality_of_their_own(x):
    found = {Key(1): "a", Key(2): "b"}
    return found[Key(1)], Key(2) in found, Key(3) in found, len({Key(1), Key(1), Key(2)}), hash(Key(5)) == hash(5), x


@PROGRAMS.add(vector)
def keys_without_a_hash(x):
    messages = []
    for attempt in (lambda: {Unhashable(): 1}, lambda: {[]: 1}, lambda: {(1, []): 2}, lambda: {{}}):
        try:
            attempt()
        except TypeError as error:
            messages.append(str(error))
    return messages, x + 1


@PROGRAMS.add(vector)
def bounded_deques(x):
    queue = collections.deque([1, 2, 3], maxlen=4)
    queue.append(4)
    queue.append(5)
    queue.appendleft(x)
    queue.rotate(1)
    copied = queue.copy()
    copied.extendleft([7, 8])
    return queue, queue.maxlen, copied, queue == copied, list(reversed(copied)), collections.deque("ab") + copied


class Answers:
    def __init__(self):
        self.numbers, self.names = [1, 2], {"k": 5}

    def __getitem__(self, key):
        return (key,)

    def method(self, x, *, y=1):
        return x + y


@PROGRAMS.add(vector)
def what_constructors_and_getters_of_c_say(x):
    answers, said = Answers(), []
    for attempt in (
        lambda: operator.itemgetter(slice(0, 1), 5)(answers), lambda: operator.itemgetter("k", "z")(answers.names),
        lambda: operator.attrgetter("numbers.append")(answers)(4), lambda: operator.attrgetter("nope")(answers),
        lambda: operator.methodcaller("method", 3, y=4)(answers), lambda: operator.methodcaller("method")(answers),
        lambda: operator.itemgetter(1)(3), lambda: operator.itemgetter(1)(), lambda: operator.attrgetter("shape")(x),
        lambda: collections.deque([1, 2, 3], 2), lambda: collections.deque(maxlen=-1),
        lambda: collections.deque([1], "a"), lambda: range(3, 9, 2),
        lambda: range(1.5), lambda: range(1, 2, 0), lambda: range(True),
    ):  # fmt: skip
        try:
            said.append(attempt())
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            said.append((type(error).__name__, str(error)))
    return said, answers.numbers, x + 1


@PROGRAMS.add(vector, lambda: collections.deque([1, 2], maxlen=3), collections.deque)
def deques_from_outside(x, bounded, free):
    bounded.append(3)
    bounded.append(x)
    free.appendleft(bounded[0])
    return len(bounded), free


@PROGRAMS.add(vector)
def counters(x):
    counted = collections.Counter("abca")
    counted.update("zz")
    counted["q"] += 1
    return counted["nope"], counted.most_common(2), counted + collections.Counter(a=1), counted.total(), x + 1


@pytest.mark.parametrize("program", PROGRAMS, ids=str)
def test_same_as_plain(program):
    program.check()
