"""Programs run plain and captured: objects."""

# ruff: noqa: B018, B019

from __future__ import annotations

import abc
import dataclasses
import enum
import functools
import threading
import types
import typing

import pytest
import torch

from bytecap.testing import Programs, check

PROGRAMS = Programs()


def tensor(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3))


def matrix() -> torch.Tensor:
    return tensor(3, 4)


@dataclasses.dataclass
class D:
    a: typing.Any
    b: typing.Any = None
    c: list = dataclasses.field(default_factory=list)


@PROGRAMS.add(matrix)
def dataclass(x):
    d = D(x * 2)
    d.b = x
    d.c.append(1)
    return d, dataclasses.replace(d, b=3), d == d


@PROGRAMS.add(matrix, lambda: D(1, 2))
def mutates_object(x, d):
    d.a = x * 2
    d.new = [x]
    d.c.append(x)
    return d


class Base:
    k = 3

    def __init__(self, x):
        self.x = x

    @property
    def dbl(self):
        return self.x * 2

    @dbl.setter
    def dbl(self, v):
        self.x = v / 2

    @classmethod
    def make(cls, x):
        return cls(x)

    @staticmethod
    def st(x):
        return x + 1

    def __add__(self, o):
        return type(self)(self.x + o)

    def __radd__(self, o):
        return self + o

    def __getitem__(self, i):
        return self.x[i]

    def __len__(self):
        return 3

    def __call__(self, y):
        return self.x * y

    def __eq__(self, o):
        return isinstance(o, Base)

    def __hash__(self):
        return 3

    def __iter__(self):
        return iter([self.x, 1])

    def __contains__(self, o):
        return o == 3

    def __bool__(self):
        return True

    def __repr__(self):
        return "Base!"

    def __enter__(self):
        self.ent = 1
        return self

    def __exit__(self, *a):
        self.ex = [v is None for v in a]
        return True


class Sub(Base):
    def __init__(self, x, y=0):
        super().__init__(x)
        self.y = y

    def __getattr__(self, n):
        if n == "magic":
            return 42
        raise AttributeError(n)


@PROGRAMS.add(matrix)
def classes(x):
    b = Base.make(x)
    s = Sub(x, 2)
    s.dbl = x * 4
    with s:
        1 / 0
    return (
        (b + 1).x,
        (2 + s).x,
        b[0],
        len(b),
        b(x),
        b == s,
        [*b],
        3 in b,
        bool(b),
        repr(b),
        f"{b}",
        s.magic,
        getattr(s, "nope", 7),
        hasattr(s, "y"),
        Base.st(x),
        b.dbl,
        s.ex,
        s.ent,
        isinstance(s, Base),
        type(s).__name__,
        s.k,
        s,
    )


@PROGRAMS.add(matrix)
def attrs(x):
    def f(v):
        return v

    f.a = x
    return f.a


class E(enum.Enum):
    A = 1
    B = "b"


@PROGRAMS.add(matrix, lambda: E.A)
def enums(x, e):
    return x if e is E.A else -x, E.B.value, e, E["A"], E("b")


@dataclasses.dataclass(frozen=True)
class FD:
    a: int
    b: typing.Any = None


@dataclasses.dataclass(slots=True)
class SD:
    a: int
    b: typing.Any = None


@PROGRAMS.add(matrix)
def dataclass_kinds(x):
    f = FD(1, x)
    s = SD(2, x)
    s.a = 5
    try:
        f.a = 3
    except dataclasses.FrozenInstanceError as e:
        q = str(e)
    return (
        f,
        s.a,
        s.b * 2,
        q,
        dataclasses.astuple(FD(1, 2)),
        dataclasses.asdict(FD(1, 2)),
        hash(FD(1, 2)),
        hash(FD(1, 2)) == hash(FD(1, 2)),
        FD(1, 2) == FD(1, 2),
        repr(FD(1, 2)),
    )


class Slots:
    __slots__ = ("a", "b")

    def __init__(self, a):
        self.a = a


@PROGRAMS.add(matrix)
def slots(x):
    s = Slots(x)
    s.b = 1
    return s.a + s.b, hasattr(s, "c")


class Abs(abc.ABC):
    @abc.abstractmethod
    def f(self): ...
    def g(self):
        return self.f() + 1


class Conc(Abs, typing.Generic[typing.TypeVar("T")]):
    def f(self):
        return 3


