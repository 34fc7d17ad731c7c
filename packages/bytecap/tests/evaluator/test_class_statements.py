"""Class statements in captured code."""

from __future__ import annotations

import abc

import pytest
import torch

from bytecap import executor, optimize
from bytecap.testing import Programs

PROGRAMS = Programs()


def vector():
    return torch.arange(3.0)


@PROGRAMS.add(vector)
def with_methods(x):
    class Local:
        """Scales."""

        factor = 3

        def __init__(self, shift=1):
            super().__init__()
            self.shift = shift

        @property
        def both(self):
            return self.factor + self.shift

        @staticmethod
        def double(value):
            return value * 2

    return Local().double(x) * Local(2).both, Local.__name__, Local.__qualname__, Local.__doc__


@PROGRAMS.add(vector)
def with_bases(x):
    class Layer(torch.nn.Module):
        def forward(self, value):
            return value + 1

    class Wide(Layer):
        def forward(self, value):
            return super().forward(value) * 2

    return Wide()(x), issubclass(Wide, torch.nn.Module)


class Base:
    pass


@PROGRAMS.add(vector)
def by_type(x):
    made = type("Made", (Base,), {"factor": 2, "__doc__": "Doubles."})
    holder = type("", (), {})()
    holder.value = x * made.factor
    names = made.__name__, made.__module__, made.__qualname__, made.__doc__, list(vars(made))
    return holder.value + made().factor, names, issubclass(made, Base)


@PROGRAMS.add(vector)
def by_type_of_wrong_arguments(x):
    try:
        type("Made", (Base,))
    except TypeError as error:
        return x * 2, str(error)


@PROGRAMS.add(vector, refusal="BC002")
def by_type_with_methods(x):
    return type("Made", (), {"double": lambda self, value: value * 2})().double(x)


@PROGRAMS.add(vector)
def exceptions(x):
    class Stopped(ValueError):
        pass

    try:
        raise Stopped("here")
    except Stopped as error:
        return x + len(str(error))


@PROGRAMS.add(vector)
def several(x):
    total = x
    for step in (1, 2):

        class Adds:
            def __call__(self, value, by):
                return value + by

        total = Adds()(total, step)
    return total


@PROGRAMS.add(vector, refusal="BC002")
def closed_over(x):
    class Local:
        def get(self):
            return x * 2

    return Local().get()


@PROGRAMS.add(vector, refusal="BC002")
def with_other_names(x):
    class Local:
        length = len("ab")

    return x * Local.length


@PROGRAMS.add(vector, refusal="BC002")
def with_a_metaclass(x):
    class Local(metaclass=abc.ABCMeta):  # noqa: B024
        pass

    return x * (Local is not None)


@PROGRAMS.add(vector, refusal="BC008")
def written(x):
    class Local:
        count = 0

    Local.count += 1
    return x * Local.count


@pytest.mark.parametrize("program", PROGRAMS, ids=str)
def test_same_as_plain(program):
    program.check()


ESCAPES = {
    "the class": (lambda cls: cls, lambda found: found),
    "an instance": (lambda cls: cls(), type),
    "a function of it": (lambda cls: cls.get, lambda found: found),
    "a method of an instance": (lambda cls: cls().get, lambda found: type(found.__self__)),
}


@pytest.mark.parametrize("name", ESCAPES)
def test_each_call_has_a_class_of_its_own(name):
    escape, owner = ESCAPES[name]

    def program(x):
        class Local:
            def get(self):
                return self

        return x + 1, escape(Local)

    call = optimize(program, lambda capture, inputs: executor(capture), on_event=lambda event: None)
    (_, first), (_, second) = call(vector()), call(vector())
    assert owner(first) is not owner(second)
    assert owner(first).__qualname__ == owner(program(vector())[1]).__qualname__
