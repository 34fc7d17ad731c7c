"""Programs run plain and captured: functions."""

from __future__ import annotations

import contextlib
import functools
import itertools
import operator
import typing

import pytest
import torch

from bytecap import executor, optimize
from bytecap.testing import Programs

PROGRAMS = Programs()


def tensor(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3))


def matrix() -> torch.Tensor:
    return tensor(3, 4)


@PROGRAMS.add(matrix, k=lambda: 3)
def kwonly(x, *, k=2, j=4):
    return x * k + j


@PROGRAMS.add(matrix, lambda: 2, lambda: 3, a=lambda: tensor(4))
def varargs(x, *args, **kw):
    return x * sum(args) + kw["a"], args, kw


def fact():
    def inc(x):
        nonlocal_c = 0

        def g(y):
            nonlocal nonlocal_c
            nonlocal_c += 1
            return y * nonlocal_c

        return g(x) + g(x), nonlocal_c

    return inc


@PROGRAMS.add(matrix)
def closures(x):
    return fact()(x)


@PROGRAMS.add(matrix)
def casts(x):
    return typing.cast(torch.Tensor, x) * typing.cast("list[int]", [2, 3])[1]


@PROGRAMS.add(matrix)
def lambdas(x):
    return (lambda a, b=2: a * b)(x), (lambda *a, **k: (a, k))(x, z=1)


@PROGRAMS.add(matrix)
def recursive_inner_function(x):
    def f(n):
        return x if n == 0 else f(n - 1) + 1

    return f(4)


@PROGRAMS.add(matrix)
def returns_a_closure(x):
    y = x * 2

    def f():
        return y

    return f


def gen(x):
    for i in range(3):
        yield x * i
    return 4


def gen2(x):
    r = yield from gen(x)
    yield r


@PROGRAMS.add(matrix)
def generators(x):
    return list(gen2(x)), sum(v.sum() for v in gen(x))


@PROGRAMS.add(matrix)
def inner_generator(x):
    def g():
        yield x * 2

    return next(g())


@PROGRAMS.add(matrix, lambda: 5)
def recursion(x, n):
    def f(k):
        return k if k < 2 else f(k - 1) + f(k - 2)

    return x * f(n)


@PROGRAMS.add(matrix)
def star(x):
    _a, (b, *c) = 1, [2, 3, 4]

    def f(a, /, b, *, c=1, **k):
        return a, b, c, k

    return x * b, f(1, b=2, d=3), f(*[1, 2], **{"c": 5}), (*c, *range(2)), [*"ab"], {**{1: 2}}


def wrap(f):
    @functools.wraps(f)
    def inner(*a, **k):
        return f(*a, **k) + 1

    return inner


@wrap
def wrapped(x, y=2):
    return x * y


@PROGRAMS.add(matrix)
def user_decorators(x):
    return wrapped(x), wrapped(x, y=3), wrapped.__name__, wrapped.__wrapped__(x)


@PROGRAMS.add(matrix)
def itertools_and_functools(x):
    return (
        [a * b for a, b in itertools.product([1, 2], [x, x + 1])],
        list(itertools.chain([1], [2])),
        functools.reduce(operator.add, [x, x, x]),
        functools.partial(torch.add, x)(x, alpha=2),
        [v * x for v in [1, 2]],
        max(1, 2, 3),
        min([4, 3]),
        sum([x, x]),
        any([0, 1]),
        all([]),
        list(reversed([1, 2])),
        sorted([3, 1, 2], key=lambda v: -v),
    )


@PROGRAMS.add(matrix)
def builtin_iterators(x):
    it = iter([1, 2, 3])
    a = next(it)
    b = list(it)
    z = list(zip([1, 2], "ab", strict=False))
    e = list(enumerate("ab", 1))
    f = list(filter(None, [0, 1]))
    m = list(map(lambda a, b: a + b, [1], [2]))
    r = list(reversed(range(3)))
    return (
        x * a,
        b,
        z,
        e,
        f,
        m,
        r,
        next(it, "d"),
        sum(range(4)),
        min("ba"),
        max([x.shape[0], 7]),
        list(range(5, 0, -2)),
        any(v > 1 for v in [1, 2]),
        tuple(v * 2 for v in (1, 2)),
    )


@PROGRAMS.add(matrix)
def reads_globals(x):
    return globals()["tensor"] is tensor, x * 1


@PROGRAMS.add(matrix)
def stores_a_global(x):
    global GV
    GV = x
    return GV + 1


