"""copy.deepcopy in captured code: nothing shared that can change, identities inside kept, classes' own rules."""

from __future__ import annotations

import copy
import datetime
import enum
import functools
import itertools
from collections import OrderedDict, defaultdict, deque
from types import SimpleNamespace

import pytest
import torch

from bytecap import executor, optimize
from bytecap.testing import Programs

PROGRAMS = Programs()


def tensor() -> torch.Tensor:
    return torch.arange(3.0)


class Kind(enum.Enum):
    ONE = 1


class Config:
    def __init__(self) -> None:
        self.sizes = [1, [2, 3]]
        self.names = {"k": (1, [3]), 5: {1, 2}}
        self.me = self
        self.kind = Kind.ONE
        self.dtype = torch.float32
        self.fixed = (1, "a", None)


class Tagged(Config):
    def __deepcopy__(self, memo: dict) -> Tagged:
        made = type(self).__new__(type(self))
        made.__dict__.update(copy.deepcopy({"sizes": self.sizes, "me": None}, memo))
        made.tag = "copy"
        return made


class Named(dict):
    """A dict with attributes."""


def named() -> Named:
    made = Named(a=[1])
    made.extra = [2]
    return made


class Pickled:
    def __init__(self) -> None:
        self.x = 1

    def __getstate__(self) -> dict:
        return {"x": 2}


def describe(config: Config) -> dict:
    """What can be compared of a cyclic object."""
    return {key: value for key, value in vars(config).items() if key != "me"}


@PROGRAMS.add(tensor, Config)
def an_object(x, config):
    made = copy.deepcopy(config)
    made.sizes[1].append(9)
    made.names["k"][1].clear()
    same = made.me is made, made.fixed is config.fixed, made.kind is config.kind, made.sizes is config.sizes
    return x * made.sizes[1][0], describe(made), describe(config), same


@PROGRAMS.add(tensor, Tagged)
def its_own_rule(x, config):
    made = copy.deepcopy([config, config])
    return x + 1, made[0].tag, made[0] is made[1], made[0].sizes, made[0].sizes is config.sizes


@PROGRAMS.add(tensor, Config)
def an_attribute_dictionary(x, config):
    made = copy.deepcopy({key: value for key, value in config.__dict__.items() if key != "me"})
    made["sizes"].append(x * 2)
    return made, len(config.sizes)


@PROGRAMS.add(tensor, lambda: OrderedDict(b=[1], a=[2]), lambda: defaultdict(list, q=[1]), named)
def kinds_of_dicts(x, ordered, default, own):
    first, second, third = copy.deepcopy((ordered, default, own))
    first.move_to_end("b")
    second["new"].append(1)
    third.extra.append(3)
    return x - 1, first, second, third, third.extra, ordered, default, own, own.extra, type(third) is type(own)


@PROGRAMS.add(tensor)
def new_values_and_shared_items(x):
    shared = [1]
    made = copy.deepcopy([shared, shared, (shared, 2), {3}, Kind.ONE, len, Config, 2.5, "text"])
    made[0].append(2)
    return x.sum(), made, made[0] is made[1], made[2][0] is made[0], shared


@PROGRAMS.add(tensor, Pickled)
def methods_of_pickling(x, value):
    return x + copy.deepcopy(value).x


class Slotted:
    __slots__ = ("count", "rows")


def slotted() -> Slotted:
    made = Slotted()
    made.count, made.rows = 2, [1]
    return made


@PROGRAMS.add(tensor, slotted, refusal="BC002")
def a_shallow_copy_of_slots(x, value):
    value.count += 1
    made = copy.copy(value)
    return x + made.count, made.rows is value.rows, hasattr(value, "__dict__")


@PROGRAMS.add(tensor, Pickled)
def a_shallow_copy_by_methods_of_pickling(x, value):
    return x + copy.copy(value).x


@PROGRAMS.add(tensor)
def a_tensor(x):
    return copy.deepcopy([x + 1])


class Rows(list):
    """A list with attributes."""


class Pair(tuple):
    """A tuple with attributes."""


class Reduced:
    def __init__(self, value: object) -> None:
        self.value = value

    def __reduce__(self) -> tuple:
        return Reduced, (("reduced", self.value),)


def row() -> Rows:
    made = Rows([[1], 2])
    made.extra = [3]
    return made


