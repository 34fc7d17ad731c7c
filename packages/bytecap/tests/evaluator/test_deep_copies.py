"""copy.deepcopy in captured code: nothing shared that can change, identities inside kept, classes' own rules."""

from __future__ import annotations

import copy
import enum
from collections import OrderedDict, defaultdict

import pytest
import torch

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


@PROGRAMS.add(tensor, Pickled, refusal="BC002")
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


@PROGRAMS.add(tensor, Pickled, refusal="BC002")
def a_shallow_copy_by_methods_of_pickling(x, value):
    return x + copy.copy(value).x


@PROGRAMS.add(tensor)
def a_tensor(x):
    return copy.deepcopy([x + 1])


@pytest.mark.parametrize("program", PROGRAMS, ids=str)
def test_same_as_plain(program):
    program.check()