class Desc:
    def __get__(self, o, c):
        return 7 if o is None else o._v * 2

    def __set__(self, o, v):
        o._v = v


class HasDesc:
    d = Desc()

    @functools.cached_property
    def cp(self):
        return [1]

    @functools.lru_cache
    def lc(self):
        return 3


class Meta(type):
    def __call__(cls, *a, **k):
        o = super().__call__(*a, **k)
        o.meta = 1
        return o


class WithMeta(metaclass=Meta):
    def __init__(self, v):
        self.v = v


@PROGRAMS.add(matrix)
def exotic(x):
    h = HasDesc()
    h.d = x
    a = h.d
    b = HasDesc.d
    c = h.cp
    c.append(2)
    d = h.cp
    m = WithMeta(2)
    return a, b, d, m.meta, m.v, Conc().g()


class Flag(enum.Flag):
    A = 1
    B = 2


@PROGRAMS.add(matrix)
def flags(x):
    return x * 1, Flag.A | Flag.B, Flag.A in (Flag.A | Flag.B), Flag.A.value, [m.name for m in Flag]


@PROGRAMS.add(matrix)
def setattr_and_vars(x):
    d = D(1)
    d.a = x
    delattr(d, "b")
    return d.__dict__, vars(d), d.a


HYPER = types.SimpleNamespace(rate=0.5, layers=[1, 2])


class Options(types.SimpleNamespace):
    def __init__(self, **more):
        super().__init__(depth=2, **more)


@PROGRAMS.add(matrix, lambda: types.SimpleNamespace(steps=1, seen=[]))
def namespaces(x, state):
    state.steps += 1
    state.seen.append(state.steps)
    state.last = x * state.steps
    made = types.SimpleNamespace(a=x, b=[1])
    made.c = getattr(HYPER, "rate", 9), hasattr(HYPER, "nothing"), sum(HYPER.layers)
    same = types.SimpleNamespace(a=x, b=[1]) == types.SimpleNamespace(b=[1], a=x), made == types.SimpleNamespace()
    return made, same, Options(width=x), vars(made)["b"], state


class Sealed:
    def __init__(self, value):
        super().__init__(value)


class Computed(property):
    def __init__(self, getter):
        super().__init__(getter)
        property.__init__(self, getter)


@PROGRAMS.add(matrix)
def construction_in_c(x):
    return x * 2, isinstance(Computed(len), property)


@PROGRAMS.add(matrix, refusal="BC006")
def construction_in_c_that_leaves(x):
    return x * 2, Computed(len)


@PROGRAMS.add(matrix)
def wrong_construction(x):
    complaints = []
    for make in (Abs, lambda: HasDesc(4), lambda: Sealed(5)):
        try:
            make()
        except TypeError as error:
            complaints.append(str(error))
    return x * len(complaints), complaints


class OfThread(threading.local):
    rate = 2

    def __init__(self):
        self.count = 5

    def both(self):
        return self.count + self.rate


OF_THREAD, PLAIN_OF_THREAD = OfThread(), threading.local()


@PROGRAMS.add(matrix)
def reads_what_a_thread_has(x):
    return x * OF_THREAD.count, OF_THREAD.both(), getattr(PLAIN_OF_THREAD, "missing", 3)


@PROGRAMS.add(matrix, refusal="BC008")
def writes_what_a_thread_has(x):
    OF_THREAD.count = 7
    PLAIN_OF_THREAD.count = 8
    return x * OF_THREAD.count, OF_THREAD.both(), PLAIN_OF_THREAD.count


@pytest.mark.parametrize("program", PROGRAMS, ids=str)
def test_same_as_plain(program):
    program.check()


STORE = torch._C._distributed_c10d.HashStore()


def methods_of_a_pybind11_class(x):
    y = x * 2
    STORE.set("key", "given")
    found = STORE.get("key")
    made = torch._C._distributed_c10d.HashStore()
    made.set("key", "own")
    return torch.relu(y), found, made.get("key"), torch._C._distributed_c10d.HashStore.get(STORE, "key")


def test_methods_of_a_pybind11_class():
    """Each call breaks the graph; the method is bound as CPython binds it (an `instancemethod`)."""
    check(lambda: (methods_of_a_pybind11_class, ((matrix(),), {})), whole=False)
