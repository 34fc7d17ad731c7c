"""Programs run plain and captured: dictionaries and sets with weak references to outside objects as keys."""

from __future__ import annotations

import weakref

import pytest
import torch

from bytecap import executor, optimize
from bytecap.errors import UnsupportedCall


class Key:
    pass


class Held:
    """Two keys, a dictionary and a set that know the first one, and how often they were asked."""

    def __init__(self) -> None:
        self.first, self.second = Key(), Key()
        self.known = weakref.WeakKeyDictionary({self.first: 3})
        self.members = weakref.WeakSet([self.first])
        self.calls = 0

    def content(self):
        return self.known.get(self.first), self.known.get(self.second), len(self.known), len(self.members)


def ones() -> torch.Tensor:
    return torch.ones(3)


def stored(x, held):
    held.known[held.first] = x * 2
    held.known[held.second] = 5
    return x * held.known[held.second] + held.known[held.first], len(held.known), held.second in held.known


def read_behind_a_change(x, held):
    held.calls += 1
    first, second = held.first in held.members, held.second in held.members
    return x * held.known[held.first], first, second, held.second in held.known


def removed(x, held):
    held.known[held.second] = 1
    del held.known[held.second]
    return x * 2, held.known.pop(held.first), held.second in held.known, held.known.setdefault(held.second, x)


def added(x, held):
    held.members.add(held.second)
    held.members.add(held.second)
    return x * len(held.members), held.second in held.members


def compared(x, held):
    held.calls += 1
    references = weakref.ref(held.first), weakref.ref(held.first), weakref.ref(held.second)
    return x + 1, references[0] == references[1], references[0] == references[2], references[0] != references[2]


def of_new_objects(x, held):
    known, key = weakref.WeakKeyDictionary(), Key()
    known[key] = 2
    return x * known[key]


@pytest.mark.parametrize("program", [stored, read_behind_a_change, removed, added, compared, of_new_objects])
def test_same_as_plain(program):
    def observed(function):
        held = Held()
        return str(function(ones(), held)), str(held.content())

    expected = observed(program)
    whole = optimize(program, lambda capture, inputs: executor(capture), fullgraph=True)
    if program is of_new_objects:
        with pytest.raises(UnsupportedCall, match="weak reference"):
            observed(whole)
    else:
        assert [observed(whole), observed(whole)] == [expected, expected]
    assert observed(optimize(program, lambda capture, inputs: executor(capture))) == expected


def test_an_entry_ends_with_its_key():
    held = Held()
    optimize(stored, lambda capture, inputs: executor(capture), fullgraph=True)(ones(), held)
    assert len(held.known) == 2
    held.second = None
    assert len(held.known) == 1