@PROGRAMS.add(tensor, row, lambda: Reduced([1]), lambda: SimpleNamespace(a=[1]), lambda: deque([[1]], 3))
def copies_as_pickling_makes_them(x, rows, reduced, names, queue):
    pair, slots = Pair((rows, 2)), Slotted()
    pair.tag, slots.rows = [5], rows
    found = []
    for make in (copy.copy, copy.deepcopy):
        copied = [make(value) for value in (rows, reduced, names, queue, pair, slots, {1, (2,)}, (1, rows))]
        found.append([type(value).__name__ for value in copied])
        found.append((copied[0], copied[0].extra, copied[1].value, copied[2], copied[3], copied[4], copied[4].tag))
        found.append((copied[5].rows, hasattr(copied[5], "count"), copied[6], copied[7]))
        found.append((copied[0][0] is rows[0], copied[5].rows is rows, copied[2].a is names.a, copied[7][1] is rows))
    return x + 1, found


@PROGRAMS.add(tensor, lambda: [[1], [1]])
def two_lists_that_may_be_one(x, rows):
    made = copy.deepcopy(rows)
    made[0].append(2)
    return x + 1, made


@PROGRAMS.add(tensor, refusal="BC002")
def a_shallow_copy_of_a_tensor(x):
    return copy.copy(x) is x, x + 1


def test_each_call_makes_a_copy_of_its_own():
    compiled = optimize(lambda x, value: (x + 1, copy.copy(value)), lambda capture, _: executor(capture))
    config = Config()
    assert compiled(tensor(), config)[1] is not compiled(tensor(), config)[1]


def test_a_copy_keeps_which_lists_are_one():
    def program(x, first, second):
        made = copy.deepcopy([first, second])
        made[0].append(2)
        return made, x + 1

    compiled = optimize(program, lambda capture, _: executor(capture))
    assert compiled(tensor(), [1], [1])[0] == [[1, 2], [1]]
    one = [1]
    assert compiled(tensor(), one, one)[0] == [[1, 2], [1, 2]]


def captures_of(program, *arguments):
    captures = []
    compiled = optimize(program, lambda capture, _: captures.append(capture) or executor(capture))
    results = [compiled(tensor(), argument)[1] for argument in arguments]
    return captures, results


def test_numbers_that_are_copied_only_are_not_compared():
    captures, results = captures_of(
        lambda x, value: (x + 1, copy.deepcopy(value)), {"a": [1.5, "b"], "c": 2}, {"a": [2.5, "d"], "c": 3}
    )
    assert results == [{"a": [1.5, "b"], "c": 2}, {"a": [2.5, "d"], "c": 3}]
    assert len(captures) == 1


def test_private_functions_of_a_library_are_no_guards():
    captures, _ = captures_of(lambda x, value: (x + 1, copy.deepcopy(value)), Config())
    assert "_reconstruct" not in str(captures[0].guards)


@pytest.mark.parametrize(("other", "guarded"), [(str, False), (type, False), (SimpleNamespace, False), (Tagged, True)])
def test_bases_are_guarded_where_they_may_change(other, guarded):
    captures, results = captures_of(lambda x, value: (x + 1, isinstance(value, (dict, other))), Config())
    assert results == [False]
    assert any("__mro__" in str(guard) for guard in captures[0].guards) is guarded


@PROGRAMS.add(tensor, lambda: (7, "a"))
def an_item_that_is_itself(x, pair):
    return [k is j for k, j in zip(pair, list(pair), strict=True)], pair[0] is pair[0], x + 1


@pytest.mark.parametrize("program", PROGRAMS, ids=str)
def test_same_as_plain(program):
    program.check()


@pytest.mark.parametrize(
    "make",
    [lambda: iter([1, 2]), lambda: itertools.tee([1, 2], 1)[0], lambda: bytearray(b"ab"), lambda: deque([1, 2]),
     lambda: functools.partial(int, 3), lambda: datetime.date(2020, 1, 1)],
    ids=["iterator", "tee", "bytearray", "deque", "partial", "date"],
)  # fmt: skip
def test_a_copy_of_what_is_outside_is_another_object(make):
    def program(x, value):
        return copy.copy(value), x + 1

    value = make()
    made, _ = optimize(program, lambda capture, inputs: executor(capture))(torch.ones(2), value)
    assert made is not value
    assert type(made) is type(value)