@PROGRAMS.add(matrix)
def nograd(x):
    with torch.no_grad():
        y = x * 2
    with torch.enable_grad():
        z = y * 2
    return y, z


@PROGRAMS.add(lambda: tensor(3).requires_grad_())
def nograd2(x):
    with torch.no_grad():
        y = x * 2
    z = x * 3
    with torch.set_grad_enabled(False):
        w = x * 2
    return y, z, w, torch.is_grad_enabled()


@torch.no_grad()
def deco(x):
    return x * 2


@PROGRAMS.add(lambda: tensor(3).requires_grad_())
def nograd3(x):
    return deco(x), x * 2


@contextlib.contextmanager
def cm(d):
    d.append("in")
    try:
        yield d
    finally:
        d.append("out")


@PROGRAMS.add(matrix)
def context_managers(x):
    d = []
    with cm(d) as e, torch.no_grad():
        y = x * 2
        e.append(1)
    try:
        with cm(d):
            raise ValueError("q")
    except ValueError:
        d.append("caught")
    with contextlib.suppress(KeyError):
        {}["a"]
    with contextlib.nullcontext(3) as n:
        d.append(n)
    return y, d


@PROGRAMS.add(matrix)
def operator_getters(x):
    return (
        operator.itemgetter(1)([x, x * 2]),
        operator.itemgetter(0, 1)("ab"),
        operator.attrgetter("shape", "T.dtype")(x),
        operator.methodcaller("sum", 0, keepdim=True)(x),
    )


@PROGRAMS.add(lambda: torch.ones(2))
def another_code(x):
    def scaled(y, by=2):
        """Says so."""
        return y * by + x

    code = scaled.__code__
    scaled.__code__ = code.replace(co_name="renamed", co_qualname="renamed")
    first = scaled(x), scaled.__name__, scaled.__qualname__, scaled.__doc__, scaled.__code__.co_name

    def shifted(y, by=5):
        return x - y - by

    scaled.__code__ = shifted.__code__
    return first, scaled(x), scaled.__qualname__, scaled.__doc__


def test_a_function_with_another_code_leaves_the_program():
    def program(x):
        def scaled(y, by=2):
            """Says so."""
            return y * by + x

        scaled.__code__ = scaled.__code__.replace(co_name="renamed", co_qualname="renamed")
        return scaled, x * 2

    captured = optimize(program, lambda capture, inputs: executor(capture), fullgraph=True)
    texts = []
    for made, _ in (program(torch.ones(2)), captured(torch.ones(2))):
        assert torch.equal(made(torch.ones(2)), torch.full((2,), 3.0))
        texts.append((made.__name__, made.__qualname__, made.__doc__, made.__code__))
    assert texts[0] == texts[1]


def a_code_that_is_none(x):
    def scaled(y):
        return y * 2

    scaled.__code__ = None
    return scaled(x)


def a_code_without_the_cell(x):
    def scaled(y):
        return y * x

    scaled.__code__ = (lambda y: y).__code__
    return scaled(x)


@pytest.mark.parametrize("program", [a_code_that_is_none, a_code_without_the_cell])
def test_what_can_be_no_code_of_a_function_raises(program):
    captured = optimize(program, lambda capture, inputs: executor(capture))
    said = []
    for function in (program, captured):
        with pytest.raises((TypeError, ValueError)) as caught:
            function(torch.ones(2))
        said.append(str(caught.value))
    assert said[0] == said[1]


@PROGRAMS.add(matrix, lambda: 1, scale=lambda: 3)
def names_of_variables(x, *args, scale, **named):
    y = x * scale

    def inner():
        return y

    first = locals()
    later = 2
    del scale
    second = locals()
    is_same = first is second
    found = vars()
    return inner(), sorted(first), "scale" in second, found["args"], found["named"], found["later"], is_same


@PROGRAMS.add(matrix)
def variables_in_other_frames(x):
    def scaled(factor, more=1):
        return "{factor} {more}".format(**locals()), factor, sorted(locals())

    total = sum(locals().get("factor", 1) for _ in range(2))
    return x * total, scaled(2), Deriving().names(x)


class Deriving(list):
    def names(self, x):
        super().append(1)
        return sorted(locals())


@PROGRAMS.add(matrix)
def changed_variables(x):
    names = locals()
    names["x"] = names["other"] = 3
    return x * 2, locals()["x"] is x, "other" in locals()


@pytest.mark.parametrize("program", PROGRAMS, ids=str)
def test_same_as_plain(program):
    program.check()
