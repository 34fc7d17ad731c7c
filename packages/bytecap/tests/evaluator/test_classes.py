"""Attributes and slots that are written, properties and descriptors, special methods, functions as objects."""

from __future__ import annotations

import functools
import math
import operator
import types
from collections import OrderedDict, defaultdict, deque

import pytest
import torch

from bytecap import executor, optimize
from bytecap.testing import Programs

PROGRAMS = Programs()


def vector():
    return torch.arange(3.0)


class Counted:
    made = 0
    names = {}  # noqa: RUF012

    def __init__(self):
        type(self).made += 1
        Counted.names[Counted.made] = self.__class__.__name__


class Boxed:
    __class_getitem__ = classmethod(type(list[int]))

    def __init__(self, content):
        self.content = content


@PROGRAMS.add(vector)
def parametrised_classes(x):
    names, box = dict[str, int](a=2), Boxed[int](3)
    return x * names["a"] + len(list[int]([1, 2])) + box.content, box.__orig_class__ == Boxed[int]


class Described:
    kept = property(lambda self: 1, lambda self, value: self.__dict__.update(other=value), lambda self: None)


class Slotted:
    __slots__ = ("a", "b")

    def __init__(self):
        self.a = 1


class Managed:
    def __init__(self):
        self._value = 1

    @property
    def value(self):
        return self._value

    @value.setter
    def value(self, new):
        self._value = new * 2

    @value.deleter
    def value(self):
        self._value = "deleted"

    @property
    def broken(self):
        raise AttributeError("inner")

    def __getattr__(self, name):
        return f"lazy {name}"


class Noted:
    def __get__(self, instance, owner):
        return self.texts, instance is None, owner.__name__

    def __init__(self):
        self.texts = ["note"]


class WithNote:
    note = Noted()


class Missing(dict):
    def __missing__(self, key):
        return ("missing", key)


class Number:
    def __init__(self, value):
        self.value = value

    def __lt__(self, other):
        return self.value < other.value

    def __divmod__(self, other):
        return "divmod", other

    def __round__(self, digits=None):
        return "round", digits

    def __format__(self, spec):
        return f"<{spec}>"

    def __bool__(self):
        return self.value


@PROGRAMS.add(vector)
def class_attributes_are_written(x):
    Counted()
    Counted()
    Counted.extra = x
    found = Counted.made, dict(Counted.names), Counted.extra, Counted().made
    Counted.made = 0
    Counted.names.clear()
    del Counted.extra
    return found, hasattr(Counted, "extra")


@PROGRAMS.add(vector, Slotted)
def slots_are_written(x, outside):
    outside.b = x + 1
    outside.a += 5
    inside = Slotted()
    del inside.a
    try:
        inside.c = 1
    except AttributeError as error:
        return outside.a, hasattr(inside, "a"), str(error), inside


@PROGRAMS.add(vector, Slotted)
def a_slot_is_filled_and_emptied(x, outside):
    had = hasattr(outside, "b")
    outside.b = x
    del outside.b
    try:
        del outside.b
    except AttributeError as error:
        return x + 1, had, hasattr(outside, "b"), str(error)


@PROGRAMS.add(vector)
def properties_with_all_their_parts(x):
    managed = Managed()
    found = [managed.value]
    managed.value = 5
    found.append(managed.value)
    del managed.value
    found += [managed.value, managed.broken, managed.nothing, getattr(managed, "other", 1)]
    try:
        managed.broken = 1
    except AttributeError as error:
        found.append(str(error))
    return found, x + 1


@PROGRAMS.add(vector)
def descriptors_are_themselves(x):
    texts, from_class, name = WithNote.note
    texts.append(1)
    found = WithNote().note[0], from_class, name
    texts.pop()
    return found, x + 1


@PROGRAMS.add(vector, lambda: Missing(a=1))
def missing_keys(x, outside):
    outside["b"] = x
    return outside["zz"], outside.get("zz"), outside["a"], Missing()["q"], len(outside)


@PROGRAMS.add(vector)
def special_methods(x):
    number = Number(True)
    messages = []
    for attempt in (lambda: number < 3, lambda: number <= number, lambda: bool(Number(5)), lambda: number + 1):
        try:
            attempt()
        except (TypeError, AttributeError) as error:
            messages.append(str(error))
    return (
        divmod(number, 2),
        round(number),
        round(number, 1),
        f"{number:x}",
        format(number),
        number < Number(2),
        messages,
        x,
    )


@PROGRAMS.add(vector)
def functions_as_objects(x):
    def local(a: int, b=2, *, c=3):
        "words"
        return a + b + c

    @functools.wraps(local)
    def wrapper(*args):
        return local(*args)

    wrapper.calls = 1
    partial = functools.partial(functools.partial(operator.sub, 5), 3)
    return (
        wrapper.__name__, wrapper.__doc__, wrapper.__qualname__, wrapper.__module__, wrapper.__annotations__,
        wrapper.__wrapped__(1), local.__defaults__, local.__kwdefaults__, partial(), partial.args, wrapper, x + 1,
    )  # fmt: skip


def _with_defaults(a, b=2, *, c=3, d=(1, "x")):
    return a


@PROGRAMS.add(vector)
def defaults_of_a_function_from_outside(x):
    return x + 1, _with_defaults.__defaults__, _with_defaults.__kwdefaults__


@PROGRAMS.add(vector)
def functions_that_call_themselves_leave_the_frame(x):
    def factorial(n):
        return 1 if n <= 1 else n * factorial(n - 1)

    return factorial, factorial(4), x + 1


