"""Programs run plain and captured: random.Random made by the program."""

from __future__ import annotations

import copy
import random

import pytest
import torch

from bytecap import executor, graph_break, optimize
from bytecap.testing import Programs

PROGRAMS = Programs()


def ones() -> torch.Tensor:
    return torch.ones(3)


@PROGRAMS.add(ones)
def numbers(x):
    r = random.Random(3)
    drawn = r.random(), r.randint(0, 9), r.uniform(-1, 1), r.gauss(0, 1), r.gauss(0, 1), r.randrange(0, 100, 7)
    drawn += r.getrandbits(40), r.choice("abc"), r.sample(range(50), 4), r.choices([1, 2], k=3), r.betavariate(1, 2)
    return x * drawn[0], drawn, r.expovariate(2.0), r.triangular(0, 1, 0.5), r.randbytes(5)


@PROGRAMS.add(ones)
def tensors_are_shuffled(x):
    rows = [x, x * 2, x * 3, x * 4]
    random.Random(-7).shuffle(rows)
    return rows, random.Random(True).choice(rows) + 1


@PROGRAMS.add(ones)
def it_leaves(x):
    r = random.Random(2.5)
    r.gauss(0, 1)
    r.note = x * r.random()
    return r.getstate(), r, [r]


@PROGRAMS.add(ones)
def states(x):
    r = random.Random(1)
    state = r.getstate()
    first = r.random()
    r.setstate(state)
    again = r.random()
    r.seed(8)
    return x * first, first == again, r.random(), copy.deepcopy(r).random(), copy.copy(r), r.random()


@PROGRAMS.add(ones)
def wrong_arguments(x):
    r = random.Random(1)
    told = []
    for call in (lambda: r.setstate((3,)), lambda: r.randint(3, 1), lambda: r.getrandbits(-1), lambda: r.choice([])):
        try:
            call()
        except (ValueError, TypeError, IndexError) as error:
            told.append((type(error), str(error)))
    try:
        random.Random([])
    except TypeError as error:
        told.append(str(error))
    return x * r.random(), told


class Loaded(random.Random):
    def random(self):
        return 0.25

    def getrandbits(self, k):
        return 3


class Noted(random.Random):
    def __init__(self, seed):
        super().__init__(seed)
        self.count = 0

    def random(self):
        self.count += 1
        return super().random()


@PROGRAMS.add(ones)
def subclasses(x):
    noted = Noted(3)
    return x * Loaded(1).uniform(0, 4), Loaded(1).randint(0, 9), noted.uniform(0, 1), noted.shuffle([1, 2]), noted


@PROGRAMS.add(ones, lambda: 5)
def seed_given(x, seed):
    return x * random.Random(seed).random()


@PROGRAMS.add(ones, refusal="BC030")
def a_break_between(x):
    r = random.Random(4)
    y = x * r.random()
    graph_break()
    return y * r.random(), r


@PROGRAMS.add(ones, refusal="BC002")
def seeded_by_the_machine(x):
    r = random.Random()
    return x * (r.random() < 1)


@PROGRAMS.add(ones)
def seeded_later(x):
    r = random.Random()
    r.seed(3)
    return x * r.random()


OUTSIDE = random.Random(3)


@PROGRAMS.add(ones, refusal="BC002")
def from_outside(x):
    OUTSIDE.seed(4)
    return x * OUTSIDE.random(), OUTSIDE.randint(0, 9)


@pytest.mark.parametrize("program", PROGRAMS, ids=str)
def test_same_as_plain(program):
    program.check()


def test_what_leaves_draws_on():
    compiled = optimize(it_leaves, lambda capture, inputs: executor(capture))
    streams = [compiled(ones())[1], compiled(ones())[1], it_leaves(ones())[1]]
    assert len({stream.random() for stream in streams}) == 1


def test_seeded_by_the_machine_in_each_call():
    compiled = optimize(lambda x: (x + 1, random.Random()), lambda capture, inputs: executor(capture), fullgraph=True)
    assert compiled(ones())[1].random() != compiled(ones())[1].random()