@PROGRAMS.add(vector)
def containers_are_changed_by_operator(x):
    items, pairs = [1, 2, 3], {}
    operator.setitem(items, 0, x)
    operator.delitem(items, 1)
    operator.setitem(pairs, "a", 1)
    return items, pairs, items.append == items.append, types.MappingProxyType(pairs)["a"]


class Activated:
    activation = torch.sin
    root = math.sqrt
    count = len

    def __init__(self, x):
        self.x = x

    def copied(self):
        made = self.__new__(type(self))
        made.x = self.activation(self.x) + self.root(4.0) + self.count("ab")
        return made


@PROGRAMS.add(vector)
def c_functions_as_class_attributes_take_no_receiver(x):
    return Activated(x).copied().x, torch.distributions.Normal(x, 1.0).expand((2, 3)).mean


def test_a_c_function_as_class_attribute_is_guarded(monkeypatch):
    captured = optimize(lambda x: Activated(x).activation(x), lambda capture, inputs: executor(capture))
    assert torch.equal(captured(torch.ones(1)), torch.ones(1).sin())
    monkeypatch.setattr(Activated, "activation", torch.cos)
    assert torch.equal(captured(torch.ones(1)), torch.ones(1).cos())


class Dotted(dict):
    __getattr__ = dict.get
    __setattr__ = dict.__setitem__
    __delattr__ = dict.__delitem__


class Stack(list):
    push = list.append
    __call__ = list.__getitem__
    __matmul__ = list.__add__
    __neg__ = list.copy


DOTTED = Dotted(a=1)


@PROGRAMS.add(vector)
def c_methods_by_other_names(x):
    made, stack = Dotted(a=1), Stack([x])
    made.b = x * 2
    made.a += 1
    DOTTED.a, DOTTED.c = 2, made.b
    del DOTTED.c
    stack.push(4)
    return made, made.missing, vars(made), stack(0) + stack(1), stack @ [1], -stack, dict(DOTTED), vars(DOTTED)


KNOWN = Slotted()
KNOWN_IDS = {id(KNOWN), id(DOTTED)}
BY_ID = {id(KNOWN): 5, (id(KNOWN), "a"): 6}


@PROGRAMS.add(vector, lambda: id(KNOWN), refusal="BC002")
def ids_among_numbers_from_outside(x, number):
    made, own = Slotted(), {}
    own[id(made)] = own[id(KNOWN), 1] = 1
    x = x + own[id(made)] + len(own)
    found = [id(KNOWN) in KNOWN_IDS, id(made) in KNOWN_IDS, id(KNOWN) == number, number != id(made)]
    return (
        x,
        found,
        BY_ID.get(id(KNOWN)),
        BY_ID.get((id(KNOWN), "a")),
        {number: 1}[id(KNOWN)],
        [number].index(id(KNOWN)),
    )


class Named(type):
    def __getattr__(cls, name):
        return name


class OfNamed(metaclass=Named):
    pass


@PROGRAMS.add(vector, Described, Described)
def dictionaries_past_data_descriptors(x, given, emptied):
    made = Described()
    made.__dict__["kept"] = given.__dict__["kept"] = x
    given.after = emptied.__dict__["kept"] = 2
    del emptied.__dict__["kept"]
    return made, vars(made), vars(given), vars(emptied), made.kept, x + 1


@PROGRAMS.add(vector)
def what_the_class_has_but_not_its_instances(x):
    found = [hasattr(made, name) for made in (Slotted(), OfNamed()) for name in ("__name__", "mro", "missing")]
    kinds = [one.__class__ is type(one) for one in (OfNamed, Counted, Activated(x).copied, vector, len)]
    return x + 1, found, kinds, OfNamed.missing, getattr(OfNamed(), "__qualname__", "none")


class Items(list):
    pass


class Members(set):
    pass


class Pairs(dict):
    pass


ITEMS = Items([1])


@PROGRAMS.add(vector)
def operators_in_place_keep_a_subclass(x):
    global ITEMS
    items, members, pairs = Items([1]), Members([1, 2]), Pairs(a=1)
    given = items, members, pairs
    items += (x,)
    items *= 2
    members |= {5}
    members &= Members([1, 5, 6])
    pairs |= {"b": x}
    ITEMS += [2]
    same = items is given[0] and members is given[1] and pairs is given[2]
    return items, members, pairs, same, type(items + items), type(items * 2), type(members | members), ITEMS


class Grouped(defaultdict):
    def __init__(self):
        super().__init__(list)


@PROGRAMS.add(vector)
def subclass_of_defaultdict(x):
    made = Grouped()
    made["a"].append(x)
    return made, made.default_factory, len(made["b"])


class Window(deque):
    pass


class Ordered(OrderedDict):
    pass


@PROGRAMS.add(vector, refusal="BC002")
def subclasses_that_are_not_modelled(x):
    window, ordered = Window([1], 2), Ordered(a=1)
    window += [x, 3]
    return window, type(window + window), type(ordered | {"b": 2}), type(ordered.copy())


BEHIND = {"a": 1}
PROXY = types.MappingProxyType(BEHIND)


def test_a_dict_changes_behind_its_proxy():
    captured = optimize(lambda x: x * PROXY["a"] + len(PROXY), lambda capture, inputs: executor(capture))
    assert captured(torch.ones(1)).item() == 2
    BEHIND["a"] = 3
    assert captured(torch.ones(1)).item() == 4


@pytest.mark.parametrize("program", PROGRAMS, ids=str)
def test_same_as_plain(program):
    program.check()
